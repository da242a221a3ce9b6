//! Everything in one process: relay, consumers and janitor around one store
//! and one transport.

use std::fmt;
use std::time::Duration;

use oncebox_core::store::{Dedup, Mailbox, Retention};
use oncebox_core::transport::{Publisher, Subscriber};
use oncebox_core::{Depot, Error, Kind, Message, Result};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::consumer::Consumer;
use crate::inbox::{Inbox, InboxBuilder, WorkOptions, Worker};
use crate::janitor::Janitor;
use crate::outbox::Outbox;
use crate::relay::{Relay, RelayOptions};
use crate::wakeup::Wakeup;

/// A service's whole messaging: what it sends and what it handles.
#[must_use = "nothing runs until `run_until` is called"]
pub struct Oncebox<S: Mailbox + Dedup, T> {
    store: S,
    transport: T,
    outbox: Outbox<S>,
    wakeup: Wakeup,
    group: String,
    concurrency: usize,
    drain: Option<Duration>,
    keep_settled: Option<Duration>,
    sweep_interval: Option<Duration>,
    relay: RelayOptions,
    work: WorkOptions,
    require_durable: Require,
    channels: Vec<(String, InboxBuilder<S>)>,
}

/// What to do about a channel whose handlers are run while the transport waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Require {
    /// Nothing.
    #[default]
    None,
    /// Say so at the start.
    Warn,
    /// Do not start.
    Fail,
}

/// Deliveries of a durable channel that are stored at once.
const DEPOSITS_AT_ONCE: usize = 256;

impl<S: Mailbox + Dedup + fmt::Debug, T> fmt::Debug for Oncebox<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oncebox")
            .field("store", &self.store)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl<S, T> Oncebox<S, T>
where
    S: Mailbox + Depot + Retention,
    T: Publisher + Subscriber + Clone,
{
    /// A service on `store` that talks through `transport`.
    pub fn new(store: S, transport: T) -> Self {
        let wakeup = Wakeup::new();
        Self {
            outbox: Outbox::new(store.clone()).wakeup(wakeup.clone()),
            store,
            transport,
            wakeup,
            group: "oncebox".into(),
            concurrency: 1,
            drain: None,
            keep_settled: None,
            sweep_interval: None,
            relay: RelayOptions::default(),
            work: WorkOptions::default(),
            require_durable: Require::None,
            channels: Vec::new(),
        }
    }

    /// The service's name: the source of its messages and the group of its subscriptions.
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.group = name.into();
        self.outbox = self.outbox.source(self.group.clone());
        self
    }

    /// Sends messages of type `M` to `destination`.
    pub fn route<M: Message>(mut self, destination: &'static str) -> Self {
        self.outbox = self.outbox.route::<M>(destination);
        self
    }

    /// Handles what arrives on `destination`.
    pub fn channel(
        mut self,
        destination: impl Into<String>,
        handlers: impl FnOnce(InboxBuilder<S>) -> InboxBuilder<S>,
    ) -> Self {
        let destination = destination.into();
        let builder = handlers(Inbox::builder(self.store.clone(), destination.clone()));
        self.channels.push((destination, builder));
        self
    }

    /// Deliveries of one channel handled at once. Default 1.
    pub const fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How long a stop waits for handlers that are running. Default 30 s; what
    /// the relay may take is [`RelayOptions::drain`].
    pub const fn drain(mut self, drain: Duration) -> Self {
        self.drain = Some(drain);
        self
    }

    /// How long messages are kept after every sink has settled them, for replay
    /// and for recognising ids that are put again. Default 7 days, at least an hour.
    pub const fn keep_settled(mut self, kept: Duration) -> Self {
        self.keep_settled = Some(kept);
        self
    }

    /// The time between two sweeps of the janitor. Default 10 minutes.
    pub const fn sweep_interval(mut self, interval: Duration) -> Self {
        self.sweep_interval = Some(interval);
        self
    }

    /// How the relay works.
    pub fn relay(mut self, options: RelayOptions) -> Self {
        self.relay = options;
        self
    }

    /// How durable handlers are run.
    pub fn work(mut self, options: WorkOptions) -> Self {
        self.work = options;
        self
    }

    /// What to do about channels with handlers that are not durable and do not
    /// [say so](crate::HandlerOptions::receiver). Default: nothing.
    pub const fn require_durable(mut self, require: Require) -> Self {
        self.require_durable = require;
        self
    }

    /// The outbox to put into. Take it after all routes are set.
    #[must_use]
    pub fn outbox(&self) -> Outbox<S> {
        self.outbox.clone()
    }

    /// Runs until `stop` is cancelled, then drains: no new deliveries, no new
    /// batches, running handlers finish, leases are given back.
    ///
    /// # Errors
    /// [`Kind::Config`] for an unsafe set-up, or
    /// the transport's error if a channel cannot be subscribed to. Nothing has
    /// started then.
    pub async fn run_until(self, stop: CancellationToken) -> Result<()> {
        self.store.verify().await?;
        let mut janitor = self.janitor()?;
        let (mut consumers, mut workers) = (Vec::new(), Vec::new());
        for (destination, builder) in self.channels {
            let inbox = builder.outbox_or(&self.outbox).count_deaths_at_least(!T::COUNTS_DEATHS).build()?;
            check_durability(&destination, &inbox, self.require_durable)?;
            janitor = janitor.markers(inbox.retentions());
            if inbox.is_durable() {
                workers.push(Worker::new(&inbox, self.work.clone())?);
            }
            let feed = self.transport.subscribe(&destination, &self.group).await?;
            let concurrency = if inbox.is_all_durable() { DEPOSITS_AT_ONCE } else { self.concurrency };
            let consumer = Consumer::new(inbox, feed).concurrency(concurrency);
            consumers.push(match self.drain {
                Some(drain) => consumer.drain(drain),
                None => consumer,
            });
        }
        let relay =
            Relay::builder(self.store, self.transport).options(self.relay).wakeup(self.wakeup).build()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(janitor.run(stop.clone()));
        for worker in workers {
            let stop = stop.clone();
            tasks.spawn(async move {
                worker.run(stop).await;
            });
        }
        for consumer in consumers {
            let stop = stop.clone();
            tasks.spawn(async move {
                consumer.run(stop).await;
            });
        }
        relay.run(stop).await;
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    fn janitor(&self) -> Result<Janitor<S>> {
        let mut janitor = Janitor::new(self.store.clone());
        if let Some(kept) = self.keep_settled {
            janitor = janitor.outbox(kept)?;
        }
        if let Some(interval) = self.sweep_interval {
            janitor = janitor.interval(interval);
        }
        Ok(janitor)
    }
}

fn check_durability<S: Mailbox + Dedup>(channel: &str, inbox: &Inbox<S>, require: Require) -> Result<()> {
    let Some(handler) = inbox.handler_without_a_mode() else { return Ok(()) };
    let text = format!(
        "handler {handler} of channel {channel} is not durable: call `.durable()` on the channel, \
         or `.receiver()` on the handler's options if the transport's own retries are wanted"
    );
    match require {
        Require::None => Ok(()),
        Require::Warn => {
            tracing::warn!(channel, handler = handler.as_str(), "{text}");
            Ok(())
        }
        Require::Fail => Err(Error::new(Kind::Config, text)),
    }
}

#[cfg(test)]
mod tests {
    use oncebox_core::inspect::Inspect;
    use oncebox_core::{Envelope, HandlerError, Kind, Store};
    use serde::{Deserialize, Serialize};
    use tokio::time::Instant;

    use super::*;
    use crate::memory::{MemoryStore, MemoryTransport, MemoryTx};

    const HOUR: Duration = Duration::from_secs(3600);

    #[derive(Clone, Serialize, Deserialize)]
    struct Ping;

    impl Message for Ping {
        const NAME: &'static str = "ping";
        const DESTINATION: Option<&'static str> = Some("pings");
    }

    fn app(store: &MemoryStore) -> Oncebox<MemoryStore, MemoryTransport> {
        Oncebox::new(store.clone(), MemoryTransport::new())
    }

    async fn done(_: &mut MemoryTx, _: Ping) -> Result<(), HandlerError> {
        Ok(())
    }

    /// A handler that never comes back.
    async fn stuck(tx: &mut MemoryTx, _: Ping) -> Result<(), HandlerError> {
        tx.append("reached", String::new());
        std::future::pending().await
    }

    #[tokio::test(start_paused = true)]
    async fn settled_messages_are_kept_as_long_and_looked_for_as_often_as_chosen() {
        let store = MemoryStore::new();
        let mut tx = store.begin().await.unwrap();
        let now = store.clock(&mut tx).await.unwrap();
        for (id, age) in [("old", 3 * HOUR), ("young", HOUR)] {
            let (source, destination) = ("app".into(), "pings".into());
            let envelope = Envelope { source, destination, ..Envelope::of(id, &Ping).unwrap() };
            store.put(&mut tx, &[envelope], Some(now.minus(age))).await.unwrap();
        }
        store.commit(tx).await.unwrap();
        let stop = CancellationToken::new();
        let app = app(&store).channel("pings", |inbox| inbox.on::<Ping, _>("done", done));
        let app = app.keep_settled(2 * HOUR).sweep_interval(Duration::from_secs(5));
        let begun = Instant::now();

        let running = tokio::spawn(app.run_until(stop.clone()));
        while store.status().await.unwrap().logged > 1 && begun.elapsed() < HOUR {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let took = begun.elapsed();
        stop.cancel();
        running.await.unwrap().unwrap();

        assert_eq!(store.status().await.unwrap().logged, 1, "the young one is kept");
        assert!((5..7).contains(&took.as_secs()), "{took:?}");
    }

    #[tokio::test]
    async fn nothing_starts_if_settled_messages_would_not_be_kept_long_enough() {
        let refused =
            app(&MemoryStore::new()).keep_settled(HOUR / 2).run_until(CancellationToken::new()).await;

        assert_eq!(refused.unwrap_err().kind(), Kind::Config);
    }

    async fn book(tx: &mut MemoryTx, _: Ping) -> Result<(), HandlerError> {
        tx.append("booked", String::new());
        Ok(())
    }

    #[tokio::test]
    async fn a_durable_channel_is_served_by_a_worker() {
        let (store, stop) = (MemoryStore::new(), CancellationToken::new());
        let app = app(&store).channel("pings", |inbox| inbox.durable().on::<Ping, _>("book", book));
        let outbox = app.outbox();
        let running = tokio::spawn(app.run_until(stop.clone()));
        for _ in 0..20 {
            let mut tx = store.begin().await.unwrap();
            outbox.put(&mut tx, &Ping).await.unwrap();
            store.commit(tx).await.unwrap();
        }

        while store.rows("booked").await.len() < 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
        running.await.unwrap().unwrap();

        assert_eq!(store.rows("booked").await.len(), 20);
        let status = store.status().await.unwrap();
        assert_eq!((status.handlers.len(), status.dead_letters), (0, 0));
    }

    #[tokio::test]
    async fn a_channel_that_must_be_durable_and_is_not_does_not_start_unless_that_is_meant() {
        let strict = || app(&MemoryStore::new()).require_durable(Require::Fail);
        let forgotten = strict().channel("pings", |inbox| inbox.on::<Ping, _>("done", done));
        let meant = strict().channel("pings", |inbox| {
            let handler = crate::inbox::on::<Ping, _>(oncebox_core::HandlerKey::new("done"), done);
            inbox.handler_with(handler, crate::HandlerOptions::receiver)
        });
        let stopped = CancellationToken::new();
        stopped.cancel();

        let refused = forgotten.run_until(stopped.clone()).await.unwrap_err();

        assert_eq!(refused.kind(), Kind::Config);
        assert!(refused.to_string().contains("call `.durable()`"), "{refused}");
        meant.run_until(stopped).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_running_handlers_as_long_as_chosen() {
        let store = MemoryStore::new();
        let stop = CancellationToken::new();
        let app = app(&store).channel("pings", |inbox| inbox.on::<Ping, _>("stuck", stuck));
        let app = app.drain(Duration::from_secs(3));
        let outbox = app.outbox();
        let running = tokio::spawn(app.run_until(stop.clone()));
        let mut tx = store.begin().await.unwrap();
        outbox.put(&mut tx, &Ping).await.unwrap();
        store.commit(tx).await.unwrap();
        // The handler has the writer's lock by then, and its timeout is 30 s.
        tokio::time::sleep(Duration::from_secs(2)).await;

        let begun = Instant::now();
        stop.cancel();
        running.await.unwrap().unwrap();

        let took = begun.elapsed();
        assert!((3..5).contains(&took.as_secs()), "{took:?}");
    }
}
