//! What a handler is: a key, a message type, and an effect inside a transaction.

use std::future::Future;
use std::marker::PhantomData;
use std::time::Duration;

use futures_util::future::BoxFuture;
use oncebox_core::handler::MessageKey;
use oncebox_core::pace::{BreakerOptions, Rate};
use oncebox_core::plan::OnDead;
use oncebox_core::store::Store;
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Envelope, HandlerError, HandlerKey, KeySelector, Message, MissingId, Result};

use super::context::Context;
use super::effects::Effects;

/// What can be chosen about a handler, beside its key.
#[derive(Clone, Debug)]
pub struct HandlerOptions {
    /// How long its markers are kept. Default 7 days.
    pub retention: Duration,
    /// What tells two messages apart. Default: source and id.
    pub selector: KeySelector,
    /// What to do with a message that has no key. Default: bury it.
    pub missing_id: MissingId,
    /// How long one run may take; `None` takes the inbox's timeout.
    pub timeout: Option<Duration>,
    /// Whether messages are stored before it sees them; `None` takes the inbox's mode.
    pub mode: Option<Mode>,
    /// Attempts and backoff; `None` takes the inbox's. In durable mode each
    /// handler has its own count; in receiver mode the transport counts.
    pub retry: Option<RetryPolicy>,
    /// Durable mode: whether messages of one ordering key are handled one
    /// after the other, and whether a dead one blocks those behind it.
    pub lanes: Option<OnDead>,
    /// Durable mode: runs at once in one process; `None` is as many as the worker has seats.
    pub concurrency: Option<usize>,
    /// Durable mode: how fast one process runs it.
    pub rate: Option<Rate>,
    /// Durable mode: when to leave it alone for a while, spending no attempts.
    pub breaker: Option<BreakerOptions>,
    /// Keys it had before. What was stored under them is handled, and what was
    /// handled under them is not handled again.
    pub legacy: Vec<HandlerKey>,
}

/// When a message is acknowledged to its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When the handler's transaction has committed; the transport retries.
    Receiver,
    /// When it is stored; the inbox retries, for each handler by itself.
    Durable,
}

impl HandlerOptions {
    /// Stores messages before the handler sees them.
    #[must_use]
    pub const fn durable(mut self) -> Self {
        self.mode = Some(Mode::Durable);
        self
    }

    /// Handles messages while the transport waits.
    #[must_use]
    pub const fn receiver(mut self) -> Self {
        self.mode = Some(Mode::Receiver);
        self
    }

    /// How long markers and finished deliveries are kept.
    #[must_use]
    pub const fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long one run may take.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Attempts and backoff.
    #[must_use]
    pub const fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Handles messages of one ordering key one after the other.
    #[must_use]
    pub const fn in_order(mut self, on_dead: OnDead) -> Self {
        self.lanes = Some(on_dead);
        self
    }

    /// Runs at once in one process.
    #[must_use]
    pub const fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// At most `count` runs in `per`, in one process.
    #[must_use]
    pub const fn rate(mut self, count: u32, per: Duration) -> Self {
        self.rate = Some(Rate { count, per });
        self
    }

    /// After `failures` in a row, leaves the handler alone for `pause`.
    #[must_use]
    pub const fn breaker(mut self, failures: u32, pause: Duration) -> Self {
        self.breaker = Some(BreakerOptions { failures, pause });
        self
    }

    /// A key it had before.
    #[must_use]
    pub fn legacy(mut self, key: &'static str) -> Self {
        self.legacy.push(HandlerKey::new(key));
        self
    }
}

impl Default for HandlerOptions {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(7 * 24 * 3600),
            selector: KeySelector::default(),
            missing_id: MissingId::default(),
            timeout: None,
            mode: None,
            retry: None,
            lanes: None,
            concurrency: None,
            rate: None,
            breaker: None,
            legacy: Vec::new(),
        }
    }
}

/// Handles messages of one type inside a transaction of type `Tx` (the
/// driver's connection, for instance `sqlx::PgConnection`).
///
/// What it writes through the context happens once per message. What it does
/// elsewhere may be repeated, if the transaction rolls back afterwards.
pub trait Handler<Tx>: Send + Sync + 'static {
    /// What it takes.
    type Message: Message;

    /// Its stable key, unique within an inbox.
    fn key(&self) -> HandlerKey;

    /// What was chosen for it.
    fn options(&self) -> HandlerOptions {
        HandlerOptions::default()
    }

    /// A business key that tells two messages apart, instead of the selector's.
    fn business_key(&self, _message: &Self::Message) -> Option<String> {
        None
    }

    /// The effect. It cannot commit: the transaction is only lent.
    fn handle(
        &self,
        cx: &mut Context<'_, Tx>,
        message: Self::Message,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Implemented by every `async fn(&mut Tx, M) -> Result<(), HandlerError>`.
pub trait HandlerFn<'t, Tx: 't, M>: Send + Sync {
    /// The running function.
    type Future: Future<Output = Result<(), HandlerError>> + Send + 't;
    /// Calls it.
    fn call(&self, tx: &'t mut Tx, message: M) -> Self::Future;
}

impl<'t, Tx: 't, M, F, Fut> HandlerFn<'t, Tx, M> for F
where
    F: Fn(&'t mut Tx, M) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 't,
{
    type Future = Fut;

    fn call(&self, tx: &'t mut Tx, message: M) -> Fut {
        self(tx, message)
    }
}

/// A plain function as a handler.
#[derive(Debug)]
pub struct FnHandler<M, F> {
    key: HandlerKey,
    function: F,
    options: HandlerOptions,
    message: PhantomData<fn(M)>,
}

/// Makes a function a handler under a stable key.
pub fn on<M: Message, F>(key: HandlerKey, function: F) -> FnHandler<M, F> {
    FnHandler { key, function, options: HandlerOptions::default(), message: PhantomData }
}

impl<M, F> FnHandler<M, F> {
    /// What is chosen for it.
    #[must_use]
    pub fn options(mut self, options: HandlerOptions) -> Self {
        self.options = options;
        self
    }

    /// How long its markers are kept.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.options.retention = retention;
        self
    }

    /// Stores messages before the function sees them.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.options = self.options.durable();
        self
    }

    /// What tells two messages apart.
    #[must_use]
    pub fn keyed_by(mut self, selector: KeySelector) -> Self {
        self.options.selector = selector;
        self
    }
}

impl<Tx, M, F> Handler<Tx> for FnHandler<M, F>
where
    Tx: Send + 'static,
    M: Message,
    F: for<'t> HandlerFn<'t, Tx, M> + 'static,
{
    type Message = M;

    fn key(&self) -> HandlerKey {
        self.key
    }

    fn options(&self) -> HandlerOptions {
        self.options.clone()
    }

    async fn handle(&self, cx: &mut Context<'_, Tx>, message: M) -> Result<(), HandlerError> {
        self.function.call(cx.tx(), message).await
    }
}

/// A handler whose message type is forgotten, so that a list can hold it.
pub(super) trait Erased<S: Store>: Send + Sync {
    fn key(&self) -> HandlerKey;
    fn name(&self) -> &'static str;
    fn options(&self) -> &HandlerOptions;
    /// The message's key to this handler, or an error if the body cannot be decoded.
    fn message_key(&self, envelope: &Envelope) -> Result<Option<MessageKey>>;
    fn handle<'a>(&'a self, cx: &'a mut Context<'_, S::Tx>) -> BoxFuture<'a, Result<(), HandlerError>>;
    /// Whether it runs without a transaction, by [`cause`](Self::cause).
    fn is_outside(&self) -> bool {
        false
    }
    fn cause(&self, _effects: Effects) -> BoxFuture<'static, Result<(), HandlerError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

pub(super) struct Registered<H> {
    handler: H,
    options: HandlerOptions,
}

impl<H> Registered<H> {
    pub(super) const fn new(handler: H, options: HandlerOptions) -> Self {
        Self { handler, options }
    }
}

impl<S: Store, H: Handler<S::Tx>> Erased<S> for Registered<H> {
    fn key(&self) -> HandlerKey {
        self.handler.key()
    }

    fn name(&self) -> &'static str {
        H::Message::NAME
    }

    fn options(&self) -> &HandlerOptions {
        &self.options
    }

    fn message_key(&self, envelope: &Envelope) -> Result<Option<MessageKey>> {
        let message = H::Message::decode(&envelope.payload)?;
        let business = self.handler.business_key(&message).filter(|key| !key.is_empty());
        Ok(match business {
            Some(key) => Some(MessageKey::business(&key)),
            None => self.options.selector.select(envelope),
        })
    }

    fn handle<'a>(&'a self, cx: &'a mut Context<'_, S::Tx>) -> BoxFuture<'a, Result<(), HandlerError>> {
        // Decoded for every run: a unit that is run again needs a message of its own.
        match H::Message::decode(&cx.envelope().payload) {
            Ok(message) => Box::pin(self.handler.handle(cx, message)),
            Err(error) => Box::pin(std::future::ready(Err(HandlerError::permanent(error)))),
        }
    }
}
