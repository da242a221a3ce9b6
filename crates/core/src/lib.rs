//! Vocabulary, seams and pure decisions of oncebox.
//!
//! Nothing in this crate does I/O, reads a clock or draws a random number: what
//! the rest of oncebox decides, it decides here, from values it passes in.
//!
//! # Layout, in reading order
//!
//! - [`message`]: what a user sends; [`envelope`]: what is stored and travels.
//! - [`limits`]: the bounds an envelope must keep; [`digest`]: how bodies are compared.
//! - [`store`]: the database seam, one trait per role; [`log`]: the rows the relay reads and settles.
//! - [`depot`]: the durable inbox's deliveries; [`letters`]: the dead ones.
//! - [`transport`]: the broker seam; [`routes`]: where a message goes; [`preflight`]: whether it is safe there.
//! - [`plan`]: which rows a relay may send and what it may settle; [`backoff`], [`verdict`]: what a failure costs.
//! - [`handler`]: how a handler is named and keyed; [`pace`]: how fast it may be run; [`inspect`]: what operators see.
//! - [`cloudevents`]: an envelope on the wire; [`signature`]: who wrote it.
//! - [`gate`]: how an HTTP request is told from its retries.
//! - [`timestamp`], [`identifier`], [`error`]: the small print.

pub mod backoff;
pub mod cloudevents;
pub mod crash;
pub mod depot;
pub mod digest;
pub mod envelope;
pub mod error;
pub mod gate;
pub mod handler;
pub mod identifier;
pub mod inspect;
pub mod letters;
pub mod limits;
pub mod log;
pub mod message;
pub mod pace;
pub mod plan;
pub mod preflight;
pub mod routes;
pub mod signature;
pub mod store;
pub mod timestamp;
pub mod transport;
pub mod verdict;

pub use backoff::Backoff;
pub use depot::Depot;
pub use digest::Digest;
pub use envelope::Envelope;
pub use error::{Error, Kind, Result};
pub use handler::{HandlerError, HandlerKey, KeySelector, MissingId};
pub use identifier::Identifier;
pub use letters::{DeadLetter, LetterFilter, LetterId, Letters, Requeued};
pub use limits::Limits;
pub use message::Message;
pub use preflight::{Finding, Grade, Inspection, Preflight};
pub use routes::{Route, Routes, Rule};
pub use signature::{Forgery, Keyring};
pub use store::{Dedup, Mailbox, Once, Retention, Store, Transaction};
pub use timestamp::Timestamp;
pub use transport::{Acknowledge, Capabilities, Delivery, Failure, Feed, Order, Publisher, Subscriber};
pub use verdict::{Outcome, Verdict};
