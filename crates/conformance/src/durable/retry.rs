//! What a failure costs in durable mode.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncebox_core::depot::Depot;
use oncebox_core::letters::Letters;
use oncebox_core::{HandlerError, Outcome};
use oncebox_flow::HandlerOptions;
use oncebox_flow::inbox::Effects;

use super::scene::{Bench, patient};
use crate::fixture::StoreFixture;
use crate::path::scene::HANDLER;
use crate::sample::Posted;

pub async fn one_handlers_failure_does_not_touch_another<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let bad = bench.booker("bad").acting(|_, _| Err(HandlerError::retry("no")));
    let (good, runs) = (bench.booker("good"), bad.runs());
    let good_runs = good.runs();
    let inbox = bench.inbox().handler(bad).handler(good).build().unwrap();
    bench.deliver(&inbox, 1..=3).await;

    bench.exhaust(&bench.worker(&inbox)).await;

    assert_eq!(bench.effects_of("good").await, [1, 2, 3]);
    assert_eq!(bench.effects_of("bad").await, [0_i64; 0]);
    assert_eq!((runs.load(Ordering::SeqCst), good_runs.load(Ordering::SeqCst)), (9, 3));
    assert_eq!(bench.letters().await.len(), 3);
}

pub async fn a_failing_delivery_is_tried_as_often_as_allowed_and_buried<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker =
        bench.booker(HANDLER).acting(|attempt, _| Err(HandlerError::retry(format!("attempt {attempt}"))));
    let runs = booker.runs();
    let inbox = bench.inbox().handler(booker).build().unwrap();
    bench.deliver(&inbox, [1]).await;
    let worker = bench.worker(&inbox);

    let first = worker.run_until_idle().await.unwrap();
    let too_early = worker.run_until_idle().await.unwrap();
    let worked = bench.exhaust(&worker).await;

    assert_eq!((first.len(), too_early.len(), worked.len()), (1, 0, 2), "each waits for its time");
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    let letters = bench.letters().await;
    assert_eq!((letters[0].attempts, letters[0].code.as_str()), (3, "attempts_exhausted"));
    assert!(letters[0].reason.contains("attempt 3"), "{}", letters[0].reason);
    assert_eq!(bench.effects().await, [0_i64; 0], "what failed wrote nothing");
}

pub async fn one_attempt_means_no_retry<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker = bench.booker(HANDLER).acting(|_, _| Err(HandlerError::retry("no")));
    let runs = booker.runs();
    let inbox = bench.inbox().retry(patient(1)).handler(booker).build().unwrap();
    bench.deliver(&inbox, [1]).await;

    bench.exhaust(&bench.worker(&inbox)).await;

    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(bench.letters().await[0].attempts, 1);
}

pub async fn a_handler_may_say_when_it_wants_to_be_called_again<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker = bench.booker(HANDLER).acting(|attempt, _| match attempt {
        1 => Err(HandlerError::retry_after(Duration::from_secs(100), "later")),
        _ => Ok(()),
    });
    let inbox = bench.inbox().handler(booker).build().unwrap();
    bench.deliver(&inbox, [1]).await;
    let worker = bench.worker(&inbox);

    worker.run_until_idle().await.unwrap();
    bench.clock.advance(Duration::from_secs(99));
    let early = worker.run_until_idle().await.unwrap();
    bench.clock.advance(Duration::from_secs(2));
    let late = worker.run_until_idle().await.unwrap();

    assert_eq!((early.len(), late.len()), (0, 1));
    assert_eq!(bench.effects().await, [1]);
}

pub async fn a_permanent_failure_is_buried_at_once<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker = bench.booker(HANDLER).acting(|_, _| Err(HandlerError::permanent("never")));
    let runs = booker.runs();
    let inbox = bench.inbox().handler(booker).build().unwrap();
    bench.deliver(&inbox, [1]).await;

    bench.exhaust(&bench.worker(&inbox)).await;

    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(bench.letters().await[0].code, "permanent");
}

pub async fn a_panic_and_a_timeout_are_failures<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let panics = bench.booker("panics").acting(|_, _| panic!("on purpose"));
    let inbox = bench.inbox().retry(patient(2)).handler(panics).build().unwrap();
    bench.deliver(&inbox, [1]).await;

    let worked = bench.exhaust(&bench.worker(&inbox)).await;

    assert_eq!(worked.len(), 2);
    for one in &worked {
        assert!(
            matches!(&one.outcome, Some(Outcome::Failed { reason, .. }) if reason.contains("on purpose"))
        );
    }
    let slow = super::pace::Sleeper::new(&fixture, "slow", Duration::from_secs(3600));
    let options = HandlerOptions::default().timeout(Duration::from_millis(20));
    let inbox = bench.inbox().retry(patient(2)).handler_with(slow, |_| options).build().unwrap();
    bench.deliver(&inbox, [2]).await;

    let worked = bench.exhaust(&bench.worker(&inbox)).await;

    assert_eq!(worked.len(), 2);
    let letters = bench.letters().await;
    assert_eq!(letters.len(), 2);
    assert!(letters[1].reason.contains("took longer"), "{}", letters[1].reason);
}

pub async fn a_panic_before_the_first_await_costs_no_seat<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let hasty = |_effects: Effects, _message: Posted| -> std::future::Ready<Result<(), HandlerError>> {
        panic!("on purpose")
    };
    let inbox = bench.inbox().retry(patient(1)).outside("hasty", hasty).handler(bench.booker(HANDLER));
    let inbox = inbox.build().unwrap();
    bench.deliver(&inbox, 1..=8).await;

    bench.run_until(vec![bench.worker(&inbox)], HANDLER, 8).await;
    bench.exhaust(&bench.worker(&inbox)).await;

    let letters = bench.letters().await;
    assert_eq!(letters.len(), 8);
    assert!(letters.iter().all(|letter| letter.reason.contains("on purpose")), "{letters:?}");
}

pub async fn every_handler_has_a_policy_of_its_own<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let fails = |key| bench.booker(key).acting(|_, _| Err(HandlerError::retry("no")));
    let (one, many) = (fails("one"), fails("many"));
    let (one_runs, many_runs) = (one.runs(), many.runs());
    let inbox = bench.inbox().handler_with(one, |options| options.retry(patient(1)));
    let inbox = inbox.handler_with(many, |options| options.retry(patient(5))).build().unwrap();
    bench.deliver(&inbox, [1]).await;

    bench.exhaust(&bench.worker(&inbox)).await;

    assert_eq!((one_runs.load(Ordering::SeqCst), many_runs.load(Ordering::SeqCst)), (1, 5));
}
