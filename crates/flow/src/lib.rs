//! The stations a message passes, from the producer's transaction to the
//! handler's.
//!
//! # Layout, in the order of the walk
//!
//! - [`outbox`]: a message is put into the caller's own transaction.
//! - [`wakeup`]: a hint that there may be work; polling is the truth.
//! - [`relay`]: committed messages are read, published and settled.
//! - [`routing`], [`signing`]: what is done to a message on its way out.
//! - [`memory`]: the reference store and the in-process transport.
//! - [`inbox`]: a delivery is marked, handled and committed in one transaction, at once or later by a worker.
//! - [`consumer`]: deliveries are taken from a feed, given to an inbox and answered.
//! - [`janitor`]: what nobody needs any more is deleted.
//! - [`app`]: all of it in one process.
//! - [`testing`]: all of it in one test, step by step.
//! - [`shield`]: how work survives a caller that goes away.
//! - [`clock`] and [`crash`]: how tests own time and death.

pub mod app;
pub mod clock;
pub mod consumer;
pub mod inbox;
pub mod janitor;
pub mod memory;
pub mod outbox;
pub mod relay;
pub mod routing;
pub mod shield;
pub mod signing;
pub mod testing;
pub mod wakeup;

mod chance;
mod telemetry;

pub use app::{Oncebox, Require};
pub use clock::Clock;
pub use consumer::Consumer;
pub use inbox::{Context, Effects, Handler, HandlerOptions, Inbox, WorkOptions, Worker};
pub use janitor::Janitor;
pub use oncebox_core::crash::{self, CrashPoint, Probe};
pub use outbox::Outbox;
pub use relay::Relay;
pub use routing::Routed;
pub use shield::Shield;
pub use signing::Signing;
pub use tokio_util::sync::CancellationToken;
pub use wakeup::Wakeup;
