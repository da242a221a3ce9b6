//! A broker to measure with: the product's transport on it, and what a careful
//! engineer would write with its client.

use std::future::Future;

use oncebox_core::cloudevents::{self, Mode};
use oncebox_core::{Envelope, Publisher, Subscriber, Timestamp};

use crate::order::Order;

/// Where the lab's messages go.
pub(super) const DESTINATION: &str = "bench.orders";
/// Who reads them.
pub(super) const GROUP: &str = "bench";

/// What a message written by hand carries beside its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dress {
    /// Nothing a consumer could recognise it by.
    Bare,
    /// What the product sends: the attributes of CloudEvents, and the id by
    /// which the broker recognises a message sent twice, if it does so.
    Full,
}

/// The attributes of the `n`th message, apart from its id.
pub(super) fn attributes(n: u64) -> Vec<(String, String)> {
    let mut envelope = Envelope::of("", &Order::nth(n)).expect("an order is valid JSON");
    envelope.source = "bench".into();
    envelope.time = Some(Timestamp::from_micros(1_700_000_000_000_000));
    let parts = cloudevents::encode_for_text_headers(&envelope, Mode::Binary);
    parts.attributes.into_iter().filter(|(name, _)| name != "id").collect()
}

/// One broker with the topology that the product declares.
pub(super) trait Bus: Clone + Send + Sync + 'static {
    /// The product's transport here.
    type Transport: Publisher + Subscriber + Clone;
    /// The first part of a measure's name.
    const NAME: &'static str;

    /// Connects, and declares everything anew.
    fn connect(url: &str) -> impl Future<Output = Self> + Send;
    /// The same topology, on connections of its own.
    fn again(&self) -> impl Future<Output = Self> + Send;
    /// The product, on connections of its own.
    fn transport(&self) -> Self::Transport;
    /// Forgets all messages.
    fn empty(&self) -> impl Future<Output = ()> + Send;
    /// Publishes so many messages with so many under way, every confirm awaited.
    fn publish_by_hand(&self, messages: u64, window: usize, dress: Dress)
    -> impl Future<Output = u64> + Send;
    /// Publishes one message and awaits its confirm.
    fn send_by_hand(&self, body: Vec<u8>) -> impl Future<Output = ()> + Send;
    /// Hands every message to `handle`, a few at a time, and acknowledges it
    /// afterwards; never ends.
    fn consume_by_hand<H, F>(&self, handle: H) -> impl Future<Output = ()> + Send
    where
        H: Fn(Vec<u8>) -> F + Send + Sync,
        F: Future<Output = ()> + Send;
    /// Removes what was declared.
    fn remove(self) -> impl Future<Output = ()> + Send;
}
