//! Station 7 of the walk: a delivery takes effect once.
//!
//! From: a delivery. Here, in receiver mode: the marker is inserted first thing
//! in a transaction, the handler writes through that transaction, and both
//! commit together. In durable mode: the message is stored for its handlers,
//! and a [`Worker`] runs each of them by itself. To: an [`Outcome`], upon which
//! the delivery is answered.

mod backfill;
mod builder;
mod checks;
mod context;
mod deposit;
mod effects;
mod flight;
mod handler;
mod local;
mod receive;
pub mod work;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::store::{Burial, Dedup, Mailbox};
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Envelope, HandlerKey, Keyring, Outcome, Verdict};

pub use builder::InboxBuilder;
pub use context::Context;
pub use effects::Effects;
pub use handler::{FnHandler, Handler, HandlerFn, HandlerOptions, Mode, on};
pub use work::{WorkOptions, Worked, Worker};

use crate::chance;
use crate::clock::Clock;
use crate::crash::{CrashPoint, Probe};
use crate::janitor::Kept;
use crate::outbox::Outbox;
use crate::telemetry;
use crate::wakeup::Wakeup;
use deposit::Deposits;
pub(crate) use deposit::Intake;
use flight::Flights;
use handler::Erased;
pub(crate) use local::Local;

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
    scope: String,
    channel: String,
    /// Where durable handlers' messages are stored.
    deposits: Option<Arc<dyn Deposits>>,
    /// Hints to workers of this process.
    stored: Wakeup,
    outbox: Outbox<S>,
    handlers: Vec<Arc<dyn Erased<S>>>,
    options: InboxOptions,
    keyring: Option<Keyring>,
    flights: Flights,
    clock: Clock,
    probe: Probe,
    observer: Option<Observer>,
}

/// Told what came of each handler's share of a delivery, for the test kit.
pub(crate) type Observer = Arc<dyn Fn(HandlerKey, &Envelope, &Outcome) + Send + Sync>;

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
        InboxBuilder::new(store, channel.into())
    }

    /// How long what is known of each handler's past is kept.
    #[must_use]
    pub fn retentions(&self) -> Vec<Kept> {
        let names = self.inner.handlers.iter().flat_map(|handler| {
            let options = handler.options();
            std::iter::once(handler.key())
                .chain(options.legacy.iter().copied())
                .map(|key| (key, options.retention))
        });
        let kept = names.map(|(handler, kept)| Kept {
            scope: self.inner.scope.clone(),
            handler,
            marker: self.inner.marker(handler).into_owned(),
            kept,
        });
        kept.collect()
    }

    /// Whether some of its handlers are durable.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.modes().any(|mode| mode == Mode::Durable)
    }

    /// Whether all of its handlers are durable.
    pub(crate) fn is_all_durable(&self) -> bool {
        self.modes().all(|mode| mode == Mode::Durable)
    }

    fn modes(&self) -> impl Iterator<Item = Mode> {
        self.inner.handlers.iter().map(|handler| self.inner.mode_of(handler.as_ref()))
    }

    /// A handler that is not durable, and nobody has said that this is meant.
    pub(crate) fn handler_without_a_mode(&self) -> Option<HandlerKey> {
        let is_meant = |mode: Option<Mode>| mode.is_some() || self.inner.deposits.is_some();
        let handlers = self.inner.handlers.iter();
        handlers.filter(|handler| !is_meant(handler.options().mode)).map(|handler| handler.key()).next()
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
        let receivers = self.inner.handlers_of(&envelope, Mode::Receiver);
        for handler in receivers {
            let outcome = match &forged {
                None => self.receive_by(handler, &envelope, attempt).await,
                Some(reason) => Outcome::Refused { code: FORGED, reason: reason.clone() },
            };
            telemetry::received(handler.key().as_str(), &outcome);
            self.inner.observe(handler.key(), &envelope, &outcome);
            outcomes.push((handler.key(), outcome));
        }
        Received { outcomes }
    }

    /// Handles a delivery to the end: stores it for durable handlers, gives it
    /// to the others, judges what came of it and buries it if it is dead. The
    /// verdict is what to answer the transport.
    pub async fn deliver(&self, envelope: Envelope, attempt: u32) -> Verdict {
        let intake = self.enlist(&envelope);
        self.deliver_enlisted(envelope, attempt, intake).await
    }

    pub(crate) async fn deliver_enlisted(&self, envelope: Envelope, attempt: u32, intake: Intake) -> Verdict {
        let inner = &self.inner;
        let is_known = inner.handlers.iter().any(|handler| handler.name() == envelope.kind);
        if !is_known && inner.options.ignore_unknown {
            return Verdict::Done;
        }
        if let Some(reason) = intake.forged {
            return self.refuse(FORGED, reason, &envelope, attempt).await;
        }
        if !is_known {
            return self.unknown(&envelope, attempt).await;
        }
        let mut answer = match intake.enlisted {
            None => Verdict::Done,
            Some(enlisted) => self.stored(enlisted, &envelope, attempt).await,
        };
        let received = self.receive_checked(envelope.clone(), attempt, None).await;
        for (key, outcome) in received.outcomes {
            let verdict = inner.policy(key).judge(outcome, attempt, chance::draw());
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

impl<S: Mailbox + Dedup> Inner<S> {
    /// A handler's name in markers. Two services that share a database have a scope each.
    fn marker(&self, key: HandlerKey) -> Cow<'static, str> {
        match self.scope.as_str() {
            "" => Cow::Borrowed(key.as_str()),
            scope => Cow::Owned(format!("{scope}/{key}")),
        }
    }

    /// A marker may be purged once it is as old as its retention; a margin
    /// keeps the gate shut before that, whatever the janitor's timing.
    fn window(&self, handler: &dyn Erased<S>) -> Option<Duration> {
        let retention = handler.options().retention;
        let window = retention - (retention / 8).min(Duration::from_secs(24 * 3600));
        self.options.age_gate.then_some(window)
    }

    fn observe(&self, key: HandlerKey, envelope: &Envelope, outcome: &Outcome) {
        if let Some(observer) = &self.observer {
            observer(key, envelope, outcome);
        }
    }

    fn mode_of(&self, handler: &dyn Erased<S>) -> Mode {
        let default = if self.deposits.is_some() { Mode::Durable } else { Mode::Receiver };
        handler.options().mode.unwrap_or(default)
    }

    fn handlers_of(&self, envelope: &Envelope, mode: Mode) -> impl Iterator<Item = &Arc<dyn Erased<S>>> {
        let takes = move |handler: &&Arc<dyn Erased<S>>| {
            handler.name() == envelope.kind && self.mode_of(handler.as_ref()) == mode
        };
        self.handlers.iter().filter(takes)
    }

    fn handler(&self, key: HandlerKey) -> Option<&Arc<dyn Erased<S>>> {
        self.handlers.iter().find(|handler| handler.key() == key)
    }

    fn policy(&self, key: HandlerKey) -> &RetryPolicy {
        let own = self.handler(key).and_then(|handler| handler.options().retry.as_ref());
        own.unwrap_or(&self.options.retry)
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
