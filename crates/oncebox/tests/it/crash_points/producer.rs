//! P1 to P6: the business transaction and what it puts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox::{CrashPoint, Error, Kind, Outbox, Result, Store, Wakeup};
use oncebox_conformance::fixture::kind;
use oncebox_conformance::sample::SOURCE;
use tokio_util::sync::CancellationToken;

use super::ground::Ground;
use super::stage::{Gate, Stage, business, order};

/// The caller sees an error, nothing is left, and its retry takes effect once.
async fn dies_without_a_trace<F: Ground>(stage: &Stage<F>, point: CrashPoint) {
    let dying = stage.outbox.clone().probe(stage.dies_at(point, 1));

    let crashed = stage.place_order(&dying, 1).await;

    assert!(crashed.is_err());
    assert!(stage.fixture.effects().await.is_empty(), "no business row");
    assert_eq!(stage.status().await.logged, 0, "no ghost message");
    let id = stage.place_order(&stage.outbox, 1).await.unwrap();
    stage.expect(1, &id);
    stage.recover().await;
}

pub(super) async fn p1_a_producer_that_dies_before_it_begins_leaves_nothing<F: Ground>(stage: Arc<Stage<F>>) {
    dies_without_a_trace(&stage, CrashPoint::P1).await;
}

pub(super) async fn p2_a_business_write_without_its_message_vanishes<F: Ground>(stage: Arc<Stage<F>>) {
    dies_without_a_trace(&stage, CrashPoint::P2).await;
}

pub(super) async fn p3_a_put_that_is_not_committed_is_no_message<F: Ground>(stage: Arc<Stage<F>>) {
    dies_without_a_trace(&stage, CrashPoint::P3).await;
}

/// An order under an id of the caller's own, as whoever must be able to retry gives it.
async fn place_named<F: Ground>(stage: &Stage<F>, outbox: &Outbox<F::Store>) -> Result<String> {
    let (fixture, named) = (Arc::clone(&stage.fixture), outbox.clone());
    outbox
        .transact(move |unit| {
            Box::pin(async move {
                fixture.effect(unit.tx(), &business(1)).await?;
                Ok(named.message(&order(1))?.id("order-1").put(unit).await?)
            })
        })
        .await
}

pub(super) async fn p4_a_commit_whose_reply_is_lost_is_found_and_not_put_twice<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    let dying = stage.outbox.clone().probe(stage.dies_at(CrashPoint::P4, 1));
    let mut envelope = stage.outbox.message(&order(1)).unwrap().id("order-1").envelope().clone();
    envelope.source = SOURCE.into();
    assert!(!stage.outbox.holds(&envelope).await.unwrap());

    let crashed = place_named(&stage, &dying).await;
    let found = stage.outbox.holds(&envelope).await.unwrap();
    let retried = place_named(&stage, &stage.outbox).await;

    assert!(crashed.is_err() && found, "the caller learns the truth");
    assert_eq!(kind(retried), Some(Kind::Conflict), "its retry is told so and undone");
    stage.expect(1, "order-1");
    stage.recover().await;
}

pub(super) async fn p5_a_message_nobody_was_told_of_leaves_within_a_poll<F: Ground>(stage: Arc<Stage<F>>) {
    const POLL: Duration = Duration::from_millis(100);
    let consumer = stage.consume_plainly().await;
    let stop = CancellationToken::new();
    // A wake-up that no producer shares: polling is all there is.
    let relay = stage.relay_builder().wakeup(Wakeup::new()).poll(POLL).build().unwrap();
    let relay = tokio::spawn(relay.run(stop.clone()));
    let dying = stage.outbox.clone().probe(stage.dies_at(CrashPoint::P5, 1));

    let crashed = stage.place_order(&dying, 1).await;
    let committed = Instant::now();
    let effect = loop {
        let effects = stage.fixture.effects().await;
        if let Some(effect) = effects.into_iter().find(|effect| effect.handler != "business") {
            break effect;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };

    assert!(crashed.is_err());
    assert!(committed.elapsed() < POLL + Duration::from_secs(20), "{:?}", committed.elapsed());
    stop.cancel();
    assert!(relay.await.unwrap().drained);
    consumer.stop().await;
    stage.expect(1, &effect.id);
    stage.check().await;
}

/// Starts an order that waits at a gate between its writes and its commit, and
/// hangs up on it there.
async fn hang_up<F: Ground>(stage: &Arc<Stage<F>>, number: i64, fails: bool) {
    let gate = Gate::new();
    let (here, fixture, outbox) = (Arc::clone(&gate), Arc::clone(&stage.fixture), stage.outbox.clone());
    let call = tokio::spawn(async move {
        let work = outbox.transact(move |unit| {
            Box::pin(async move {
                fixture.effect(unit.tx(), &business(number)).await?;
                unit.put(&order(number)).await?;
                here.pass().await;
                if fails { Err(Error::new(Kind::Rejected, "changed its mind").into()) } else { Ok(()) }
            })
        });
        work.await
    });
    gate.entered().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled(), "the caller is gone");
    gate.open();
}

pub(super) async fn p6_a_caller_that_hangs_up_leaves_all_or_nothing<F: Ground>(stage: Arc<Stage<F>>) {
    hang_up(&stage, 1, true).await;
    hang_up(&stage, 2, false).await;
    // A transaction of the caller's own, dropped after the put.
    let mut tx = stage.store.begin().await.unwrap();
    stage.fixture.effect(&mut tx, &business(3)).await.unwrap();
    stage.outbox.put(&mut tx, &order(3)).await.unwrap();
    drop(tx);
    // Writers queue behind what is still open, so this one comes last.
    let id = stage.place_order(&stage.outbox, 4).await.unwrap();

    let patience = Instant::now() + Duration::from_secs(30);
    while stage.status().await.logged < 2 && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let logged = oncebox_conformance::steps::logged(&stage.store).await;
    assert_eq!(logged.len(), 2, "the second and the fourth, and nothing of the others");
    for (number, id) in [2, 4].into_iter().zip(in_order(logged, id)) {
        stage.expect(number, &id);
    }
    stage.recover().await;
}

/// Both ids, the known one last.
fn in_order(logged: Vec<String>, last: String) -> [String; 2] {
    let other = logged.into_iter().find(|id| *id != last).unwrap();
    [other, last]
}
