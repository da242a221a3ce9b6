//! A stage for tests of your own handlers: producer, relay, transport, inbox
//! and workers in one place, with nothing in the background, time moved by
//! hand and faults at named points.
//!
//! - `steps`: one thing happens, or everything until nothing is left.
//! - `crashes`: the process dies where it is told to.
//! - `views`: what was put, handled, skipped and buried.
//! - `wire`: what the relay publishes to.
//!
//! A test fails by panicking, so unlike the rest of the crate this does, too.
#![allow(clippy::panic, reason = "a failed test is a panic")]

mod crashes;
mod steps;
mod views;
mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use oncebox_core::inspect::Inspect;
use oncebox_core::{
    Depot, Envelope, HandlerError, Letters, Mailbox, Message, Publisher, Subscriber, Timestamp,
};

pub use crashes::{every_crash_point, every_crash_point_on};
pub use steps::Step;
pub use views::Buried;

use crate::clock::Clock;
use crate::crash::CrashPoint;
use crate::inbox::{Inbox, InboxBuilder, WorkOptions, Worker};
use crate::memory::{Confirm, MemoryFeed, MemoryStore, MemoryTransport};
use crate::outbox::Outbox;
use crate::relay::Relay;
use crashes::Crashes;
use steps::Held;
use views::Record;
use wire::Wire;

/// 2026-01-01T00:00:00Z: where the clock of every stage starts.
const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);
/// The group of all channels.
const GROUP: &str = "stage";
/// How often a producer that dies is run again.
const PRODUCER_LIVES: usize = 1_000;

/// A producer, a transport that behaves as it is told, and handlers, around one
/// store.
///
/// Nothing happens but in [`step`](Self::step) and
/// [`run_until_idle`](Self::run_until_idle), and no time passes but there and in
/// [`advance`](Self::advance). The transport stands for a broker: what it holds
/// survives when the process dies.
///
/// ```
/// use oncebox_core::{HandlerError, Message};
/// use oncebox_flow::memory::MemoryTx;
/// use oncebox_flow::testing::Stage;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced {
///     order_id: u64,
/// }
///
/// impl Message for OrderPlaced {
///     const NAME: &'static str = "order.placed.v1";
///     const DESTINATION: Option<&'static str> = Some("orders");
/// }
///
/// async fn ship(tx: &mut MemoryTx, order: OrderPlaced) -> Result<(), HandlerError> {
///     tx.append("shipments", order.order_id.to_string());
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut stage =
///     Stage::memory().channel("orders", |inbox| inbox.durable().on::<OrderPlaced, _>("ship", ship));
///
/// stage.duplicate(1);
/// let id = stage.put(&OrderPlaced { order_id: 7 }).await;
/// stage.run_until_idle().await;
///
/// stage.assert_handled_once("ship", &id);
/// assert_eq!(stage.skipped("ship"), [id], "the copy");
/// assert_eq!(stage.store().rows("shipments").await, ["7"]);
/// # }
/// ```
pub struct Stage<S: Mailbox + Depot = MemoryStore> {
    store: S,
    transport: MemoryTransport,
    wire: Wire,
    clock: Clock,
    outbox: Outbox<S>,
    channels: Vec<Channel<S>>,
    relay: Option<Relay<S, Wire>>,
    held: Vec<Held>,
    delays: VecDeque<Duration>,
    crashes: Arc<Mutex<Crashes>>,
    record: Arc<Mutex<Record>>,
}

/// How a channel's inbox is set up, each time the process starts.
type SetUp<S> = Box<dyn Fn(InboxBuilder<S>) -> InboxBuilder<S> + Send + Sync>;

/// What arrives on one destination, and who handles it.
struct Channel<S: Mailbox + Depot> {
    name: String,
    set_up: SetUp<S>,
    feed: MemoryFeed,
    inbox: Inbox<S>,
    worker: Option<Worker<S>>,
}

impl Stage {
    /// A stage on a store in memory.
    #[must_use]
    pub fn memory() -> Self {
        Self::on(MemoryStore::new())
    }
}

impl<S: Mailbox + Depot + Letters + Inspect> Stage<S> {
    /// A stage on a store of yours, whose tables must exist.
    #[must_use]
    pub fn on(store: S) -> Self {
        let transport = MemoryTransport::new().confirm(Confirm::OnEnqueue);
        let clock = Clock::manual(START);
        let crashes = Arc::default();
        let outbox = Outbox::new(store.clone()).source(GROUP).clock(clock.clone());
        Self {
            outbox: outbox.probe(Crashes::probe(&crashes)),
            wire: Wire::new(transport.clone()),
            store,
            transport,
            clock,
            channels: Vec::new(),
            relay: None,
            held: Vec::new(),
            delays: VecDeque::new(),
            crashes,
            record: Arc::default(),
        }
    }

    /// The name of the service: the source of its messages. Default `stage`.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.outbox = self.outbox.source(name);
        self.restart();
        self
    }

    /// Sends messages of type `M` to `destination`.
    #[must_use]
    pub fn route<M: Message>(mut self, destination: &'static str) -> Self {
        self.outbox = self.outbox.route::<M>(destination);
        self.restart();
        self
    }

    /// Handles what arrives on `destination`, as
    /// [`Oncebox::channel`](crate::Oncebox::channel) does. `handlers` is called
    /// again whenever the process has died and starts anew; what a handler
    /// keeps in memory is gone then.
    ///
    /// What is put for a destination without a channel goes out to others.
    ///
    /// # Panics
    /// If the set-up is refused.
    #[must_use]
    pub fn channel(
        mut self,
        destination: impl Into<String>,
        handlers: impl Fn(InboxBuilder<S>) -> InboxBuilder<S> + Send + Sync + 'static,
    ) -> Self {
        let name: String = destination.into();
        let set_up: SetUp<S> = Box::new(handlers);
        let Some(Ok(feed)) = self.transport.subscribe(&name, GROUP).now_or_never() else {
            panic!("channel {name} cannot be subscribed to: the transport is closed");
        };
        let (inbox, worker) = self.start(&name, &set_up);
        self.wire.attach(&name);
        self.channels.push(Channel { name, set_up, feed, inbox, worker });
        self
    }

    /// Puts a message in a transaction of its own, commits it and answers with
    /// the message's id. A producer that is made to die before its COMMIT is
    /// run again, as its caller would do; one that dies after it is not.
    ///
    /// # Panics
    /// If the message is refused, or the store fails.
    pub async fn put<M: Message>(&self, message: &M) -> String {
        let payload = message.encode().unwrap_or_else(|error| panic!("put: {}", error.chain()));
        for _ in 0..PRODUCER_LIVES {
            let message = M::decode(&payload).unwrap_or_else(|error| panic!("put: {}", error.chain()));
            let written: Arc<Mutex<String>> = Arc::default();
            let id = Arc::clone(&written);
            let unit = self.outbox.transact(move |unit| {
                Box::pin(async move {
                    let put = unit.put(&message).await.map_err(HandlerError::retry)?;
                    locked(&id).push_str(&put);
                    Ok(())
                })
            });
            let ended = unit.await;
            let id = locked(&written).clone();
            match (ended, locked(&self.crashes).take_producer_death()) {
                (Ok(()), _) | (Err(_), Some(CrashPoint::P4 | CrashPoint::P5)) => return id,
                (Err(_), Some(_before_commit)) => {}
                (Err(error), None) => panic!("put: {}", error.chain()),
            }
        }
        panic!("put: the producer died {PRODUCER_LIVES} times in a row");
    }

    /// Hands a message to the transport, as a producer elsewhere would.
    ///
    /// # Panics
    /// If no channel of this stage takes its destination.
    pub async fn deliver(&self, envelope: Envelope) {
        for sent in self.transport.publish(&[envelope]).await {
            if let Err(failure) = sent {
                panic!("deliver: {failure}");
            }
        }
    }

    /// Lets time pass: leases run out, retries and scheduled messages become
    /// due. They happen in the next steps.
    pub fn advance(&mut self, span: Duration) {
        self.clock.advance(span);
    }

    /// Delivers each of the next `deliveries` twice.
    pub fn duplicate(&mut self, deliveries: usize) {
        self.transport.duplicate_next(deliveries);
    }

    /// Delivers messages in an order drawn from the seed; those that share an
    /// ordering key keep theirs.
    pub fn reorder(&mut self, seed: u64) {
        self.transport.reorder(Some(seed));
    }

    /// Holds the next delivery back until `span` has passed; others overtake
    /// it, unless they share its ordering key. Called twice, it holds back two.
    pub fn delay(&mut self, span: Duration) {
        self.delays.push_back(span);
    }

    /// Lets the process die the next `times` that it reaches `point`. It is
    /// started anew at once; what it had leased is free when the lease has run out.
    pub fn crash_at(&mut self, point: CrashPoint, times: usize) {
        locked(&self.crashes).arm(point, times);
    }

    /// The store below.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The transport, for faults that have no verb here.
    pub const fn transport(&self) -> &MemoryTransport {
        &self.transport
    }

    /// The outbox, for producers of yours. Take it after all routes are set.
    #[must_use]
    pub fn outbox(&self) -> Outbox<S> {
        self.outbox.clone()
    }

    /// What time it is here.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now().unwrap_or(START)
    }

    /// The process starts anew: nothing is left of it but the store and what
    /// the transport holds.
    fn restart(&mut self) {
        self.relay = None;
        for mut channel in std::mem::take(&mut self.channels) {
            (channel.inbox, channel.worker) = self.start(&channel.name, &channel.set_up);
            self.channels.push(channel);
        }
    }

    fn start(&self, name: &str, set_up: &SetUp<S>) -> (Inbox<S>, Option<Worker<S>>) {
        let builder = set_up(Inbox::builder(self.store.clone(), name))
            .outbox_or(&self.outbox)
            .clock(self.clock.clone())
            .probe(Crashes::probe(&self.crashes))
            .observe(Record::observer(&self.record, &self.crashes));
        let inbox = builder.build().unwrap_or_else(|error| panic!("channel {name}: {}", error.chain()));
        locked(&self.crashes).expect_of(&inbox);
        let worker = inbox.is_durable().then(|| Worker::new(&inbox, WorkOptions::default()));
        let worker = worker.map(|worker| {
            worker.unwrap_or_else(|error| panic!("worker of channel {name}: {}", error.chain()))
        });
        (inbox, worker)
    }
}

impl<S: Mailbox + Depot> fmt::Debug for Stage<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels: Vec<&str> = self.channels.iter().map(|channel| channel.name.as_str()).collect();
        f.debug_struct("Stage").field("channels", &channels).finish_non_exhaustive()
    }
}

/// A scenario that failed may have left the lock in another's panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
