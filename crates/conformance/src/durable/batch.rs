//! Several deliveries in one commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::depot::Depot;
use oncebox_core::letters::Letters;
use oncebox_core::{HandlerError, Kind};
use oncebox_flow::crash::Reaction;
use oncebox_flow::{CrashPoint, Inbox, Probe, WorkOptions, Worker};
use tokio_util::sync::CancellationToken;

use super::scene::{Bench, LEASE, options, patient};
use crate::fixture::StoreFixture;
use crate::path::scene::HANDLER;

/// A worker whose two seats take ten at a time.
fn worker<F: StoreFixture>(inbox: &Inbox<F::Store>) -> Worker<F::Store>
where
    F::Store: Depot + Letters,
{
    Worker::new(inbox, WorkOptions { concurrency: 2, batch: 10, ..options() }).unwrap()
}

pub async fn a_batch_commits_what_runs_well_and_undoes_what_fails<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker = bench.booker(HANDLER).acting(|_, message| match message.sequence % 5 {
        0 => Err(HandlerError::permanent("every fifth")),
        1 => panic!("on purpose"),
        _ => Ok(()),
    });
    let runs = booker.runs();
    let inbox = bench.inbox().handler(booker).build().unwrap();
    bench.deliver(&inbox, 1..=20).await;

    bench.run_until(vec![worker::<F>(&inbox)], HANDLER, 12).await;

    let good: Vec<i64> = (1..=20).filter(|n| n % 5 > 1).collect();
    assert_eq!(bench.effects().await, good);
    assert_eq!(runs.load(Ordering::SeqCst), 20, "nobody ran twice on account of another");
    assert_eq!(bench.letters().await.len(), 4);
    assert_eq!(bench.counts(HANDLER).await.ready, 4, "what panicked is tried again later");
}

pub async fn a_batch_that_dies_takes_effect_once<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    for (round, point) in (0..).zip([CrashPoint::D3, CrashPoint::D4, CrashPoint::D5]) {
        let bench = Bench::new(&fixture);
        let died = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&died);
        let probe = Probe::new(move |reached| {
            let dies = reached == point && seen.fetch_add(1, Ordering::SeqCst) == 0;
            std::future::ready(if dies { Reaction::Crash } else { Reaction::Go })
        });
        let inbox =
            bench.inbox().handler(bench.booker(HANDLER)).probe(probe).retry(patient(10)).build().unwrap();
        bench.deliver(&inbox, 8 * round..8 * (round + 1)).await;
        // One seat, so that all of them are one batch.
        let one_seat = WorkOptions { concurrency: 1, batch: 10, ..options() };

        let expected = usize::try_from(8 * (round + 1)).unwrap();
        bench.run_until(vec![Worker::new(&inbox, one_seat).unwrap()], HANDLER, expected).await;

        assert_eq!(bench.effects().await, (0..8 * (round + 1)).collect::<Vec<_>>(), "{point:?}");
        assert!(died.load(Ordering::SeqCst) > 0);
    }
}

pub async fn a_stopped_batch_gives_back_the_rest<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let sleeper = super::pace::Sleeper::new(&fixture, HANDLER, Duration::from_millis(5));
    let live = Arc::clone(&sleeper.most);
    let inbox = bench.inbox().handler(sleeper).build().unwrap();
    bench.deliver(&inbox, 1..=60).await;
    let stop = CancellationToken::new();

    let running = tokio::spawn(worker::<F>(&inbox).run(stop.clone()));
    while live.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.cancel();
    assert!(running.await.unwrap());
    let done = bench.effects().await.len();
    bench.clock.advance(LEASE / 2);
    let rest = bench.worker(&inbox).run_until_idle().await.unwrap();

    assert!((1..60).contains(&done), "{done}");
    assert_eq!(done + rest.len(), 60);
    assert!(rest.iter().all(|worked| worked.attempt == 1), "no attempt was spent");
}

pub async fn a_handler_with_one_attempt_is_not_run_in_batches<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let inbox = bench.inbox().retry(patient(1)).handler(bench.booker(HANDLER)).build().unwrap();

    let refused = Worker::new(&inbox, WorkOptions { batch: 2, ..options() });

    assert_eq!(refused.unwrap_err().kind(), Kind::Config);
}
