//! Measures oncebox against hand-written ceilings, and tortures it.
//!
//! `oncebox-bench path` prints ratios: ours and the same work written by hand,
//! in the same run, round by round in turn. `oncebox-bench brokers` does so over
//! RabbitMQ and NATS, `oncebox-bench inbox` for the durable inbox,
//! `oncebox-bench gate` for HTTP requests.
//! `oncebox-bench torture` kills the processes of a small system over and over
//! and then counts what is left.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a bench is a test: it stops at the first thing that is not as it should be"
)]

mod brokers;
mod gate;
mod inbox;
mod lab;
mod machine;
mod order;
mod path;
mod report;
mod rounds;
mod torture;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Ratios against raw ceilings and peers, and a kill -9 torture with a ledger.
#[derive(Parser)]
#[command(version, name = "oncebox-bench")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The path of a message, station by station, as ratios to hand-written code.
    Path(path::PathArguments),
    /// The way over real brokers, as ratios to code written by hand for their clients.
    Brokers(brokers::BrokerArguments),
    /// The durable inbox, end to end, as ratios to hand-written code and to a peer.
    Inbox(inbox::InboxArguments),
    /// HTTP requests with and without the gate.
    Gate(gate::GateArguments),
    /// Kills producers, relays, workers and brokers for some minutes, then checks the ledger.
    Torture(torture::TortureArguments),
    #[command(hide = true)]
    GateServer(gate::Service),
    #[command(hide = true)]
    MemoryChild(path::memory::ChildArguments),
    #[command(hide = true)]
    TortureWorker(torture::child::ChildArguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("ONCEBOX_LOG").unwrap_or_else(|_| "off".into()),
        )
        .init();
    let passed = match Arguments::parse().command {
        Command::Path(arguments) => path::run(arguments).await,
        Command::Brokers(arguments) => brokers::run(arguments).await,
        Command::Inbox(arguments) => inbox::run(arguments).await,
        Command::Gate(arguments) => gate::run(arguments).await,
        Command::GateServer(arguments) => gate::serve(arguments).await,
        Command::Torture(arguments) => torture::run(arguments).await,
        Command::MemoryChild(arguments) => path::memory::child(arguments).await,
        Command::TortureWorker(arguments) => torture::child::run(arguments).await,
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
