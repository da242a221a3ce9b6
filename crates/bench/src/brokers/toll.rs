//! What a message costs in processor time. Unlike a rate it does not depend on
//! what else the machine does.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::lab::postgres::PostgresLab;
use crate::report::median;

/// What `/proc` counts in, on every Linux there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time that this process and the server's processes for the lab have used, in seconds.
#[derive(Clone, Debug)]
pub(super) struct Toll {
    own: f64,
    server: BTreeMap<i32, f64>,
    broker: f64,
}

impl Toll {
    pub(super) async fn read(lab: &PostgresLab) -> Self {
        let pids = sqlx::query_scalar("SELECT pid FROM pg_stat_activity WHERE datname = current_database()");
        let pids: Vec<i32> = pids.fetch_all(lab.pool()).await.expect("the server's processes");
        let server = pids.into_iter().map(|pid| (pid, used(&pid.to_string()))).collect();
        let broker = std::env::var("BROKER_PID").map_or(0.0, |pid| used(&pid));
        Self { own: used("self"), server, broker }
    }

    /// Microseconds for each of so many messages since then: here, and in the database.
    pub(super) async fn since(&self, lab: &PostgresLab, messages: u64) -> Spent {
        let now = Self::read(lab).await;
        let before = |pid: &i32| self.server.get(pid).copied().unwrap_or(0.0);
        let server: f64 = now.server.iter().map(|(pid, used)| used - before(pid)).sum();
        let each = |seconds: f64| seconds * 1e6 / messages as f64;
        Spent { own: each(now.own - self.own), server: each(server), broker: each(now.broker - self.broker) }
    }
}

/// Seconds that a process has used; zero if it is not there, or is on another machine.
fn used(pid: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}

/// Microseconds a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    own: f64,
    server: f64,
    broker: f64,
}

/// The medians.
pub(super) fn summary(rounds: &[Spent]) -> Value {
    let of = |column: fn(&Spent) -> f64| (median(rounds.iter().map(column).collect()) * 10.0).round() / 10.0;
    json!({"bench_us": of(|spent| spent.own), "postgres_us": of(|spent| spent.server), "broker_us": of(|spent| spent.broker)})
}
