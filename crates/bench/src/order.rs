//! The message everything is measured with: about 500 bytes of JSON.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use oncebox_core::{Envelope, Message, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Keys the messages are spread over.
pub(crate) const KEYS: u64 = 1000;
const NOTE: usize = 430;

/// One order of one customer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) customer: String,
    pub(crate) sequence: i64,
    pub(crate) amount: i64,
    pub(crate) note: String,
}

impl Message for Order {
    const NAME: &'static str = "bench.order.v1";
    const DESTINATION: Option<&'static str> = Some("bench.orders");

    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.customer.as_str().into())
    }
}

impl Order {
    pub(crate) fn nth(n: u64) -> Self {
        let sequence = i64::try_from(n).unwrap_or(i64::MAX);
        Self {
            customer: format!("customer-{}", n % KEYS),
            sequence,
            amount: sequence % 10_000,
            note: "n".repeat(NOTE),
        }
    }

    pub(crate) fn payload(&self) -> Vec<u8> {
        self.encode().expect("an order is valid JSON")
    }
}

/// A new id, as the product makes them.
pub(crate) fn new_id() -> String {
    Uuid::now_v7().to_string()
}

/// Envelopes as a transport would deliver them.
pub(crate) fn deliveries(count: u64) -> Vec<Envelope> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = Timestamp::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX));
    (0..count)
        .map(|n| {
            let mut envelope = Envelope::of(new_id(), &Order::nth(n)).expect("an order is valid JSON");
            envelope.source = "bench".into();
            envelope.time = Some(time);
            envelope
        })
        .collect()
}
