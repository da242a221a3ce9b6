//! The command line as a user meets it: the real program, real databases, and
//! the `sqlite3` and `psql` programs as the other language.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy takes only #[test] functions for tests, not what they call"
)]

mod bad_peers;
mod check;
mod config;
mod consume;
mod daemon;
mod database;
mod dead;
mod demo;
mod deploy;
mod faults;
mod gate;
mod languages;
mod letters;
mod migrate;
mod private;
mod process;
mod program;
mod relay;
mod reload;
mod server;
mod shop;
mod status;
mod virtual_host;
mod wakeup;
