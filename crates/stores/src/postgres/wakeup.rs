//! Hints between processes, by LISTEN and NOTIFY.
//!
//! A NOTIFY inside the business transaction would halve its throughput
//! (PostgreSQL takes a database-wide lock at commit for it), so none is sent
//! there. A process that puts messages runs [`notify`]: it gathers hints and
//! sends at most one NOTIFY per interval on a connection of its own. A process
//! that relays runs [`listen`]. Both may fail or lag without harm: the relay
//! polls in any case.

use std::time::Duration;

use oncebox_core::{Identifier, Result};
use oncebox_flow::{CancellationToken, Wakeup};
use sqlx::postgres::PgListener;

use super::error::failed;
use super::store::PostgresStore;

/// At most one NOTIFY per this long.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// The wait after a lost connection.
const RECONNECT: Duration = Duration::from_secs(1);

/// Passes this process's hints on to relays elsewhere, until `stop`.
pub async fn notify(store: PostgresStore, wakeup: Wakeup, stop: CancellationToken) {
    let mut hints = wakeup.listen();
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

/// Turns other processes' notifications into hints, until `stop`.
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

async fn listen_once(store: &PostgresStore, wakeup: &Wakeup) -> Result<()> {
    let mut listener = PgListener::connect_with(store.pool()).await.map_err(failed("cannot listen"))?;
    listener.listen(&channel(store)).await.map_err(failed("cannot listen"))?;
    loop {
        // What came while the connection was down is not told; look at once.
        wakeup.hint();
        listener.recv().await.map_err(failed("cannot listen"))?;
    }
}

/// Each schema has a channel of its own.
fn channel(store: &PostgresStore) -> String {
    let name = format!("{}_outbox", store.schema_name());
    Identifier::new(name.as_str()).map_or_else(|_| "oncebox_outbox".into(), |name| name.as_str().to_owned())
}
