//! What a long past costs: nothing, or nearly. Ours in a database that retains
//! many completed deliveries, with their messages and markers, against ours in
//! a small one.

use super::Run;
use super::durable::{Job, ours};
use crate::lab::Lab as _;
use crate::lab::postgres::PostgresLab;
use crate::report::{Measure, Target};
use crate::rounds::interleave;

const NAME: &str = "postgres.durable.flat";

pub(super) async fn measure(run: &mut Run, url: &str) {
    if !run.wants(NAME) {
        return;
    }
    let (large, small) = (PostgresLab::create(url).await, PostgresLab::create(url).await);
    for (lab, rows) in [(&large, run.sizes.large), (&small, run.sizes.small)] {
        lab.load_done(rows).await;
        lab.settle_down().await;
    }
    let (messages, options) = (run.sizes.singles, run.singles(1));
    let rounds = interleave(
        run.sizes.rounds,
        async || ours(&large, Job::Record, messages, options.clone()).await.rate(),
        async || ours(&small, Job::Record, messages, options.clone()).await.rate(),
    )
    .await;
    run.report(&Measure::new(NAME, rounds, Target::AtLeast(0.8)));
    large.drop().await;
    small.drop().await;
}
