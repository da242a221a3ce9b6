//! Several deliveries per commit, a savepoint for each, against a commit for each.

use super::Run;
use super::durable::{Job, ours};
use crate::lab::postgres::PostgresLab;
use crate::report::{Measure, Target};
use crate::rounds::interleave;

const NAME: &str = "postgres.durable.batched";

pub(super) async fn measure(run: &mut Run, lab: &PostgresLab) {
    if !run.wants(NAME) {
        return;
    }
    let (many, few) = (run.sizes.batched, run.sizes.singles);
    let (together, alone) = (run.batches(1), run.singles(1));
    let rounds = interleave(
        run.sizes.rounds,
        async || {
            lab.forget_inbox().await;
            ours(lab, Job::Record, many, together.clone()).await.rate()
        },
        async || {
            lab.forget_inbox().await;
            ours(lab, Job::Record, few, alone.clone()).await.rate()
        },
    )
    .await;
    run.report(&Measure::new(NAME, rounds, Target::AtLeast(3.0)));
}
