//! F08 duplicate-storm: 32 concurrent copies of each message, spread over
//! several processes' inboxes. Each body runs once, never beside itself; the
//! copies that wait do not eat up the pool, and other messages keep flowing.
//!
//! Sabotage: the marker is written last, at the commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use oncebox::{Context, Handler, HandlerError, HandlerKey, Inbox, Store};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::Posted;
use oncebox_conformance::{Findings, Ledger, MemoryFixture, StoreFixture};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::bodies::{Bodies, HANDLER, arriving, deliver_until_done, effect, tireless};
use super::sabotaged::{Mode, Sabotaged};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

const IDS: usize = 100;
/// Enough for a broken check to show.
const SABOTAGED_IDS: usize = 10;
const COPIES: usize = 32;
const INBOXES: usize = 4;
/// Messages whose copies storm at the same time.
const AT_ONCE: usize = 4;
const BYSTANDERS: usize = 50;
/// A message nobody repeats is done this soon, storm or not.
const PATIENCE: Duration = Duration::from_secs(5);

/// A fixture that tells how many connections it has open, and may have.
trait Pooled: StoreFixture {
    fn connections(&self) -> (u32, u32);
}

impl Pooled for MemoryFixture {
    fn connections(&self) -> (u32, u32) {
        (0, 0)
    }
}

impl Pooled for SqliteFixture {
    fn connections(&self) -> (u32, u32) {
        let store = self.store();
        (store.pool().size(), store.pool().options().get_max_connections())
    }
}

impl Pooled for PostgresFixture {
    fn connections(&self) -> (u32, u32) {
        let store = self.store();
        (store.pool().size(), store.pool().options().get_max_connections())
    }
}

struct Booker<F> {
    fixture: Arc<F>,
    bodies: Bodies,
}

impl<F: StoreFixture> Handler<<F::Store as Store>::Tx> for Booker<F> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        let id = cx.envelope().id.clone();
        let _body = self.bodies.enter(&id, cx.attempt());
        self.fixture.effect(cx.tx(), &effect(&id, &message)).await?;
        // Long enough for copies to pile up behind the marker.
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(())
    }
}

struct Storm {
    bodies: Bodies,
    findings: Findings,
    most_connections: u32,
    connections_allowed: u32,
    slowest_bystander: Duration,
    messages: usize,
}

impl Storm {
    fn check(&self) -> Result<(), String> {
        if !self.findings.is_clean() {
            return Err(self.findings.to_string());
        }
        let (total, expected) = (self.bodies.total(), self.messages);
        if total != expected {
            return Err(format!("{total} bodies ran for {expected} messages"));
        }
        if self.bodies.overlaps() > 0 {
            return Err(format!("{} bodies ran beside a copy of themselves", self.bodies.overlaps()));
        }
        if self.most_connections > self.connections_allowed {
            return Err(format!("{} connections of {}", self.most_connections, self.connections_allowed));
        }
        if self.slowest_bystander > PATIENCE {
            return Err(format!("a message without copies took {:?}", self.slowest_bystander));
        }
        Ok(())
    }
}

async fn storm<F: Pooled>(fixture: Arc<F>, ids: usize, mode: Mode) -> Storm {
    let bodies = Bodies::default();
    let store = Sabotaged::new(fixture.store(), mode);
    let inboxes: Vec<_> = (0..INBOXES)
        .map(|_| {
            let booker = Booker { fixture: Arc::clone(&fixture), bodies: bodies.clone() };
            Inbox::builder(store.clone(), "bookings").handler(booker).retry(tireless()).build().unwrap()
        })
        .collect();
    let messages: Vec<_> = (0..ids + BYSTANDERS)
        .map(|number| (format!("m-{number}"), Posted::unkeyed(i64::try_from(number).unwrap())))
        .collect();
    let over = Arc::new(AtomicBool::new(false));
    let most = Arc::new(AtomicU32::new(0));
    let watching = tokio::spawn({
        let (fixture, over, most) = (Arc::clone(&fixture), Arc::clone(&over), Arc::clone(&most));
        async move {
            while !over.load(Ordering::SeqCst) {
                most.fetch_max(fixture.connections().0, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let seats = Arc::new(Semaphore::new(AT_ONCE));
    let mut storming = JoinSet::new();
    for (id, message) in &messages[..ids] {
        let envelope = arriving(id, message);
        let (inboxes, seats) = (inboxes.clone(), Arc::clone(&seats));
        storming.spawn(async move {
            let _seat = seats.acquire_owned().await.unwrap();
            let mut copies = JoinSet::new();
            for copy in 0..COPIES {
                let (inbox, envelope) = (inboxes[copy % INBOXES].clone(), envelope.clone());
                copies.spawn(async move { deliver_until_done(&inbox, &envelope).await });
            }
            copies.join_all().await;
        });
    }
    let mut slowest = Duration::ZERO;
    for (id, message) in &messages[ids..] {
        let started = Instant::now();
        deliver_until_done(&inboxes[0], &arriving(id, message)).await;
        slowest = slowest.max(started.elapsed());
    }
    storming.join_all().await;
    over.store(true, Ordering::SeqCst);
    watching.await.unwrap();
    let committed: Vec<_> = messages.iter().map(|(id, message)| effect(id, message)).collect();
    Storm {
        bodies,
        findings: Ledger::check(&committed, &fixture.effects().await),
        most_connections: most.load(Ordering::SeqCst),
        connections_allowed: fixture.connections().1,
        slowest_bystander: slowest,
        messages: messages.len(),
    }
}

fn holds<F: Pooled>() {
    on_store::<F, _, _>(|fixture| async move { storm(fixture, IDS, Mode::Honest).await.check().unwrap() });
}

fn is_noticed<F: Pooled>() {
    on_store::<F, _, _>(|fixture| async move {
        let complaint = storm(fixture, SABOTAGED_IDS, Mode::MarkLast).await.check().unwrap_err();
        assert!(complaint.contains("bodies ran"), "{complaint}");
    });
}

#[test]
fn a_storm_of_copies_runs_each_body_once_in_memory() {
    holds::<MemoryFixture>();
}

#[test]
fn a_storm_of_copies_runs_each_body_once_on_sqlite() {
    holds::<SqliteFixture>();
}

#[test]
fn a_storm_of_copies_runs_each_body_once_on_postgres() {
    holds::<PostgresFixture>();
}

#[test]
fn a_marker_written_last_is_noticed_in_memory() {
    is_noticed::<MemoryFixture>();
}

#[test]
fn a_marker_written_last_is_noticed_on_sqlite() {
    is_noticed::<SqliteFixture>();
}

#[test]
fn a_marker_written_last_is_noticed_on_postgres() {
    is_noticed::<PostgresFixture>();
}
