//! Station 1 of the walk: a message is put into the caller's transaction.
//!
//! From: the business code, which holds a transaction. Here: the envelope is
//! filled in, checked and inserted. To: the log, if the transaction commits.

mod draft;
mod unit;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use oncebox_core::{
    Depot, Envelope, Error, Kind, Limits, Mailbox, Message, Once, Result, Route, Routes, Store, Transaction,
};

pub use draft::Draft;
pub use unit::Unit;

use crate::chance;
use crate::clock::Clock;
use crate::crash::Probe;
use crate::inbox::{Inbox, Local};
use crate::wakeup::Wakeup;

type Enrich = dyn Fn(&mut Envelope) + Send + Sync;

/// Where messages of one type go, and how large they may be there.
#[derive(Clone, Debug)]
struct TypeRoute {
    destination: Cow<'static, str>,
    limits: Option<Limits>,
}

/// Puts messages into the caller's transaction.
///
/// A message leaves if and only if that transaction commits. `put` takes a
/// transaction by type: a pool or a bare connection does not compile.
///
/// Cheap to clone; no I/O until a message is put.
#[derive(Clone)]
pub struct Outbox<S: Store> {
    store: S,
    source: String,
    limits: Limits,
    by_type: Arc<HashMap<&'static str, TypeRoute>>,
    routes: Arc<Routes>,
    /// Consumers in the same database.
    locals: Vec<Arc<dyn Local<S>>>,
    enrich: Option<Arc<Enrich>>,
    wakeup: Wakeup,
    clock: Clock,
    probe: Probe,
}

impl<S: Store + fmt::Debug> fmt::Debug for Outbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("store", &self.store)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl<S: Mailbox + Depot> Outbox<S> {
    /// Stores messages for `inbox` in the caller's transaction if they go to
    /// its channel, instead of sending them through a relay and a broker.
    ///
    /// # Errors
    /// [`Kind::Config`] if one of its handlers is not durable.
    pub fn local(mut self, inbox: &Inbox<S>) -> Result<Self> {
        self.locals.push(inbox.local()?);
        Ok(self)
    }
}

impl<S: Mailbox> Outbox<S> {
    /// An outbox on `store`.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self {
            store,
            source: "oncebox".into(),
            limits: Limits::default(),
            by_type: Arc::default(),
            routes: Arc::default(),
            locals: Vec::new(),
            enrich: None,
            wakeup: Wakeup::new(),
            clock: Clock::Database,
            probe: Probe::default(),
        }
    }

    /// Who the messages come from (CloudEvents `source`). Ids are unique within it.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// What messages may carry; the defaults fit every transport.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sends messages of type `M` to `destination`.
    #[must_use]
    pub fn route<M: Message>(self, destination: impl Into<Cow<'static, str>>) -> Self {
        self.routed::<M>(TypeRoute { destination: destination.into(), limits: None })
    }

    /// Sends messages of type `M` to `destination`, which takes messages of its own size.
    #[must_use]
    pub fn route_within<M: Message>(self, destination: impl Into<Cow<'static, str>>, limits: Limits) -> Self {
        self.routed::<M>(TypeRoute { destination: destination.into(), limits: Some(limits) })
    }

    fn routed<M: Message>(mut self, route: TypeRoute) -> Self {
        Arc::make_mut(&mut self.by_type).insert(M::NAME, route);
        self
    }

    /// Sends messages where `routes` say by their name, and checks the size
    /// limits found there. A route of a type, a draft's own destination and one
    /// that [`enrich`](Self::enrich) chooses go before; messages that a rule
    /// skips keep their destination, because only a sink can skip.
    #[must_use]
    pub fn routes(mut self, routes: Routes) -> Self {
        self.routes = Arc::new(routes);
        self
    }

    /// Called on every envelope before it is checked: the place to capture
    /// trace context, tenant or correlation from the caller's surroundings.
    #[must_use]
    pub fn enrich(mut self, enrich: impl Fn(&mut Envelope) + Send + Sync + 'static) -> Self {
        self.enrich = Some(Arc::new(enrich));
        self
    }

    /// The signal that is given when something was put.
    #[must_use]
    pub fn wakeup(mut self, wakeup: Wakeup) -> Self {
        self.wakeup = wakeup;
        self
    }

    /// The clock of tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The crash points of tests.
    #[doc(hidden)]
    #[must_use]
    pub fn probe(mut self, probe: Probe) -> Self {
        self.probe = probe;
        self
    }

    /// The store below.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Puts one message and answers with its id.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if it exceeds a limit, which leaves the transaction
    /// usable; otherwise by kind of the failed statement.
    pub async fn put<M: Message>(&self, tx: &mut impl Transaction<S>, message: &M) -> Result<String> {
        self.put_on(tx.connection(), message).await
    }

    /// Puts many messages, with one statement where the database can, and answers with their ids.
    ///
    /// # Errors
    /// As [`put`](Self::put); on [`Kind::Invalid`] none of them was put.
    pub async fn put_all<'m, M: Message>(
        &self,
        tx: &mut impl Transaction<S>,
        messages: impl IntoIterator<Item = &'m M> + Send,
    ) -> Result<Vec<String>> {
        let envelopes: Result<Vec<_>> = messages.into_iter().map(|message| self.envelope(message)).collect();
        self.put_routed(tx.connection(), envelopes?).await
    }

    /// A message to be given a key, headers, a due time and so on before it is put.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if it cannot be encoded.
    pub fn message<M: Message>(&self, message: &M) -> Result<Draft<'_, S>> {
        Ok(Draft::new(self, self.envelope(message)?))
    }

    /// Puts a message on a bare connection. The name says it: nothing proves
    /// that a transaction is open, and without one the message leaves at once.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_on<M: Message>(&self, connection: &mut S::Tx, message: &M) -> Result<String> {
        let envelope = self.envelope(message)?;
        let id = envelope.id.clone();
        self.put_routed(connection, vec![envelope]).await?;
        Ok(id)
    }

    /// Puts envelopes where the routes say.
    pub(crate) async fn put_routed(
        &self,
        connection: &mut S::Tx,
        mut envelopes: Vec<Envelope>,
    ) -> Result<Vec<String>> {
        for envelope in &mut envelopes {
            self.complete_routed(envelope)?;
        }
        self.insert(connection, envelopes).await
    }

    /// Puts envelopes as they are, except for what `source` and `enrich` add.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Kind::Conflict`] if an id is already in the outbox.
    pub async fn put_envelopes(
        &self,
        connection: &mut S::Tx,
        mut envelopes: Vec<Envelope>,
    ) -> Result<Vec<String>> {
        for envelope in &mut envelopes {
            self.complete(envelope)?;
        }
        self.insert(connection, envelopes).await
    }

    async fn insert(&self, connection: &mut S::Tx, envelopes: Vec<Envelope>) -> Result<Vec<String>> {
        let ids = envelopes.iter().map(|envelope| envelope.id.clone()).collect();
        let mut remote = envelopes;
        for local in &self.locals {
            let here;
            (here, remote) =
                remote.into_iter().partition(|envelope| envelope.destination == local.destination());
            let here: Vec<Envelope> = here;
            if !here.is_empty() {
                refuse_known(&here, local.put(connection, &here).await?)?;
            }
        }
        if !remote.is_empty() {
            refuse_known(&remote, self.store.put(connection, &remote, self.clock.now()).await?)?;
            self.wakeup.hint();
        }
        Ok(ids)
    }

    /// Whether a message is committed: how a producer whose COMMIT got no
    /// answer learns the truth. Waits for a commit that is still under way.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] or [`Kind::Busy`]: still unknown, ask again.
    pub async fn holds(&self, envelope: &Envelope) -> Result<bool> {
        let mut envelope = envelope.clone();
        self.complete(&mut envelope)?;
        match self.locals.iter().find(|local| local.destination() == envelope.destination) {
            Some(local) => local.holds(&envelope).await,
            None => self.store.holds(&envelope).await,
        }
    }

    fn envelope<M: Message>(&self, message: &M) -> Result<Envelope> {
        let mut envelope = Envelope::of(chance::message_id(), message)?;
        self.redirect(&mut envelope);
        Ok(envelope)
    }

    pub(crate) fn redirect(&self, envelope: &mut Envelope) {
        if let Some(route) = self.by_type.get(envelope.kind.as_str()) {
            envelope.destination = route.destination.clone().into_owned();
        }
    }

    /// Completes a message whose destination was not chosen by hand.
    fn complete_routed(&self, envelope: &mut Envelope) -> Result<()> {
        let unrouted = envelope.destination.clone();
        self.fill_in(envelope);
        let is_open = !self.by_type.contains_key(envelope.kind.as_str()) && envelope.destination == unrouted;
        // After `enrich`, because a route may name the tenant.
        if is_open
            && let Route::To(destination) = self.routes.find(envelope)
            && destination != unrouted
        {
            envelope.destination = destination.into_owned();
        }
        self.check(envelope)
    }

    fn complete(&self, envelope: &mut Envelope) -> Result<()> {
        self.fill_in(envelope);
        self.check(envelope)
    }

    fn fill_in(&self, envelope: &mut Envelope) {
        if envelope.source.is_empty() {
            envelope.source.clone_from(&self.source);
        }
        if envelope.schema_version == 0 {
            envelope.schema_version = 1;
        }
        if let Some(enrich) = &self.enrich {
            enrich(envelope);
        }
    }

    fn check(&self, envelope: &Envelope) -> Result<()> {
        let kind = envelope.kind.as_str();
        if let Some(limits) = self.by_type.get(kind).and_then(|route| route.limits.as_ref()) {
            return envelope.check(limits);
        }
        match self.routes.limit(kind) {
            Some(payload_bytes) => envelope.check(&Limits { payload_bytes, ..self.limits.clone() }),
            None => envelope.check(&self.limits),
        }
    }
}

/// An id is put once.
fn refuse_known(envelopes: &[Envelope], put: Vec<Once>) -> Result<()> {
    match envelopes.iter().zip(put).find(|(_, once)| *once == Once::Duplicate) {
        None => Ok(()),
        Some((envelope, _)) => Err(Error::new(
            Kind::Conflict,
            format!(
                "a message with id {:?} of source {:?} is already in the outbox",
                envelope.id, envelope.source
            ),
        )),
    }
}
