//! What a user of the whole meets. One binary: links are what a build waits for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy takes only #[test] functions for tests, not what they call"
)]

mod bad_input;
mod conformance;
mod crash_points;
mod docs;
mod experiments;
mod gate;
mod macros;
mod tidy;
