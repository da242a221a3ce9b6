//! A producer, a transport and consumers around one store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_core::inspect::{Inspect, Status};
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Backoff, Envelope, HandlerError, HandlerKey, Message, Publisher, Result, Store};
use oncebox_flow::inbox::InboxBuilder;
use oncebox_flow::memory::MemoryTransport;
use oncebox_flow::relay::RelayBuilder;
use oncebox_flow::{Clock, Consumer, Context, Handler, HandlerOptions, Inbox, Outbox, Relay};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::carrier::{Carrier, Picky, Watch, WatchedFeed};
use crate::fixture::StoreFixture;
use crate::ledger::{Entry, Ledger};
use crate::sample::{DESTINATION, Posted, SOURCE, moment};

/// The handler of most cases.
pub const HANDLER: &str = "book";
/// The group of all consumers.
pub const GROUP: &str = "group";
/// Passes of all relays after which everything must be settled.
const ROUNDS: usize = 300;

/// A relay of the path suite.
pub type SceneRelay<F, T = MemoryTransport> = Relay<<F as StoreFixture>::Store, Picky<T>>;

/// Everything around one store.
pub struct Scene<F: StoreFixture, T = MemoryTransport> {
    /// The fixture below.
    pub fixture: Arc<F>,
    /// Its store.
    pub store: F::Store,
    /// What carries the messages; the in-process one misbehaves on demand.
    pub transport: T,
    /// What the relay publishes to: the transport, with refusals.
    pub picky: Picky<T>,
    watch: Option<Watch>,
    /// The time, moved by the relay loop.
    pub clock: Clock,
    /// The producer's outbox.
    pub outbox: Outbox<F::Store>,
    /// What must take effect.
    pub committed: Mutex<Vec<Entry>>,
}

impl<F: StoreFixture> Scene<F> {
    /// A scene over the in-process transport. It confirms what was handled, so
    /// there is nothing to wait for after a confirm.
    pub fn new(fixture: &Arc<F>) -> Self {
        // A busy machine must not look like a lost confirm.
        let transport = MemoryTransport::new().confirm_timeout(Duration::from_secs(9));
        Self { watch: None, ..Self::over(fixture, transport) }
    }
}

impl<F: StoreFixture, T: Carrier> Scene<F, T> {
    /// A scene whose time stands still.
    pub fn over(fixture: &Arc<F>, transport: T) -> Self {
        let (store, clock, watch) = (fixture.store(), Clock::manual(moment(0)), Watch::default());
        Self {
            fixture: Arc::clone(fixture),
            outbox: Outbox::new(store.clone()).source(SOURCE).clock(clock.clone()),
            picky: Picky::new(transport.clone(), watch.clone()),
            store,
            transport,
            watch: Some(watch),
            clock,
            committed: Mutex::default(),
        }
    }

    /// Puts messages in one transaction, commits it, and expects their effect by [`HANDLER`].
    pub async fn commit(&self, messages: &[Posted]) -> Vec<String> {
        let mut tx = self.store.begin().await.unwrap();
        let ids = self.outbox.put_all(&mut tx, messages).await.unwrap();
        self.store.commit(tx).await.unwrap();
        let entries = messages.iter().zip(&ids).map(|(message, id)| entry(HANDLER, id, message));
        self.committed.lock().unwrap().extend(entries);
        ids
    }

    /// A booking handler.
    pub fn booker(&self, key: &'static str) -> Booker<F> {
        Booker {
            fixture: Arc::clone(&self.fixture),
            key: HandlerKey::new(key),
            options: HandlerOptions::default(),
            act: Arc::new(|_, _| Ok(())),
            runs: Arc::default(),
            echoes: false,
            keyed_by_account: false,
        }
    }

    /// An inbox that retries within milliseconds.
    pub fn inbox(&self) -> InboxBuilder<F::Store> {
        Inbox::builder(self.store.clone(), DESTINATION)
            .outbox(self.outbox.clone())
            .clock(self.clock.clone())
            .retry(swift())
    }

    /// Feeds an inbox from the transport until the result is dropped.
    pub async fn consume(&self, inbox: Inbox<F::Store>, concurrency: usize) -> Running {
        self.consume_from(DESTINATION, inbox, concurrency).await
    }

    /// The same from another destination.
    pub async fn consume_from(&self, from: &str, inbox: Inbox<F::Store>, concurrency: usize) -> Running {
        let inner = self.transport.subscribe(from, GROUP).await.unwrap();
        let feed = WatchedFeed { inner, watch: self.watch.clone().unwrap_or_default() };
        let stop = CancellationToken::new();
        let consumer = Consumer::new(inbox, feed).concurrency(concurrency);
        Running { task: tokio::spawn(consumer.run(stop.clone())), stop }
    }

    /// Feeds the plain booking handler.
    pub async fn consume_plainly(&self) -> Running {
        let inbox = self.inbox().handler(self.booker(HANDLER)).build().unwrap();
        self.consume(inbox, 1).await
    }

    /// A relay to be configured, retrying refused messages within seconds of the scene's time.
    pub fn relay_builder(&self) -> RelayBuilder<F::Store, Picky<T>> {
        let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(2) };
        Relay::builder(self.store.clone(), self.picky.clone()).clock(self.clock.clone()).retry(RetryPolicy {
            max_attempts: Some(3),
            backoff,
            ..RetryPolicy::default()
        })
    }

    /// A relay.
    pub fn relay(&self) -> SceneRelay<F, T> {
        self.relay_builder().build().unwrap()
    }

    /// Lets relays step, and time pass, until everything is settled or dead.
    pub async fn settle<P: Publisher>(&self, relays: &mut [Relay<F::Store, P>]) {
        for round in 1..=ROUNDS {
            for relay in &mut *relays {
                // Relays renew by a clock that does not follow the scene's, so
                // what another gave back would be left for seconds.
                if round.is_multiple_of(10) {
                    relay.release().await.ok();
                }
                // A relay that fails forgets what it knew and starts over.
                relay.step().await.ok();
            }
            if is_settled(&self.status().await) {
                self.quiet().await;
                // What was handled may have put something on.
                if is_settled(&self.status().await) {
                    return;
                }
            }
            self.clock.advance(Duration::from_secs(1));
        }
        panic!("not settled after {ROUNDS} rounds: {:?}", self.status().await);
    }

    /// Waits until what was confirmed is handled, and nothing more comes.
    pub async fn quiet(&self) {
        if let Some(watch) = &self.watch {
            watch.quiet().await;
        }
    }

    /// Sends messages past the outbox, as somebody else might, and waits until they are handled.
    pub async fn send(&self, messages: &[Envelope]) {
        let confirmed = self.picky.publish(messages).await;
        assert!(confirmed.iter().all(Result::is_ok), "{confirmed:?}");
        self.quiet().await;
    }

    /// Counts of the store.
    pub async fn status(&self) -> Status {
        self.store.status().await.unwrap()
    }

    /// Compares what was committed with what took effect.
    pub async fn check(&self) {
        let committed = self.committed.lock().unwrap().clone();
        Ledger::check(&committed, &self.fixture.effects().await).assert_clean();
    }

    /// The sequences of the effects, in their order.
    pub async fn sequences(&self) -> Vec<i64> {
        self.fixture.effects().await.iter().map(|effect| effect.sequence).collect()
    }
}

fn is_settled(status: &Status) -> bool {
    let is_idle = |sink: &oncebox_core::inspect::SinkStatus| {
        let is_only_dead = sink.waiting == 0 && (sink.behind == 0 || sink.dead > 0);
        sink.pending == 0 && is_only_dead
    };
    status.scheduled == 0 && !status.sinks.is_empty() && status.sinks.iter().all(is_idle)
}

/// Ten attempts within milliseconds.
#[must_use]
pub fn swift() -> RetryPolicy {
    let backoff = Backoff { base: Duration::from_millis(1), cap: Duration::from_millis(4) };
    RetryPolicy { max_attempts: Some(10), backoff, busy_delay: Duration::from_millis(2) }
}

/// What a handler's effect on a message is.
#[must_use]
pub fn entry(handler: &str, id: &str, message: &Posted) -> Entry {
    Entry {
        handler: handler.into(),
        id: id.into(),
        key: message.account.clone(),
        sequence: message.sequence,
        amount: message.amount,
    }
}

/// A message as it would arrive, without a producer.
#[must_use]
pub fn arrived(id: &str, message: &Posted) -> Envelope {
    Envelope { source: SOURCE.into(), ..Envelope::of(id, message).unwrap() }
}

/// A consumer at work; stops when dropped.
#[derive(Debug)]
pub struct Running {
    task: JoinHandle<bool>,
    stop: CancellationToken,
}

impl Running {
    /// Stops taking deliveries and waits for running handlers.
    pub async fn stop(mut self) {
        self.stop.cancel();
        assert!((&mut self.task).await.unwrap(), "all handlers ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

type Act = dyn Fn(u32, &Posted) -> Result<(), HandlerError> + Send + Sync;

/// Books a message in the ledger, then does what a case wants.
pub struct Booker<F> {
    fixture: Arc<F>,
    key: HandlerKey,
    /// What is chosen for the handler.
    pub options: HandlerOptions,
    /// Called with the attempt after the booking was written: what fails here must undo it.
    pub act: Arc<Act>,
    /// How often it ran.
    pub runs: Arc<AtomicUsize>,
    /// Whether it puts an echo on.
    pub echoes: bool,
    /// Whether the account is the business key.
    pub keyed_by_account: bool,
}

impl<F> Booker<F> {
    /// Does this after each booking.
    #[must_use]
    pub fn acting(
        mut self,
        act: impl Fn(u32, &Posted) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Self {
        self.act = Arc::new(act);
        self
    }

    /// Chooses options.
    #[must_use]
    pub fn options(mut self, options: HandlerOptions) -> Self {
        self.options = options;
        self
    }

    /// A view of how often it runs.
    #[must_use]
    pub fn runs(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.runs)
    }
}

impl<F: StoreFixture> Handler<<F::Store as Store>::Tx> for Booker<F> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        self.key
    }

    fn options(&self) -> HandlerOptions {
        self.options.clone()
    }

    fn business_key(&self, message: &Posted) -> Option<String> {
        message.account.clone().filter(|_| self.keyed_by_account)
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let effect = entry(self.key.as_str(), &cx.envelope().id, &message);
        self.fixture.effect(cx.tx(), &effect).await?;
        if self.echoes {
            cx.put(&crate::sample::Echoed(message.clone())).await?;
        }
        cx.reply(message.encode()?);
        (self.act)(cx.attempt(), &message)
    }
}

/// Books echoes under a key of its own.
pub struct EchoBooker<F> {
    /// The fixture to book in.
    pub fixture: Arc<F>,
}

impl<F: StoreFixture> Handler<<F::Store as Store>::Tx> for EchoBooker<F> {
    type Message = crate::sample::Echoed;

    fn key(&self) -> HandlerKey {
        HandlerKey::new("echo")
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: crate::sample::Echoed,
    ) -> Result<(), HandlerError> {
        // Booked under what caused it: the chain is in the ledger.
        let cause = cx.envelope().causation_id.clone().unwrap_or_default();
        self.fixture.effect(cx.tx(), &entry("echo", &cause, &message.0)).await
    }
}
