//! F18 blocked-broker: RabbitMQ raises its memory alarm and reads from nobody
//! who publishes. What is under way stays bounded, nothing counts as sent, and
//! everything goes on when the alarm is over.
//!
//! Sabotage: a publisher that takes any number of messages without waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::inspect::{COUNT_CAP, Inspect as _};
use oncebox::relay::RelayOptions;
use oncebox::{
    Consumer, Envelope, Failure, Order, Outbox, Publisher, Relay, Result, Store as _, Subscriber as _,
};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::server::{Brand, Server};
use oncebox_conformance::size::sized;
use oncebox_conformance::{Findings, Ledger, StoreFixture as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bodies::HANDLER;
use super::booking::operation;
use super::children::short_leases;
use super::kills::{inbox, unordered};
use super::link::{GROUP, Link as _, Place, RabbitLink};
use crate::conformance::postgres::PostgresFixture;

/// What a relay hands to its publisher at once.
const BATCH: usize = 100;
/// How much the memory of this process, with the producer and the consumer in
/// it, may grow while the broker is blocked.
const GROWTH_MIB: usize = 64;

/// All at once, or two thousand a second for as long as the alarm lasts.
fn messages() -> i64 {
    sized(2_000, 120_000)
}

fn alarm() -> Duration {
    Duration::from_secs(sized(3, 60))
}

/// How soon it must go on; beside all other tests it may take longer.
fn soon() -> Duration {
    Duration::from_secs(sized(30, 5))
}

fn message(n: i64) -> Posted {
    Posted::on(&format!("account-{}", n % 200), n)
}

/// Commits everything, at once or at its pace.
async fn produce(fixture: Arc<PostgresFixture>, produced: Arc<AtomicI64>) {
    let share = sized(messages(), 100);
    let mut ticks = tokio::time::interval(alarm() / u32::try_from(messages() / share).unwrap());
    let outbox = Outbox::new(fixture.store()).source(SOURCE);
    for start in (0..messages()).step_by(usize::try_from(share).unwrap()) {
        ticks.tick().await;
        let batch: Vec<Posted> = (start..start + share).map(message).collect();
        let mut tx = fixture.store().begin().await.unwrap();
        outbox.put_all(&mut tx, &batch).await.unwrap();
        fixture.store().commit(tx).await.unwrap();
        produced.fetch_add(share, Ordering::SeqCst);
    }
}

/// How many of those produced count as sent, as far as that can be told: no
/// more are counted than [`COUNT_CAP`].
async fn settled(fixture: &PostgresFixture, produced: &AtomicI64) -> i64 {
    let produced = produced.load(Ordering::SeqCst);
    if produced > COUNT_CAP {
        return 0;
    }
    let status = fixture.store().status().await.unwrap();
    if status.sinks.is_empty() {
        return 0;
    }
    produced - status.sinks.iter().map(|sink| sink.pending).sum::<i64>()
}

/// What this process has in memory.
fn resident_mib() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() / 256
}

/// A publisher, with a look at how many messages are in its hands.
#[derive(Clone)]
struct MaybeBoundless<P> {
    publisher: P,
    is_boundless: bool,
    held: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl<P: Publisher + Clone> MaybeBoundless<P> {
    async fn send(self, batch: Vec<Envelope>) -> Vec<Result<(), Failure>> {
        let _hand = Hand::take(&self.held, &self.most, batch.len());
        self.publisher.publish(&batch).await
    }
}

/// Messages in a publisher's hands, until it is done or given up.
struct Hand {
    held: Arc<AtomicUsize>,
    count: usize,
}

impl Hand {
    fn take(held: &Arc<AtomicUsize>, most: &AtomicUsize, count: usize) -> Self {
        most.fetch_max(held.fetch_add(count, Ordering::SeqCst) + count, Ordering::SeqCst);
        Self { held: Arc::clone(held), count }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.held.fetch_sub(self.count, Ordering::SeqCst);
    }
}

impl<P: Publisher + Clone> Publisher for MaybeBoundless<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        if !self.is_boundless {
            return self.clone().send(batch.to_vec()).await;
        }
        let (this, batch) = (self.clone(), batch.to_vec());
        let count = batch.len();
        tokio::spawn(async move {
            // Again and again, as a client with a queue of its own would.
            while this.clone().send(batch.clone()).await.iter().any(Result::is_err) {}
        });
        vec![Ok(()); count]
    }
}

struct Report {
    findings: Findings,
    most: usize,
    settled: i64,
    resumed: Duration,
    grown_mib: usize,
}

async fn run(fixture: &Arc<PostgresFixture>, is_boundless: bool) -> Option<Report> {
    let server = Server::start(Brand::RabbitMq, "F18").await?;
    let place = Place::new(server.url());
    let transport = RabbitLink::to(&place, Order::None);
    let feed = transport.subscribe(DESTINATION, GROUP).await.unwrap();
    let stop = CancellationToken::new();
    let consumer = tokio::spawn(Consumer::new(inbox(fixture), feed).concurrency(8).run(stop.clone()));
    let (held, most) = (Arc::default(), Arc::<AtomicUsize>::default());
    let publisher = MaybeBoundless { publisher: transport, is_boundless, held, most: Arc::clone(&most) };
    server.ctl(&["-q", "set_vm_memory_high_watermark", "absolute", "1MiB"]).await;
    let options = RelayOptions { batch: BATCH, ..short_leases() };
    let relay = Relay::builder(fixture.store(), publisher).options(options).build().unwrap();
    let resident = resident_mib();
    let (blocked, produced) = (Instant::now(), Arc::<AtomicI64>::default());
    let producer = tokio::spawn(produce(Arc::clone(fixture), Arc::clone(&produced)));
    let relay = tokio::spawn(relay.run(stop.clone()));
    let (mut grown_mib, mut most_settled) = (0, 0);
    while blocked.elapsed() < alarm() || !producer.is_finished() {
        tokio::time::sleep(Duration::from_millis(500)).await;
        grown_mib = grown_mib.max(resident_mib().saturating_sub(resident));
        most_settled = most_settled.max(settled(fixture, &produced).await);
    }
    producer.await.unwrap();
    let before = fixture.effect_count().await;
    let healed = Instant::now();
    server.ctl(&["-q", "set_vm_memory_high_watermark", "0.9"]).await;
    // The next effect shows that it goes on; the rest takes as long as it takes.
    let mut resumed = Duration::MAX;
    let patience = Duration::from_secs(if is_boundless { 0 } else { sized(90, 600) });
    let mut effects = before;
    while effects < usize::try_from(messages()).unwrap() && healed.elapsed() < patience {
        if resumed == Duration::MAX && effects > before {
            resumed = healed.elapsed();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        effects = fixture.effect_count().await;
    }
    stop.cancel();
    if is_boundless {
        relay.abort();
        consumer.abort();
    } else {
        relay.await.unwrap();
        consumer.await.unwrap();
    }
    let committed: Vec<_> = (0..messages()).map(|n| operation(HANDLER, &message(n))).collect();
    let findings = unordered(Ledger::check(&committed, &fixture.effects().await));
    Some(Report { findings, most: most.load(Ordering::SeqCst), settled: most_settled, resumed, grown_mib })
}

#[test]
fn a_blocked_broker_bounds_what_is_under_way_and_loses_nothing() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(report) = run(&fixture, false).await else { return };

        println!(
            "F18: {} under way at most, {} MiB more, resumed in {:?}, {}",
            report.most, report.grown_mib, report.resumed, report.findings
        );
        assert!(report.most <= BATCH, "{} were under way", report.most);
        assert!(report.settled < messages() / 10, "{} counted as sent while blocked", report.settled);
        assert!(report.grown_mib <= GROWTH_MIB, "{} MiB more", report.grown_mib);
        assert!(report.resumed < soon(), "{:?}", report.resumed);
        report.findings.assert_clean();
    });
}

#[test]
fn sabotaged_a_publisher_without_bounds_piles_up_messages() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(report) = run(&fixture, true).await else { return };

        assert!(
            report.most > BATCH && report.settled > messages() / 10,
            "{} {}",
            report.most,
            report.settled
        );
    });
}
