//! C8 to C10, C12 and C13: copies that meet, and transactions that fail.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncebox::verdict::RetryPolicy;
use oncebox::{Acknowledge, Delivery, Feed, Inbox, Outcome, Probe, Verdict};
use oncebox_conformance::path::scene::{HANDLER, arrived, entry, swift};
use oncebox_conformance::sample::DESTINATION;

use super::ground::Ground;
use super::stage::{Act, Gate, Stage, order};

const DONE: Option<Outcome> = Some(Outcome::Done { result: None });
const DUPLICATE: Option<Outcome> = Some(Outcome::Duplicate { result: None });

pub(super) async fn c8_a_copy_that_arrives_during_a_slow_handler_does_not_enter_it<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    let gate = Gate::new();
    let held = Arc::clone(&gate);
    let actor = stage.actor(move |_| Act::Hold { gate: Arc::clone(&held), fails: false });
    // Two processes: nothing in common but the database.
    let slow = stage.inbox_of(stage.store.clone(), actor.clone(), Probe::default());
    let other = stage.inbox_of(stage.fixture.impatient(), actor.clone(), Probe::default());
    let envelope = arrived("one", &order(1));
    let (first, copy) = (slow.clone(), envelope.clone());
    let first = tokio::spawn(async move { first.receive(copy, 1).await.single() });
    gate.entered().await;

    // The transport's patience is over; the message comes again, to both.
    let here = slow.receive(envelope.clone(), 2).await.single();
    let there = other.receive(envelope.clone(), 2).await.single();
    gate.open();
    let first = first.await.unwrap();
    let late = other.receive(envelope, 3).await.single();

    assert_eq!((here, there), (Some(Outcome::Busy), Some(Outcome::Busy)));
    assert_eq!((first, late), (DONE, DUPLICATE));
    assert_eq!(actor.runs.load(Ordering::SeqCst), 1, "one body for all copies");
    stage.committed.lock().unwrap().push(entry(HANDLER, "one", &order(1)));
    stage.check().await;
}

pub(super) async fn c9_of_the_copies_that_wait_for_a_failing_one_a_single_one_runs<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    let gate = Gate::new();
    let held = Arc::clone(&gate);
    let actor = stage.actor(move |run| match run {
        1 => Act::Hold { gate: Arc::clone(&held), fails: true },
        _ => Act::Go,
    });
    let envelope = arrived("one", &order(1));
    let receive = |attempt| {
        let inbox = stage.inbox_of(stage.store.clone(), actor.clone(), Probe::default());
        let envelope = envelope.clone();
        tokio::spawn(async move { inbox.receive(envelope, attempt).await.single() })
    };
    let holder = receive(1);
    gate.entered().await;

    let waiters = [receive(2), receive(2), receive(2)];
    // Nothing tells when they stand in the queue for the lock; those that come
    // later make the case weaker, not wrong.
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.open();
    let holder = holder.await.unwrap();
    let mut outcomes = Vec::new();
    for waiter in waiters {
        outcomes.push(waiter.await.unwrap());
    }

    assert!(matches!(holder, Some(Outcome::Failed { .. })));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == DONE).count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == DUPLICATE).count(), 2, "{outcomes:?}");
    assert_eq!(actor.runs.load(Ordering::SeqCst), 2, "the one that failed and the one that did not");
    stage.committed.lock().unwrap().push(entry(HANDLER, "one", &order(1)));
    stage.check().await;
}

pub(super) async fn c10_a_serialization_failure_runs_the_whole_unit_again<F: Ground>(stage: Arc<Stage<F>>) {
    let actor = stage.actor(|run| if run <= 3 { Act::Contend } else { Act::Go });
    let inbox = stage.inbox_of(stage.store.clone(), actor.clone(), Probe::default());

    let outcome = inbox.receive(arrived("one", &order(1)), 1).await.single();

    assert_eq!(outcome, DONE, "the caller never hears of it");
    assert_eq!(actor.runs.load(Ordering::SeqCst), 4);
    assert_eq!(*actor.attempts.lock().unwrap(), [1; 4], "and no attempt is spent");
    stage.committed.lock().unwrap().push(entry(HANDLER, "one", &order(1)));
    stage.check().await;
}

pub(super) async fn c11_a_copy_in_flight_is_no_death<F: Ground>(stage: Arc<Stage<F>>) {
    let gate = Gate::new();
    let held = Arc::clone(&gate);
    let actor = stage.actor(move |_| Act::Hold { gate: Arc::clone(&held), fails: false });
    let strict = RetryPolicy { max_attempts: Some(1), ..swift() };
    let counting = |store: F::Store| {
        let inbox = Inbox::builder(store, DESTINATION).clock(stage.clock.clone()).count_deaths(true);
        inbox.retry(strict.clone()).handler(actor.clone()).build().unwrap()
    };
    let (slow, other) = (counting(stage.store.clone()), counting(stage.fixture.impatient()));
    let envelope = arrived("one", &order(1));
    let copy = envelope.clone();
    let first = tokio::spawn(async move { slow.deliver(copy, 1).await });
    gate.entered().await;

    let meanwhile = other.deliver(envelope.clone(), 1).await;
    gate.open();
    let first = first.await.unwrap();
    let late = other.deliver(envelope, 1).await;

    assert!(matches!(meanwhile, Verdict::Retry { spent: false, .. }), "busy, not dead: {meanwhile:?}");
    assert_eq!((first, late), (Verdict::Done, Verdict::Done));
    assert_eq!(stage.status().await.dead_letters, 0);
    stage.committed.lock().unwrap().push(entry(HANDLER, "one", &order(1)));
    stage.check().await;
}

/// The process dies after the rollback and before anybody wrote the failure
/// down. This transport counts a delivery that was never answered, so the count
/// is exact; with one that does not, it is a lower bound, and only C11's
/// limit on starts is left.
pub(super) async fn c12_a_failure_nobody_recorded_is_counted_by_the_delivery<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    let actor = stage.actor(|_| Act::Fail);
    let limited = RetryPolicy { max_attempts: Some(3), ..swift() };
    let inbox = Inbox::builder(stage.store.clone(), DESTINATION).clock(stage.clock.clone()).retry(limited);
    let inbox = inbox.handler(actor.clone()).build().unwrap();
    let mut feed = stage.queued(1).await;

    let mut verdicts = Vec::new();
    for _ in 0..2 {
        let Delivery { envelope, attempt, ack } = feed.next().await.unwrap().unwrap();
        verdicts.push(inbox.deliver(envelope, attempt).await);
        drop(ack);
    }
    let Delivery { envelope, attempt, ack } = feed.next().await.unwrap().unwrap();
    let last = inbox.deliver(envelope, attempt).await;
    ack.ack().await.unwrap();

    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Retry { spent: true, .. })));
    assert_eq!(last, Verdict::Done, "buried, so the transport is done with it");
    assert_eq!(*actor.attempts.lock().unwrap(), [1, 2, 3]);
    assert_eq!(stage.status().await.dead_letters, 1);
    stage.committed.lock().unwrap().clear();
    stage.recover().await;
}

pub(super) async fn c13_a_swallowed_database_error_does_not_count_as_handled<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    let actor = stage.actor(|run| if run == 1 { Act::Doom } else { Act::Go });
    let inbox = stage.inbox_of(stage.store.clone(), actor.clone(), Probe::default());
    let envelope = arrived("one", &order(1));

    let swallowed = inbox.receive(envelope.clone(), 1).await.single();
    let (markers, effects) = (stage.status().await.markers, stage.fixture.effects().await.len());
    let again = inbox.receive(envelope.clone(), 2).await.single();
    let copy = inbox.receive(envelope, 3).await.single();

    assert!(matches!(swallowed, Some(Outcome::Failed { .. })), "{swallowed:?}");
    assert_eq!((markers, effects), (0, 0));
    assert_eq!((again, copy), (DONE, DUPLICATE));
    stage.committed.lock().unwrap().push(entry(HANDLER, "one", &order(1)));
    stage.check().await;
}
