//! R1 to R9 and R12: from the committed row to the settled one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::inspect::Inspect;
use oncebox::memory::MemoryTransport;
use oncebox::plan::OnDead;
use oncebox::{CrashPoint, Envelope, Failure, Kind, Probe, Publisher, Result, Store};
use oncebox_conformance::fixture::kind;
use oncebox_conformance::path::scene::{HANDLER, entry};
use oncebox_conformance::sample::Posted;

use super::ground::Ground;
use super::stage::{Gate, PAST_THE_LEASE, Stage};

/// Orders of two keys, so that there is an order to keep.
fn orders(numbers: std::ops::Range<i64>) -> Vec<Posted> {
    numbers.map(|n| Posted::on(if n % 2 == 0 { "red" } else { "blue" }, n)).collect()
}

pub(super) async fn r1_a_row_that_commits_late_is_not_skipped<F: Ground>(stage: Arc<Stage<F>>) {
    let _consumer = stage.consume_plainly().await;
    let mut late = stage.store.begin().await.unwrap();
    let id = stage.outbox.put(&mut late, &Posted::on("late", 0)).await.unwrap();
    let mut relay = stage.relay();

    if F::GUARANTEES.concurrent_writers {
        stage.commit(&orders(1..5)).await;
        let first = relay.step().await.unwrap();
        assert_eq!(first.published, 4, "those behind it do not wait for it");
    } else {
        // There is one writer at a time: positions follow commits by nature.
        assert_eq!(kind(stage.fixture.impatient().begin().await), Some(Kind::Busy));
    }
    stage.store.commit(late).await.unwrap();
    stage.committed.lock().unwrap().push(entry(HANDLER, &id, &Posted::on("late", 0)));
    stage.settle(&mut [relay]).await;

    stage.check().await;
}

/// A relay that dies at `point` after the orders were committed. Answers with
/// how many times a message was sent by it and by its successor.
async fn dies_and_is_followed<F: Ground>(stage: &Stage<F>, point: CrashPoint) -> (usize, usize) {
    let consumer = stage.consume_plainly().await;
    stage.commit(&orders(0..6)).await;
    let (publisher, heir) = (stage.mortal(Probe::default()), stage.mortal(Probe::default()));
    let mut dying = stage.relay_to(publisher.clone()).probe(stage.dies_at(point, 1)).build().unwrap();

    let crashed = dying.step().await;
    drop(dying);
    let early = stage.relay_to(heir.clone()).build().unwrap().step().await.unwrap();
    assert_eq!(early.shards, 0, "the dead one's lease still holds");
    stage.clock.advance(PAST_THE_LEASE);
    stage.relay_to(heir.clone()).build().unwrap().step().await.unwrap();

    assert!(crashed.is_err());
    assert_eq!(stage.status().await.sinks[0].pending, 0);
    consumer.stop().await;
    stage.check().await;
    (publisher.sent().len(), heir.sent().len())
}

pub(super) async fn r2_rows_claimed_by_a_dead_relay_are_published_after_its_lease<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    assert_eq!(dies_and_is_followed(&stage, CrashPoint::R2).await, (0, 6));
}

/// Sends the first half of its first batch and loses the connection.
struct Torn {
    inner: MemoryTransport,
    calls: AtomicUsize,
}

impl Publisher for Torn {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        if self.calls.fetch_add(1, Ordering::SeqCst) > 0 {
            return self.inner.publish(batch).await;
        }
        self.inner.publish(&batch[..batch.len() / 2]).await;
        vec![Err(Failure::unknown("connection reset")); batch.len()]
    }
}

pub(super) async fn r3_a_batch_written_in_part_is_published_again<F: Ground>(stage: Arc<Stage<F>>) {
    let _consumer = stage.consume_plainly().await;
    stage.commit(&orders(0..6)).await;
    let torn = Torn { inner: stage.transport.clone(), calls: AtomicUsize::new(0) };
    let mut relay = stage.relay_to(torn).build().unwrap();

    let broken = relay.step().await.unwrap();
    let pending = stage.status().await.sinks[0].pending;
    let healed = relay.step().await.unwrap();

    assert_eq!((broken.published, pending), (0, 6), "what was not confirmed stays");
    assert!(broken.outage.is_some_and(|reason| reason.contains("reset")));
    assert_eq!(healed.published, 6);
    stage.check().await;
}

pub(super) async fn r4_a_message_stored_without_a_confirm_is_published_again_and_applied_once<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    let consumer = stage.consume_plainly().await;
    stage.commit(&orders(0..6)).await;
    let publisher = stage.mortal(stage.dies_at(CrashPoint::R4, 1));
    let mut dying = stage.relay_to(publisher.clone()).build().unwrap();

    assert!(publisher.outlives(dying.step()).await);
    drop(dying);
    let stored = stage.fixture.effects().await.len();
    consumer.stop().await;

    assert_eq!((publisher.sent().len(), stored), (6, 6), "all stored, none confirmed");
    assert_eq!(stage.status().await.sinks[0].pending, 6);
    stage.recover().await;
}

pub(super) async fn r5_a_confirm_lost_before_the_settle_is_published_again_and_applied_once<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    assert_eq!(dies_and_is_followed(&stage, CrashPoint::R5).await, (6, 6));
}

pub(super) async fn r6_a_settle_whose_reply_is_lost_publishes_nothing_again<F: Ground>(stage: Arc<Stage<F>>) {
    assert_eq!(dies_and_is_followed(&stage, CrashPoint::R6).await, (6, 0));
}

pub(super) async fn r7_a_batch_confirmed_in_part_is_resent_in_the_order_of_its_keys<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    let consumer = stage.consume_plainly().await;
    let ids = stage.commit(&orders(0..6)).await;
    let publisher = stage.mortal(stage.dies_at(CrashPoint::R7, 3));
    let mut dying = stage.relay_to(publisher.clone()).build().unwrap();

    assert!(publisher.outlives(dying.step()).await);
    drop(dying);
    stage.clock.advance(PAST_THE_LEASE);
    let heir = stage.mortal(Probe::default());
    stage.relay_to(heir.clone()).build().unwrap().step().await.unwrap();
    consumer.stop().await;

    assert_eq!(publisher.sent(), ids[..3], "it died after the third");
    assert_eq!(heir.sent(), ids, "nothing was settled, so all go again, in their order");
    stage.check().await;
}

pub(super) async fn r7_only_what_was_not_confirmed_is_resent<F: Ground>(stage: Arc<Stage<F>>) {
    let consumer = stage.consume_plainly().await;
    let ids = stage.commit(&orders(0..6)).await;
    // The fourth message is the second of its key, the sixth comes behind it.
    let lost = ids[3].clone();
    let without_confirm =
        move |envelope: &Envelope| (envelope.id == lost).then(|| Failure::unknown("timeout"));
    stage.picky.refuse(without_confirm);
    let mut dying = stage.relay_builder().probe(stage.dies_at(CrashPoint::R6, 1)).build().unwrap();

    let crashed = dying.step().await;
    drop(dying);
    stage.clock.advance(PAST_THE_LEASE);
    let heir = stage.mortal(Probe::default());
    stage.relay_to(heir.clone()).build().unwrap().step().await.unwrap();
    consumer.stop().await;

    assert!(crashed.is_err());
    assert_eq!(heir.sent(), [ids[3].clone(), ids[5].clone()], "n - k, in the order of their key");
    stage.check().await;
}

/// Never answers.
struct Mute;

impl Publisher for Mute {
    async fn publish(&self, _batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        std::future::pending().await
    }
}

pub(super) async fn r8_what_the_broker_did_not_take_stays_pending_with_its_reason<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    let _consumer = stage.consume_plainly().await;
    stage.commit(&orders(0..2)).await;

    stage.picky.refuse(|_| Some(Failure::destination("unroutable: no queue is bound")));
    let mut relay = stage.relay();
    let returned = relay.step().await.unwrap();
    relay.release().await.unwrap();
    let short = Duration::from_millis(50);
    let mut deaf = stage.relay_to(Mute).publish_timeout(short).build().unwrap();
    let silent = deaf.step().await.unwrap();
    deaf.release().await.unwrap();
    let pending = stage.status().await.sinks[0].pending;
    stage
        .picky
        .refuse(|envelope| (envelope.key.as_deref() == Some("blue")).then(|| Failure::message("nack")));
    let mut relay = stage.relay();
    let nacked = relay.step().await.unwrap();
    let parked = stage.store.parked(10).await.unwrap();
    stage.picky.accept_all();
    stage.settle(&mut [relay]).await;

    assert_eq!(returned.outage.as_deref(), Some("unroutable: no queue is bound"));
    assert!(silent.outage.is_some_and(|reason| reason.contains("no confirm within")));
    assert_eq!((returned.published, silent.published, pending), (0, 0, 2));
    assert_eq!((nacked.published, nacked.parked), (1, 1));
    assert_eq!(parked[0].reason.as_deref(), Some("nack"), "people can see why");
    stage.check().await;
}

/// Waits at a gate before it sends, as a frozen process does.
struct Paused {
    inner: MemoryTransport,
    gate: Arc<Gate>,
}

impl Publisher for Paused {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        self.gate.pass().await;
        self.inner.publish(batch).await
    }
}

pub(super) async fn r9_a_relay_that_wakes_after_its_lease_cannot_settle<F: Ground>(stage: Arc<Stage<F>>) {
    let consumer = stage.consume_plainly().await;
    stage.commit(&orders(0..4)).await;
    let gate = Gate::new();
    let paused = Paused { inner: stage.transport.clone(), gate: Arc::clone(&gate) };
    let mut old = stage.relay_to(paused).build().unwrap();
    let waking = tokio::spawn(async move { old.step().await });
    gate.entered().await;

    stage.clock.advance(PAST_THE_LEASE);
    let mut new = stage.relay();
    let taken = new.step().await.unwrap();
    stage.commit(&orders(4..8)).await;
    let more = new.step().await.unwrap();
    gate.open();
    let late = waking.await.unwrap();
    stage.commit(&orders(8..10)).await;
    stage.settle(&mut [new]).await;
    consumer.stop().await;

    assert_eq!((taken.published, more.published), (4, 4), "another one took over: {taken:?} {more:?}");
    assert_eq!(kind(late), Some(Kind::Fenced));
    // The late copies arrived after messages behind them, and changed nothing.
    stage.check().await;
}

pub(super) async fn r12_an_undeliverable_message_stops_its_key_and_no_other<F: Ground>(stage: Arc<Stage<F>>) {
    let _consumer = stage.consume_plainly().await;
    let ids = stage.commit(&orders(0..6)).await;
    let poison = ids[2].clone();
    stage.picky.refuse(move |envelope| {
        (envelope.id == poison).then(|| Failure::message("larger than the broker takes").permanently())
    });

    stage.settle(&mut [stage.relay()]).await;
    let strict = stage.sequences().await;
    let sink = stage.status().await.sinks[0].clone();
    // Another sink that would rather go on with a gap.
    let lenient = stage.relay_builder().sink("lenient").on_dead(OnDead::SkipKey).build().unwrap();
    stage.settle(&mut [lenient]).await;
    let skipping = stage.sequences().await;

    assert_eq!(sorted(strict), [0, 1, 3, 5], "red stops behind its poison, blue flows");
    assert_eq!((sink.dead, sink.behind, sink.pending), (1, 1, 0));
    assert_eq!(sorted(skipping), [0, 1, 3, 4, 5]);
    stage.committed.lock().unwrap().retain(|entry| entry.sequence != 2);
    stage.check().await;
}

fn sorted(mut sequences: Vec<i64>) -> Vec<i64> {
    sequences.sort_unstable();
    sequences
}
