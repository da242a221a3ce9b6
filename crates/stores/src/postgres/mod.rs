//! The PostgreSQL store.
//!
//! Many writers commit at once, so positions do not follow commit order:
//! `holes.rs` is where late commits are waited for without ever skipping one.
//! Every statement is a file of its own in `sql/`.

mod call;
mod claim;
mod dedup;
mod depot;
mod error;
mod holes;
mod hotline;
mod identity;
mod inspect;
mod letters;
mod mailbox;
pub mod migrate;
mod rank;
mod receipts;
mod relay;
mod retention;
mod row;
mod store;
pub mod wakeup;

pub use store::{PostgresStore, pool_options};
