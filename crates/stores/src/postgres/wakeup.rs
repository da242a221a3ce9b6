//! Hints between processes, by LISTEN and NOTIFY.
//!
//! A NOTIFY inside the business transaction would halve its throughput
//! (PostgreSQL takes a database-wide lock at commit for it), so none is sent
//! there. A process that puts messages runs [`notify`]: it gathers hints and
//! sends at most one NOTIFY per interval, outside of every transaction. A
//! process that relays runs [`listen`]. Both may fail or lag without harm: the
//! relay polls in any case.

use std::future::Future;
use std::time::Duration;

use oncebox_core::{Identifier, Result};
use oncebox_flow::wakeup::Listener;
use oncebox_flow::{CancellationToken, Wakeup};
use sqlx::postgres::{PgListener, PgPoolOptions};

use super::error::failed;
use super::store::PostgresStore;

/// At most one NOTIFY per this long.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// The wait after a lost connection.
const RECONNECT: Duration = Duration::from_secs(1);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Passes this process's hints on to relays elsewhere, until `stop`. Hints
/// count from this call on, not from when the future is first polled.
pub fn notify(
    store: PostgresStore,
    wakeup: Wakeup,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let hints = wakeup.listen();
    notify_of(store, hints, stop)
}

async fn notify_of(store: PostgresStore, mut hints: Listener, stop: CancellationToken) {
    while stop.run_until_cancelled(hints.hinted()).await.is_some() {
        // Hints come at the put, before the commit they announce.
        stop.run_until_cancelled(tokio::time::sleep(DEBOUNCE)).await;
        let sent =
            sqlx::query(include_str!("sql/notify.sql")).bind(channel(&store)).execute(store.pool()).await;
        if let Err(error) = sent {
            tracing::debug!(%error, "wakeup.notify_failed");
            stop.run_until_cancelled(tokio::time::sleep(RECONNECT)).await;
        }
    }
}

/// Turns other processes' notifications into hints, until `stop`, on one
/// connection beside the store's pool.
pub async fn listen(store: PostgresStore, wakeup: Wakeup, stop: CancellationToken) {
    let listening = async {
        loop {
            if let Err(error) = listen_once(&store, &wakeup).await {
                tracing::debug!(error = error.chain(), "wakeup.listen_failed");
            }
            tokio::time::sleep(RECONNECT).await;
        }
    };
    stop.run_until_cancelled(listening).await;
}

/// Listens until the connection is lost.
async fn listen_once(store: &PostgresStore, wakeup: &Wakeup) -> Result<()> {
    // A connection kept for good must not be one that a small pool needs.
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(CONNECT_TIMEOUT);
    let pool = pool.connect_lazy_with((*store.pool().connect_options()).clone());
    let mut listener = PgListener::connect_with(&pool).await.map_err(failed("cannot listen"))?;
    listener.listen(&channel(store)).await.map_err(failed("cannot listen"))?;
    // Left to itself it would connect again without a word, and what was
    // notified meanwhile would wait for the next poll.
    listener.eager_reconnect(false);
    loop {
        // What came before this connection listened is not told; look at once.
        wakeup.hint();
        if listener.try_recv().await.map_err(failed("cannot listen"))?.is_none() {
            return Ok(());
        }
    }
}

/// Each schema has a channel of its own.
fn channel(store: &PostgresStore) -> String {
    let name = format!("{}_outbox", store.schema_name());
    Identifier::new(name.as_str()).map_or_else(|_| "oncebox_outbox".into(), |name| name.as_str().to_owned())
}
