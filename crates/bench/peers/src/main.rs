//! Does a bench's work with somebody else's crate and prints how fast it was.
//!
//! `oncebox-peers PEER URL MESSAGES BATCH PAYLOAD [WORKERS]`; the bench runs it
//! in turn with its own: outbox-core and pgmq drain a backlog and print messages
//! per second; apalis enqueues and runs jobs and prints the microseconds of each.
//! `oncebox-peers axum-idempotent` serves HTTP instead.

mod apalis_peer;
mod axum_idempotent_peer;
mod outbox_core_peer;
mod pgmq_peer;

use std::time::Instant;

use axum_idempotent_peer::Mode;

/// What to drain.
struct Backlog {
    url: String,
    messages: u64,
    batch: u32,
    payload: serde_json::Value,
    workers: usize,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("axum-idempotent") => return axum_idempotent_peer::serve(Mode::Hash).await,
        Some("axum-idempotent-by-key") => return axum_idempotent_peer::serve(Mode::Key).await,
        _ => {}
    }
    let [peer, url, messages, batch, payload, rest @ ..] = arguments.as_slice() else {
        return Err("usage: oncebox-peers PEER URL MESSAGES BATCH PAYLOAD [WORKERS]".into());
    };
    let backlog = Backlog {
        url: url.clone(),
        messages: messages.parse()?,
        batch: batch.parse()?,
        payload: serde_json::from_str(payload)?,
        workers: rest.first().map_or(Ok(1), |workers| workers.parse())?,
    };
    match peer.as_str() {
        "outbox-core" => println!("{}", outbox_core_peer::drain(&backlog).await?),
        "pgmq" => println!("{}", pgmq_peer::drain(&backlog).await?),
        "apalis" => println!("{}", apalis_peer::work(&backlog, apalis_peer::Tuning::Throughput).await?),
        "apalis-default" => {
            println!("{}", apalis_peer::work(&backlog, apalis_peer::Tuning::AsItComes).await?)
        }
        other => return Err(format!("no peer is called {other}").into()),
    }
    Ok(())
}

/// Messages per second of a drain that began at `started`.
fn rate(moved: u64, started: Instant) -> f64 {
    moved as f64 / started.elapsed().as_secs_f64()
}
