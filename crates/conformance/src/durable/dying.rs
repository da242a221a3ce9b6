//! Death and loss of leases, anywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oncebox_core::Verdict;
use oncebox_core::depot::{Depot, TakeRequest, Want};
use oncebox_core::letters::Letters;
use oncebox_flow::crash::Reaction;
use oncebox_flow::{CrashPoint, Probe, WorkOptions, Worker};
use tokio_util::sync::CancellationToken;

use super::scene::{Bench, LEASE, endless, is_done, options, patient};
use crate::fixture::StoreFixture;
use crate::path::scene::{HANDLER, arrived};
use crate::sample::Posted;

/// Longer than a worker makes room for a suspect, shorter than a run may last.
const PATIENCE: Duration = Duration::from_secs(15);

/// Dies at the point, the first few times it is reached.
fn dies_at(point: CrashPoint, times: usize) -> (Probe, Arc<AtomicUsize>) {
    let deaths = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&deaths);
    let probe = Probe::new(move |reached| {
        let dies = reached == point && counted.fetch_add(1, Ordering::SeqCst) < times;
        std::future::ready(if dies { Reaction::Crash } else { Reaction::Go })
    });
    (probe, deaths)
}

pub async fn a_worker_that_dies_anywhere_loses_and_doubles_nothing<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    for (round, point) in
        [CrashPoint::D3, CrashPoint::D4, CrashPoint::D5, CrashPoint::D6].into_iter().enumerate()
    {
        let bench = Bench::new(&fixture);
        let (probe, deaths) = dies_at(point, 2);
        let start = 10 * i64::try_from(round).unwrap();
        let booker =
            bench.booker(HANDLER).acting(move |attempt, message| match (attempt, message.sequence - start) {
                // Something has to fail for D6 to be reached.
                (1, 1) => Err(oncebox_core::HandlerError::retry("once")),
                _ => Ok(()),
            });
        let inbox = bench.inbox().handler(booker).probe(probe).retry(patient(10)).build().unwrap();
        bench.deliver(&inbox, start..start + 4).await;

        for _ in 0..8 {
            // A worker is dead with its process; another one comes.
            let worker = bench.worker(&inbox);
            while worker.step().await.unwrap().is_some_and(|worked| worked.outcome.is_some()) {}
            bench.clock.advance(LEASE + Duration::from_secs(1));
        }

        assert!(deaths.load(Ordering::SeqCst) > 0, "{point:?} was reached");
        let expected: Vec<i64> = (0..=round as i64).flat_map(|n| 10 * n..10 * n + 4).collect();
        assert_eq!(bench.effects().await, expected, "{point:?}");
        assert_eq!(bench.letters().await.len(), 0, "{point:?}");
    }
}

pub async fn a_deposit_that_is_not_acknowledged_is_stored_once<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let (probe, _) = dies_at(CrashPoint::D1, 1);
    let inbox = bench.inbox().handler(bench.booker(HANDLER)).probe(probe).build().unwrap();
    let message = arrived("1", &Posted::on("red", 1));

    let unanswered = inbox.deliver(message.clone(), 1).await;
    bench.worker(&inbox).run_until_idle().await.unwrap();
    let answered = inbox.deliver(message, 2).await;
    bench.worker(&inbox).run_until_idle().await.unwrap();

    assert!(matches!(unanswered, Verdict::Retry { spent: false, .. }), "{unanswered:?}");
    assert_eq!(answered, Verdict::Done);
    assert_eq!(bench.effects().await, [1]);
}

pub async fn a_worker_whose_lease_was_taken_cannot_commit<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let (thief, store) = (bench.clock.clone(), bench.store.clone());
    let stolen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&stolen);
    // While the first run is between its body and its commit, its lease runs
    // out and somebody else takes the delivery.
    let probe = Probe::new(move |point| {
        let (clock, store, counted) = (thief.clone(), store.clone(), Arc::clone(&counted));
        async move {
            if point == CrashPoint::D3 && counted.fetch_add(1, Ordering::SeqCst) == 0 {
                clock.advance(LEASE + Duration::from_secs(1));
                let wants = [Want { handler: HANDLER, limit: 1 }];
                let request = TakeRequest {
                    scope: "",
                    holder: "thief",
                    lease: LEASE,
                    limit: 1,
                    seats: 1,
                    wants: &wants,
                    suspects: true,
                };
                assert_eq!(store.take(&request, clock.now()).await.unwrap().len(), 1);
            }
            Reaction::Go
        }
    });
    let inbox = bench.inbox().handler(bench.booker(HANDLER)).probe(probe).build().unwrap();
    bench.deliver(&inbox, [1]).await;
    let worker = bench.worker(&inbox);

    let zombie = worker.step().await.unwrap().unwrap();
    let effects = bench.effects().await;
    bench.clock.advance(LEASE + Duration::from_secs(1));
    let heir = bench.worker(&inbox).step().await.unwrap().unwrap();

    assert_eq!((zombie.outcome, effects), (None, vec![]), "a stale commit is refused");
    assert!(is_done(&heir), "{heir:?}");
    assert_eq!(bench.effects().await, [1]);
}

pub async fn a_message_that_kills_its_worker_is_buried_and_takes_nobody_along<F: StoreFixture>(
    fixture: Arc<F>,
) where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let poison = bench.booker(HANDLER);
    let runs = poison.runs();
    // Everything that is run while the poison is, dies with it.
    let is_poisoned = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&is_poisoned);
    let poison = poison.acting(move |_, message| {
        if message.sequence == 3 {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    });
    let dead = Arc::clone(&is_poisoned);
    let lives = Arc::new(AtomicUsize::new(0));
    let lived = Arc::clone(&lives);
    let probe = Probe::new(move |point| {
        // From the moment the poison has run, this process does not commit any more.
        let is_dead = point == CrashPoint::D4 && dead.load(Ordering::SeqCst) > lived.load(Ordering::SeqCst);
        std::future::ready(if is_dead { Reaction::Crash } else { Reaction::Go })
    });
    let inbox = bench.inbox().handler(poison).probe(probe).retry(patient(3)).build().unwrap();
    bench.deliver(&inbox, 1..=6).await;

    for _ in 0..12 {
        let worker: Worker<F::Store> =
            Worker::new(&inbox, WorkOptions { concurrency: 6, ..options() }).unwrap();
        while worker.step().await.unwrap().is_some_and(|worked| worked.outcome.is_some()) {}
        bench.clock.advance(LEASE + Duration::from_secs(1));
        // The process is started again.
        lives.store(is_poisoned.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    assert_eq!(bench.effects().await, [1, 2, 4, 5, 6]);
    let letters = bench.letters().await;
    assert_eq!((letters.len(), letters[0].code.as_str(), letters[0].attempts), (1, "process_death", 3));
    assert_eq!(is_poisoned.load(Ordering::SeqCst), 3, "{} runs in all", runs.load(Ordering::SeqCst));
}

pub async fn a_suspect_that_finds_no_room_holds_up_nobody<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let lease = Duration::from_millis(400);
    let (endless, mut has_started) = endless();
    let inbox = bench.inbox().outside("endless", endless).handler(bench.booker(HANDLER)).build().unwrap();
    // Somebody else runs a delivery, and dies.
    bench.deliver(&inbox, [1]).await;
    let wants = [Want { handler: HANDLER, limit: 1 }];
    let holder = "somebody";
    let request =
        TakeRequest { scope: "", holder, lease, limit: 1, seats: 1, wants: &wants, suspects: false };
    assert_eq!(bench.store.take(&request, bench.clock.now()).await.unwrap().len(), 1);
    let drain = Duration::from_millis(50);
    let worker = Worker::new(&inbox, WorkOptions { lease, drain, ..options() }).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone()));
    has_started.recv().await.unwrap();
    bench.clock.advance(2 * lease);

    // Long enough for the worker to have looked for suspects a few times.
    let plain = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();
    let began = Instant::now();
    let mut sequence = 1;
    while began.elapsed() < 4 * lease {
        sequence += 1;
        bench.deliver(&plain, [sequence]).await;
        let arrived = async {
            while bench.effects_of(HANDLER).await.last() != Some(&sequence) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, arrived).await.expect("others are run");
    }
    stop.cancel();

    assert!(!running.await.unwrap(), "the endless one did not end");
}
