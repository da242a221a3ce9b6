//! C1 to C7: from the delivery to its answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oncebox::{Acknowledge, CrashPoint, Delivery, Feed, Inbox, Outcome, Probe, Verdict};
use oncebox_conformance::path::scene::Scene;

use super::ground::Ground;
use super::stage::{Act, Actor, Stage};

/// Takes one delivery and dies with it: the inbox stops where it stands, and
/// nobody answers the transport.
async fn dies_with_a_delivery<F: Ground>(stage: &Stage<F>, actor: Actor<F>, point: CrashPoint) {
    let mut feed = stage.queued(1).await;
    let Delivery { envelope, attempt, ack } = feed.next().await.unwrap().unwrap();
    let inbox = stage.inbox_of(stage.store.clone(), actor, stage.dies_at(point, 1));

    let verdict = inbox.deliver(envelope, attempt).await;
    drop(ack);

    assert!(matches!(verdict, Verdict::Retry { spent: false, .. }), "not done and not dead: {verdict:?}");
    assert_eq!(stage.status().await.dead_letters, 0);
}

/// Dies before the commit: nothing is left, and the redelivery takes effect.
async fn dies_before_the_commit<F: Ground>(stage: &Stage<F>, point: CrashPoint) {
    let actor = stage.actor(|_| Act::Go);

    dies_with_a_delivery(stage, actor, point).await;

    assert!(stage.fixture.effects().await.is_empty());
    assert_eq!(stage.status().await.markers, 0, "a marker without its effect would lose the message");
    stage.recover().await;
}

pub(super) async fn c1_a_delivery_lost_before_the_transaction_comes_again<F: Ground>(stage: Arc<Stage<F>>) {
    dies_before_the_commit(&stage, CrashPoint::C1).await;
}

pub(super) async fn c2_a_marker_without_its_effect_is_rolled_back<F: Ground>(stage: Arc<Stage<F>>) {
    dies_before_the_commit(&stage, CrashPoint::C2).await;
}

pub(super) async fn c3_an_effect_without_its_commit_is_rolled_back<F: Ground>(stage: Arc<Stage<F>>) {
    dies_before_the_commit(&stage, CrashPoint::C3).await;
}

/// What the guides say: exactly once for what is written through the
/// transaction, at least once for everything else, always under the same id.
pub(super) async fn c4_what_a_handler_does_elsewhere_may_happen_twice_under_one_id<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    let actor = stage.actor(|_| Act::Go);
    dies_with_a_delivery(&stage, actor.clone(), CrashPoint::C3).await;

    let fresh = stage.inbox_of(stage.store.clone(), actor.clone(), Probe::default());
    let consumer = stage.consume(fresh, 1).await;
    stage.settle(&mut [stage.relay()]).await;
    consumer.stop().await;

    let calls = actor.outside.lock().unwrap().clone();
    assert_eq!(calls.len(), 2, "nobody can take the first call back");
    assert_eq!(calls[0], calls[1], "but whoever was called can tell, by the id");
    stage.check().await;
}

/// Delivers the same message once more to a fresh inbox.
async fn again<F: Ground>(stage: &Scene<F>, inbox: &Inbox<F::Store>) -> Option<Outcome> {
    let log = oncebox_conformance::steps::log(&stage.store).await;
    let envelope = log.into_iter().next().unwrap().envelope.unwrap();
    inbox.receive(envelope, 2).await.single()
}

/// Dies after the commit: the effect is there once, and the redelivery is
/// skipped without entering the handler.
async fn dies_after_the_commit<F: Ground>(stage: &Stage<F>, point: CrashPoint) {
    let actor = stage.actor(|_| Act::Go);

    dies_with_a_delivery(stage, actor.clone(), point).await;
    assert_eq!(stage.fixture.effects().await.len(), 1);
    let fresh = stage.inbox_of(stage.store.clone(), actor.clone(), Probe::default());
    let outcome = again(stage, &fresh).await;

    assert_eq!(outcome, Some(Outcome::Duplicate { result: None }));
    assert_eq!(actor.runs.load(Ordering::SeqCst), 1);
    stage.recover().await;
    assert_eq!(stage.status().await.dead_letters, 0);
}

pub(super) async fn c5_a_commit_whose_reply_is_lost_is_neither_repeated_nor_buried<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    dies_after_the_commit(&stage, CrashPoint::C5).await;
}

pub(super) async fn c6_a_message_committed_before_its_ack_is_skipped<F: Ground>(stage: Arc<Stage<F>>) {
    dies_after_the_commit(&stage, CrashPoint::C6).await;
}

pub(super) async fn c7_a_lost_ack_costs_a_delivery_and_no_effect<F: Ground>(stage: Arc<Stage<F>>) {
    let actor = stage.actor(|_| Act::Go);
    let inbox = stage.inbox_of(stage.store.clone(), actor.clone(), Probe::default());
    let mut feed = stage.queued(1).await;
    let Delivery { envelope, attempt, ack } = feed.next().await.unwrap().unwrap();

    let first = inbox.deliver(envelope, attempt).await;
    drop(ack);
    let Delivery { envelope, attempt, ack } = feed.next().await.unwrap().unwrap();
    let second = inbox.deliver(envelope, attempt).await;
    ack.ack().await.unwrap();

    assert_eq!((first, second), (Verdict::Done, Verdict::Done));
    assert_eq!((attempt, actor.runs.load(Ordering::SeqCst)), (2, 1));
    stage.recover().await;
}
