//! F06 commit-cut: a proxy between the store and PostgreSQL swallows the COMMIT
//! or its answer, on the enqueue path and on the handler path. To the client
//! both look alike; every outcome must be found out, nothing may happen twice,
//! and no message may be given up for it.
//!
//! Sabotage: a store that takes a broken COMMIT for a rollback.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use oncebox::inbox::InboxOptions;
use oncebox::inspect::Inspect;
use oncebox::memory::MemoryTransport;
use oncebox::verdict::RetryPolicy;
use oncebox::{Consumer, Dedup, Identifier, Inbox, Kind, Mailbox, Outbox, Relay, Subscriber, Verdict};
use oncebox_conformance::proxy::{Cut, Proxy};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted};
use oncebox_conformance::size::sized;
use oncebox_conformance::{Entry, Ledger, StoreFixture};
use oncebox_stores::postgres::{PostgresStore, pool_options};
use sqlx::PgConnection;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio_util::sync::CancellationToken;

use super::bodies::{HANDLER, arriving, tireless};
use super::booking::{Booking, operation};
use super::sabotaged::{Mode, Sabotaged};
use crate::conformance::postgres::PostgresFixture;

/// Cuts of each kind on each path.
pub(super) fn cuts() -> i64 {
    sized(40, 1_000)
}

pub(super) const SABOTAGED_CUTS: i64 = 8;

/// A proxy before the fixture's database, and how to get there.
pub(super) async fn proxied() -> (Proxy, PgConnectOptions) {
    let options = PgConnectOptions::from_str(&std::env::var("ONCEBOX_TEST_POSTGRES_URL").unwrap()).unwrap();
    let proxy = Proxy::before(format!("{}:{}", options.get_host(), options.get_port())).await.unwrap();
    let options = options.host("127.0.0.1").port(proxy.address().port()).ssl_mode(PgSslMode::Disable);
    (proxy, options)
}

/// A store that reaches the fixture's database through a proxy.
pub(super) async fn behind_a_proxy(fixture: &PostgresFixture) -> (Proxy, PostgresStore) {
    let (proxy, options) = proxied().await;
    let pool = pool_options().max_connections(2).connect_lazy_with(options);
    (proxy, PostgresStore::new(pool).schema(Identifier::new(&fixture.schema).unwrap()))
}

/// The COMMIT itself, or the answer to it, in turns.
pub(super) fn cut(number: i64) -> Cut {
    if number % 2 == 0 { Cut::commit_request() } else { Cut::commit_reply() }
}

/// What an honest run must show.
#[derive(Debug)]
struct Report {
    findings: oncebox_conformance::Findings,
    unresolved: usize,
    repeated: i64,
    dead_letters: i64,
}

impl Report {
    fn holds(&self) -> bool {
        self.findings.is_clean() && self.unresolved == 0 && self.dead_letters == 0
    }
}

/// A business row and its message.
async fn place<S>(
    outbox: &Outbox<S>,
    fixture: &Arc<PostgresFixture>,
    message: &Posted,
) -> oncebox::Result<String>
where
    S: Mailbox<Tx = PgConnection>,
{
    let (fixture, message) = (Arc::clone(fixture), message.clone());
    outbox
        .transact(move |unit| {
            Box::pin(async move {
                fixture.effect(unit.tx(), &operation("business", &message)).await?;
                Ok(unit.put(&message).await?)
            })
        })
        .await
}

/// A producer that believes what it is told: what was not committed it does again.
async fn enqueue<S>(outbox: &Outbox<S>, fixture: &Arc<PostgresFixture>, proxy: &Proxy, cuts: i64) -> Report
where
    S: Mailbox<Tx = PgConnection>,
{
    let (mut committed, mut unresolved, mut repeated) = (Vec::new(), 0, 0);
    for number in 0..2 * cuts {
        let message = Posted::on("account", number);
        proxy.cut(cut(number));
        loop {
            match place(outbox, fixture, &message).await {
                Ok(_) => {
                    committed.extend([operation("business", &message), operation(HANDLER, &message)]);
                    break;
                }
                Err(error) if error.kind() == Kind::CommitUnknown => {
                    unresolved += 1;
                    break;
                }
                Err(_) => repeated += 1,
            }
        }
    }
    drain(fixture).await;
    report(fixture, &committed, unresolved, repeated).await
}

/// Relays and books what is in the log, over connections nobody cuts.
async fn drain(fixture: &Arc<PostgresFixture>) {
    let transport = MemoryTransport::new();
    let inbox = Inbox::builder(fixture.store(), DESTINATION).handler(Booking::new(fixture)).retry(tireless());
    let feed = transport.subscribe(DESTINATION, "books").await.unwrap();
    let stop = CancellationToken::new();
    let consumer = tokio::spawn(Consumer::new(inbox.build().unwrap(), feed).run(stop.clone()));
    let mut relay = Relay::builder(fixture.store(), transport).build().unwrap();
    let patience = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        relay.step().await.unwrap();
        let status = fixture.store().status().await.unwrap();
        if status.sinks.iter().all(|sink| sink.pending == 0) {
            break;
        }
        assert!(tokio::time::Instant::now() < patience, "{status:?}");
    }
    stop.cancel();
    assert!(consumer.await.unwrap());
}

async fn report(fixture: &PostgresFixture, committed: &[Entry], unresolved: usize, repeated: i64) -> Report {
    let dead_letters = fixture.store().status().await.unwrap().dead_letters;
    let findings = Ledger::check(committed, &fixture.effects().await);
    Report { findings, unresolved, repeated, dead_letters }
}

/// Deliveries whose one allowed attempt meets a broken COMMIT.
async fn handle<S>(store: S, fixture: &Arc<PostgresFixture>, proxy: &Proxy, cuts: i64) -> Report
where
    S: Mailbox<Tx = PgConnection> + Dedup,
{
    let retry = RetryPolicy { max_attempts: Some(1), ..tireless() };
    let options = InboxOptions { retry, ..InboxOptions::default() };
    let inbox =
        Inbox::builder(store, DESTINATION).handler(Booking::new(fixture)).options(options).build().unwrap();
    let (mut committed, mut repeated) = (Vec::new(), 0);
    for number in 0..2 * cuts {
        let message = Posted::on("account", number);
        let envelope = arriving(&format!("message-{number}"), &message);
        proxy.cut(cut(number));
        while let Verdict::Retry { spent, .. } = inbox.deliver(envelope.clone(), 1).await {
            assert!(!spent);
            repeated += 1;
        }
        committed.push(operation(HANDLER, &message));
    }
    report(fixture, &committed, 0, repeated).await
}

#[test]
fn a_commit_cut_under_a_producer_is_resolved_and_nothing_is_put_twice() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, store) = behind_a_proxy(&fixture).await;

        let report = enqueue(&Outbox::new(store), &fixture, &proxy, cuts()).await;

        println!("F06 enqueue: {} cuts, {report:?}", proxy.cuts());
        assert_eq!(proxy.cuts(), usize::try_from(2 * cuts()).unwrap(), "every order to cut was met");
        assert!(report.holds(), "{report:?}");
        assert_eq!(report.repeated, cuts(), "what was not committed was done again, and nothing else");
    });
}

#[test]
fn a_commit_cut_under_a_handler_is_resolved_and_nothing_is_buried() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, store) = behind_a_proxy(&fixture).await;

        let report = handle(store, &fixture, &proxy, cuts()).await;

        println!("F06 handler: {} cuts, {report:?}", proxy.cuts());
        assert_eq!(proxy.cuts(), usize::try_from(2 * cuts()).unwrap(), "every order to cut was met");
        assert!(report.holds(), "{report:?}");
        assert_eq!(report.repeated, cuts(), "what was not committed came again, and nothing else");
    });
}

#[test]
fn sabotaged_a_producer_that_guesses_commits_books_twice() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, store) = behind_a_proxy(&fixture).await;
        let outbox = Outbox::new(Sabotaged::new(store, Mode::GuessCommits));

        let report = enqueue(&outbox, &fixture, &proxy, SABOTAGED_CUTS).await;

        assert!(!report.holds());
        let doubled = usize::try_from(2 * SABOTAGED_CUTS).unwrap();
        assert_eq!(
            report.findings.doubled.len(),
            doubled,
            "each lost answer: two business rows, two bookings"
        );
    });
}

#[test]
fn sabotaged_a_handler_that_guesses_commits_buries_what_took_effect() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let (proxy, store) = behind_a_proxy(&fixture).await;

        let report =
            handle(Sabotaged::new(store, Mode::GuessCommits), &fixture, &proxy, SABOTAGED_CUTS).await;

        assert!(!report.holds());
        assert_eq!(report.dead_letters, 2 * SABOTAGED_CUTS);
    });
}
