//! The gate: how a request is told from its retries.
//!
//! - [`key`]: what clients write into `Idempotency-Key`.
//! - [`fingerprint`]: what makes two requests the same; [`json`]: when two
//!   JSON texts are.

pub mod fingerprint;
pub mod json;
pub mod key;

pub use fingerprint::{Fingerprint, Request};
pub use key::{KeyError, KeySyntax, RequestKey};
