//! The gate: a small service of axum with and without it, in a process of its
//! own, so that its processor time can be told from the load's. Every answer is
//! looked at, and every run of a handler is counted.

mod child;
mod client;
mod load;
mod memory;
mod peers;
mod postgres;
mod proxy;
mod server;
mod shared_commit;
mod slow;

use clap::Args;
use serde_json::json;

use crate::machine;
use crate::path::POSTGRES_URL;
use crate::report::{self, Measure, Output, Target};
use crate::rounds::interleave;
use child::{Child, Place};
use load::{Keys, Load, Report};
pub(crate) use server::{Service, serve};

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
    /// Requests of a round that wait for commits or a slow handler.
    durable: usize,
    /// Receipts that are there before, where there are many.
    many: usize,
    /// Replies of a kibibyte that a small memory is offered.
    replies: usize,
}

impl Sizes {
    const FULL: Self = Self { rounds: 7, quick: 40_000, durable: 1_600, many: 1_000_000, replies: 100_000 };
    const QUICK: Self = Self { rounds: 3, quick: 4_000, durable: 320, many: 50_000, replies: 100_000 };
}

/// A run in progress.
struct Run {
    sizes: Sizes,
    output: Output,
    only: Option<String>,
    /// Whether what is measured has a processor of its own.
    is_pinned: bool,
    passed: bool,
}

impl Run {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Whether one of these is wanted.
    fn wants_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.wants(name))
    }

    fn report(&mut self, name: &str, unit: &'static str, rounds: Vec<(f64, f64)>, target: Target) {
        if self.wants(name) {
            let measure = Measure { name: name.to_owned(), unit, rounds, target, load: machine::load() };
            self.passed &= measure.passed();
            measure.print(self.output);
        }
    }

    fn not_available(&mut self, name: &str, reason: &str) {
        if self.wants(name) {
            report::not_available(name, reason, self.output);
            self.passed = false;
        }
    }

    const fn place(&self, place: Place) -> Place {
        if self.is_pinned { place } else { Place::Anywhere }
    }

    const fn quick(&self, connections: usize, keys: Keys) -> Load {
        Load {
            requests: self.sizes.quick,
            connections,
            keys,
            with_session: false,
            is_awake: self.is_pinned,
            every: None,
        }
    }

    const fn durable(&self, connections: usize, keys: Keys) -> Load {
        Load { requests: self.sizes.durable, is_awake: false, ..self.quick(connections, keys) }
    }

    /// One load on a fresh process.
    async fn once(&self, service: &Service, load: Load) -> Report {
        let child = Child::start(&service.command(), self.place(Place::Alone));
        load::run(&child, &child.address, load)
    }

    /// Two services in turn, each round with fresh processes.
    async fn compare(&self, ours: (&Service, Load), other: (&Service, Load)) -> Vec<(Report, Report)> {
        let rounds = self.sizes.rounds;
        let first = async || self.once(ours.0, ours.1).await;
        interleave(rounds, first, async || self.once(other.0, other.1).await).await
    }
}

/// One figure of each round's reports.
fn of(rounds: &[(Report, Report)], figure: impl Fn(&Report) -> f64) -> Vec<(f64, f64)> {
    rounds.iter().map(|(ours, other)| (figure(ours), figure(other))).collect()
}

/// Runs everything asked for; true if every target was met.
pub(crate) async fn run(arguments: GateArguments) -> bool {
    let sizes = if arguments.quick { Sizes::QUICK } else { Sizes::FULL };
    let mut run =
        Run { sizes, output: arguments.output, only: arguments.only, is_pinned: false, passed: true };
    let load_before = machine::load();
    let shared = if run.wants(shared_commit::NAME) {
        // Before this process keeps to one processor: here it is what is measured.
        // More than elsewhere: together they take a tenth of the time.
        Some(shared_commit::measure(sizes.rounds, 4 * sizes.durable).await)
    } else {
        None
    };
    run.is_pinned = machine::stay_on(Place::CLIENTS);
    conditions(&run, load_before);
    if let Some(rounds) = shared {
        run.report(shared_commit::NAME, "requests/s", rounds, Target::AtLeast(15.0));
    }
    memory::measure(&mut run).await;
    slow::measure(&mut run).await;
    proxy::measure(&mut run).await;
    peers::measure(&mut run).await;
    match arguments.postgres {
        Some(url) => postgres::measure(&mut run, &url).await,
        None => run.not_available("postgres", &format!("{POSTGRES_URL} is not set")),
    }
    run.passed
}

fn conditions(run: &Run, load_before: f64) {
    let facts = json!({
        "load average before": load_before,
        "processors": if run.is_pinned { "0: what is measured, 1: clients" } else { "shared by all" },
        "body": format!("{} bytes of JSON", load::order().len()),
        "rounds": run.sizes.rounds,
        "sizes": format!("{:?}", run.sizes),
        "build": if cfg!(debug_assertions) { "debug: ratios mean nothing" } else { "release" },
    });
    report::conditions(&facts, run.output);
}
