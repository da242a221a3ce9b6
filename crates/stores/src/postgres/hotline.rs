//! Connections beside the pool, for short questions.
//!
//! Handlers may use up the whole pool, and just then nothing matters more than
//! that leases are renewed and replies are sealed. A question here also takes
//! one round trip: the pool asks a connection whether it is alive before it
//! lends it and once more when it gets it back. Here the question tells.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncebox_core::{Error, Kind, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::sync::{Notify, Semaphore};
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
///
/// To open one takes as long as many questions, so nobody waits for that who
/// could have one that comes back sooner, and they are opened one at a time.
pub(super) struct Hotline {
    /// The most there are.
    most: usize,
    /// Each asks in its turn, as many at a time as there may be connections.
    turns: Semaphore,
    state: Mutex<State>,
    /// Whoever has a turn and no connection yet.
    waiting: AtomicUsize,
    /// A connection has come, or none will.
    come: Notify,
    /// Held by each that is open or about to be.
    places: Arc<()>,
}

#[derive(Default)]
struct State {
    /// The one that was used last is used next, so that no more stay warm than are needed.
    idle: Vec<Line>,
    is_opening: bool,
    /// How often none could be opened, and why not.
    failures: usize,
    failure: Option<(Kind, String)>,
}

struct Line {
    connection: PgConnection,
    /// It has stood idle, used before or not.
    may_be_dead: bool,
    _place: Arc<()>,
}

/// Counts as waiting while it lives.
struct Waiting<'h>(&'h AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Opens connections; if its runtime ends under it, the next question calls another.
struct Opening {
    hotline: Arc<Hotline>,
    /// It has said so itself; by now another may be at it.
    is_over: bool,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.is_over {
            self.hotline.state().is_opening = false;
            self.hotline.come.notify_waiters();
        }
    }
}

impl Hotline {
    pub(super) fn new(lines: usize) -> Self {
        Self {
            most: lines,
            turns: Semaphore::new(lines),
            state: Mutex::default(),
            waiting: AtomicUsize::new(0),
            come: Notify::new(),
            places: Arc::new(()),
        }
    }

    /// Asks, and if a connection has died while it was idle, on another one.
    pub(super) async fn ask<Q: Question>(
        self: &Arc<Self>,
        store: &PostgresStore,
        question: &Q,
    ) -> Result<Q::Answer> {
        let late = |_elapsed| {
            // The others may lead nowhere, too: let nobody else find that out one after the other.
            self.state().idle.clear();
            Err(Error::new(Kind::Unavailable, "the database did not answer in time"))
        };
        timeout(PATIENCE, self.ask_on_a_line(store, question)).await.unwrap_or_else(late)
    }

    async fn ask_on_a_line<Q: Question>(
        self: &Arc<Self>,
        store: &PostgresStore,
        question: &Q,
    ) -> Result<Q::Answer> {
        let _turn = self.turns.acquire().await;
        // Whatever ended the idle ones may also have ended one that was just being opened.
        let mut forgives_a_new_one = true;
        loop {
            if store.pool().is_closed() {
                self.state().idle.clear();
                return Err(failed("the store is closed")(sqlx::Error::PoolClosed));
            }
            // Out of its place while it is used: a call that is dropped half way takes
            // it along, and no answer is left over for the next one.
            let mut line = self.line(store).await?;
            match question.ask(&mut line.connection).await {
                // It died while it was idle, or with the runtime it was opened on.
                Err(error) if line.may_be_dead && error.kind() == Kind::Unavailable => {}
                Err(error) if forgives_a_new_one && error.kind() == Kind::Unavailable => {
                    forgives_a_new_one = false;
                }
                // One that has failed is not kept.
                Err(error) => return Err(error),
                Ok(answer) => {
                    line.may_be_dead = true;
                    self.put(line);
                    return Ok(answer);
                }
            }
        }
    }

    /// A connection, as soon as one comes back or is opened.
    async fn line(self: &Arc<Self>, store: &PostgresStore) -> Result<Line> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        let (failures, mut has_waited) = (self.state().failures, false);
        loop {
            let come = self.come.notified();
            tokio::pin!(come);
            // Before the look: what comes between it and the wait is not missed.
            come.as_mut().enable();
            {
                let mut state = self.state();
                if let Some(mut line) = state.idle.pop() {
                    // What was there before anybody waited for it may have been opened for somebody who had another sooner.
                    line.may_be_dead |= !has_waited;
                    return Ok(line);
                }
                if let Some((kind, text)) = state.failure.as_ref().filter(|_| state.failures != failures) {
                    return Err(Error::new(*kind, text.clone()));
                }
                if !state.is_opening && self.has_room() {
                    state.is_opening = true;
                    let opening = Opening { hotline: Arc::clone(self), is_over: false };
                    tokio::spawn(opening.open(store.pool().connect_options()));
                }
            }
            come.await;
            has_waited = true;
        }
    }

    fn has_room(&self) -> bool {
        // One is the hotline's own.
        Arc::strong_count(&self.places) <= self.most
    }

    fn put(&self, line: Line) {
        self.state().idle.push(line);
        self.come.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opening {
    /// Opens connections until nobody waits for one any more.
    async fn open(mut self, options: Arc<PgConnectOptions>) {
        let hotline = Arc::clone(&self.hotline);
        while !self.is_over {
            let place = Arc::clone(&hotline.places);
            let late = |_elapsed| Err(sqlx::Error::PoolTimedOut);
            let opened = timeout(PATIENCE, PgConnection::connect_with(&options)).await.unwrap_or_else(late);
            match opened.map_err(failed("cannot connect beside the pool")) {
                Ok(connection) => hotline.put(Line { connection, may_be_dead: false, _place: place }),
                Err(error) => {
                    let mut state = hotline.state();
                    state.failures += 1;
                    state.failure = Some((error.kind(), error.chain()));
                    return;
                }
            }
            let mut state = hotline.state();
            self.is_over = hotline.waiting.load(Ordering::SeqCst) <= state.idle.len() || !hotline.has_room();
            state.is_opening = !self.is_over;
        }
    }
}
