//! F08 duplicate-storm: 32 concurrent copies of each message, spread over
//! several processes' inboxes. Each body runs once, never beside itself; the
//! copies that wait do not eat up the pool, and other messages keep flowing.
//!
//! Sabotage: the marker is written last, at the commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use oncebox::{Context, HandlerError, Inbox, Store};
use oncebox_conformance::run::on_store;
use oncebox_conformance::{Findings, MemoryFixture, StoreFixture};

use super::bodies::{Bodies, deliver_until_done, tireless};
use super::crowd::{Crowd, Twist, Watched, deliver_copies};
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
const PATIENCE: Duration = Duration::from_secs(30);

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

/// Takes long enough for copies to pile up behind the marker.
struct Slow;

impl<F: StoreFixture> Twist<F> for Slow {
    async fn after(
        &self,
        _cx: &mut Context<'_, <F::Store as Store>::Tx>,
        _number: usize,
        _run: usize,
    ) -> Result<(), HandlerError> {
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
            let booker = Watched::new(&fixture, &bodies, Slow);
            Inbox::builder(store.clone(), "bookings").handler(booker).retry(tireless()).build().unwrap()
        })
        .collect();
    let everybody = Crowd::of(ids + BYSTANDERS);
    let mut stormed = Crowd::of(ids + BYSTANDERS);
    let bystanders = stormed.split_off(ids);
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
    let storming = stormed.deliver(AT_ONCE, |envelope| deliver_copies(inboxes.clone(), envelope, COPIES));
    let passing = async {
        let mut slowest = Duration::ZERO;
        for envelope in bystanders.arriving() {
            let started = Instant::now();
            deliver_until_done(&inboxes[0], &envelope).await;
            slowest = slowest.max(started.elapsed());
        }
        slowest
    };
    let ((), slowest_bystander) = tokio::join!(storming, passing);
    over.store(true, Ordering::SeqCst);
    watching.await.unwrap();
    Storm {
        bodies,
        findings: everybody.findings(&*fixture).await,
        most_connections: most.load(Ordering::SeqCst),
        connections_allowed: fixture.connections().1,
        slowest_bystander,
        messages: everybody.len(),
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
