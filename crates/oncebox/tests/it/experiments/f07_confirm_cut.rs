//! F07 confirm-cut: the transport stores every message and its confirm is lost.
//! All of them travel twice, and none takes effect twice.
//!
//! Sabotage: a publisher that gives a message a fresh id when it sends it again.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::inbox::InboxOptions;
use oncebox::inspect::Inspect;
use oncebox::memory::{Confirm, MemoryTransport};
use oncebox::{Consumer, Envelope, Failure, Inbox, Outbox, Publisher, Relay, Result, Store, Subscriber};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::{Findings, Ledger, StoreFixture};
use tokio_util::sync::CancellationToken;

use super::bodies::{HANDLER, tireless};
use super::booking::{Booking, operation};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

const MESSAGES: i64 = 300;
const ACCOUNTS: i64 = 20;

fn account(number: i64) -> String {
    format!("account-{}", number % ACCOUNTS)
}

/// The way to the transport, with a look at what goes over it.
#[derive(Clone)]
struct Wire {
    transport: MemoryTransport,
    sent: Arc<Mutex<Vec<String>>>,
    is_forgetful: bool,
}

impl Wire {
    fn renamed(&self, envelope: &Envelope) -> Envelope {
        let mut sent = self.sent.lock().unwrap();
        let mut envelope = envelope.clone();
        if self.is_forgetful && sent.contains(&envelope.id) {
            envelope.id = format!("{}-again-{}", envelope.id, sent.len());
        }
        sent.push(envelope.id.clone());
        envelope
    }
}

impl Publisher for Wire {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let batch: Vec<Envelope> = batch.iter().map(|envelope| self.renamed(envelope)).collect();
        self.transport.publish(&batch).await
    }
}

struct Report {
    findings: Findings,
    wire_duplicates: usize,
    bodies: usize,
}

async fn run<F: StoreFixture>(fixture: &Arc<F>, is_forgetful: bool) -> Report {
    // Stored is confirmed, or would be: this transport outlives the relay.
    let transport = MemoryTransport::new().confirm(Confirm::OnEnqueue);
    let store = fixture.store();
    let booking = Booking::new(fixture);
    let bodies = Arc::clone(&booking.runs);
    // The last messages of all have no handler.
    let options = InboxOptions { retry: tireless(), ignore_unknown: true, ..InboxOptions::default() };
    let inbox = Inbox::builder(store.clone(), DESTINATION).handler(booking).options(options).build().unwrap();
    let feed = transport.subscribe(DESTINATION, "books").await.unwrap();
    let stop = CancellationToken::new();
    let consumer = tokio::spawn(Consumer::new(inbox, feed).concurrency(4).run(stop.clone()));
    let messages: Vec<Posted> = (0..MESSAGES).map(|n| Posted::on(&account(n), n)).collect();
    let outbox = Outbox::new(store.clone()).source(SOURCE);
    let mut tx = store.begin().await.unwrap();
    outbox.put_all(&mut tx, &messages).await.unwrap();
    store.commit(tx).await.unwrap();
    let lost = usize::try_from(MESSAGES).unwrap();
    transport.lose_confirms(lost);
    let wire = Wire { transport: transport.clone(), sent: Arc::default(), is_forgetful };
    let mut relay = Relay::builder(store.clone(), wire.clone()).build().unwrap();

    for _ in 0..20 {
        relay.step().await.unwrap();
    }
    assert_eq!(store.status().await.unwrap().sinks[0].pending, 0);
    wait_for_silence(transport).await;
    stop.cancel();
    assert!(consumer.await.unwrap());

    let sent = wire.sent.lock().unwrap().clone();
    let distinct = if is_forgetful { lost } else { sent.iter().collect::<HashSet<_>>().len() };
    let committed: Vec<_> = messages.iter().map(|message| operation(HANDLER, message)).collect();
    Report {
        findings: Ledger::check(&committed, &fixture.effects().await),
        wire_duplicates: sent.len() - distinct,
        bodies: bodies.load(Ordering::SeqCst),
    }
}

/// Everything that is queued has been answered when a last message has come
/// through on each account: the transport keeps the order of keys.
async fn wait_for_silence(transport: MemoryTransport) {
    let transport = transport.confirm(Confirm::OnAck).confirm_timeout(Duration::from_secs(30));
    let last = |number: i64| Envelope {
        id: format!("last-{number}"),
        kind: "last".into(),
        key: Some(account(number)),
        destination: DESTINATION.into(),
        ..Envelope::default()
    };
    let answered = transport.publish(&(0..ACCOUNTS).map(last).collect::<Vec<_>>()).await;
    assert!(answered.iter().all(Result::is_ok), "{answered:?}");
}

async fn holds<F: StoreFixture>(fixture: Arc<F>) {
    let report = run(&fixture, false).await;

    println!("F07 {}: {} wire duplicates, {}", F::GUARANTEES.name, report.wire_duplicates, report.findings);
    assert!(report.wire_duplicates >= usize::try_from(MESSAGES).unwrap(), "{}", report.wire_duplicates);
    report.findings.assert_clean();
    assert_eq!(report.bodies, usize::try_from(MESSAGES).unwrap(), "a duplicate does not even run");
}

async fn is_found_out<F: StoreFixture>(fixture: Arc<F>) {
    let report = run(&fixture, true).await;

    assert_eq!(report.findings.doubled.len(), usize::try_from(MESSAGES).unwrap(), "{}", report.findings);
}

#[test]
fn lost_confirms_double_the_messages_and_no_effect_on_sqlite() {
    on_store::<SqliteFixture, _, _>(holds);
}

#[test]
fn lost_confirms_double_the_messages_and_no_effect_on_postgres() {
    on_store::<PostgresFixture, _, _>(holds);
}

#[test]
fn sabotaged_a_fresh_id_on_retry_doubles_every_effect_on_sqlite() {
    on_store::<SqliteFixture, _, _>(is_found_out);
}

#[test]
fn sabotaged_a_fresh_id_on_retry_doubles_every_effect_on_postgres() {
    on_store::<PostgresFixture, _, _>(is_found_out);
}
