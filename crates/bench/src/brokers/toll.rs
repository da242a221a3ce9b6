//! What a message costs in processor time. Unlike a rate it hardly depends on
//! what else the machine does.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::lab::postgres::PostgresLab;
use crate::report::median;

/// What `/proc` counts in, on every Linux there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time that this process, and those of the server that
/// work for the lab, have used. A server elsewhere counts as nothing.
#[derive(Clone, Debug)]
pub(super) struct Toll {
    here: f64,
    server: BTreeMap<i32, f64>,
}

impl Toll {
    pub(super) async fn read(lab: &PostgresLab) -> Self {
        let pids = sqlx::query_scalar("SELECT pid FROM pg_stat_activity WHERE datname = current_database()");
        let pids: Vec<i32> = pids.fetch_all(lab.pool()).await.expect("the server's processes");
        Self {
            here: used("self"),
            server: pids.into_iter().map(|pid| (pid, used(&pid.to_string()))).collect(),
        }
    }

    /// What each of so many messages has cost since then.
    pub(super) async fn since(&self, lab: &PostgresLab, messages: u64) -> Cost {
        let now = Self::read(lab).await;
        let before = |pid: &i32| self.server.get(pid).copied().unwrap_or(0.0);
        let server: f64 = now.server.iter().map(|(pid, used)| used - before(pid)).sum();
        let each = |seconds: f64| seconds * 1e6 / messages as f64;
        Cost { here: each(now.here - self.here), server: each(server) }
    }
}

/// Seconds that a process has used, with all its threads; zero if it is not there.
fn used(pid: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}

/// Microseconds of processor time for one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    here: f64,
    server: f64,
}

/// The medians of some rounds.
pub(super) fn summary(rounds: &[Cost]) -> Value {
    let of = |column: fn(&Cost) -> f64| (median(rounds.iter().map(column).collect()) * 10.0).round() / 10.0;
    json!({"here_us": of(|cost| cost.here), "postgres_us": of(|cost| cost.server)})
}
