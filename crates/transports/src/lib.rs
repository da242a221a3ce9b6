//! Brokers oncebox confirms with, one module each with the same files.
//!
//! A module implements the roles of `oncebox_core::transport` for one client.

#[cfg(feature = "http")]
pub mod http;
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
pub mod lanes;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
