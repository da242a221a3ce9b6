//! A small system whose processes are killed over and over.
//!
//! Producers, relays and workers are child processes of this program; the
//! broker and the judge live in the parent, which nobody kills. Children die
//! by SIGKILL at random times and at named crash points. In the end the parent
//! heals the system, waits until everything has arrived, and compares what was
//! ordered with what took effect.

mod broker;
mod chance;
pub(crate) mod child;
mod ground;
mod plan;
mod sabotage;
mod socket;
mod supervisor;
mod verdict;
mod wire;

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::lab::postgres::PostgresLab;
use crate::lab::sqlite::SqliteLab;
use crate::report::Output;
use ground::Ground;
pub(crate) use sabotage::Sabotage;

/// How long, how often, and on what.
#[derive(Args, Clone)]
pub(crate) struct TortureArguments {
    /// How long to kill, over all stores together.
    #[arg(long, default_value_t = 4.0)]
    minutes: f64,
    /// Stop earlier, after so many kills per store.
    #[arg(long)]
    kills: Option<u64>,
    /// What all random choices come from.
    #[arg(long, env = "ONCEBOX_SEED")]
    seed: Option<u64>,
    /// Where the tables are.
    #[arg(long, value_enum, default_value_t)]
    store: Where,
    /// Text for people or JSON, one object per store.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Breaks the protocol on purpose, outside the product: the run must fail.
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
    /// The PostgreSQL server; the role must be allowed to make databases.
    #[arg(long, env = "ONCEBOX_TEST_POSTGRES_URL", hide_env_values = true)]
    postgres: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Where {
    Sqlite,
    Postgres,
    #[default]
    Both,
}

/// What one store's torture is to do.
#[derive(Clone, Copy, Debug)]
struct Orders {
    span: Duration,
    kills: Option<u64>,
    seed: u64,
    sabotage: Option<Sabotage>,
}

/// Tortures; true if nothing was lost, doubled, invented or swapped.
pub(crate) async fn run(arguments: TortureArguments) -> bool {
    let seed = arguments.seed.unwrap_or_else(chance::fresh_seed);
    eprintln!("seed {seed} (repeat with --seed {seed})");
    let stores = if arguments.store == Where::Both { 2.0 } else { 1.0 };
    let orders = Orders {
        span: Duration::from_secs_f64(arguments.minutes * 60.0 / stores),
        kills: arguments.kills,
        seed,
        sabotage: arguments.sabotage,
    };
    let mut passed = true;
    if arguments.store != Where::Postgres {
        let lab = SqliteLab::create().await;
        let ground = Ground::sqlite(lab.url()).await;
        passed &= torture(&ground, orders, arguments.output).await;
    }
    if arguments.store != Where::Sqlite {
        let Some(url) = &arguments.postgres else {
            eprintln!("ONCEBOX_TEST_POSTGRES_URL is not set: nothing to torture on PostgreSQL");
            return false;
        };
        let lab = PostgresLab::create(url).await;
        let ground = Ground::postgres(lab.url()).await;
        passed &= torture(&ground, orders, arguments.output).await;
        drop(ground);
        lab.drop().await;
    }
    passed
}

async fn torture(ground: &Ground, orders: Orders, output: Output) -> bool {
    let verdict = supervisor::run(ground, orders).await;
    verdict.print(output);
    verdict.passed()
}
