//! The broker seam: who sends, who delivers.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::envelope::Envelope;
use crate::error::Result;

/// Whom a failed publish speaks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The destination cannot take anything at the moment.
    Destination,
    /// The broker judged this message.
    Message,
    /// Nobody knows whether it was stored.
    Unknown,
    /// The transport has it and will deliver it in order; its confirm is still to come.
    Pending,
}

/// Why a message was not confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whom it speaks about: only [`Class::Message`] spends an attempt.
    pub class: Class,
    /// What happened, for people.
    pub reason: String,
    /// Whether another attempt is pointless.
    pub permanent: bool,
    /// The destination's own wish for the next attempt. The relay waits at
    /// least this long, up to [`MAX_RETRY_AFTER`](crate::plan::MAX_RETRY_AFTER).
    pub retry_after: Option<Duration>,
}

impl Failure {
    const fn new(class: Class, reason: String) -> Self {
        Self { class, reason, permanent: false, retry_after: None }
    }

    /// The destination is down, full, blocked or unknown.
    #[must_use]
    pub fn destination(reason: impl Into<String>) -> Self {
        Self::new(Class::Destination, reason.into())
    }

    /// The broker refused this message.
    #[must_use]
    pub fn message(reason: impl Into<String>) -> Self {
        Self::new(Class::Message, reason.into())
    }

    /// No answer came.
    #[must_use]
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::new(Class::Unknown, reason.into())
    }

    /// It was accepted; the confirm takes longer than this call.
    #[must_use]
    pub fn pending(reason: impl Into<String>) -> Self {
        Self::new(Class::Pending, reason.into())
    }

    /// The same failure, never to be tried again.
    #[must_use]
    pub fn permanently(mut self) -> Self {
        self.permanent = true;
        self
    }

    /// The same failure, not to be tried again for `wait`.
    #[must_use]
    pub const fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Failure {}

/// What a transport promises about messages of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    #[default]
    None,
    /// Members of a group share the keys; one delivery of a key is out at a time, in order.
    ByKey,
    /// One member of a group at a time gets everything; one delivery of a key is out at a time, in order.
    SingleActive,
}

/// What a transport can do. The same values choose the conformance cases and
/// fill the table in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The name in tables and reports.
    pub name: &'static str,
    /// A confirmed message survives the death of this process.
    pub survives_process: bool,
    /// What it promises about messages of one key.
    pub order: Order,
    /// `nack` with a delay is kept.
    pub delayed_nack: bool,
    /// The attempt number of a delivery is exact.
    pub exact_attempts: bool,
}

/// Sends messages.
///
/// Open for users to implement. One result per envelope, in order; `Ok` only
/// for a message the destination has confirmed. Within one call, messages are
/// stored in order: if one is not stored, no later one of its key is.
pub trait Publisher: Send + Sync + 'static {
    /// Sends a batch and waits for its confirms. Dropping the future loses
    /// confirms, never messages: what was not confirmed is sent again.
    fn publish(&self, batch: &[Envelope]) -> impl Future<Output = Vec<Result<(), Failure>>> + Send;

    /// Where this publisher sends `envelope`; `None` if nowhere. A relay tells
    /// by it which destination a failure speaks about. One that wraps another
    /// publisher asks it.
    fn destination<'e>(&'e self, envelope: &'e Envelope) -> Option<Cow<'e, str>> {
        Some(Cow::Borrowed(&envelope.destination))
    }
}

/// Opens feeds of deliveries.
pub trait Subscriber: Send + Sync + 'static {
    /// What delivers.
    type Feed: Feed;
    /// Whether [`Delivery::attempt`] goes on counting when the consumer's process dies.
    /// If not, the inbox counts deaths itself.
    const COUNTS_DEATHS: bool = true;

    /// Joins `group` on `destination`: each message goes to one member of each group.
    ///
    /// # Errors
    /// [`Kind::Unavailable`](crate::Kind::Unavailable) or [`Kind::Config`](crate::Kind::Config).
    fn subscribe(&self, destination: &str, group: &str) -> impl Future<Output = Result<Self::Feed>> + Send;
}

/// Deliveries, one after the other.
pub trait Feed: Send + 'static {
    /// How a delivery is answered.
    type Ack: Acknowledge;

    /// The next delivery; `None` when the feed has ended. Cancel safe: a
    /// dropped call loses no delivery.
    ///
    /// # Errors
    /// [`Kind::Unavailable`](crate::Kind::Unavailable); calling again reconnects.
    fn next(&mut self) -> impl Future<Output = Result<Option<Delivery<Self::Ack>>>> + Send;
}

/// A message that arrived and must be answered.
#[derive(Debug)]
pub struct Delivery<A> {
    /// The message.
    pub envelope: Envelope,
    /// How often it was tried, this time included.
    pub attempt: u32,
    /// The answer. Dropping it unanswered means redelivery.
    pub ack: A,
}

/// The answer to a delivery. Taken by value: nothing is answered twice.
pub trait Acknowledge: Send + 'static {
    /// It is done; never deliver it again.
    ///
    /// # Errors
    /// [`Kind::Unavailable`](crate::Kind::Unavailable): it will come again.
    fn ack(self) -> impl Future<Output = Result<()>> + Send;

    /// Deliver it again after `after`; `spent` tells whether the attempt counts.
    ///
    /// # Errors
    /// [`Kind::Unavailable`](crate::Kind::Unavailable): it will come again, perhaps sooner.
    fn nack(self, after: Duration, spent: bool) -> impl Future<Output = Result<()>> + Send;
}
