//! Effects outside the database: a payment, a mail, a call of somebody's API.
//!
//! They cannot commit with the delivery. What can be done: remember before the
//! call that it is intended and after it what came of it, and give every run
//! the same key to call with. A run after a crash then skips what is known to
//! be done, and repeats what may have been done with a key by which the callee
//! recognises it.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use oncebox_core::depot::Ticket;
use oncebox_core::handler::MessageKey;
use oncebox_core::store::Store;
use oncebox_core::{Depot, Digest, Envelope, Error, HandlerError, HandlerKey, Kind, Message, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Context;
use super::handler::{Erased, HandlerOptions};
use crate::clock::Clock;

/// What a handler with outside effects is given instead of a transaction.
#[derive(Clone)]
pub struct Effects {
    log: Arc<dyn EffectLog>,
    ticket: Ticket,
    /// What is the same in every run for this message.
    identity: String,
    attempt: u32,
    envelope: Arc<Envelope>,
}

impl Effects {
    pub(super) fn new(
        log: Arc<dyn EffectLog>,
        ticket: Ticket,
        identity: String,
        attempt: u32,
        envelope: Arc<Envelope>,
    ) -> Self {
        Self { log, ticket, identity, attempt, envelope }
    }

    /// Causes the effect `name` unless an earlier run for this message is known
    /// to have caused it; answers with the result of whichever did. `act` gets
    /// a key that is the same in every run: pass it on as the callee's
    /// idempotency key.
    ///
    /// # Errors
    /// What `act` says. If the effect cannot be remembered, or the delivery is
    /// no longer this worker's, it is not caused.
    pub async fn once<T, F, Fut>(&self, name: &str, act: F) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(String) -> Fut + Send,
        Fut: Future<Output = Result<T, HandlerError>> + Send,
    {
        if let Some(result) = self.log.intend(self.ticket, name.to_owned()).await? {
            return serde_json::from_slice(&result).map_err(|error| {
                let what = format!("the result of effect {name} was recorded as another type");
                HandlerError::permanent(Error::new(Kind::Corrupt, what).because(error))
            });
        }
        let result = act(self.key(name)).await?;
        let bytes = serde_json::to_vec(&result).map_err(HandlerError::permanent)?;
        self.log.record(self.ticket, name.to_owned(), bytes).await?;
        Ok(result)
    }

    /// The key of an effect: 64 hexadecimal digits that follow from the
    /// handler, the message and the name.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        Digest::of(format!("{}\0{name}", self.identity).as_bytes()).to_string()
    }

    /// How often this message was tried, this time included.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The message as it arrived.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effects").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

/// A store's memory of effects, whatever the store.
pub(super) trait EffectLog: Send + Sync {
    fn intend(&self, ticket: Ticket, name: String) -> BoxFuture<'_, Result<Option<Vec<u8>>>>;
    fn record(&self, ticket: Ticket, name: String, result: Vec<u8>) -> BoxFuture<'_, Result<()>>;
}

pub(super) struct Log<S> {
    pub(super) store: S,
    pub(super) clock: Clock,
}

impl<S: Depot> EffectLog for Log<S> {
    fn intend(&self, ticket: Ticket, name: String) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
        Box::pin(async move { self.store.intend(ticket, &name, self.clock.now()).await })
    }

    fn record(&self, ticket: Ticket, name: String, result: Vec<u8>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.store.record(ticket, &name, &result).await })
    }
}

/// A function with outside effects as a handler.
pub(super) struct Outside<M, F> {
    key: HandlerKey,
    function: F,
    options: HandlerOptions,
    message: PhantomData<fn(M)>,
}

impl<M, F> Outside<M, F> {
    pub(super) const fn new(key: HandlerKey, function: F, options: HandlerOptions) -> Self {
        Self { key, function, options, message: PhantomData }
    }
}

impl<S, M, F, Fut> Erased<S> for Outside<M, F>
where
    S: Store,
    M: Message,
    F: Fn(Effects, M) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    fn key(&self) -> HandlerKey {
        self.key
    }

    fn name(&self) -> &'static str {
        M::NAME
    }

    fn options(&self) -> &HandlerOptions {
        &self.options
    }

    fn message_key(&self, envelope: &Envelope) -> Result<Option<MessageKey>> {
        M::decode(&envelope.payload)?;
        Ok(self.options.selector.select(envelope))
    }

    fn handle<'a>(&'a self, _cx: &'a mut Context<'_, S::Tx>) -> BoxFuture<'a, Result<(), HandlerError>> {
        let refused = Error::new(Kind::Config, "a handler with outside effects needs a worker");
        Box::pin(std::future::ready(Err(HandlerError::permanent(refused))))
    }

    fn is_outside(&self) -> bool {
        true
    }

    fn cause(&self, effects: Effects) -> BoxFuture<'static, Result<(), HandlerError>> {
        match M::decode(&effects.envelope().payload) {
            Ok(message) => Box::pin((self.function)(effects, message)),
            Err(error) => Box::pin(std::future::ready(Err(HandlerError::permanent(error)))),
        }
    }
}
