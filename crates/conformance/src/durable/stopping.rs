//! How a worker ends, and how many share the work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncebox_core::depot::{Depot, TakeRequest, Want};
use oncebox_core::letters::Letters;
use oncebox_flow::{WorkOptions, Worker};
use tokio_util::sync::CancellationToken;

use super::pace::Sleeper;
use super::scene::{Bench, endless, options};
use crate::fixture::StoreFixture;
use crate::path::scene::HANDLER;

pub async fn a_stop_gives_back_what_has_not_begun_and_spends_nothing<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let sleeper = Sleeper::new(&fixture, HANDLER, Duration::from_millis(100));
    let live = Arc::clone(&sleeper.live);
    let inbox = bench.inbox().handler(sleeper).build().unwrap();
    bench.deliver(&inbox, 1..=10).await;
    let (worker, stop) =
        (Worker::new(&inbox, WorkOptions { concurrency: 1, ..options() }).unwrap(), CancellationToken::new());

    let running = tokio::spawn(worker.run(stop.clone()));
    while live.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.cancel();
    assert!(running.await.unwrap());

    let (counts, done) = (bench.counts(HANDLER).await, bench.effects().await.len());
    assert_eq!((counts.leased, counts.ready), (0, 10 - i64::try_from(done).unwrap()));
    assert!(done < 10);
    let rest = bench.worker(&inbox).run_until_idle().await.unwrap();
    assert!(rest.iter().all(|worked| worked.attempt == 1), "no attempt was spent: {rest:?}");
}

pub async fn a_worker_that_is_dropped_lets_its_leases_run_out<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let lease = Duration::from_millis(300);
    let (endless, mut has_started) = endless();
    let inbox = bench.inbox().outside(HANDLER, endless).build().unwrap();
    bench.deliver(&inbox, 1..=4).await;
    let worker = Worker::new(&inbox, WorkOptions { concurrency: 1, lease, ..options() }).unwrap();
    let running = tokio::spawn(worker.run(CancellationToken::new()));
    has_started.recv().await.unwrap();
    while bench.counts(HANDLER).await.leased < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    running.abort();
    running.await.unwrap_err();
    bench.clock.advance(2 * lease);
    // Time enough for a renewal.
    tokio::time::sleep(lease).await;

    let wants = [Want { handler: HANDLER, limit: 10 }];
    let request = TakeRequest {
        scope: "",
        holder: "another",
        lease,
        limit: 10,
        seats: 0,
        wants: &wants,
        suspects: false,
    };
    let waiting = bench.store.take(&request, bench.clock.now()).await.unwrap();
    let begun =
        bench.store.take(&TakeRequest { suspects: true, ..request }, bench.clock.now()).await.unwrap();
    assert_eq!((waiting.len(), begun.len()), (3, 1));
}

pub async fn a_stop_lets_running_handlers_finish<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let sleeper = Sleeper::new(&fixture, HANDLER, Duration::from_millis(80));
    let live = Arc::clone(&sleeper.live);
    let inbox = bench.inbox().handler(sleeper).build().unwrap();
    bench.deliver(&inbox, [1]).await;
    let (worker, stop) = (bench.worker(&inbox), CancellationToken::new());

    let running = tokio::spawn(worker.run(stop.clone()));
    while live.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.cancel();

    assert!(running.await.unwrap());
    assert_eq!(bench.effects().await, [1]);
}

pub async fn a_handler_that_does_not_end_is_given_back_after_the_drain<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let sleeper = Sleeper::new(&fixture, HANDLER, Duration::from_secs(3600));
    let live = Arc::clone(&sleeper.live);
    let inbox = bench.inbox().handler(sleeper).build().unwrap();
    bench.deliver(&inbox, [1]).await;
    let drain = Duration::from_millis(50);
    let (worker, stop) =
        (Worker::new(&inbox, WorkOptions { drain, ..options() }).unwrap(), CancellationToken::new());

    let running = tokio::spawn(worker.run(stop.clone()));
    while live.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.cancel();
    let drained = running.await.unwrap();

    assert!(!drained);
    let counts = bench.counts(HANDLER).await;
    assert_eq!((counts.ready, counts.leased), (1, 0), "another worker may have it at once");
    let quick = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();
    let worked = bench.worker(&quick).run_until_idle().await.unwrap();
    assert_eq!(worked.iter().map(|worked| worked.attempt).collect::<Vec<_>>(), [1], "no attempt was spent");
}

pub async fn many_workers_share_the_work<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker = bench.booker(HANDLER);
    let runs = booker.runs();
    let inbox = bench.inbox().handler(booker).build().unwrap();
    bench.deliver(&inbox, 1..=60).await;

    let workers = (0..3).map(|_| bench.worker(&inbox)).collect();
    bench.run_until(workers, HANDLER, 60).await;

    assert_eq!(bench.effects().await, (1..=60).collect::<Vec<_>>());
    assert_eq!(runs.load(Ordering::SeqCst), 60, "each was run once");
}
