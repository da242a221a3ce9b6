//! Deliveries handled by the inbox, against BEGIN, marker, effect, COMMIT by hand.

use oncebox_core::store::{Dedup, Mailbox};
use oncebox_core::{Envelope, Outcome};
use oncebox_flow::Inbox;

use super::Run;
use crate::lab::Lab;
use crate::order::deliveries;
use crate::report::{Measure, Target};
use crate::rounds::{interleave, rate};

pub(super) async fn measure<L: Lab>(run: &mut Run, lab: &L) {
    for workers in [1, 8] {
        let name = format!("{}.receive.{workers}_workers", L::NAME);
        if run.wants(&name) {
            let each = if workers == 1 { run.sizes.receives } else { run.sizes.receives / 2 };
            let rounds = interleave(
                run.sizes.rounds,
                async || by_all(lab, workers, each, Side::Ours).await,
                async || by_all(lab, workers, each, Side::Hand).await,
            )
            .await;
            run.report(&Measure::new(name, rounds, Target::AtLeast(0.85)));
        }
    }
}

/// Who handles the deliveries.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Ours,
    Hand,
}

/// Messages per second of so many workers.
pub(super) async fn by_all<L: Lab>(lab: &L, workers: u64, each: u64, side: Side) -> f64 {
    lab.forget_effects().await;
    let inbox = lab.inbox();
    let prepared: Vec<Vec<Envelope>> = (0..workers).map(|_| deliveries(each)).collect();
    let mut tasks = tokio::task::JoinSet::new();
    let measured = rate(async {
        for share in prepared {
            let (lab, inbox) = (lab.clone(), inbox.clone());
            tasks.spawn(async move {
                for envelope in share {
                    match side {
                        Side::Ours => receive(&inbox, envelope).await,
                        Side::Hand => lab.receive_by_hand(&envelope).await,
                    }
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("a worker ends well");
        }
        workers * each
    })
    .await;
    assert_eq!(lab.effects().await, workers * each, "every delivery has its effect");
    measured
}

async fn receive<S: Mailbox + Dedup>(inbox: &Inbox<S>, envelope: Envelope) {
    match inbox.receive(envelope, 1).await.single() {
        Some(Outcome::Done { .. }) => {}
        other => panic!("a delivery ended in {other:?}"),
    }
}
