//! RabbitMQ, on virtual hosts of the test's own or on a server of its own.

mod broken;
mod delayed;
mod preflight;
mod refused;
mod server;
mod suite;
