//! A small system whose processes are killed over and over.
//!
//! Producers, relays and workers are child processes of this program, and so
//! is a broker that is a server; the broker of no server and the judge live in
//! the parent, which nobody kills. Children die by SIGKILL at random times and
//! at named crash points, servers at random times. In the end the parent heals
//! the system, waits until everything has arrived, and compares what was
//! ordered with what took effect.

mod broker;
mod chance;
pub(crate) mod child;
mod ground;
mod memory;
mod plan;
mod remote;
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
use broker::Kind;
use ground::Ground;
pub(crate) use sabotage::Sabotage;

/// How long, how often, and on what.
#[derive(Args, Clone)]
pub(crate) struct TortureArguments {
    /// How long to kill, over all pairs of store and broker together.
    #[arg(long, default_value_t = 4.0)]
    minutes: f64,
    /// Stop earlier, after so many kills per pair.
    #[arg(long)]
    kills: Option<u64>,
    /// What all random choices come from.
    #[arg(long, env = "ONCEBOX_SEED")]
    seed: Option<u64>,
    /// Where the tables are.
    #[arg(long, value_enum, default_value_t)]
    store: Where,
    /// What is in between; without a choice, every broker whose server is there.
    #[arg(long, value_enum)]
    broker: Option<Between>,
    /// Text for people or JSON, one object per pair.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Between {
    Memory,
    Rabbitmq,
    Nats,
    All,
}

impl Between {
    /// The brokers that were chosen, or those that can be had.
    fn kinds(chosen: Option<Self>) -> Vec<Kind> {
        let can_be_had =
            |kind: &Kind| kind.brand().is_none_or(|brand| std::env::var(brand.variable()).is_ok());
        match chosen {
            None => [Kind::Memory, Kind::Rabbitmq, Kind::Nats].into_iter().filter(can_be_had).collect(),
            Some(Self::All) => vec![Kind::Memory, Kind::Rabbitmq, Kind::Nats],
            Some(Self::Memory) => vec![Kind::Memory],
            Some(Self::Rabbitmq) => vec![Kind::Rabbitmq],
            Some(Self::Nats) => vec![Kind::Nats],
        }
    }
}

/// What one pair's torture is to do.
#[derive(Clone, Copy, Debug)]
struct Orders {
    broker: Kind,
    span: Duration,
    kills: Option<u64>,
    seed: u64,
    sabotage: Option<Sabotage>,
}

/// Tortures; true if nothing was lost, doubled, invented or swapped.
pub(crate) async fn run(arguments: TortureArguments) -> bool {
    let seed = arguments.seed.unwrap_or_else(chance::fresh_seed);
    eprintln!("seed {seed} (repeat with --seed {seed})");
    let kinds = Between::kinds(arguments.broker);
    if let Some(brand) =
        kinds.iter().filter_map(|kind| kind.brand()).find(|b| std::env::var(b.variable()).is_err())
    {
        eprintln!("{} is not set: no {} to torture", brand.variable(), brand.name());
        return false;
    }
    let stores = if arguments.store == Where::Both { 2.0 } else { 1.0 };
    let span = Duration::from_secs_f64(arguments.minutes * 60.0 / stores / kinds.len() as f64);
    let mut passed = true;
    for broker in kinds {
        let orders = Orders { broker, span, kills: arguments.kills, seed, sabotage: arguments.sabotage };
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
    }
    passed
}

async fn torture(ground: &Ground, orders: Orders, output: Output) -> bool {
    let verdict = supervisor::run(ground, orders).await;
    verdict.print(output);
    verdict.passed()
}
