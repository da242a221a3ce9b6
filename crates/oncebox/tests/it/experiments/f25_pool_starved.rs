//! F25 pool-starved: far more seats than the pool has connections, handlers
//! that keep theirs for a while, and leases shorter than the wait. Nothing
//! deadlocks and no lease is lost, as renewals do not wait for the pool.
//!
//! Sabotage: renewals that do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox::depot::{Finish, TakeRequest, Taken, Ticket, Want};
use oncebox::{
    Context, Depot, Handler, HandlerError, HandlerKey, Identifier, Inbox, Message as _, Store, WorkOptions,
    Worker,
};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted};
use oncebox_conformance::{Ledger, StoreFixture};
use oncebox_stores::postgres::{PostgresStore, pool_options};
use sqlx::PgConnection;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bodies::{Bodies, HANDLER, tireless};
use super::booking::operation;
use super::kills::unordered;
use super::workshop::{deposit, inbox};
use crate::conformance::postgres::PostgresFixture;

const CONNECTIONS: u32 = 2;
const DELIVERIES: i64 = 100;
/// How long a handler keeps its transaction; all of them together need several leases.
const HELD: Duration = Duration::from_millis(300);
/// Renewed often enough to outlive a stall of the whole process.
const LEASE: Duration = Duration::from_secs(6);
/// Much longer than everything takes.
const DEADLOCK: Duration = Duration::from_secs(90);

struct Slow {
    fixture: Arc<PostgresFixture>,
    bodies: Bodies,
}

impl Handler<PgConnection> for Slow {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(&self, cx: &mut Context<'_, PgConnection>, message: Posted) -> Result<(), HandlerError> {
        let _body = self.bodies.enter(&cx.envelope().id, cx.attempt());
        self.fixture.effect(cx.tx(), &operation(HANDLER, &message)).await?;
        tokio::time::sleep(HELD).await;
        Ok(())
    }
}

/// The fixture's database through a pool that is too small.
async fn starved(fixture: &PostgresFixture) -> PostgresStore {
    let url = std::env::var("ONCEBOX_TEST_POSTGRES_URL").unwrap();
    let pool = pool_options().max_connections(CONNECTIONS).acquire_timeout(DEADLOCK);
    let pool = pool.connect(&url).await.unwrap();
    PostgresStore::new(pool).schema(Identifier::new(&fixture.schema).unwrap())
}

fn messages() -> Vec<Posted> {
    (0..DELIVERIES).map(|n| Posted::on(&format!("account-{n}"), n)).collect()
}

async fn take(store: &PostgresStore, holder: &str, suspects: bool) -> Vec<Taken> {
    let limit = usize::try_from(DELIVERIES).unwrap();
    let wants = [Want { handler: HANDLER, limit }];
    let request =
        TakeRequest { scope: "", holder, lease: LEASE, limit, seats: limit, wants: &wants, suspects };
    store.take(&request, None).await.unwrap()
}

async fn wait_for_effects(fixture: &PostgresFixture) {
    let start = Instant::now();
    while fixture.effects().await.len() < messages().len() {
        assert!(start.elapsed() < DEADLOCK, "a deadlock");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_starved_pool_neither_deadlocks_nor_loses_a_lease() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        deposit(&inbox(&fixture), &messages()).await;
        let (store, bodies) = (starved(&fixture).await, Bodies::default());
        let slow = Slow { fixture: Arc::clone(&fixture), bodies: bodies.clone() };
        let inbox = Inbox::builder(store.clone(), DESTINATION).handler(slow).durable().retry(tireless());
        // Everything is held from the start.
        let options = WorkOptions { concurrency: 40, prefetch: 60, lease: LEASE, ..WorkOptions::default() };
        let worker = Worker::new(&inbox.build().unwrap(), options).unwrap();
        let (stop, start) = (CancellationToken::new(), Instant::now());
        let working = tokio::spawn(worker.run(stop.clone()));

        wait_for_effects(&fixture).await;

        println!("F25: {} bodies in {:?}", bodies.total(), start.elapsed());
        stop.cancel();
        assert!(working.await.unwrap());
        assert_eq!((bodies.total(), bodies.overlaps(), bodies.highest_attempt()), (100, 0, 1));
        assert!(start.elapsed() > LEASE * 2, "leases had to be renewed");
        let expected: Vec<_> = messages().iter().map(|message| operation(HANDLER, message)).collect();
        unordered(Ledger::check(&expected, &fixture.effects().await)).assert_clean();
        store.pool().close().await;
    });
}

/// One seat of a worker by hand: false if its lease was lost.
async fn sit(store: PostgresStore, fixture: Arc<PostgresFixture>, taken: Taken) -> bool {
    let mut tx = store.begin().await.unwrap();
    let message = Posted::decode(&taken.envelope.payload).unwrap();
    fixture.effect(&mut tx, &operation(HANDLER, &message)).await.unwrap();
    tokio::time::sleep(HELD).await;
    let finish = Finish { ticket: taken.ticket, mark: None, result: None, frees_lane: false, next: None };
    if store.finish(&mut tx, &finish, None).await.is_ok() {
        return store.commit(tx).await.is_ok();
    }
    store.rollback(tx).await.ok();
    false
}

/// Renews as a worker does, but waits for its turn in the pool.
async fn renew_in_turn(store: PostgresStore, tickets: Vec<Ticket>) {
    loop {
        tokio::time::sleep(LEASE / 3).await;
        let turn = store.pool().acquire().await;
        store.renew(&tickets, LEASE, None).await.ok();
        drop(turn);
    }
}

#[test]
fn sabotaged_renewals_that_wait_for_the_pool_lose_leases() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        deposit(&inbox(&fixture), &messages()).await;
        let store = starved(&fixture).await;
        let taken = take(&store, "starved", false).await;
        assert_eq!(taken.len(), messages().len());
        let tickets = taken.iter().map(|taken| taken.ticket).collect();
        let mut seats = JoinSet::new();
        for taken in taken {
            seats.spawn(sit(store.clone(), Arc::clone(&fixture), taken));
        }
        let renewing = tokio::spawn(renew_in_turn(store.clone(), tickets));
        // Somebody else, who takes what nobody holds any more.
        let rival = fixture.store();
        let robbing = tokio::spawn(async move {
            loop {
                take(&rival, "rival", true).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });

        let finished = seats.join_all().await;

        renewing.abort();
        robbing.abort();
        let lost = finished.iter().filter(|is_finished| !**is_finished).count();
        println!("F25 sabotaged: {lost} leases lost");
        assert!(lost > 0);
        store.pool().close().await;
    });
}
