//! What a large history and a large backlog cost: nothing, or nearly.
//!
//! Ours in a database with many rows retained and pending, against ours in a
//! small one. Both do the same work in the same pieces: a new relay drains a
//! stretch of the backlog, again and again, each stretch elsewhere.

use super::drain::drain_some;
use super::receive::{Side, by_all};
use super::{BATCH, Run};
use crate::lab::Lab;
use crate::lab::postgres::PostgresLab;
use crate::lab::sqlite::SqliteLab;
use crate::report::{Measure, Target};
use crate::rounds::interleave;

const NAMES: [&str; 4] = [
    "flat_cost.relay_drain",
    "flat_cost.receive",
    "flat_cost.relay_drain_snapshot_held",
    "flat_cost.receive_snapshot_held",
];
const DRAIN: &str = "flat_cost.relay_drain";
const RECEIVE: &str = "flat_cost.receive";

pub(super) async fn sqlite(run: &mut Run) {
    if run.wants_any(&NAMES[..2], SqliteLab::NAME) {
        let (large, small) = (SqliteLab::create().await, SqliteLab::create().await);
        fill(run, &large, &small).await;
        compare(run, &large, &small, ("", 0.8)).await;
    }
}

pub(super) async fn postgres(run: &mut Run, url: &str) {
    if run.wants_any(&NAMES, PostgresLab::NAME) {
        // Two databases: a snapshot held in one keeps no dead rows in the other.
        let (large, small) = (PostgresLab::create(url).await, PostgresLab::create(url).await);
        fill(run, &large, &small).await;
        compare(run, &large, &small, ("", 0.8)).await;
        let snapshot = large.hold_snapshot().await;
        compare(run, &large, &small, ("_snapshot_held", 0.7)).await;
        drop(snapshot);
        large.drop().await;
        small.drop().await;
    }
}

async fn fill<L: Lab>(run: &Run, large: &L, small: &L) {
    for (lab, rows) in [(large, run.sizes.large), (small, run.sizes.small)] {
        lab.load(rows * 2).await;
        lab.load_markers(rows).await;
        lab.settle_down().await;
    }
}

async fn compare<L: Lab>(run: &mut Run, large: &L, small: &L, (suffix, target): (&str, f64)) {
    let (rounds, sizes) = (run.sizes.rounds, run.sizes);
    let name = format!("{}.{DRAIN}{suffix}", L::NAME);
    if run.wants(&name) {
        let pairs = interleave(
            rounds,
            async || stretches(large, sizes.large, sizes.small).await,
            async || stretches(small, sizes.small, sizes.small).await,
        )
        .await;
        run.report(&Measure::new(name, pairs, Target::AtLeast(target)));
    }
    let name = format!("{}.{RECEIVE}{suffix}", L::NAME);
    if run.wants(&name) {
        let pairs = interleave(
            rounds,
            async || by_all(large, 1, sizes.receives, Side::Ours).await,
            async || by_all(small, 1, sizes.receives, Side::Ours).await,
        )
        .await;
        run.report(&Measure::new(name, pairs, Target::AtLeast(target)));
    }
}

/// Drains as many messages as twenty small backlogs have, from places all
/// over the pending part of the log.
async fn stretches<L: Lab>(lab: &L, retained: u64, stretch: u64) -> f64 {
    const PIECES: u64 = 20;
    let (mut seconds, mut moved) = (0.0, 0);
    for piece in 0..PIECES {
        let from = retained + (retained - stretch) / PIECES * piece;
        lab.rewind(from.cast_signed()).await;
        let started = std::time::Instant::now();
        moved += drain_some(lab, BATCH, stretch).await;
        seconds += started.elapsed().as_secs_f64();
    }
    moved as f64 / seconds
}
