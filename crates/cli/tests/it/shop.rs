//! A service with an inbox, as its users write it, on a test's database. Its
//! handlers remember what they did in the test's memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox_core::depot::Depot;
use oncebox_core::inspect::Inspect;
use oncebox_core::plan::OnDead;
use oncebox_core::store::Mailbox;
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Backoff, Envelope, HandlerError, HandlerKey, Identifier, Message, Verdict};
use oncebox_flow::inbox::on;
use oncebox_flow::{Inbox, WorkOptions, Worker};
use oncebox_stores::postgres::PostgresStore;
use oncebox_stores::sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::database::Database;

pub(crate) const CHANNEL: &str = "orders";
const SHIP: &str = "ship-order";

/// Without a price it cannot be shipped yet, with a negative one never.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) number: i64,
    pub(crate) cents: i64,
    pub(crate) customer: String,
}

impl Message for Order {
    const NAME: &'static str = "order.placed.v1";

    fn key(&self) -> Option<std::borrow::Cow<'_, str>> {
        Some(self.customer.as_str().into())
    }
}

/// An order as a transport delivers it.
pub(crate) fn order(number: i64, cents: i64, customer: &str) -> Envelope {
    let order = Order { number, cents, customer: customer.into() };
    let headers = [("authorization", "Bearer hunter2"), ("region", "north")];
    Envelope {
        source: "web".into(),
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..Envelope::of(format!("m-{number}"), &order).unwrap()
    }
}

pub(crate) struct Shop<'d> {
    database: &'d Database,
    runtime: Runtime,
    desk: Desk,
}

#[derive(Clone, Default)]
struct Desk {
    shipped: Arc<Mutex<Vec<i64>>>,
    is_mended: Arc<AtomicBool>,
}

impl<'d> Shop<'d> {
    pub(crate) fn on(database: &'d Database) -> Self {
        Self { database, runtime: Runtime::new().unwrap(), desk: Desk::default() }
    }

    /// From here on everything can be shipped.
    pub(crate) fn mend(&self) {
        self.desk.is_mended.store(true, Ordering::SeqCst);
    }

    /// The orders shipped so far, in their order.
    pub(crate) fn shipped(&self) -> Vec<i64> {
        self.desk.shipped.lock().unwrap().clone()
    }

    /// Takes these into the durable inbox and works until nothing is left to do.
    pub(crate) fn work(&self, arrivals: impl IntoIterator<Item = Envelope>) {
        self.open(true, arrivals.into_iter().collect());
    }

    /// Takes these in receiver mode.
    pub(crate) fn receive(&self, arrivals: impl IntoIterator<Item = Envelope>) {
        self.open(false, arrivals.into_iter().collect());
    }

    fn open(&self, is_durable: bool, arrivals: Vec<Envelope>) {
        let (url, name) = (self.database.url(), Identifier::new(self.database.name.as_str()).unwrap());
        self.runtime.block_on(async {
            if self.database.is_sqlite() {
                let store = SqliteStore::connect(&url).await.unwrap().prefix(name);
                self.desk.run(store.clone(), is_durable, arrivals).await;
                store.pool().close().await;
            } else {
                let store = PostgresStore::connect(&url).await.unwrap().schema(name);
                self.desk.run(store.clone(), is_durable, arrivals).await;
                store.pool().close().await;
            }
        });
    }
}

impl Desk {
    async fn run<S: Mailbox + Depot + Inspect>(&self, store: S, is_durable: bool, arrivals: Vec<Envelope>)
    where
        S::Tx: 'static,
    {
        let desk = self.clone();
        let ship = move |_: &mut S::Tx, order: Order| std::future::ready(desk.ship(&order));
        let handler = on::<Order, _>(HandlerKey::new(SHIP), ship);
        let step = Duration::from_millis(1);
        let retry = RetryPolicy {
            max_attempts: Some(2),
            backoff: Backoff { base: step, cap: step },
            ..RetryPolicy::default()
        };
        let inbox = Inbox::builder(store.clone(), CHANNEL).retry(retry);
        let inbox = if is_durable { inbox.durable() } else { inbox };
        let inbox =
            inbox.handler_with(handler, |options| options.in_order(OnDead::BlockKey)).build().unwrap();
        for envelope in arrivals {
            assert_eq!(inbox.deliver(envelope, 1).await, Verdict::Done);
        }
        if is_durable {
            Self::finish(&store, &Worker::new(&inbox, WorkOptions::default()).unwrap()).await;
        }
    }

    /// Works until nothing is ready, now or later.
    async fn finish<S: Mailbox + Depot + Inspect>(store: &S, worker: &Worker<S>) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            worker.run_until_idle().await.unwrap();
            let status = store.status().await.unwrap();
            if status.handlers.iter().all(|handler| handler.ready == 0 && handler.leased == 0) {
                return;
            }
            assert!(Instant::now() < deadline, "{:?}", status.handlers);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn ship(&self, order: &Order) -> Result<(), HandlerError> {
        match order.cents {
            cents if cents > 0 || self.is_mended.load(Ordering::SeqCst) => {
                self.shipped.lock().unwrap().push(order.number);
                Ok(())
            }
            0 => Err(HandlerError::retry("no stock at https://joe:hunter2@stock.example/")),
            _ => Err(HandlerError::permanent("a negative price")),
        }
    }
}
