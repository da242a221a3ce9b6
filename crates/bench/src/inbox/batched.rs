//! Several deliveries per commit, a savepoint for each, against a commit for each.

use oncebox_flow::WorkOptions;

use super::durable::{Job, ours};
use super::{BATCH, Run, seats};
use crate::lab::postgres::PostgresLab;
use crate::report::{Measure, Target};
use crate::rounds::interleave;

const NAME: &str = "postgres.durable.batched";

pub(super) async fn measure(run: &mut Run, lab: &PostgresLab) {
    if !run.wants(NAME) {
        return;
    }
    let (many, few) = (run.sizes.batched, run.sizes.singles);
    let rounds = interleave(
        run.sizes.rounds,
        async || {
            lab.forget_inbox().await;
            ours(lab, Job::Record, many, batches(1)).await.rate()
        },
        async || {
            lab.forget_inbox().await;
            ours(lab, Job::Record, few, seats(1)).await.rate()
        },
    )
    .await;
    run.report(&Measure::new(NAME, rounds, Target::AtLeast(3.0)));
}

/// A worker with so many seats, each of which commits several deliveries together.
pub(super) fn batches(workers: usize) -> WorkOptions {
    WorkOptions { batch: BATCH, prefetch: 4 * BATCH, ..seats(workers) }
}
