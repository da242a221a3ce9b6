//! Relays and workers as processes of their own, made to be killed.
//!
//! A child is this test binary, told by its environment what to do. It ends
//! when it is killed, or when whoever started it is gone.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox::relay::RelayOptions;
use oncebox::stores::{postgres::PostgresStore, sqlite::SqliteStore};
use oncebox::{
    Acknowledge as _, Consumer, Delivery, Envelope, Failure, Feed, Identifier, Inbox, Message, Order,
    Publisher, Relay, Result, Store, Subscriber,
};
use oncebox_conformance::StoreFixture;
use oncebox_conformance::sabotage::{MaybeEager, MaybeHasty};
use oncebox_conformance::sample::{DESTINATION, Posted};
use oncebox_conformance::server::Brand;
use oncebox_conformance::size::sized;
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
/// The line by which a child reports.
const AT_WORK: &str = "at work\n";

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

impl Role {
    pub(super) fn is_sabotaged(self) -> bool {
        matches!(self, Self::HastyRelay | Self::EagerWorker | Self::ForgetfulWorker)
    }
}

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
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Killed::watch(child.spawn().unwrap())
    }
}

/// A child that does not outlive this value.
pub(super) struct Killed {
    child: Child,
    /// When it was last seen at work.
    at_work: Arc<Mutex<Option<Instant>>>,
}

impl Killed {
    pub(super) fn watch(mut child: Child) -> Self {
        let at_work = Arc::new(Mutex::new(None));
        let (reports, seen) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&at_work));
        std::thread::spawn(move || {
            for line in reports.lines().map_while(std::io::Result::ok) {
                if line.ends_with(AT_WORK.trim_end()) {
                    *seen.lock().unwrap() = Some(Instant::now());
                }
            }
        });
        Self { child, at_work }
    }

    pub(super) fn was_at_work_since(&self, start: Instant) -> bool {
        self.at_work.lock().unwrap().is_some_and(|seen| seen >= start)
    }

    /// Whether it has not ended by itself.
    pub(super) fn is_alive(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
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
        // Longer than a parent takes to kill what it has seen at work.
        let delay = (role == Role::HastyRelay).then_some(Duration::from_secs(2));
        let publisher = Reporting(MaybeHasty::new(transport, delay));
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
    let delay = (role == Role::EagerWorker).then_some(Duration::from_millis(20));
    let feed = Reporting(MaybeEager::new(feed, delay));
    if role == Role::ForgetfulWorker {
        return remember_in_vain(&*fixture, feed).await;
    }
    let inbox =
        Inbox::builder(fixture.store(), DESTINATION).handler(Booking::new(&fixture)).retry(tireless());
    Consumer::new(inbox.build().unwrap(), feed).concurrency(4).run(never).await;
}

/// What a dead relay held is soon another's.
pub(super) fn short_leases() -> RelayOptions {
    RelayOptions {
        batch: sized(20, RelayOptions::default().batch),
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
        tokio::time::sleep(Duration::from_millis(20)).await;
        ack.ack().await.ok();
    }
}

/// Tells the parent of every batch before it goes out.
struct Reporting<T>(T);

impl<P: Publisher> Publisher for Reporting<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        report();
        self.0.publish(batch).await
    }
}

/// Tells the parent of every delivery.
impl<F: Feed> Feed for Reporting<F> {
    type Ack = F::Ack;

    async fn next(&mut self) -> Result<Option<Delivery<F::Ack>>> {
        let delivery = self.0.next().await;
        report();
        delivery
    }
}

/// Straight to the pipe: the test harness keeps what is printed to itself.
pub(super) fn report() {
    let mut parent = std::io::stdout().lock();
    parent.write_all(AT_WORK.as_bytes()).and_then(|()| parent.flush()).ok();
}
