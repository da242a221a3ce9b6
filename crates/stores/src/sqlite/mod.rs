//! SQLite: one file, one writer at a time.
//!
//! The write lock does what rows and indexes do elsewhere: transactions begin
//! with it (`BEGIN IMMEDIATE`), so a duplicate waits at its start, positions
//! follow commit order, and a log without gaps is read without any bookkeeping.

mod clerk;
mod dedup;
mod depot;
mod error;
mod identity;
mod inspect;
mod letters;
mod mailbox;
pub mod migrate;
mod receipts;
mod relay;
mod retention;
mod row;
mod store;

pub use store::{SqliteStore, pool_options};
