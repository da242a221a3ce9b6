//! Other people's crates on the same server, in the same run, on a backlog of
//! the same size and payload, in batches of the same size. They live in a
//! program of their own (`crates/bench/peers`), because they bring another sqlx.

use std::process::Command;

use super::Run;
use crate::lab::Lab as _;
use crate::lab::postgres::PostgresLab;
use crate::order::Order;
use crate::report::{Measure, Target, not_available};
use crate::rounds::interleave;

/// Where `./dev bench` has put the program.
const PROGRAM: &str = "ONCEBOX_PEERS";
const PEERS: [(&str, &str); 2] =
    [("postgres.peer.outbox_core", "outbox-core"), ("postgres.peer.pgmq", "pgmq")];

pub(super) async fn measure(run: &mut Run, lab: &PostgresLab) {
    let wanted: Vec<_> = PEERS.into_iter().filter(|(name, _)| run.wants(name)).collect();
    if wanted.is_empty() {
        return;
    }
    let Ok(program) = std::env::var(PROGRAM) else {
        for (name, _) in wanted {
            not_available(name, "run it by `./dev bench`, which builds the peers", run.output);
        }
        return;
    };
    let (rounds, backlog) = (run.sizes.rounds, run.sizes.backlog / 4);
    lab.load(backlog).await;
    lab.settle_down().await;
    for (name, peer) in wanted {
        // The first run makes their tables, and tells whether they can be had at all.
        if let Err(reason) = drain(&program, peer, lab, backlog) {
            not_available(name, &reason, run.output);
            continue;
        }
        let pairs = interleave(
            rounds,
            async || super::drain::drain(lab, 0, super::BATCH, backlog).await,
            async || drain(&program, peer, lab, backlog).expect("it worked before"),
        )
        .await;
        run.report(&Measure::new(name, pairs, Target::Above(1.0)));
    }
}

fn drain(program: &str, peer: &str, lab: &PostgresLab, backlog: u64) -> Result<f64, String> {
    let payload = String::from_utf8(Order::nth(1).payload()).map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args([peer, &lab.url(), &backlog.to_string(), &super::BATCH.to_string(), &payload])
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
