//! The durable inbox: messages are stored and then worked off, against the
//! same statements written by hand, against itself with a long past or beside
//! poison, and against somebody else's job queue.

mod batched;
mod durable;
mod flat;
mod hand;
mod peers;
mod poison;

use clap::Args;
use oncebox_flow::WorkOptions;
use serde_json::json;

use crate::lab::Lab as _;
use crate::lab::postgres::PostgresLab;
use crate::machine;
use crate::order::Order;
use crate::path::POSTGRES_URL;
use crate::report::{self, Measure, Output};

/// What to measure and how to print it.
#[derive(Args)]
pub(crate) struct InboxArguments {
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
    /// The most deliveries that the worker leases ahead; its default if not given.
    #[arg(long, value_name = "COUNT")]
    prefetch: Option<usize>,
    /// Deliveries per commit where batched work is measured.
    #[arg(long, value_name = "COUNT", default_value_t = 250)]
    batch: usize,
}

/// How much is done in each measure.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rounds: usize,
    /// Messages per worker and round where each has a commit of its own.
    singles: u64,
    /// Messages per round where many share one.
    batched: u64,
    /// Messages per round where they come at a fixed pace.
    paced: u64,
    /// Completed deliveries retained where cost must be flat.
    large: u64,
    /// The same for the small database it is compared with.
    small: u64,
}

impl Sizes {
    const FULL: Self =
        Self { rounds: 7, singles: 3_000, batched: 20_000, paced: 2_000, large: 1_000_000, small: 10_000 };
    const QUICK: Self =
        Self { rounds: 3, singles: 400, batched: 2_000, paced: 400, large: 50_000, small: 5_000 };

    /// Messages of a round: eight workers are not eight times as fast.
    const fn of(&self, workers: usize) -> u64 {
        if workers == 1 { self.singles } else { self.singles * 2 }
    }
}

/// A run in progress.
struct Run {
    sizes: Sizes,
    /// Deliveries leased ahead.
    prefetch: usize,
    /// Deliveries per commit where many share one.
    batch: usize,
    output: Output,
    only: Option<String>,
    passed: bool,
}

impl Run {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    fn report(&mut self, measure: &Measure) {
        self.passed &= measure.passed();
        measure.print(self.output);
    }

    /// A worker with so many seats that commit each delivery by itself.
    fn singles(&self, workers: usize) -> WorkOptions {
        WorkOptions { concurrency: workers, prefetch: self.prefetch, ..WorkOptions::default() }
    }

    /// A worker with so many seats that commit several deliveries together.
    fn batches(&self, workers: usize) -> WorkOptions {
        WorkOptions { batch: self.batch, prefetch: 4 * self.batch, ..self.singles(workers) }
    }
}

/// Runs everything asked for; true if every target was met.
pub(crate) async fn run(arguments: InboxArguments) -> bool {
    let sizes = if arguments.quick { Sizes::QUICK } else { Sizes::FULL };
    let Some(url) = arguments.postgres else {
        report::not_available("postgres.durable", &format!("{POSTGRES_URL} is not set"), arguments.output);
        return false;
    };
    let mut run = Run {
        sizes,
        prefetch: arguments.prefetch.unwrap_or(WorkOptions::default().prefetch),
        batch: arguments.batch,
        output: arguments.output,
        only: arguments.only,
        passed: true,
    };
    let lab = PostgresLab::create(&url).await;
    conditions(&run, &lab).await;
    durable::measure(&mut run, &lab).await;
    batched::measure(&mut run, &lab).await;
    poison::measure(&mut run, &lab).await;
    peers::measure(&mut run, &lab).await;
    lab.drop().await;
    flat::measure(&mut run, &url).await;
    run.passed
}

async fn conditions(run: &Run, lab: &PostgresLab) {
    let facts = json!({
        "postgres": lab.durability().await,
        "load average before": machine::load(),
        "payload": format!("{} bytes", Order::nth(1).payload().len()),
        "prefetch": run.prefetch,
        "batch": run.batch,
        "rounds": run.sizes.rounds,
        "sizes": format!("{:?}", run.sizes),
        "build": if cfg!(debug_assertions) { "debug: ratios mean nothing" } else { "release" },
    });
    report::conditions(&facts, run.output);
}
