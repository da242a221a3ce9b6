//! The measures along the path of a message.

mod drain;
mod flat;
pub(crate) mod memory;
mod peers;
mod put;
mod receive;

use clap::Args;
use serde_json::json;

use crate::lab::Lab;
use crate::lab::postgres::PostgresLab;
use crate::lab::sqlite::SqliteLab;
use crate::machine;
use crate::order::Order;
use crate::report::{self, Measure, Output};

/// The relay's default.
pub(crate) const BATCH: i64 = 500;
pub(crate) const POSTGRES_URL: &str = "ONCEBOX_TEST_POSTGRES_URL";

/// What to measure and how to print it.
#[derive(Args)]
pub(crate) struct PathArguments {
    /// Text for people or JSON, one object per measure.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Small sizes and three rounds: a smoke run, not a measurement.
    #[arg(long)]
    quick: bool,
    /// Only measures whose name contains this.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// The PostgreSQL server; the role must be allowed to make databases.
    #[arg(long, env = POSTGRES_URL, hide_env_values = true)]
    postgres: Option<String>,
}

/// How much is done in each measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) rounds: usize,
    /// Business transactions per client and round.
    pub(crate) puts: u64,
    /// Deliveries per worker and round.
    pub(crate) receives: u64,
    /// Rows drained per round.
    pub(crate) backlog: u64,
    /// Rows drained per round one by one.
    pub(crate) singles: u64,
    /// Rows retained, and as many pending, where cost must be flat.
    pub(crate) large: u64,
    /// The same for the small database it is compared with.
    pub(crate) small: u64,
    /// Messages drained while memory is watched.
    pub(crate) memory: u64,
}

impl Sizes {
    const FULL: Self = Self {
        rounds: 7,
        puts: 1500,
        receives: 1500,
        backlog: 200_000,
        singles: 3_000,
        large: 1_000_000,
        small: 10_000,
        memory: 1_000_000,
    };
    const QUICK: Self = Self {
        rounds: 3,
        puts: 200,
        receives: 200,
        backlog: 50_000,
        singles: 500,
        large: 100_000,
        small: 10_000,
        memory: 20_000,
    };
}

/// A run in progress: what to measure, and whether all of it passed so far.
pub(crate) struct Run {
    pub(crate) sizes: Sizes,
    pub(crate) output: Output,
    only: Option<String>,
    passed: bool,
}

impl Run {
    /// Whether a measure was asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Whether any of a group of measures was asked for.
    fn wants_any(&self, names: &[&str], lab: &str) -> bool {
        names.iter().any(|name| self.wants(&format!("{lab}.{name}")))
    }

    pub(crate) fn report(&mut self, measure: &Measure) {
        self.passed &= measure.passed();
        measure.print(self.output);
    }
}

/// Runs everything asked for; true if every target was met.
pub(crate) async fn run(arguments: PathArguments) -> bool {
    let sizes = if arguments.quick { Sizes::QUICK } else { Sizes::FULL };
    let mut run = Run { sizes, output: arguments.output, only: arguments.only, passed: true };
    let sqlite = SqliteLab::create().await;
    let postgres = match &arguments.postgres {
        Some(url) => Some(PostgresLab::create(url).await),
        None => None,
    };
    conditions(&run, &sqlite, postgres.as_ref()).await;
    measure(&mut run, &sqlite).await;
    if let Some(lab) = &postgres {
        measure(&mut run, lab).await;
    } else {
        report::not_available("postgres", &format!("{POSTGRES_URL} is not set"), run.output);
    }
    flat::sqlite(&mut run).await;
    memory::sqlite(&mut run).await;
    if let (Some(lab), Some(url)) = (postgres, arguments.postgres) {
        peers::measure(&mut run, &lab).await;
        lab.drop().await;
        flat::postgres(&mut run, &url).await;
        memory::postgres(&mut run, &url).await;
    }
    run.passed
}

async fn conditions(run: &Run, sqlite: &SqliteLab, postgres: Option<&PostgresLab>) {
    let durability = match postgres {
        Some(lab) => lab.durability().await,
        None => "not measured".into(),
    };
    let facts = json!({
        "sqlite": sqlite.durability().await,
        "postgres": durability,
        "load average before": machine::load(),
        "payload": format!("{} bytes", Order::nth(1).payload().len()),
        "batch": BATCH,
        "rounds": run.sizes.rounds,
        "sizes": format!("{:?}", run.sizes),
        "build": if cfg!(debug_assertions) { "debug: ratios mean nothing" } else { "release" },
    });
    report::conditions(&facts, run.output);
}

async fn measure<L: Lab>(run: &mut Run, lab: &L) {
    put::measure(run, lab).await;
    receive::measure(run, lab).await;
    drain::measure(run, lab).await;
}
