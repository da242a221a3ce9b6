//! Handlers that take long: what the gate adds to them, on each store. Requests
//! come at a fixed rate, half of what the connections could send one after the
//! other: clients that all wait for each other would come in waves.

use std::time::Duration;

use oncebox_stores::sqlite::{SqliteStore, migrate};

use super::load::{Keys, Load};
use super::server::{Before, Service};
use super::{Run, of};
use crate::machine::TempDir;
use crate::report::Target;

/// How long handlers take, in milliseconds, how many clients there are, and what part of the requests is enough.
const HANDLERS: [(u64, usize, usize); 2] = [(20, 32, 1), (200, 64, 2)];

pub(super) async fn measure(run: &mut Run) {
    one(run, "memory", Service::new(Before::Memory)).await;
    let folder = TempDir::new();
    let file = folder.0.join("gate.db").to_str().expect("a path").to_owned();
    let store = SqliteStore::create(&file).await.expect("a database");
    migrate::up(&store).await.expect("tables");
    store.pool().close().await;
    one(run, "sqlite", Service { store: file, ..Service::new(Before::Sqlite) }).await;
}

/// One store, with each kind of handler.
pub(super) async fn one(run: &mut Run, store: &str, gated: Service) {
    for (millis, connections, part) in HANDLERS {
        let name = format!("{store}.slow_handler_{millis}_ms.p99");
        if !run.wants(&name) {
            continue;
        }
        let (gated, plain) =
            (Service { millis, ..gated.clone() }, Service { millis, ..Service::new(Before::Nothing) });
        let load = run.durable(connections, Keys::Unique);
        let every = Some(Duration::from_millis(2 * millis));
        let ours = Load { requests: load.requests / part, every, ..load };
        let bare = Load { keys: Keys::None, ..ours };
        let rounds = run.compare((&gated, ours), (&plain, bare)).await;
        run.report(&name, "ms", of(&rounds, |report| report.p99_millis), Target::AtMost(1.05));
    }
}
