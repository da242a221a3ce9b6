//! HTTP: each message is POSTed to a URL as a CloudEvent.
//!
//! A message is confirmed by an answer of the 2xx class. It carries its id as
//! `Idempotency-Key`, so that a receiver behind a gate takes effect once, and
//! if asked for a signature in the shape of Standard Webhooks. Redirects are
//! not followed: a confirm must come from the destination that was configured.

mod breaker;
mod connection;
mod error;
mod options;
mod preflight;
mod publisher;
mod target;
mod webhook;
mod wire;

pub use options::HttpOptions;
pub use publisher::Http;
pub use webhook::WebhookKeys;
