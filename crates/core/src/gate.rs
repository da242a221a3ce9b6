//! The gate: how a request is told from its retries.
//!
//! - [`key`]: what clients write into `Idempotency-Key`.
//! - [`scope`]: whose keys they are, and what a receipt is found by.
//! - [`fingerprint`]: what makes two requests the same; [`json`]: when two
//!   JSON texts are; [`excluded`]: what of them is not looked at.
//! - [`path`]: what the policy of a request is looked up by.
//! - [`receipt`]: what is known of a request; [`reply`] and its [`fields`]: what it was answered;
//!   [`receipts`]: where that is kept.

pub mod excluded;
pub mod fields;
pub mod fingerprint;
pub mod json;
pub mod key;
pub mod path;
pub mod receipt;
pub mod receipts;
pub mod reply;
pub mod scope;

pub use excluded::Excluded;
pub use fields::Fields;
pub use fingerprint::{Fingerprint, Request};
pub use key::{KeyError, KeySyntax, RequestKey};
pub use receipt::{Admission, AdmitRequest, Claiming, Durability, OnDoubt, OnMismatch, Pass, ReceiptKey};
pub use receipts::Receipts;
pub use reply::Reply;
pub use scope::{Caller, KeyMaker};
