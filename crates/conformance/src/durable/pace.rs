//! How many and how fast.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::depot::Depot;
use oncebox_core::letters::Letters;
use oncebox_core::{HandlerError, HandlerKey, Store};
use oncebox_flow::{Context, Handler, WorkOptions, Worker};

use super::scene::{Bench, options, patient};
use crate::fixture::StoreFixture;
use crate::path::scene::{HANDLER, entry};
use crate::sample::Posted;

/// Books after a while, and knows how many of it run at once.
pub struct Sleeper<F> {
    fixture: Arc<F>,
    key: HandlerKey,
    nap: Duration,
    pub live: Arc<AtomicUsize>,
    pub most: Arc<AtomicUsize>,
}

impl<F> Sleeper<F> {
    pub fn new(fixture: &Arc<F>, key: &'static str, nap: Duration) -> Self {
        let fixture = Arc::clone(fixture);
        Self { fixture, key: HandlerKey::new(key), nap, live: Arc::default(), most: Arc::default() }
    }
}

/// Counts down when a run ends, however it ends.
struct Awake(Arc<AtomicUsize>);

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<F: StoreFixture> Handler<<F::Store as Store>::Tx> for Sleeper<F> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        self.key
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        let live = self.live.fetch_add(1, Ordering::SeqCst) + 1;
        let _awake = Awake(Arc::clone(&self.live));
        self.most.fetch_max(live, Ordering::SeqCst);
        tokio::time::sleep(self.nap).await;
        let effect = entry(self.key.as_str(), &cx.envelope().id, &message);
        self.fixture.effect(cx.tx(), &effect).await
    }
}

pub async fn a_handler_runs_no_more_often_at_once_than_it_allows<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let sleeper = Sleeper::new(&fixture, HANDLER, Duration::from_millis(5));
    let most = Arc::clone(&sleeper.most);
    let inbox = bench.inbox().handler_with(sleeper, |options| options.concurrency(2)).build().unwrap();
    bench.deliver(&inbox, 1..=12).await;

    bench.run_until(vec![bench.worker(&inbox)], HANDLER, 12).await;

    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?}");
}

pub async fn a_handler_runs_no_faster_than_its_rate<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let hour = Duration::from_secs(3600);
    let inbox = bench.inbox().handler_with(bench.booker("slow"), |options| options.rate(3, hour));
    let inbox = inbox.handler(bench.booker("fast")).build().unwrap();
    bench.deliver(&inbox, 1..=8).await;

    bench.run_until(vec![bench.worker(&inbox)], "fast", 8).await;

    assert_eq!(bench.effects_of("slow").await, [1, 2, 3]);
    let counts = bench.counts("slow").await;
    assert_eq!((counts.ready, counts.leased), (5, 0), "the others wait, nobody holds them");
}

pub async fn an_open_circuit_spends_no_attempts<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let broken = bench.booker("broken").acting(|_, _| Err(HandlerError::retry("down")));
    let runs = broken.runs();
    let hour = Duration::from_secs(3600);
    let inbox = bench.inbox().retry(patient(100)).handler_with(broken, |options| options.breaker(2, hour));
    let inbox = inbox.handler(bench.booker("sound")).build().unwrap();
    bench.deliver(&inbox, 1..=10).await;
    let one_seat = Worker::new(&inbox, WorkOptions { concurrency: 1, ..options() }).unwrap();

    bench.run_until(vec![one_seat], "sound", 10).await;

    assert_eq!(runs.load(Ordering::SeqCst), 2);
    let counts = bench.counts("broken").await;
    assert_eq!((counts.ready, counts.leased, counts.dead), (10, 0, 0));
}
