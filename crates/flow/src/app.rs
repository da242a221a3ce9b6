//! Everything in one process: relay, consumers and janitor around one store
//! and one transport.

use std::fmt;

use oncebox_core::store::{Dedup, Mailbox, Retention};
use oncebox_core::transport::{Publisher, Subscriber};
use oncebox_core::{Message, Result};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::consumer::Consumer;
use crate::inbox::{Inbox, InboxBuilder};
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
    relay: RelayOptions,
    channels: Vec<(String, InboxBuilder<S>)>,
}

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
    S: Mailbox + Dedup + Retention,
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
            relay: RelayOptions::default(),
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

    /// How the relay works.
    pub fn relay(mut self, options: RelayOptions) -> Self {
        self.relay = options;
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
    /// [`Kind::Config`](oncebox_core::Kind::Config) for an unsafe set-up, or
    /// the transport's error if a channel cannot be subscribed to. Nothing has
    /// started then.
    pub async fn run_until(self, stop: CancellationToken) -> Result<()> {
        self.store.verify().await?;
        let mut janitor = Janitor::new(self.store.clone());
        let mut consumers = Vec::new();
        for (destination, builder) in self.channels {
            let inbox = builder.outbox_or(&self.outbox).count_deaths_at_least(!T::COUNTS_DEATHS).build()?;
            janitor = janitor.markers(inbox.retentions());
            let feed = self.transport.subscribe(&destination, &self.group).await?;
            consumers.push(Consumer::new(inbox, feed).concurrency(self.concurrency));
        }
        let relay =
            Relay::builder(self.store, self.transport).options(self.relay).wakeup(self.wakeup).build()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(janitor.run(stop.clone()));
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
}
