//! NATS JetStream, on streams of the test's own or on a server of its own.

mod consume;
mod duplicate;
mod outage;
mod preflight;
mod publish;
mod scene;
mod server;
mod suite;
mod takeover;
mod tls;
