//! F18 blocked-broker: RabbitMQ raises its memory alarm and reads from nobody
//! who publishes. What is under way stays bounded, nothing counts as sent, and
//! everything goes on when the alarm is over.
//!
//! Sabotage: a publisher that takes any number of messages without waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::inspect::Inspect as _;
use oncebox::relay::RelayOptions;
use oncebox::{
    Consumer, Envelope, Failure, Order, Outbox, Publisher, Relay, Result, Store as _, Subscriber as _,
};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::server::{Brand, Server};
use oncebox_conformance::{Findings, Ledger, StoreFixture as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bodies::HANDLER;
use super::booking::operation;
use super::children::short_leases;
use super::kills::{inbox, unordered};
use super::link::{GROUP, Link as _, Place, RabbitLink};
use crate::conformance::postgres::PostgresFixture;

const MESSAGES: i64 = 2_000;
/// What a relay hands to its publisher at once.
const BATCH: usize = 100;
const ALARM: Duration = Duration::from_secs(3);
const RESUMED: Duration = Duration::from_secs(30);

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
    let messages: Vec<Posted> =
        (0..MESSAGES).map(|n| Posted::on(&format!("account-{}", n % 200), n)).collect();
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();
    Outbox::new(store.clone()).source(SOURCE).put_all(&mut tx, &messages).await.unwrap();
    store.commit(tx).await.unwrap();
    let options = RelayOptions { batch: BATCH, ..short_leases() };
    let relay = Relay::builder(fixture.store(), publisher).options(options).build().unwrap();
    let relay = tokio::spawn(relay.run(stop.clone()));
    tokio::time::sleep(ALARM).await;
    let status = store.status().await.unwrap();
    let settled = MESSAGES - status.sinks.iter().map(|sink| sink.pending).sum::<i64>();
    let before = fixture.effects().await.len();
    let healed = Instant::now();
    server.ctl(&["-q", "set_vm_memory_high_watermark", "0.9"]).await;
    // The next effect shows that it goes on; the rest takes as long as it takes.
    let mut resumed = Duration::MAX;
    let patience = if is_boundless { Duration::ZERO } else { Duration::from_secs(90) };
    while fixture.effects().await.len() < messages.len() && healed.elapsed() < patience {
        if resumed == Duration::MAX && fixture.effects().await.len() > before {
            resumed = healed.elapsed();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    if is_boundless {
        relay.abort();
        consumer.abort();
    } else {
        relay.await.unwrap();
        consumer.await.unwrap();
    }
    let committed: Vec<_> = messages.iter().map(|message| operation(HANDLER, message)).collect();
    let findings = unordered(Ledger::check(&committed, &fixture.effects().await));
    Some(Report { findings, most: most.load(Ordering::SeqCst), settled, resumed })
}

#[test]
fn a_blocked_broker_bounds_what_is_under_way_and_loses_nothing() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(report) = run(&fixture, false).await else { return };

        println!(
            "F18: {} under way at most, resumed in {:?}, {}",
            report.most, report.resumed, report.findings
        );
        assert!(report.most <= BATCH, "{} were under way", report.most);
        assert!(report.settled < MESSAGES / 10, "{} counted as sent while blocked", report.settled);
        assert!(report.resumed < RESUMED, "{:?}", report.resumed);
        report.findings.assert_clean();
    });
}

#[test]
fn sabotaged_a_publisher_without_bounds_piles_up_messages() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(report) = run(&fixture, true).await else { return };

        assert!(report.most > BATCH && report.settled > MESSAGES / 10, "{} {}", report.most, report.settled);
    });
}
