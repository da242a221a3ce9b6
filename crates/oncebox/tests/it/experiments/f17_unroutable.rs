//! F17 unroutable: the binding or the stream that messages go to is taken away
//! while they flow, and given back. Nothing counts as sent meanwhile, and
//! everything goes on soon afterwards.
//!
//! Sabotage: a publisher that does not look at what comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use lapin::options::QueueBindOptions;
use lapin::types::FieldTable;
use oncebox::inspect::Inspect as _;
use oncebox::{Consumer, Envelope, Failure, Order, Outbox, Publisher, Relay, Result, Store as _, Subscriber};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::size::sized;
use oncebox_conformance::{Entry, Findings, Ledger, StoreFixture};
use oncebox_transports::nats::{Nats, Topology};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bodies::HANDLER;
use super::booking::operation;
use super::children::short_leases;
use super::kills::inbox;
use super::link::{GROUP, Link, NatsLink, Place, RabbitLink};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

const LOAD: i64 = 40;

/// How often the way is taken away.
fn cycles() -> usize {
    sized(3, 50)
}

/// How long it is gone, beyond the first attempt to go there.
fn outage() -> Duration {
    sized(Duration::from_millis(300), Duration::from_secs(20))
}

/// How soon everything must have arrived once the way is there again; beside
/// all other tests it may take longer.
fn resumed() -> Duration {
    Duration::from_secs(sized(30, 5))
}

/// A broker whose way to the consumers can be taken away.
trait Severed: Link {
    /// A transport that does not mend the topology by itself.
    fn bystander(place: &Place) -> Self::Transport {
        Self::to(place, Order::None)
    }
    fn sever(place: &Place) -> impl Future<Output = ()> + Send;
    fn mend(place: &Place) -> impl Future<Output = ()> + Send;
}

impl Severed for RabbitLink {
    async fn sever(place: &Place) {
        let (queue, exchange) = (Self::queue(place), place.name.as_str());
        let channel = Self::channel(place).await;
        channel
            .queue_unbind(queue.into(), exchange.into(), DESTINATION.into(), FieldTable::default())
            .await
            .unwrap();
    }

    async fn mend(place: &Place) {
        let (queue, exchange) = (Self::queue(place), place.name.as_str());
        let channel = Self::channel(place).await;
        let options = QueueBindOptions::default();
        channel
            .queue_bind(queue.into(), exchange.into(), DESTINATION.into(), options, FieldTable::default())
            .await
            .unwrap();
    }
}

impl Severed for NatsLink {
    fn bystander(place: &Place) -> Nats {
        Nats::new(Self::options(place).stream_topology(Topology::Check))
    }

    async fn sever(place: &Place) {
        Self::clean(place).await;
    }

    async fn mend(place: &Place) {
        let config = jetstream::stream::Config {
            name: place.name.to_uppercase(),
            subjects: vec![format!("{}.>", place.name)],
            ..jetstream::stream::Config::default()
        };
        Self::context(place).await.create_stream(config).await.unwrap();
    }
}

/// A publisher, or one that takes everything written for stored.
#[derive(Clone)]
struct MaybeBlind<P> {
    publisher: P,
    is_blind: bool,
    /// How many messages it could not send.
    refused: Arc<AtomicUsize>,
}

impl<P: Publisher> Publisher for MaybeBlind<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let results = self.publisher.publish(batch).await;
        let refused = results.iter().filter(|result| result.is_err()).count();
        self.refused.fetch_add(refused, Ordering::SeqCst);
        if self.is_blind { vec![Ok(()); batch.len()] } else { results }
    }
}

struct Report {
    findings: Findings,
    /// Rows that counted as sent while there was no way.
    sent_into_nothing: i64,
    slowest: Duration,
}

async fn commit<F: StoreFixture>(fixture: &F, committed: &mut Vec<Entry>) {
    let start = i64::try_from(committed.len()).unwrap();
    let messages: Vec<Posted> =
        (start..start + LOAD).map(|n| Posted::on(&format!("account-{}", n % 7), n)).collect();
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();
    Outbox::new(store.clone()).source(SOURCE).put_all(&mut tx, &messages).await.unwrap();
    store.commit(tx).await.unwrap();
    committed.extend(messages.iter().map(|message| operation(HANDLER, message)));
}

async fn arrive<F: StoreFixture>(fixture: &F, count: usize, patience: Duration) -> Duration {
    let started = Instant::now();
    while fixture.effect_count().await < count && started.elapsed() < patience {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    started.elapsed()
}

async fn pending<F: StoreFixture>(fixture: &F) -> i64 {
    let status = fixture.store().status().await.unwrap();
    status.sinks.iter().map(|sink| sink.pending + sink.waiting + sink.behind).sum()
}

async fn run<F: StoreFixture, L: Severed>(fixture: &Arc<F>, is_blind: bool) -> Option<Report> {
    let place = Place::shared::<L>()?;
    drop(L::to(&place, Order::None).subscribe(DESTINATION, GROUP).await.unwrap());
    let transport = L::bystander(&place);
    let stop = CancellationToken::new();
    let feed = transport.subscribe(DESTINATION, GROUP).await.unwrap();
    let consumer = tokio::spawn(Consumer::new(inbox(fixture), feed).concurrency(4).run(stop.clone()));
    let refused = Arc::new(AtomicUsize::new(0));
    let publisher = MaybeBlind { publisher: transport, is_blind, refused: Arc::clone(&refused) };
    let relay = Relay::builder(fixture.store(), publisher).options(short_leases()).build().unwrap();
    let relay = tokio::spawn(relay.run(stop.clone()));
    let (mut committed, mut sent_into_nothing, mut slowest) = (Vec::new(), 0, Duration::ZERO);
    for _ in 0..cycles() {
        commit(&**fixture, &mut committed).await;
        arrive(&**fixture, committed.len(), 2 * resumed()).await;
        L::sever(&place).await;
        commit(&**fixture, &mut committed).await;
        // Until there was an attempt, and time for it to be settled.
        while refused.swap(0, Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(outage()).await;
        sent_into_nothing += LOAD - pending(&**fixture).await;
        L::mend(&place).await;
        // What the sabotage has lost never comes.
        let patience = if is_blind { resumed() / 10 } else { 2 * resumed() };
        slowest = slowest.max(arrive(&**fixture, committed.len(), patience).await);
        if is_blind {
            break;
        }
    }
    stop.cancel();
    relay.await.unwrap();
    consumer.await.unwrap();
    L::clean(&place).await;
    let findings = Ledger::check(&committed, &fixture.effects().await);
    Some(Report { findings: super::kills::unordered(findings), sent_into_nothing, slowest })
}

async fn holds<F: StoreFixture, L: Severed>(fixture: Arc<F>) {
    let Some(report) = run::<F, L>(&fixture, false).await else { return };

    println!("F17 {}: resumed within {:?}, {}", L::BRAND.name(), report.slowest, report.findings);
    assert_eq!(report.sent_into_nothing, 0, "nothing counts as sent while it is unroutable");
    assert!(report.slowest < resumed(), "{:?}", report.slowest);
    report.findings.assert_clean();
}

async fn is_found_out<F: StoreFixture, L: Severed>(fixture: Arc<F>) {
    let Some(report) = run::<F, L>(&fixture, true).await else { return };

    assert!(report.sent_into_nothing > 0);
    assert!(!report.findings.lost.is_empty(), "{}", report.findings);
}

#[test]
fn nothing_counts_as_sent_while_no_queue_is_bound() {
    on_store::<PostgresFixture, _, _>(holds::<_, RabbitLink>);
}

#[test]
fn nothing_counts_as_sent_while_there_is_no_stream() {
    on_store::<SqliteFixture, _, _>(holds::<_, NatsLink>);
}

#[test]
fn sabotaged_a_publisher_that_ignores_returns_loses_messages() {
    on_store::<SqliteFixture, _, _>(is_found_out::<_, RabbitLink>);
}

#[test]
fn sabotaged_a_publisher_that_ignores_a_missing_stream_loses_messages() {
    on_store::<PostgresFixture, _, _>(is_found_out::<_, NatsLink>);
}
