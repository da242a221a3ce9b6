//! F26 network-flap: the network between relay, broker and consumer goes
//! silent, hangs up and comes back. A dead peer is noticed, and nothing is lost,
//! doubled or swapped.
//!
//! Sabotage: no heartbeats and no timeouts.

use std::sync::Arc;
use std::time::Duration;

use oncebox::relay::RelayOptions;
use oncebox::{Consumer, Order, Outbox, Publisher, Relay, Store as _, Subscriber};
use oncebox_conformance::proxy::Proxy;
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::size::is_full;
use oncebox_conformance::{Entry, Findings, Ledger, StoreFixture};
use oncebox_transports::rabbitmq::RabbitMq;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bodies::HANDLER;
use super::booking::operation;
use super::children::short_leases;
use super::kills::inbox;
use super::link::{GROUP, Link, NatsLink, Place, RabbitLink};
use super::weather::{Network, Weather};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

const LOAD: i64 = 60;
const FLAPS: usize = 3;
/// How soon a peer that does not answer counts as dead: heartbeats of 2 s, confirms within 1 s.
const NOTICED: Duration = Duration::from_secs(15);
/// Without any of that it goes on for longer than this.
const UNNOTICED: Duration = Duration::from_secs(6);
const ARRIVED: Duration = Duration::from_secs(30);

/// What is before a server's address, and the address.
fn address(place: &Place) -> (&str, &str) {
    let (start, rest) = place.url.split_at(place.url.rfind('@').map_or(7, |at| at + 1));
    (start, rest.split('/').next().unwrap())
}

fn port(place: &Place) -> u16 {
    address(place).1.rsplit(':').next().unwrap().parse().unwrap()
}

/// The same place by way of a proxy.
async fn detour(place: &Place) -> (Proxy, Place) {
    let (start, address) = address(place);
    let rest = &place.url[start.len()..];
    let proxy = Proxy::before(address.to_owned()).await.unwrap();
    let url = format!("{start}{}", rest.replacen(address, &proxy.address().to_string(), 1));
    (proxy, Place { url, name: place.name.clone() })
}

struct Report {
    findings: Findings,
    /// How long the dead peer went unnoticed; `None` if it did to the end.
    noticed: Option<Duration>,
}

async fn commit<F: StoreFixture>(fixture: &F, committed: &mut Vec<Entry>) {
    let start = i64::try_from(committed.len()).unwrap();
    let messages: Vec<Posted> =
        (start..start + LOAD).map(|n| Posted::on(&format!("account-{}", n % 11), n)).collect();
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();
    Outbox::new(store.clone()).source(SOURCE).put_all(&mut tx, &messages).await.unwrap();
    store.commit(tx).await.unwrap();
    committed.extend(messages.iter().map(|message| operation(HANDLER, message)));
}

async fn arrive<F: StoreFixture>(fixture: &F, count: usize) {
    let started = Instant::now();
    while fixture.effect_count().await < count && started.elapsed() < ARRIVED {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The dead peer is noticed when somebody connects anew.
async fn notice(proxy: &Proxy, limit: Duration) -> Option<Duration> {
    let (before, silent) = (proxy.connections(), Instant::now());
    while proxy.connections() == before {
        if silent.elapsed() > limit {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Some(silent.elapsed())
}

async fn run<F, T>(
    fixture: &Arc<F>,
    transport: T,
    (proxy, flaps): (&Proxy, usize),
    options: RelayOptions,
    limit: Duration,
) -> Report
where
    F: StoreFixture,
    T: Publisher + Subscriber + Clone,
{
    let stop = CancellationToken::new();
    let feed = transport.subscribe(DESTINATION, GROUP).await.unwrap();
    let consumer = tokio::spawn(Consumer::new(inbox(fixture), feed).concurrency(4).run(stop.clone()));
    let relay = Relay::builder(fixture.store(), transport).options(options).build().unwrap();
    let relay = tokio::spawn(relay.run(stop.clone()));
    let mut committed = Vec::new();
    commit(&**fixture, &mut committed).await;
    arrive(&**fixture, committed.len()).await;
    for _ in 0..flaps {
        proxy.silence(true);
        commit(&**fixture, &mut committed).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        // Hangs up on whoever spoke meanwhile.
        proxy.silence(false);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    arrive(&**fixture, committed.len()).await;
    proxy.silence(true);
    commit(&**fixture, &mut committed).await;
    let noticed = notice(proxy, limit).await;
    proxy.silence(false);
    if noticed.is_some() {
        arrive(&**fixture, committed.len()).await;
        stop.cancel();
        relay.await.unwrap();
        consumer.await.unwrap();
    } else {
        relay.abort();
        consumer.abort();
    }
    Report { findings: Ledger::check(&committed, &fixture.effects().await), noticed }
}

/// Commits some messages every second until it is told to stop.
async fn produce<F: StoreFixture>(fixture: Arc<F>, enough: CancellationToken) -> Vec<Entry> {
    let mut committed = Vec::new();
    while !enough.is_cancelled() {
        commit(&*fixture, &mut committed).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    committed
}

/// One minute of lost packets, half of it dark, then broken connections;
/// answers with the time until everybody had noticed the dark.
async fn bad_minute(network: &Network) -> Duration {
    const DARK: Duration = Duration::from_secs(30);
    network.becomes(Weather::Rain).await;
    tokio::time::sleep(Duration::from_secs(25)).await;
    let (before, dark) = (network.connections(), Instant::now());
    network.becomes(Weather::Night).await;
    while !network.connections().is_disjoint(&before) && dark.elapsed() < DARK {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let noticed = dark.elapsed();
    tokio::time::sleep_until(dark + DARK).await;
    for _ in 0..3 {
        network.becomes(Weather::Rain).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        network.becomes(Weather::Hail).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    noticed
}

async fn holds_in_full<F: StoreFixture, L: Link>(fixture: Arc<F>) {
    const LASTS: Duration = Duration::from_secs(30 * 60);
    let Some(place) = Place::shared::<L>() else { return };
    let network = Network::to(port(&place));
    let transport = L::to(&place, Order::SingleActive);
    let (enough, stop) = (CancellationToken::new(), CancellationToken::new());
    let feed = transport.subscribe(DESTINATION, GROUP).await.unwrap();
    let consumer = tokio::spawn(Consumer::new(inbox(&fixture), feed).concurrency(4).run(stop.clone()));
    let relay = Relay::builder(fixture.store(), transport).options(short_leases()).build().unwrap();
    let relay = tokio::spawn(relay.run(stop.clone()));
    let producer = tokio::spawn(produce(Arc::clone(&fixture), enough.clone()));

    let (started, mut nights) = (Instant::now(), Vec::new());
    while started.elapsed() < LASTS {
        nights.push(bad_minute(&network).await);
    }
    network.becomes(Weather::Fair).await;
    enough.cancel();
    let committed = producer.await.unwrap();
    arrive(&*fixture, committed.len()).await;
    stop.cancel();
    relay.await.unwrap();
    consumer.await.unwrap();

    L::clean(&place).await;
    let (slowest, findings) = (nights.iter().max(), Ledger::check(&committed, &fixture.effects().await));
    println!("F26 {}: {} nights noticed within {slowest:?}, {findings}", L::BRAND.name(), nights.len());
    assert!(slowest <= Some(&NOTICED), "a dead peer was not noticed within {NOTICED:?}: {nights:?}");
    findings.assert_clean();
}

async fn holds<F: StoreFixture, L: Link>(fixture: Arc<F>) {
    if is_full() {
        return holds_in_full::<F, L>(fixture).await;
    }
    let Some(place) = Place::shared::<L>() else { return };
    let (proxy, way) = detour(&place).await;

    let transport = L::to(&way, Order::SingleActive);
    let report = run(&fixture, transport, (&proxy, FLAPS), short_leases(), NOTICED).await;

    L::clean(&place).await;
    println!("F26 {}: noticed after {:?}, {}", L::BRAND.name(), report.noticed, report.findings);
    assert!(report.noticed.is_some(), "a dead peer was not noticed within {NOTICED:?}");
    report.findings.assert_clean();
}

#[test]
fn a_flapping_network_loses_doubles_and_swaps_nothing_over_rabbitmq() {
    on_store::<PostgresFixture, _, _>(holds::<_, RabbitLink>);
}

#[test]
fn a_flapping_network_loses_doubles_and_swaps_nothing_over_nats() {
    on_store::<SqliteFixture, _, _>(holds::<_, NatsLink>);
}

#[test]
fn sabotaged_without_heartbeats_and_timeouts_a_dead_peer_goes_unnoticed() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(place) = Place::shared::<RabbitLink>() else { return };
        let (proxy, way) = detour(&place).await;
        let long = Duration::from_secs(100);
        let patient = RabbitLink::options(&way).heartbeat(long).confirm_timeout(long).call_timeout(long);
        let patient = RabbitMq::new(patient.order(Order::SingleActive)).unwrap();
        let options = RelayOptions { lease: long * 3, publish_timeout: long, ..short_leases() };

        let report = run(&fixture, patient, (&proxy, 0), options, UNNOTICED).await;

        RabbitLink::clean(&place).await;
        assert_eq!(report.noticed, None);
        assert!(!report.findings.lost.is_empty(), "{}", report.findings);
    });
}
