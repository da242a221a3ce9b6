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

use std::time::Duration;

use oncebox_conformance::sample::plain;
use oncebox_core::transport::Class;
use oncebox_core::{Envelope, Failure, Publisher, Result};
use oncebox_transports::http::{Http, HttpOptions};

/// A publisher that posts to URLs below `url`.
fn http(url: &str) -> Http {
    Http::new(options(url)).unwrap()
}

fn options(url: &str) -> HttpOptions {
    HttpOptions::new().allow(url)
}

/// A message for `destination`.
fn to(destination: &str, id: &str) -> Envelope {
    Envelope { destination: destination.into(), ..plain(id) }
}

/// Posts one message; nothing here may take long.
async fn post(http: &Http, envelope: Envelope) -> Result<(), Failure> {
    post_all(http, &[envelope]).await.remove(0)
}

async fn post_all(http: &Http, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
    let results = tokio::time::timeout(Duration::from_secs(20), http.publish(batch)).await.expect("it ends");
    assert_eq!(results.len(), batch.len());
    results
}

fn class(result: &Result<(), Failure>) -> Option<Class> {
    result.as_ref().err().map(|failure| failure.class)
}
