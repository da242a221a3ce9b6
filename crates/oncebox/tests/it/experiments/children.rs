//! Relays and workers as processes of their own, made to be killed.
//!
//! A child is this test binary, told by its environment what to do. It ends
//! when it is killed, or when whoever started it is gone.

use std::collections::HashSet;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::relay::RelayOptions;
use oncebox::stores::{postgres::PostgresStore, sqlite::SqliteStore};
use oncebox::{
    Acknowledge, Consumer, Delivery, Envelope, Failure, Feed, Identifier, Inbox, Message, Order, Publisher,
    Relay, Result, Store, Subscriber,
};
use oncebox_conformance::StoreFixture;
use oncebox_conformance::sample::{DESTINATION, Posted};
use oncebox_conformance::server::Brand;
use tokio_util::sync::CancellationToken;

use super::bodies::{HANDLER, tireless};
use super::booking::{Booking, operation};
use super::link::{GROUP, Link, NatsLink, Place, RabbitLink};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground;

const CHILD: &str = "experiments::children::a_child_works_until_it_is_killed";
const ORDERS: &str = "ONCEBOX_CHILD_ORDERS";
const DATABASE: &str = "ONCEBOX_CHILD_DATABASE";
const BROKER: &str = "ONCEBOX_CHILD_BROKER";

/// What a child does, and what it does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Relay,
    /// Says "confirmed", and sends afterwards.
    HastyRelay,
    Worker,
    /// Acknowledges, and handles afterwards.
    EagerWorker,
    /// Knows only from memory what it has handled.
    ForgetfulWorker,
}

const ROLES: [Role; 5] =
    [Role::Relay, Role::HastyRelay, Role::Worker, Role::EagerWorker, Role::ForgetfulWorker];

/// Everything that children of one experiment share.
#[derive(Clone, Debug)]
pub(super) struct Ward {
    database: String,
    schema: String,
    brand: Brand,
    place: Place,
    order: Order,
}

impl Ward {
    pub(super) fn new<F: Ground, L: Link>(fixture: &F, place: &Place, order: Order) -> Self {
        let (database, schema) = fixture.place();
        Self { database, schema, brand: L::BRAND, place: place.clone(), order }
    }

    /// Starts a child.
    pub(super) fn start(&self, role: Role) -> Killed {
        let orders =
            format!("{role:?} {:?} {:?} {} {}", self.brand, self.order, self.schema, self.place.name);
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([CHILD, "--exact", "--test-threads=1"]).env(ORDERS, orders);
        child.env(DATABASE, &self.database).env(BROKER, &self.place.url);
        child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Killed(child.spawn().unwrap())
    }
}

/// A child that does not outlive this value.
pub(super) struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// No test by itself: what the parents start.
#[test]
fn a_child_works_until_it_is_killed() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(0);
    });
    let words: Vec<&str> = orders.split(' ').collect();
    let role = ROLES.into_iter().find(|role| format!("{role:?}") == words[0]).unwrap();
    let order = if words[2] == "None" { Order::None } else { Order::SingleActive };
    let schema = words[3].trim_matches('"').to_owned();
    let place = Place { url: std::env::var(BROKER).unwrap(), name: words[4].to_owned() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        match words[1] {
            "RabbitMq" => serve(RabbitLink::to(&place, order), role, schema).await,
            _ => serve(NatsLink::to(&place, order), role, schema).await,
        }
    });
}

async fn serve<T: Publisher + Subscriber + Clone>(transport: T, role: Role, schema: String) {
    let database = std::env::var(DATABASE).unwrap();
    let identifier = Identifier::new(&schema).unwrap();
    if database.starts_with("postgres") {
        let store = PostgresStore::connect(&database).await.unwrap().schema(identifier);
        let pool = store.pool().clone();
        play(transport, role, PostgresFixture { store, pool, schema }).await;
    } else {
        let store = SqliteStore::connect(&database).await.unwrap().prefix(identifier);
        play(transport, role, SqliteFixture { store, folder: PathBuf::new() }).await;
    }
}

async fn play<T: Publisher + Subscriber + Clone, F: StoreFixture>(transport: T, role: Role, fixture: F) {
    let (fixture, never) = (Arc::new(fixture), CancellationToken::new());
    if matches!(role, Role::Relay | Role::HastyRelay) {
        let publisher = MaybeHasty { publisher: transport, is_hasty: role == Role::HastyRelay };
        let relay = Relay::builder(fixture.store(), publisher).options(short_leases());
        relay.build().unwrap().run(never).await;
        return;
    }
    let feed = loop {
        if let Ok(feed) = transport.subscribe(DESTINATION, GROUP).await {
            break feed;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    if role == Role::ForgetfulWorker {
        return remember_in_vain(&*fixture, feed).await;
    }
    let inbox =
        Inbox::builder(fixture.store(), DESTINATION).handler(Booking::new(&fixture)).retry(tireless());
    let feed = MaybeEager { feed, is_eager: role == Role::EagerWorker };
    Consumer::new(inbox.build().unwrap(), feed).concurrency(4).run(never).await;
}

/// What a dead relay held is soon another's.
pub(super) fn short_leases() -> RelayOptions {
    RelayOptions {
        batch: 20,
        poll: Duration::from_millis(10),
        lease: Duration::from_millis(2_400),
        publish_timeout: Duration::from_millis(1_200),
        error_backoff: Duration::from_millis(50),
        ..RelayOptions::default()
    }
}

/// What it has handled is forgotten when it dies.
async fn remember_in_vain<F: StoreFixture>(fixture: &F, mut feed: impl Feed) {
    let handled = Mutex::new(HashSet::new());
    loop {
        let Ok(Some(Delivery { envelope, ack, .. })) = feed.next().await else { continue };
        if handled.lock().unwrap().insert(envelope.id.clone()) {
            let message = Posted::decode(&envelope.payload).unwrap();
            let store = fixture.store();
            let mut tx = store.begin().await.unwrap();
            fixture.effect(&mut tx, &operation(HANDLER, &message)).await.unwrap();
            store.commit(tx).await.unwrap();
        }
        // The moment between commit and answer, drawn out for a kill to find it.
        tokio::time::sleep(Duration::from_millis(10)).await;
        ack.ack().await.ok();
    }
}

struct MaybeHasty<P> {
    publisher: P,
    is_hasty: bool,
}

impl<P: Publisher + Clone> Publisher for MaybeHasty<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        if !self.is_hasty {
            return self.publisher.publish(batch).await;
        }
        let (publisher, later) = (self.publisher.clone(), batch.to_vec());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(150)).await;
            publisher.publish(&later).await
        });
        vec![Ok(()); batch.len()]
    }
}

struct MaybeEager<F> {
    feed: F,
    is_eager: bool,
}

impl<F: Feed> Feed for MaybeEager<F> {
    type Ack = MaybeAck<F::Ack>;

    async fn next(&mut self) -> Result<Option<Delivery<Self::Ack>>> {
        let Some(Delivery { envelope, attempt, ack }) = self.feed.next().await? else { return Ok(None) };
        let ack = if self.is_eager {
            ack.ack().await?;
            MaybeAck(None)
        } else {
            MaybeAck(Some(ack))
        };
        Ok(Some(Delivery { envelope, attempt, ack }))
    }
}

/// An answer, if it was not given already.
struct MaybeAck<A>(Option<A>);

impl<A: Acknowledge> Acknowledge for MaybeAck<A> {
    async fn ack(self) -> Result<()> {
        match self.0 {
            Some(ack) => ack.ack().await,
            None => Ok(()),
        }
    }

    async fn nack(self, after: Duration, spent: bool) -> Result<()> {
        match self.0 {
            Some(ack) => ack.nack(after, spent).await,
            None => Ok(()),
        }
    }
}
