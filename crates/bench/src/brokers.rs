//! The relay and the inbox over real brokers, against the same work written by
//! hand with the brokers' own clients.

mod bus;
mod drain;
mod latency;
mod nats;
mod pair;
mod rabbitmq;
mod toll;

use clap::Args;
use serde_json::json;

use crate::lab::Lab as _;
use crate::lab::postgres::PostgresLab;
use crate::machine;
use crate::order::Order;
use crate::path::{BATCH, POSTGRES_URL};
use crate::report::{self, Measure, Output};
use bus::Bus;
use nats::NatsBus;
use rabbitmq::RabbitMqBus;

/// Messages that may be under way on both sides: what the relay hands to a
/// publisher at once.
const WINDOW: usize = BATCH as usize;
const RABBITMQ_URL: &str = "ONCEBOX_TEST_RABBITMQ_URL";
const NATS_URL: &str = "ONCEBOX_TEST_NATS_URL";

/// What to measure and how to print it.
#[derive(Args)]
pub(crate) struct BrokerArguments {
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
    /// The RabbitMQ server.
    #[arg(long, env = RABBITMQ_URL, hide_env_values = true)]
    rabbitmq: Option<String>,
    /// The NATS server.
    #[arg(long, env = NATS_URL, hide_env_values = true)]
    nats: Option<String>,
}

/// How much is done in each measure.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rounds: usize,
    /// Messages drained per round.
    backlog: u64,
    /// Messages per round whose way is timed.
    timed: u64,
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

    fn report(&mut self, measure: &Measure) {
        self.passed &= measure.passed();
        measure.print(self.output);
    }
}

/// Runs everything asked for; true if every target was met.
pub(crate) async fn run(arguments: BrokerArguments) -> bool {
    let sizes = match arguments.quick {
        true => Sizes { rounds: 3, backlog: 5_000, timed: 300 },
        false => Sizes { rounds: 7, backlog: 30_000, timed: 1_000 },
    };
    let Some(postgres) = arguments.postgres else {
        report::not_available("brokers", &format!("{POSTGRES_URL} is not set"), arguments.output);
        return false;
    };
    let mut run = Run { sizes, output: arguments.output, only: arguments.only, passed: true };
    conditions(&run, &postgres).await;
    measure::<RabbitMqBus>(&mut run, &postgres, arguments.rabbitmq.as_deref(), RABBITMQ_URL).await;
    measure::<NatsBus>(&mut run, &postgres, arguments.nats.as_deref(), NATS_URL).await;
    run.passed
}

async fn conditions(run: &Run, postgres: &str) {
    let lab = PostgresLab::create(postgres).await;
    let facts = json!({
        "postgres": lab.durability().await,
        "load average before": machine::load(),
        "payload": format!("{} bytes", Order::nth(1).payload().len()),
        "window": WINDOW,
        "rounds": run.sizes.rounds,
        "sizes": format!("{:?}", run.sizes),
        "build": if cfg!(debug_assertions) { "debug: ratios mean nothing" } else { "release" },
    });
    lab.drop().await;
    report::conditions(&facts, run.output);
}

/// Everything over one broker, in a database of its own.
async fn measure<B: Bus>(run: &mut Run, postgres: &str, url: Option<&str>, variable: &str) {
    let Some(url) = url else {
        report::not_available(B::NAME, &format!("{variable} is not set"), run.output);
        return;
    };
    let lab = PostgresLab::create(postgres).await;
    let bus = B::connect(url).await;
    drain::measure(run, &lab, &bus).await;
    pair::measure(run, &lab, &bus).await;
    latency::measure(run, &lab, &bus).await;
    bus.remove().await;
    lab.drop().await;
}
