//! Sets up an inbox, and refuses what could not be kept.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use oncebox_core::store::{Dedup, Mailbox};
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Depot, Error, HandlerError, HandlerKey, Keyring, Kind, Message, Result};

use super::checks::{self, Names};
use super::deposit::{Depositor, Deposits};
use super::effects::{Effects, Outside};
use super::flight::Flights;
use super::handler::{Erased, Handler, HandlerFn, HandlerOptions, Mode, Registered, on};
use super::{Inbox, InboxOptions, Inner, Observer};
use crate::clock::Clock;
use crate::crash::Probe;
use crate::outbox::Outbox;
use crate::wakeup::Wakeup;

/// Sets up an [`Inbox`].
#[must_use]
pub struct InboxBuilder<S: Mailbox + Dedup> {
    store: S,
    scope: String,
    channel: String,
    deposits: Option<MakeDeposits<S>>,
    outbox: Option<Outbox<S>>,
    handlers: Vec<Arc<dyn Erased<S>>>,
    options: InboxOptions,
    keyring: Option<Keyring>,
    clock: Clock,
    probe: Probe,
    observer: Option<Observer>,
}

impl<S: Mailbox + Dedup> fmt::Debug for InboxBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxBuilder").field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// Made when the clock is known.
type MakeDeposits<S> = fn(S, Clock) -> Arc<dyn Deposits>;

impl<S: Mailbox + Dedup> InboxBuilder<S> {
    pub(super) fn new(store: S, channel: String) -> Self {
        Self {
            store,
            scope: String::new(),
            channel,
            deposits: None,
            outbox: None,
            handlers: Vec::new(),
            options: InboxOptions::default(),
            keyring: None,
            clock: Clock::default(),
            probe: Probe::default(),
            observer: None,
        }
    }

    /// Adds a handler.
    pub fn handler<H: Handler<S::Tx>>(self, handler: H) -> Self {
        self.handler_with(handler, |options| options)
    }

    /// Adds a handler with other options than its own.
    pub fn handler_with<H: Handler<S::Tx>>(
        mut self,
        handler: H,
        tune: impl FnOnce(HandlerOptions) -> HandlerOptions,
    ) -> Self {
        let options = tune(handler.options());
        self.handlers.push(Arc::new(Registered::new(handler, options)));
        self
    }

    /// Separates this service from others that keep their inbox in the same
    /// database: its handlers may have the same keys as theirs. Choose it
    /// before the first message; another scope knows nothing of the past.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = scope.into();
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

    /// Who is told what came of each delivery.
    pub(crate) fn observe(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The inbox.
    ///
    /// # Errors
    /// [`Kind::Config`] if two handlers share a key, now or formerly, or if a
    /// handler's markers would be forgotten before the transport has stopped
    /// redelivering, or if signatures are verified and a handler's key is made
    /// of what they do not cover, or for an option that cannot work.
    pub fn build(self) -> Result<Inbox<S>> {
        checks::inbox(&self.scope, &self.options)?;
        let mut names = Names::default();
        for handler in &self.handlers {
            names.add(handler.key(), &handler.options().legacy)?;
            checks::handler(handler.key(), handler.options(), &self.options)?;
            if self.keyring.is_some() && !handler.options().selector.is_signed() {
                return Err(Error::new(
                    Kind::Config,
                    format!(
                        "handler {} tells messages apart by their {}, which a signature does not cover: \
                         a copy with another one would pass as a new message; use the id or a business key",
                        handler.key(),
                        handler.options().selector
                    ),
                ));
            }
            if self.deposits.is_none() && handler.options().mode == Some(Mode::Durable) {
                return Err(Error::new(
                    Kind::Config,
                    format!("handler {} is durable: call `.durable()` on the inbox, too", handler.key()),
                ));
            }
        }
        let deposits = self.deposits.map(|make| make(self.store.clone(), self.clock.clone()));
        let inner = Inner {
            outbox: self.outbox.unwrap_or_else(|| Outbox::new(self.store.clone())),
            store: self.store,
            scope: self.scope,
            channel: self.channel,
            deposits,
            stored: Wakeup::new(),
            handlers: self.handlers,
            options: self.options,
            keyring: self.keyring,
            flights: Flights::default(),
            clock: self.clock,
            probe: self.probe,
            observer: self.observer,
        };
        Ok(Inbox { inner: Arc::new(inner) })
    }
}

impl<S: Mailbox + Depot> InboxBuilder<S> {
    /// Stores messages for their handlers before they are acknowledged, and
    /// runs each handler by itself: with attempts, backoff and dead letters of
    /// its own. Handlers that say [`receiver`](HandlerOptions::receiver) are
    /// run while the transport waits, as without this.
    ///
    /// A [`Worker`](super::Worker) must run; [`Oncebox`](crate::Oncebox) starts it.
    pub fn durable(mut self) -> Self {
        self.deposits = Some(Depositor::make);
        self
    }

    /// Adds an `async fn(Effects, M) -> Result<(), HandlerError>` whose effects
    /// are outside the database. It is always durable, holds no transaction
    /// while it runs, and is completed at least once: what it causes goes
    /// through [`Effects::once`](super::Effects::once).
    pub fn outside<M, F, Fut>(mut self, key: &'static str, function: F) -> Self
    where
        M: Message,
        F: Fn(Effects, M) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let options = HandlerOptions::default().durable();
        self.handlers.push(Arc::new(Outside::<M, F>::new(HandlerKey::new(key), function, options)));
        self
    }
}
