//! The HTTP publisher against servers that behave and servers that do not.

mod answers;
mod breaker;
mod network;
mod order;
mod path;
mod preflight;
mod request;
mod server;
mod tls;

use std::sync::mpsc;
use std::time::Duration;

use oncebox_conformance::sample::plain;
use oncebox_core::transport::Class;
use oncebox_core::{Envelope, Failure, Publisher, Result};
use oncebox_transports::http::{Http, HttpOptions};

/// A publisher that posts to URLs below `url`.
fn http(url: &str) -> Http {
    Http::new(options(url)).unwrap()
}

/// Patient: whatever is about time says so itself.
fn options(url: &str) -> HttpOptions {
    let patience = Duration::from_secs(30);
    let options = HttpOptions::new().allow(url).connect_timeout(Duration::from_secs(10));
    options.window(patience).timeout(patience)
}

/// Stops the clock of the runtime: from here on it moves by `advance` alone,
/// however busy the machine is. Without the task that blocks until the guard is
/// gone, tokio would leap to the next timer whenever all wait for the network.
fn stop_the_clock() -> mpsc::Sender<()> {
    tokio::time::pause();
    let (guard, gone) = mpsc::channel();
    tokio::task::spawn_blocking(move || gone.recv());
    guard
}

/// A message for `destination`.
fn to(destination: &str, id: &str) -> Envelope {
    Envelope { destination: destination.into(), ..plain(id) }
}

/// Posts one message; nothing here may take for ever.
async fn post(http: &Http, envelope: Envelope) -> Result<(), Failure> {
    post_all(http, &[envelope]).await.remove(0)
}

async fn post_all(http: &Http, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
    let results = tokio::time::timeout(Duration::from_secs(90), http.publish(batch)).await.expect("it ends");
    assert_eq!(results.len(), batch.len());
    results
}

fn class(result: &Result<(), Failure>) -> Option<Class> {
    result.as_ref().err().map(|failure| failure.class)
}
