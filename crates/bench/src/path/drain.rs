//! A backlog drained by the relay into a null transport, against a loop that
//! reads the same columns and moves a cursor.

use oncebox_flow::Relay;

use super::{BATCH, Run};
use crate::lab::{Lab, Null};
use crate::report::{Measure, Target};
use crate::rounds::{interleave, rate};

pub(super) async fn measure<L: Lab>(run: &mut Run, lab: &L) {
    let (raw, single) = (format!("{}.relay_drain", L::NAME), format!("{}.relay_batch_vs_single", L::NAME));
    if !run.wants(&raw) && !run.wants(&single) {
        return;
    }
    let (rounds, backlog, singles) = (run.sizes.rounds, run.sizes.backlog, run.sizes.singles);
    lab.load(backlog).await;
    lab.settle_down().await;
    if run.wants(&raw) {
        let pairs = interleave(
            rounds,
            async || drain(lab, 0, BATCH, backlog).await,
            async || {
                lab.rewind(0).await;
                rate(lab.drain_by_hand(BATCH, backlog)).await
            },
        )
        .await;
        run.report(&Measure::new(raw, pairs, Target::AtLeast(0.7)));
    }
    if run.wants(&single) {
        let pairs = interleave(
            rounds,
            async || drain(lab, 0, BATCH, backlog).await,
            async || drain(lab, 0, 1, singles).await,
        )
        .await;
        run.report(&Measure::new(single, pairs, Target::AtLeast(5.0)));
    }
}

/// Messages per second of a relay that starts at `from` and takes `limit` messages.
pub(super) async fn drain<L: Lab>(lab: &L, from: i64, batch: i64, limit: u64) -> f64 {
    lab.rewind(from).await;
    rate(drain_some(lab, batch, limit)).await
}

/// Drains `limit` messages from where the cursor stands.
pub(super) async fn drain_some<L: Lab>(lab: &L, batch: i64, limit: u64) -> u64 {
    let relay = Relay::builder(lab.store().clone(), Null::new(limit));
    let mut relay = relay.batch(usize::try_from(batch).unwrap_or(1)).build().expect("a relay");
    let mut published = 0;
    while published < limit {
        let progress = relay.step().await.expect("a pass");
        assert!(progress.published > 0, "a pass drained nothing, {published} of {limit} so far");
        published += progress.published as u64;
    }
    published
}
