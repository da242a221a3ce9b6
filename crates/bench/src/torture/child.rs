//! A child process: a producer, a relay or a worker, made to be killed.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use oncebox_conformance::sabotage::{MaybeEager, MaybeHasty};
use oncebox_core::store::{Dedup, Mailbox};
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Acknowledge, Delivery, Feed, HandlerError, Message};
use oncebox_flow::crash::Reaction;
use oncebox_flow::inbox::InboxOptions;
use oncebox_flow::outbox::Unit;
use oncebox_flow::relay::RelayOptions;
use oncebox_flow::{Consumer, CrashPoint, Inbox, Outbox, Probe, Relay};
use oncebox_stores::postgres::PostgresStore;
use oncebox_stores::sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::chance::Chance;
use super::plan::Role;
use super::remote::{Receiver, Sender};
use super::sabotage::{LINGER, Sabotage};

/// Customers of one producer.
const CUSTOMERS: u64 = 8;
pub(super) const CHANNEL: &str = "torture.orders";
const HANDLER: &str = "torture.record";
const LAST: &str = "SELECT coalesce(max(sequence), 0) FROM torture_order WHERE customer = $1";
const PLACE: &str = "INSERT INTO torture_order (customer, sequence, nonce) VALUES ($1, $2, $3)";
const RECORD: &str = "INSERT INTO torture_effect (customer, sequence, nonce) VALUES ($1, $2, $3)";

/// What a child is told.
#[derive(Args, Clone)]
pub(crate) struct ChildArguments {
    #[arg(long, value_enum)]
    role: Role,
    /// The number of the slot, which a producer's customers are named after.
    #[arg(long)]
    slot: u64,
    #[arg(long)]
    seed: u64,
    /// Where the broker is: a socket or a URL, in the environment as the database.
    #[arg(long, env = "ONCEBOX_TORTURE_BROKER", hide_env_values = true)]
    broker: String,
    /// Given in the environment, where no other user sees the password in it.
    #[arg(long, env = "ONCEBOX_TORTURE_DATABASE", hide_env_values = true)]
    database: String,
    #[arg(long)]
    point: Option<String>,
    #[arg(long, default_value_t = 1)]
    visit: u64,
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
}

impl ChildArguments {
    fn is_remote(&self) -> bool {
        self.broker.contains("://")
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    customer: String,
    sequence: i64,
    /// One for every try: tells an order that was rolled back from the one that took its number.
    nonce: String,
}

impl Message for Order {
    const NAME: &'static str = "torture.order.v1";
    const DESTINATION: Option<&'static str> = Some(CHANNEL);

    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.customer.as_str().into())
    }
}

/// What differs between the databases: the driver's statements.
trait Books: Mailbox + Dedup {
    async fn last(&self, customer: &str) -> Result<i64, sqlx::Error>;
    fn place(unit: &mut Unit<Self>, order: Order) -> impl Future<Output = Result<(), HandlerError>> + Send;
    /// The handler's effect alone, in a transaction of its own.
    async fn record(&self, order: Order) -> Result<(), sqlx::Error>;
    fn inbox(self, probe: Probe) -> Inbox<Self>;
}

macro_rules! books {
    ($store:ty, $connection:ty) => {
        impl Books for $store {
            async fn last(&self, customer: &str) -> Result<i64, sqlx::Error> {
                sqlx::query_scalar(LAST).bind(customer.to_owned()).fetch_one(self.pool()).await
            }

            async fn place(unit: &mut Unit<Self>, order: Order) -> Result<(), HandlerError> {
                let place = sqlx::query(PLACE).bind(order.customer).bind(order.sequence).bind(order.nonce);
                place.execute(unit.tx()).await?;
                Ok(())
            }

            async fn record(&self, order: Order) -> Result<(), sqlx::Error> {
                let record = sqlx::query(RECORD).bind(order.customer).bind(order.sequence).bind(order.nonce);
                record.execute(self.pool()).await.map(drop)
            }

            fn inbox(self, probe: Probe) -> Inbox<Self> {
                async fn record(tx: &mut $connection, order: Order) -> Result<(), HandlerError> {
                    let record =
                        sqlx::query(RECORD).bind(order.customer).bind(order.sequence).bind(order.nonce);
                    record.execute(tx).await?;
                    Ok(())
                }
                let builder = Inbox::builder(self, CHANNEL).on::<Order, _>(HANDLER, record);
                builder.options(inbox_options()).probe(probe).build().expect("an inbox")
            }
        }
    };
}

books!(SqliteStore, sqlx::SqliteConnection);
books!(PostgresStore, sqlx::PgConnection);

/// Runs until it is killed.
pub(crate) async fn run(arguments: ChildArguments) -> bool {
    // A parent that is gone, however it went, leaves no children behind.
    tokio::spawn(async {
        let mut parent = tokio::io::stdin();
        tokio::io::copy(&mut parent, &mut tokio::io::sink()).await.ok();
        std::process::exit(0);
    });
    if arguments.database.starts_with("postgres") {
        let store = PostgresStore::connect(&arguments.database).await.expect("the database answers");
        play(store, &arguments).await;
    } else {
        let store = SqliteStore::connect(&arguments.database).await.expect("the database opens");
        play(store, &arguments).await;
    }
    true
}

async fn play<S: Books>(store: S, arguments: &ChildArguments) {
    let probe = probe(arguments);
    let never = CancellationToken::new();
    match arguments.role {
        Role::Producer => produce(store, probe, arguments).await,
        Role::Relay => {
            let halves = arguments.point.as_deref() == Some("R7");
            let publisher = Sender::to(&arguments.broker, probe.clone(), halves);
            let hasty = arguments.sabotage == Some(Sabotage::SettleBeforeConfirm);
            let relay = Relay::builder(store, MaybeHasty::new(publisher, hasty.then_some(LINGER)));
            relay.options(relay_options(arguments)).probe(probe).build().expect("a relay").run(never).await;
        }
        Role::Worker => {
            let feed = Receiver::from(&arguments.broker).await;
            if arguments.sabotage == Some(Sabotage::DedupInMemory) {
                return remember_in_vain(store, probe, feed).await;
            }
            let eager = arguments.sabotage == Some(Sabotage::AckBeforeCommit);
            let inbox = store.inbox(probe);
            Consumer::new(inbox, MaybeEager::new(feed, eager.then_some(LINGER)))
                .concurrency(4)
                .run(never)
                .await;
        }
    }
}

/// A worker without an inbox: what it has handled is forgotten when it dies.
async fn remember_in_vain<S: Books>(store: S, probe: Probe, mut feed: Receiver) {
    let mut handled = HashSet::new();
    loop {
        let Ok(Some(Delivery { envelope, ack, .. })) = feed.next().await else { continue };
        for point in [CrashPoint::C1, CrashPoint::C2, CrashPoint::C3] {
            probe.reach(point).await.ok();
        }
        if handled.insert(envelope.id.clone()) {
            let order = Order::decode(&envelope.payload).expect("an order");
            while store.record(order.clone()).await.is_err() {}
        }
        for point in [CrashPoint::C5, CrashPoint::C6] {
            probe.reach(point).await.ok();
        }
        ack.ack().await.ok();
    }
}

/// Says where it is and waits there for its end.
fn probe(arguments: &ChildArguments) -> Probe {
    let Some(point) = arguments.point.as_deref().and_then(CrashPoint::parse) else { return Probe::default() };
    let left = Arc::new(AtomicU64::new(arguments.visit));
    Probe::new(move |reached| {
        let is_last = reached == point && left.fetch_sub(1, Ordering::SeqCst) == 1;
        async move {
            if is_last {
                let mut out = std::io::stdout();
                writeln!(out, "at {}", reached.name()).and_then(|()| out.flush()).ok();
                std::future::pending::<()>().await;
            }
            Reaction::Go
        }
    })
}

/// Short leases, so that what a dead relay held is soon another's.
fn relay_options(arguments: &ChildArguments) -> RelayOptions {
    // A server waits for its disk.
    let publish_timeout = Duration::from_millis(if arguments.is_remote() { 700 } else { 400 });
    RelayOptions {
        batch: 20,
        poll: Duration::from_millis(20),
        lease: Duration::from_millis(1500),
        publish_timeout,
        error_backoff: Duration::from_millis(50),
        ..RelayOptions::default()
    }
}

fn inbox_options() -> InboxOptions {
    let retry = RetryPolicy {
        // The broker counts kills; a message that happens to meet many is no poison.
        max_attempts: None,
        busy_delay: Duration::from_millis(50),
        ..RetryPolicy::default()
    };
    InboxOptions { retry, ..InboxOptions::default() }
}

/// Places orders, a tenth of which are taken back before the commit.
async fn produce<S: Books>(store: S, probe: Probe, arguments: &ChildArguments) {
    let outbox = Outbox::new(store.clone()).source("torture").probe(probe);
    let mut chance = Chance::new(arguments.seed);
    // A queue that is read by one worker at a time, and by none for seconds after
    // its death, is not to be flooded.
    let (shortest, longest) = if arguments.is_remote() { (10, 40) } else { (2, 12) };
    loop {
        let customer = format!("customer-{}-{}", arguments.slot, chance.below(CUSTOMERS));
        // The database knows what the last incarnation managed to commit.
        let Ok(last) = store.last(&customer).await else { continue };
        let nonce = uuid::Uuid::now_v7().to_string();
        let order = Order { customer, sequence: last + 1, nonce };
        let taken_back = chance.per_mille(100);
        // A failure is a number that the last incarnation's commit took after
        // all, or a database that is busy: either way the next try asks again.
        let placed = outbox.transact(move |unit| {
            Box::pin(async move {
                S::place(unit, order.clone()).await?;
                unit.put(&order).await?;
                match taken_back {
                    true => Err(HandlerError::permanent("the customer changed their mind")),
                    false => Ok(()),
                }
            })
        });
        placed.await.ok();
        tokio::time::sleep(chance.millis(shortest, longest)).await;
    }
}
