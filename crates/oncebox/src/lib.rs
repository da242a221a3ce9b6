//! Messages that leave if the transaction commits, and take effect once where
//! they arrive.
//!
//! A service writes its data and its message in one transaction of its own
//! database. A relay sends what is committed, as often as it takes. The
//! receiver keeps a marker per message in the transaction the handler writes
//! through, so that a message delivered twice takes effect once.
//!
//! # Map, in reading order
//!
//! 1. [`Message`]: a type with a stable name. [`Envelope`]: what is stored and travels.
//! 2. [`Outbox`]: puts messages into the transaction the caller already has.
//! 3. [`Relay`]: reads what is committed and hands it to a [`Publisher`].
//! 4. [`Inbox`]: runs each [`Handler`] once per message; [`Consumer`] feeds it from a [`Subscriber`].
//! 5. [`gate`]: HTTP requests that take effect once, however often they are sent.
//! 6. [`Janitor`]: deletes what nobody needs any more.
//! 7. [`Oncebox`]: all of these in one process.
//! 8. [`stores`]: the databases. [`transports`]: the brokers. [`memory`]: a store and a transport
//!    without any service, for tests.
//! 9. [`testing`]: a stage for tests of your own handlers.
//! 10. [`Error`] and [`Kind`]: what went wrong and what that costs.
//!
//! # Example
//!
#![cfg_attr(feature = "macros", doc = "```")]
#![cfg_attr(not(feature = "macros"), doc = "```ignore")]
//! use oncebox::memory::{MemoryStore, MemoryTx};
//! use oncebox::{Envelope, HandlerError, Inbox, Message, Outbox, Outcome, Store, handler};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Message)]
//! #[message(name = "order.placed.v1", key = "order_id")]
//! struct OrderPlaced {
//!     order_id: u64,
//! }
//!
//! /// Writes through the transaction that also holds the marker.
//! #[handler(key = "ship-order", retention = "7d")]
//! async fn ship_order(tx: &mut MemoryTx, order: OrderPlaced) -> Result<(), HandlerError> {
//!     tx.append("shipments", order.order_id.to_string());
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//!
//! // The producer: the order and its message commit together.
//! let outbox = Outbox::new(store.clone()).source("shop");
//! let mut tx = store.begin().await?;
//! tx.append("orders", "7".into());
//! outbox.put(&mut tx, &OrderPlaced { order_id: 7 }).await?;
//! store.commit(tx).await?;
//!
//! // The receiver: the same delivery twice, one shipment.
//! let inbox = Inbox::builder(store.clone(), "orders").handler(ship_order).build()?;
//! let delivery = Envelope::of("message-1", &OrderPlaced { order_id: 7 })?;
//! let first = inbox.receive(delivery.clone(), 1).await.single();
//! let second = inbox.receive(delivery, 2).await.single();
//!
//! assert_eq!(first, Some(Outcome::Done { result: None }));
//! assert_eq!(second, Some(Outcome::Duplicate { result: None }));
//! assert_eq!(store.rows("shipments").await, ["7"]);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `macros` (default): `#[derive(Message)]` and `#[handler]`.
//! - `sqlite` (default), `postgres`: the stores of that name.
//! - `rabbitmq`, `nats`, `http`: the transports of that name.
//! - `gate`: HTTP `Idempotency-Key`, as a tower layer and extractors for axum.

pub use oncebox_core::*;
pub use oncebox_flow::*;

/// HTTP `Idempotency-Key`: a request takes effect once, however often a client
/// sends it, and every copy gets the reply of the first. With the feature
/// `gate`, `Gate` is the layer.
pub mod gate {
    pub use oncebox_core::gate::*;
    #[cfg(feature = "gate")]
    pub use oncebox_gate::*;
}

#[doc(inline)]
pub use oncebox_stores as stores;
pub use oncebox_transports as transports;

/// Implements [`Message`](trait@Message) for a type, whose stable name is written next to it.
///
/// ```
/// use oncebox::{Envelope, Message};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Message)]
/// #[message(name = "order.placed.v1", version = 2, key = "order_id", destination = "orders")]
/// struct OrderPlaced {
///     order_id: u64,
/// }
///
/// # fn main() -> oncebox::Result<()> {
/// let envelope = Envelope::of("message-1", &OrderPlaced { order_id: 7 })?;
/// assert_eq!(envelope.kind, "order.placed.v1");
/// assert_eq!(envelope.key.as_deref(), Some("7"));
/// # Ok(())
/// # }
/// ```
///
/// All types made from a generic message share its name: use one of them per service.
#[cfg(feature = "macros")]
pub use oncebox_macros::Message;

/// Makes an `async fn` a [`Handler`], to be given to
/// [`InboxBuilder::handler`](inbox::InboxBuilder::handler) by its name.
///
/// ```
/// use oncebox::memory::MemoryTx;
/// use oncebox::{Context, HandlerError, Message, handler};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Message)]
/// #[message(name = "order.placed.v1")]
/// struct OrderPlaced;
///
/// #[derive(Serialize, Deserialize, Message)]
/// #[message(name = "order.shipped.v1")]
/// struct OrderShipped;
///
/// #[handler(key = "ship-order", retention = "30d", timeout = "5s")]
/// async fn ship_order(cx: &mut Context<'_, MemoryTx>, _order: OrderPlaced) -> Result<(), HandlerError> {
///     cx.tx().append("shipments", "one".into());
///     cx.put(&OrderShipped).await?;
///     Ok(())
/// }
/// ```
#[cfg(feature = "macros")]
pub use oncebox_macros::handler;

/// What the macros' expansions name beside the public interface. Not part of it.
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod __private {
    pub use serde::Serialize;
    pub use serde::de::DeserializeOwned;
}

/// The program in the README compiles.
#[cfg(all(doctest, feature = "macros", feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
