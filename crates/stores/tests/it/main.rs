//! What only one database can show. Behaviour every store shares is tested by
//! the conformance suite.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops where it fails; the exemption for tests does not reach the functions they share"
)]

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
