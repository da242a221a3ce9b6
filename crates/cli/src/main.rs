//! The `oncebox` command line. One file per verb; this one is the table of contents.

mod admin;
mod check;
mod config;
mod consent;
mod consume;
mod database;
mod dead;
mod demo;
mod fault;
mod gate;
mod migrate;
mod output;
mod relay;
mod replay;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use fault::Fault;
use output::Format;

/// Outbox, relay and inbox that take effect once, inside your own database transaction.
#[derive(Debug, Parser)]
#[command(name = "oncebox", version, about, after_help = fault::EXIT_CODES, arg_required_else_help = true)]
struct Cli {
    /// How results are printed; progress and logs go to standard error
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// What to log, for instance `info` or `oncebox_flow=debug`
    /// [env: ONCEBOX_LOG=] [default: warn]
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Watch messages survive kills, duplicates and outages, with a proof at the end
    Demo(demo::Args),
    /// Create or upgrade the oncebox tables
    Migrate(migrate::Args),
    /// Show what waits, what was refused and who relays
    Status(status::Args),
    /// Carry committed messages from the outbox to a destination
    Relay(relay::Args),
    /// List, show, retry, edit or give up dead letters, of the inbox and of relays
    Dead(dead::Args),
    /// Run a finished delivery of the durable inbox once more
    Replay(replay::Args),
    /// Look at every destination and tell what would lose messages there
    Check(check::Args),
    /// Print or forward what a queue delivers, through the inbox
    Consume(consume::Args),
    /// Give any HTTP service Idempotency-Key: a reverse proxy, and a checker for gates
    Gate(gate::Args),
    /// A worker process of the demo
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return fault::misunderstood(&error),
    };
    let format = cli.output;
    match run(cli).await {
        Ok(code) => code,
        Err(fault) => {
            fault.print(format);
            ExitCode::from(fault.exit())
        }
    }
}

async fn run(cli: Cli) -> Result<ExitCode, Fault> {
    // A relay reads its configuration first, which may say what to log.
    if !matches!(cli.verb, Verb::Relay(_)) {
        let filter = cli.log.clone().or_else(|| std::env::var("ONCEBOX_LOG").ok());
        // What a check finds is its result.
        let default = if matches!(cli.verb, Verb::Check(_)) { "error" } else { "warn" };
        output::log_to_stderr(filter.as_deref().unwrap_or(default), cli.output);
    }
    match cli.verb {
        Verb::Demo(args) => demo::run(args, cli.output).await,
        Verb::Migrate(args) => migrate::run(args, cli.output).await,
        Verb::Status(args) => status::run(args, cli.output).await,
        Verb::Relay(args) => relay::run(args, cli.output, cli.log).await,
        Verb::Dead(args) => dead::run(args, cli.output).await,
        Verb::Replay(args) => replay::run(args, cli.output).await,
        Verb::Check(args) => check::run(args, cli.output).await,
        Verb::Consume(args) => consume::run(args, cli.output).await,
        Verb::Gate(args) => gate::run(args, cli.output).await,
        Verb::DemoWorker(args) => demo::work(args).await,
    }
}
