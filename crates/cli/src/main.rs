//! The `oncebox` command line. One file per verb; this one is the table of contents.

mod database;
mod demo;
mod fault;
mod migrate;
mod output;
mod relay;
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
    #[arg(long, global = true, env = "ONCEBOX_LOG", default_value = "warn", value_name = "FILTER")]
    log: String,
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
    /// A worker process of the demo
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    output::log_to_stderr(&cli.log, cli.output);
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
    match cli.verb {
        Verb::Demo(args) => demo::run(args, cli.output).await,
        Verb::Migrate(args) => migrate::run(args, cli.output).await,
        Verb::Status(args) => status::run(args, cli.output).await,
        Verb::Relay(args) => relay::run(args, cli.output).await,
        Verb::DemoWorker(args) => demo::work(args).await,
    }
}
