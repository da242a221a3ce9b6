//! How a relay is set up, and which set-ups are refused.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::plan::{Blocked, OnDead};
use oncebox_core::store::Mailbox;
use oncebox_core::transport::Publisher;
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Error, Kind, Result};
use tokio_util::sync::CancellationToken;

use super::Relay;
use super::heartbeat::Heartbeat;
use super::outage::Outage;
use crate::chance;
use crate::clock::Clock;
use crate::crash::Probe;
use crate::wakeup::Wakeup;

/// No batch is larger than this.
const MAX_BATCH: usize = 10_000;

/// Everything that can be chosen about a relay.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayOptions {
    /// The name of the sink; its progress is kept under it. Default `default`.
    pub sink: String,
    /// Whether `run` does anything. Default true.
    pub enabled: bool,
    /// Messages read, published and settled together. Default 500.
    pub batch: usize,
    /// The longest wait between two looks at an idle log. Default 500 ms.
    pub poll: Duration,
    /// How long a claim lasts without renewal; it is renewed at a third of it. Default 30 s.
    pub lease: Duration,
    /// How long one publish call may take. Default 10 s; must fit into the lease.
    pub publish_timeout: Duration,
    /// Attempts and backoff for messages the broker refuses. Default 10, 1 s to 5 min.
    pub retry: RetryPolicy,
    /// Whether a dead letter goes on blocking its key. Default: it does.
    pub on_dead: OnDead,
    /// The wait after an error or outage, grown up to ten times. Default 1 s.
    pub error_backoff: Duration,
    /// How long a stop waits for what is in flight; giving the leases back may
    /// take another 5 s. Default 25 s.
    pub drain: Duration,
    /// Relays in this process that share the shards. Default 1.
    pub workers: usize,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            sink: "default".into(),
            enabled: true,
            batch: 500,
            poll: Duration::from_millis(500),
            lease: Duration::from_secs(30),
            publish_timeout: Duration::from_secs(10),
            retry: RetryPolicy::default(),
            on_dead: OnDead::default(),
            error_backoff: Duration::from_secs(1),
            drain: Duration::from_secs(25),
            workers: 1,
        }
    }
}

impl RelayOptions {
    pub(super) fn skips_dead(&self) -> bool {
        self.on_dead == OnDead::SkipKey
    }

    fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::new(Kind::Config, text));
        if self.sink.is_empty() || self.sink.len() > 128 {
            return refuse("the sink's name must have 1 to 128 bytes".into());
        }
        if self.batch == 0 || self.batch > MAX_BATCH {
            return refuse(format!("a batch must have 1 to {MAX_BATCH} messages, not {}", self.batch));
        }
        if self.publish_timeout * 2 > self.lease {
            return refuse(format!(
                "the publish timeout ({:?}) must be at most half of the lease ({:?}): a relay must not publish after its lease has run out",
                self.publish_timeout, self.lease
            ));
        }
        if self.retry.max_attempts == Some(0) {
            return refuse("max_attempts counts executions and must be at least 1".into());
        }
        if self.workers == 0 {
            return refuse("a relay needs at least one worker".into());
        }
        if self.poll.is_zero() || self.error_backoff.is_zero() {
            return refuse("the poll interval and the error backoff must not be zero".into());
        }
        Ok(())
    }
}

/// Sets up a [`Relay`].
#[derive(Debug)]
#[must_use]
pub struct RelayBuilder<S, P> {
    store: S,
    publisher: Arc<P>,
    options: RelayOptions,
    clock: Clock,
    wakeup: Wakeup,
    heartbeat: Heartbeat,
    probe: Probe,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(mut self, $name: $kind) -> Self {
            self.options.$name = $name;
            self
        })*
    };
}

impl<S: Mailbox, P: Publisher> RelayBuilder<S, P> {
    pub(super) fn new(store: S, publisher: Arc<P>) -> Self {
        let (options, clock) = (RelayOptions::default(), Clock::default());
        let (wakeup, heartbeat) = (Wakeup::default(), Heartbeat::default());
        Self { store, publisher, options, clock, wakeup, heartbeat, probe: Probe::default() }
    }

    setters! {
        /// See [`RelayOptions::enabled`].
        enabled: bool,
        /// See [`RelayOptions::batch`].
        batch: usize,
        /// See [`RelayOptions::poll`].
        poll: Duration,
        /// See [`RelayOptions::lease`].
        lease: Duration,
        /// See [`RelayOptions::publish_timeout`].
        publish_timeout: Duration,
        /// See [`RelayOptions::retry`].
        retry: RetryPolicy,
        /// See [`RelayOptions::on_dead`].
        on_dead: OnDead,
        /// See [`RelayOptions::error_backoff`].
        error_backoff: Duration,
        /// See [`RelayOptions::drain`].
        drain: Duration,
        /// See [`RelayOptions::workers`].
        workers: usize,
    }

    /// See [`RelayOptions::sink`].
    pub fn sink(mut self, sink: impl Into<String>) -> Self {
        self.options.sink = sink.into();
        self
    }

    /// All options at once.
    pub fn options(mut self, options: RelayOptions) -> Self {
        self.options = options;
        self
    }

    /// The signal that makes the relay look sooner.
    pub fn wakeup(mut self, wakeup: Wakeup) -> Self {
        self.wakeup = wakeup;
        self
    }

    /// Where `run` tells that its loops turn.
    pub fn heartbeat(mut self, heartbeat: Heartbeat) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// The clock of tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The crash points of tests.
    #[doc(hidden)]
    pub fn probe(mut self, probe: Probe) -> Self {
        self.probe = probe;
        self
    }

    /// The relay. No I/O happens until it steps or runs.
    ///
    /// # Errors
    /// [`Kind::Config`] for a set-up that would not be safe.
    pub fn build(self) -> Result<Relay<S, P>> {
        self.options.check()?;
        Ok(self.assemble())
    }

    /// The relay, with a name of its own and nothing claimed yet.
    fn assemble(self) -> Relay<S, P> {
        Relay {
            store: self.store,
            publisher: self.publisher,
            options: self.options,
            holder: chance::holder(),
            lease: None,
            lanes: Vec::new(),
            blocked: Blocked::default(),
            outage: Outage::default(),
            clock: self.clock,
            wakeup: self.wakeup,
            heartbeat: self.heartbeat,
            probe: self.probe,
            stop: CancellationToken::new(),
        }
    }
}

impl<S: Mailbox, P: Publisher> Relay<S, P> {
    /// Another relay with the same set-up, which was checked when this one was built.
    pub(super) fn sibling(&self) -> Self {
        let sibling = RelayBuilder::new(self.store.clone(), Arc::clone(&self.publisher));
        let sibling = sibling.options(self.options.clone()).clock(self.clock.clone());
        let sibling = sibling.wakeup(self.wakeup.clone()).heartbeat(self.heartbeat.clone());
        sibling.probe(self.probe.clone()).assemble()
    }
}
