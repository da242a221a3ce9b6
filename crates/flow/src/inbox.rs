//! Station 7 of the walk, receiver mode: a delivery takes effect once.
//!
//! From: a delivery. Here: the marker is inserted first thing in a transaction,
//! the handler writes through that transaction, and both commit together. To:
//! an [`Outcome`], upon which the delivery is answered.

mod context;
mod flight;
mod handler;
mod receive;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::store::{Burial, Dedup, Mailbox};
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Envelope, Error, HandlerKey, Keyring, Kind, Message, Outcome, Result, Verdict};

pub use context::Context;
pub use handler::{FnHandler, Handler, HandlerFn, HandlerOptions, on};

use crate::chance;
use crate::clock::Clock;
use crate::crash::{CrashPoint, Probe};
use crate::outbox::Outbox;
use crate::telemetry;
use flight::Flights;
use handler::{Erased, Registered};

/// Markers are kept at least this long unless a short window is asked for by name.
pub const SHORTEST_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// The code of a message whose signature is missing or wrong.
const FORGED: &str = "forged";

/// Everything that can be chosen about an inbox.
#[derive(Clone, Debug)]
pub struct InboxOptions {
    /// How long a transport may take to redeliver a message; no handler's
    /// retention may be shorter. Default 24 h.
    pub redelivery_horizon: Duration,
    /// Park messages older than what the markers can prove. Default true.
    pub age_gate: bool,
    /// How long one run of a handler may take. Default 30 s.
    pub timeout: Duration,
    /// How often a unit is run again after a deadlock or serialization
    /// failure before the delivery is handed back. Default 10.
    pub reruns: u32,
    /// Attempts and backoff. Default 10, 1 s to 5 min.
    pub retry: RetryPolicy,
    /// Count, before a handler runs, that it was entered, so that a message
    /// that kills the process is buried after `max_attempts` deaths. Costs a
    /// commit per message; needed where the transport's own count does not
    /// survive the process. A run whose end could not be written, because the
    /// database was gone, is tried to be written until it is; it counts as a
    /// death only if the process ends before. Default false;
    /// [`Oncebox`](crate::Oncebox) asks the transport.
    pub count_deaths: bool,
    /// What to do with a message type no handler knows. Default: bury it.
    pub ignore_unknown: bool,
}

impl Default for InboxOptions {
    fn default() -> Self {
        Self {
            redelivery_horizon: SHORTEST_RETENTION,
            age_gate: true,
            timeout: Duration::from_secs(30),
            reruns: 10,
            retry: RetryPolicy::default(),
            count_deaths: false,
            ignore_unknown: false,
        }
    }
}

/// Handles each message once per handler.
pub struct Inbox<S: Mailbox + Dedup> {
    inner: Arc<Inner<S>>,
}

struct Inner<S: Mailbox + Dedup> {
    store: S,
    channel: String,
    outbox: Outbox<S>,
    handlers: Vec<Arc<dyn Erased<S>>>,
    options: InboxOptions,
    keyring: Option<Keyring>,
    flights: Flights,
    clock: Clock,
    probe: Probe,
}

impl<S: Mailbox + Dedup> Clone for Inbox<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<S: Mailbox + Dedup> fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("channel", &self.inner.channel).field("handlers", &self.keys()).finish()
    }
}

/// What came of one delivery.
#[derive(Debug)]
pub struct Received {
    /// Each handler that takes this type of message, and what came of it.
    pub outcomes: Vec<(HandlerKey, Outcome)>,
}

impl Received {
    /// The outcome of a message that goes to a single handler.
    #[must_use]
    pub fn single(self) -> Option<Outcome> {
        self.outcomes.into_iter().next().map(|(_, outcome)| outcome)
    }
}

impl<S: Mailbox + Dedup> Inbox<S> {
    /// An inbox on `store` for deliveries of `channel`, to be configured.
    pub fn builder(store: S, channel: impl Into<String>) -> InboxBuilder<S> {
        InboxBuilder {
            outbox: None,
            store,
            channel: channel.into(),
            handlers: Vec::new(),
            options: InboxOptions::default(),
            keyring: None,
            clock: Clock::default(),
            probe: Probe::default(),
        }
    }

    /// The keys of its handlers and how long each one's markers are kept.
    #[must_use]
    pub fn retentions(&self) -> Vec<(HandlerKey, Duration)> {
        self.inner.handlers.iter().map(|h| (h.key(), h.options().retention)).collect()
    }

    fn keys(&self) -> Vec<HandlerKey> {
        self.inner.handlers.iter().map(|handler| handler.key()).collect()
    }

    /// Gives a message to each handler of its type. `attempt` counts from 1.
    ///
    /// Cancellation: dropping this future loses the answer, not the work; a
    /// handler that has begun comes to its end.
    pub async fn receive(&self, envelope: Envelope, attempt: u32) -> Received {
        let forged = self.forged(&envelope);
        self.receive_checked(envelope, attempt, forged).await
    }

    /// Why the message is not what its producer wrote, if it must be and is not.
    fn forged(&self, envelope: &Envelope) -> Option<String> {
        let forgery = self.inner.keyring.as_ref()?.verify(envelope).err()?;
        Some(format!("forged: {forgery}"))
    }

    async fn receive_checked(&self, envelope: Envelope, attempt: u32, forged: Option<String>) -> Received {
        let envelope = Arc::new(envelope);
        let mut outcomes = Vec::new();
        for handler in self.inner.handlers.iter().filter(|h| h.name() == envelope.kind) {
            let outcome = match &forged {
                None => self.receive_by(handler, &envelope, attempt).await,
                Some(reason) => Outcome::Refused { code: FORGED, reason: reason.clone() },
            };
            telemetry::received(handler.key().as_str(), &outcome);
            outcomes.push((handler.key(), outcome));
        }
        Received { outcomes }
    }

    /// Handles a delivery to the end: receives it, judges what came of it and
    /// buries it if it is dead. The verdict is what to answer the transport.
    pub async fn deliver(&self, envelope: Envelope, attempt: u32) -> Verdict {
        let inner = &self.inner;
        let is_known = inner.handlers.iter().any(|handler| handler.name() == envelope.kind);
        if !is_known && inner.options.ignore_unknown {
            return Verdict::Done;
        }
        if let Some(reason) = self.forged(&envelope) {
            return self.refuse(FORGED, reason, &envelope, attempt).await;
        }
        let received = self.receive_checked(envelope.clone(), attempt, None).await;
        if received.outcomes.is_empty() {
            return self.unknown(&envelope, attempt).await;
        }
        let mut answer = Verdict::Done;
        for (key, outcome) in received.outcomes {
            let verdict = inner.options.retry.judge(outcome, attempt, chance::draw());
            let verdict = self.settled(key.as_str(), verdict, &envelope, attempt).await;
            answer = sooner(answer, verdict);
        }
        if inner.probe.reach(CrashPoint::C6).await.is_err() {
            return Verdict::Retry { after: Duration::ZERO, spent: false };
        }
        answer
    }

    async fn unknown(&self, envelope: &Envelope, attempt: u32) -> Verdict {
        let reason =
            format!("no handler of channel {} takes messages of type {}", self.inner.channel, envelope.kind);
        self.refuse("unknown_type", reason, envelope, attempt).await
    }

    /// Buries a message that no handler gets to see.
    async fn refuse(&self, code: &'static str, reason: String, envelope: &Envelope, attempt: u32) -> Verdict {
        telemetry::received("", &Outcome::Refused { code, reason: String::new() });
        self.settled("", Verdict::Dead { code, reason }, envelope, attempt).await
    }

    /// Buries the dead. A message is dead for the transport only once it is
    /// safely stored; until then it is tried again.
    async fn settled(&self, handler: &str, verdict: Verdict, envelope: &Envelope, attempts: u32) -> Verdict {
        let Verdict::Dead { code, reason } = verdict else { return verdict };
        let inner = &self.inner;
        let burial = Burial { channel: &inner.channel, handler, code, reason: &reason, attempts, envelope };
        match inner.store.bury(&burial, inner.clock.now()).await {
            Ok(()) => {
                // The reason may quote the payload; it is stored, not logged.
                tracing::error!(handler, code, id = envelope.id, "inbox.dead_letter");
                Verdict::Done
            }
            Err(error) => {
                tracing::warn!(handler, error = error.chain(), "inbox.burial_failed");
                Verdict::Retry { after: inner.options.retry.busy_delay, spent: false }
            }
        }
    }
}

/// Of two handlers' verdicts, the one that answers for the delivery: it is done
/// when both are, and comes again as soon as either wants it.
fn sooner(a: Verdict, b: Verdict) -> Verdict {
    match (a, b) {
        (Verdict::Retry { after, spent }, Verdict::Retry { after: other, spent: also }) => {
            Verdict::Retry { after: after.min(other), spent: spent || also }
        }
        (retry @ Verdict::Retry { .. }, _) | (_, retry) => retry,
    }
}

/// Sets up an [`Inbox`].
#[must_use]
pub struct InboxBuilder<S: Mailbox + Dedup> {
    store: S,
    channel: String,
    outbox: Option<Outbox<S>>,
    handlers: Vec<Arc<dyn Erased<S>>>,
    options: InboxOptions,
    keyring: Option<Keyring>,
    clock: Clock,
    probe: Probe,
}

impl<S: Mailbox + Dedup> fmt::Debug for InboxBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxBuilder").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl<S: Mailbox + Dedup> InboxBuilder<S> {
    /// Adds a handler.
    pub fn handler<H: Handler<S::Tx>>(mut self, handler: H) -> Self {
        self.handlers.push(Arc::new(Registered::new(handler)));
        self
    }

    /// Adds an `async fn(&mut Tx, M) -> Result<(), HandlerError>` under a stable key.
    pub fn on<M, F>(self, key: &'static str, function: F) -> Self
    where
        M: Message,
        S::Tx: 'static,
        F: for<'t> HandlerFn<'t, S::Tx, M> + 'static,
    {
        self.handler(on::<M, F>(HandlerKey::new(key), function))
    }

    /// All options at once.
    pub fn options(mut self, options: InboxOptions) -> Self {
        self.options = options;
        self
    }

    /// Attempts and backoff.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.options.retry = retry;
        self
    }

    /// See [`InboxOptions::count_deaths`].
    pub fn count_deaths(mut self, count_deaths: bool) -> Self {
        self.options.count_deaths = count_deaths;
        self
    }

    /// Counts deaths if the user or the transport wants it.
    pub(crate) fn count_deaths_at_least(mut self, count_deaths: bool) -> Self {
        self.options.count_deaths |= count_deaths;
        self
    }

    /// Handles only messages signed with one of these keys. Anything else is
    /// buried with the code `forged` before a marker is written, so that it
    /// cannot take the place of the message it pretends to be.
    pub fn verify(mut self, keyring: Keyring) -> Self {
        self.keyring = Some(keyring);
        self
    }

    /// The outbox handlers put into.
    pub fn outbox(mut self, outbox: Outbox<S>) -> Self {
        self.outbox = Some(outbox);
        self
    }

    /// The outbox handlers put into unless another was chosen.
    pub(crate) fn outbox_or(mut self, outbox: &Outbox<S>) -> Self {
        self.outbox.get_or_insert_with(|| outbox.clone());
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

    /// The inbox.
    ///
    /// # Errors
    /// [`Kind::Config`] if two handlers share a key, or if a handler's markers
    /// would be forgotten before the transport has stopped redelivering, or if
    /// signatures are verified and a handler's key is made of what they do not cover.
    pub fn build(self) -> Result<Inbox<S>> {
        if self.options.retry.max_attempts == Some(0) {
            return Err(Error::new(Kind::Config, "max_attempts counts executions and must be at least 1"));
        }
        let mut keys = BTreeSet::new();
        for handler in &self.handlers {
            let key = handler.key();
            if !keys.insert(key) {
                return Err(Error::new(Kind::Config, format!("two handlers have the key {key}")));
            }
            if self.keyring.is_some() && !handler.options().selector.is_signed() {
                return Err(Error::new(
                    Kind::Config,
                    format!(
                        "handler {key} tells messages apart by their {}, which a signature does not cover: \
                         a copy with another one would pass as a new message; use the id or a business key",
                        handler.options().selector
                    ),
                ));
            }
            let (kept, horizon) = (handler.options().retention, self.options.redelivery_horizon);
            if kept < horizon {
                return Err(Error::new(
                    Kind::Config,
                    format!(
                        "handler {key} keeps its markers for {kept:?}, but messages may be redelivered for {horizon:?}: \
                         raise the handler's retention, or lower `redelivery_horizon` if the transport really gives up earlier"
                    ),
                ));
            }
        }
        let inner = Inner {
            outbox: self.outbox.unwrap_or_else(|| Outbox::new(self.store.clone())),
            store: self.store,
            channel: self.channel,
            handlers: self.handlers,
            options: self.options,
            keyring: self.keyring,
            flights: Flights::default(),
            clock: self.clock,
            probe: self.probe,
        };
        Ok(Inbox { inner: Arc::new(inner) })
    }
}
