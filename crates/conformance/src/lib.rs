//! The suites every oncebox store and transport passes, and the ledger checker.
//!
//! A backend proves itself by a fixture and one line:
//!
//! ```
//! mod memory {
//!     oncebox_conformance::store_suite!(oncebox_conformance::MemoryFixture);
//! }
//! # fn main() {}
//! ```
//!
//! # Layout, in reading order
//!
//! - [`fixture`]: what a suite needs of a backend, and the one of the memory store.
//! - [`store`]: what a store promises, one module per topic.
//! - [`depot`]: what a store promises as the durable inbox.
//! - [`receipts`]: what a store promises as the gate's memory.
//! - [`transport`]: what a transport promises, as far as its capabilities go.
//! - [`path`]: what a message experiences from put to effect.
//! - [`durable`]: what it experiences in the durable inbox.
//! - [`ledger`]: what was committed against what took effect.
//! - [`differential`]: random operations on a store and on the memory store at once.
//! - [`capabilities`]: the table in the reference, from the same values.
//! - [`proxy`]: a network that fails on demand. [`ailing`]: a store that does. [`server`]: a broker to kill.
//! - [`sabotage`]: the protocol broken on purpose.
//! - [`sample`], [`steps`], [`dice`], [`size`], [`run`]: what cases are made of and how they run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "test support: a case that does not hold ends with a panic"
)]

pub mod ailing;
pub mod capabilities;
pub mod depot;
pub mod dice;
pub mod differential;
pub mod durable;
pub mod fixture;
pub mod ledger;
pub mod path;
pub mod proxy;
pub mod receipts;
pub mod run;
pub mod sabotage;
pub mod sample;
pub mod server;
pub mod size;
pub mod steps;
pub mod store;
pub mod transport;

mod suite;

pub use fixture::{MemoryFixture, MemoryTransportFixture, StoreFixture, TransportFixture};
pub use ledger::{Entry, Findings, Ledger};
