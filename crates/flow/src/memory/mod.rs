//! A store and a transport that live in this process.
//!
//! The store is the reference the database stores are compared with, so it
//! keeps their promises literally and takes no short cut that they could not.
//! The transport is what an embedded application uses when it has no broker.

mod dedup;
mod delivery;
mod depot;
mod inspect;
mod letters;
mod mailbox;
mod parking;
mod queue;
mod receipts;
mod relay;
mod retention;
mod sheets;
mod shelf;
mod state;
mod stock;
mod store;
mod transport;

pub use dedup::DeadLetter;
pub use store::{MemoryBegun, MemoryStore, MemoryTx};
pub use transport::{Confirm, MemoryAck, MemoryFeed, MemoryTransport};
