//! Connections beside the pool, for short questions.
//!
//! Handlers may use up the whole pool, and just then nothing matters more than
//! that leases are renewed and replies are sealed. A question here also takes
//! one round trip: the pool asks a connection whether it is alive before it
//! lends it and once more when it gets it back. Here the question tells.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncebox_core::{Error, Kind, Result};
use sqlx::{Connection, PgConnection};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::error::failed;
use super::store::PostgresStore;

/// How long an answer may take, with connecting and waiting for a line.
const PATIENCE: Duration = Duration::from_secs(5);

/// Something to be asked, each time in a transaction of its own. It may be asked again
/// although it was carried out, if the answer got lost.
pub(super) trait Question: Sync {
    type Answer: Send;

    fn ask(&self, on: &mut PgConnection) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// A few connections that are opened when they are needed, and kept.
pub(super) struct Hotline {
    lines: Semaphore,
    /// The one that was used last is used next, so that no more stay warm than are needed.
    idle: Mutex<Vec<PgConnection>>,
}

impl Hotline {
    pub(super) fn new(lines: usize) -> Self {
        Self { lines: Semaphore::new(lines), idle: Mutex::default() }
    }

    /// Asks, and if a connection has died since it was last used, on another one.
    pub(super) async fn ask<Q: Question>(&self, store: &PostgresStore, question: &Q) -> Result<Q::Answer> {
        let late = |_elapsed| {
            // The others may lead nowhere, too: let nobody else find that out one after the other.
            self.idle().clear();
            Err(Error::new(Kind::Unavailable, "the database did not answer in time"))
        };
        timeout(PATIENCE, self.ask_on_a_line(store, question)).await.unwrap_or_else(late)
    }

    async fn ask_on_a_line<Q: Question>(&self, store: &PostgresStore, question: &Q) -> Result<Q::Answer> {
        let _line = self.lines.acquire().await;
        if store.pool().is_closed() {
            self.idle().clear();
            return Err(failed("the store is closed")(sqlx::Error::PoolClosed));
        }
        // Out of its place while it is used: a call that is dropped half way takes
        // it along, and no answer is left over for the next one.
        while let Some(mut connection) = self.take() {
            match question.ask(&mut connection).await {
                // It died while it was idle, or with the runtime it was opened on.
                Err(error) if error.kind() == Kind::Unavailable => {}
                answer => return self.put_back(connection, answer),
            }
        }
        let options = store.pool().connect_options();
        let connecting = PgConnection::connect_with(&options).await;
        let mut connection = connecting.map_err(failed("cannot connect beside the pool"))?;
        let answer = question.ask(&mut connection).await;
        self.put_back(connection, answer)
    }

    /// One that has failed is not kept.
    fn put_back<T>(&self, connection: PgConnection, answer: Result<T>) -> Result<T> {
        if answer.is_ok() {
            self.idle().push(connection);
        }
        answer
    }

    fn take(&self) -> Option<PgConnection> {
        self.idle().pop()
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
