//! The gate: a small service of axum with and without it, in a process of its
//! own, so that its processor time can be told from the load's.

mod load;
mod server;
mod shared_commit;

use clap::Args;

use crate::machine;
use crate::path::POSTGRES_URL;
use crate::report::{self, Measure, Output, Target};
use crate::rounds::interleave;
use load::{Keys, Load};
use server::{Child, Set};
pub(crate) use server::{ChildArguments, child};

/// What to measure and how to print it.
#[derive(Args)]
pub(crate) struct GateArguments {
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
struct Sizes {
    rounds: usize,
    /// Requests of a round that only compute.
    quick: usize,
    /// Requests of a round that wait for commits.
    durable: usize,
    /// Receipts that are there before.
    many: usize,
}

impl Sizes {
    const FULL: Self = Self { rounds: 7, quick: 40_000, durable: 4_000, many: 1_000_000 };
    const QUICK: Self = Self { rounds: 3, quick: 4_000, durable: 400, many: 50_000 };
}

/// A run in progress.
struct Run {
    sizes: Sizes,
    output: Output,
    only: Option<String>,
    passed: bool,
}

impl Run {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    fn report(&mut self, name: &str, unit: &'static str, rounds: Vec<(f64, f64)>, target: Target) {
        let measure = Measure { name: name.to_owned(), unit, rounds, target, load: machine::load() };
        self.passed &= measure.passed();
        measure.print(self.output);
    }

    /// Ours and a plain service, each round with fresh processes.
    async fn compare(
        &self,
        ours: Set,
        plain: Set,
        load: Load,
        of: fn(&load::Report) -> f64,
    ) -> Vec<(f64, f64)> {
        let one = async |set: &Set, load: Load| {
            let child = Child::start(set);
            of(&load::run(&child, load).await)
        };
        let (bare, without) = (Load { keys: Keys::None, ..load }, &plain);
        interleave(self.sizes.rounds, async || one(&ours, load).await, async || one(without, bare).await)
            .await
    }
}

/// Runs everything asked for; true if every target was met.
pub(crate) async fn run(arguments: GateArguments) -> bool {
    let sizes = if arguments.quick { Sizes::QUICK } else { Sizes::FULL };
    let mut run = Run { sizes, output: arguments.output, only: arguments.only, passed: true };
    in_memory(&mut run).await;
    if run.wants("sqlite.shared_commit") {
        let rounds = shared_commit::measure(sizes.rounds, sizes.durable).await;
        run.report("sqlite.shared_commit.64_vs_1", "requests/s", rounds, Target::AtLeast(15.0));
    }
    match arguments.postgres {
        Some(url) => on_postgres(&mut run, &url).await,
        None => {
            report::not_available("postgres", &format!("{POSTGRES_URL} is not set"), run.output);
            run.passed = false;
        }
    }
    run.passed
}

async fn in_memory(run: &mut Run) {
    let (gated, plain) = (Set::memory(), Set::plain());
    let unique = Load { requests: run.sizes.quick, connections: 8, keys: Keys::Unique };
    if run.wants("memory.unique.cpu") {
        let rounds = run.compare(gated.clone(), plain.clone(), unique, |report| report.cpu_micros).await;
        run.report("memory.unique.cpu", "us/request", rounds, Target::AtMost(1.6));
    }
    if run.wants("memory.unique.rate") {
        let many = Load { connections: 64, ..unique };
        let rounds = run.compare(gated.clone(), plain.clone(), many, |report| report.rate).await;
        run.report("memory.unique.rate.64", "requests/s", rounds, Target::AtLeast(0.7));
    }
    if run.wants("memory.replay") {
        let same = Load { keys: Keys::Same, ..unique };
        let rounds = run.compare(gated.clone(), plain, same, |report| report.rate).await;
        run.report("memory.replay.rate", "requests/s", rounds, Target::AtLeast(1.0));
    }
    if run.wants("memory.flat") {
        let large = Set { receipts: run.sizes.many, ..gated.clone() };
        let small = Set { receipts: 1_000, ..gated.clone() };
        let one = async |set: &Set| load::run(&Child::start(set), unique).await.cpu_micros;
        let rounds =
            interleave(run.sizes.rounds, async || one(&large).await, async || one(&small).await).await;
        run.report("memory.flat.cpu", "us/request", rounds, Target::AtMost(1.15));
    }
    if run.wants("memory.storm") {
        let child = Child::start(&gated);
        let (runs, p99) = load::storm(&child, 1_000).await;
        // As a ratio to what it may be: one run, 5 ms.
        run.report("memory.storm.runs", "runs", vec![(runs, 1.0)], Target::AtMost(1.0));
        run.report("memory.storm.refused_p99", "ms", vec![(p99, 5.0)], Target::Below(1.0));
    }
}

async fn on_postgres(run: &mut Run, url: &str) {
    let set = |gate: &str| Set { gate: gate.to_owned(), store: url.to_owned(), receipts: 0 };
    let load = Load { requests: run.sizes.durable, connections: 8, keys: Keys::Unique };
    if run.wants("postgres.claimed") {
        let rounds = run.compare(set("claimed"), set("insert"), load, |report| report.rate).await;
        run.report("postgres.claimed_vs_insert.rate.8", "requests/s", rounds, Target::AtLeast(0.9));
    }
    if run.wants("postgres.outside") {
        // One commit of a row by itself is what a request of the plain service takes.
        let rounds = run.compare(set("outside"), set("insert"), load, |report| report.p50_millis).await;
        run.report("postgres.outside_vs_commit.p50.8", "ms", rounds, Target::AtMost(3.2));
    }
}
