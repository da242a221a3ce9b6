//! Other people's crates on the same server, in the same run, on a backlog of
//! the same size and payload, in batches of the same size.

use super::Run;
use crate::lab::postgres::PostgresLab;

const NAMES: [&str; 2] = ["postgres.peer.outbox_core", "postgres.peer.pgmq"];

#[cfg(not(feature = "peers"))]
pub(super) async fn measure(run: &mut Run, _lab: &PostgresLab) {
    for name in NAMES.into_iter().filter(|name| run.wants(name)) {
        crate::report::not_available(name, "built without the feature `peers`", run.output);
    }
}

#[cfg(feature = "peers")]
pub(super) async fn measure(run: &mut Run, lab: &PostgresLab) {
    use crate::lab::Lab as _;
    use crate::report::{Measure, Target};
    use crate::rounds::interleave;

    if !NAMES.iter().any(|name| run.wants(name)) {
        return;
    }
    let (rounds, backlog) = (run.sizes.rounds, run.sizes.backlog / 4);
    lab.load(backlog).await;
    lab.settle_down().await;
    let ours = async || super::drain::drain(lab, 0, super::BATCH, backlog).await;
    let ahead = Target::Above(1.0);
    if run.wants(NAMES[0]) {
        let peer = oxide::Peer::create(lab).await;
        let pairs = interleave(rounds, ours, async || peer.drain(lab, backlog).await).await;
        run.report(&Measure::new(NAMES[0], pairs, ahead));
    }
    if run.wants(NAMES[1]) {
        match queue::Peer::create(lab).await {
            Ok(peer) => {
                let pairs = interleave(rounds, ours, async || peer.drain(lab, backlog).await).await;
                run.report(&Measure::new(NAMES[1], pairs, ahead));
            }
            Err(reason) => crate::report::not_available(NAMES[1], &reason, run.output),
        }
    }
}

#[cfg(feature = "peers")]
mod oxide;
#[cfg(feature = "peers")]
mod queue;
