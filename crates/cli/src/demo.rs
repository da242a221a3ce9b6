//! `oncebox demo`: the same orders, the same faults, with and without oncebox.
//!
//! Two lanes run side by side. In each, a client places orders with a service
//! whose worker process talks to a broker and applies every order's effect to a
//! ledger. Workers are killed with SIGKILL at named points, the broker repeats,
//! reorders and goes away. The naive service writes, then publishes, then
//! applies; the other one puts the message into its transaction and marks what
//! it has handled. The proof is SQL over both ledgers.
//!
//! The broker lives in this process and speaks to the workers over their pipes,
//! so that nothing needs a network, a server or a configuration.

mod broker;
mod lane;
mod picture;
mod progress;
mod proof;
mod schedule;
mod wire;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Args as ClapArgs;
use serde_json::json;

use crate::fault::{Class, Fault};
use crate::output::Format;
use lane::{Lane, LaneReport};
use progress::Progress;
use proof::Proof;
use schedule::Schedule;
pub(crate) use worker::{WorkerArgs, work};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Orders to place in each lane
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(60..=1_000_000))]
    orders: u32,
    /// Repeats a run: the same victims, duplicates and outages
    #[arg(long)]
    seed: Option<u64>,
    /// Keep the databases, and say where they are
    #[arg(long)]
    keep: bool,
    /// Draw the run as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Run the oncebox lane without its markers: the proof must then fail
    #[arg(long, hide = true)]
    sabotage: bool,
}

/// Where a lane's database is.
fn database(dir: &Path, service: wire::Service) -> PathBuf {
    dir.join(format!("{}.db", service.name()))
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    let seed = args.seed.unwrap_or_else(random_seed);
    let schedule = Arc::new(Schedule::draw(seed, args.orders));
    let dir = fresh_directory(seed)?;
    eprintln!("oncebox {}  demo  seed {seed}  {} orders", env!("CARGO_PKG_VERSION"), args.orders);
    let progress = Progress::start(args.orders);
    let started = Instant::now();
    let (naive, guarded) = {
        let lane = |service| Lane::new(service, &dir, Arc::clone(&schedule), progress.clone(), args.sabotage);
        tokio::join!(lane(wire::Service::Naive).run(), lane(wire::Service::Oncebox).run())
    };
    progress.finish();
    let finished = finish(&args, format, &dir, (naive, guarded), started).await;
    if args.keep {
        eprintln!("kept: {}", dir.display());
    } else {
        std::fs::remove_dir_all(&dir).ok();
    }
    finished
}

async fn finish(
    args: &Args,
    format: Format,
    dir: &Path,
    (naive, guarded): (Result<LaneReport, Fault>, Result<LaneReport, Fault>),
    started: Instant,
) -> Result<ExitCode, Fault> {
    let (naive, guarded) = (naive?, guarded?);
    let seconds = started.elapsed().as_secs_f64();
    let naive_proof = Proof::of(&database(dir, wire::Service::Naive)).await?;
    let proof = Proof::of(&database(dir, wire::Service::Oncebox)).await?;
    let pass =
        proof.holds(args.orders) && guarded.kills == naive.kills && guarded.kills >= schedule::MIN_KILLS;
    let naive_breaks = naive_proof.lost > 0 && naive_proof.doubled > 0;
    if let Some(file) = &args.svg {
        let lanes = [(&naive, &naive_proof), (&guarded, &proof)];
        std::fs::write(file, picture::draw(&lanes, args.orders, seconds)).map_err(|error| {
            Fault::new(Class::Output, format!("cannot write {}: {error}", file.display()))
        })?;
    }
    let lane = |p: &Proof| json!({ "effects": p.effects, "lost": p.lost, "doubled": p.doubled });
    match format {
        Format::Json => println!(
            "{}",
            json!({ "v": 1, "seed": guarded.seed, "orders": args.orders,
                    "faults": { "kills": guarded.kills, "duplicates": guarded.duplicates, "outages": guarded.outages, "reordered": guarded.reordered },
                    "naive": lane(&naive_proof), "oncebox": lane(&proof),
                    "seconds": (seconds * 10.0).round() / 10.0, "pass": pass && naive_breaks })
        ),
        Format::Text => println!("{}", proof::table((&naive, &naive_proof), (&guarded, &proof), seconds)),
    }
    if !pass {
        return Err(Fault::new(Class::DemoFailed, "the oncebox lane lost, doubled or missed something")
            .help(format!("run `oncebox demo --seed {} --keep` and look at the databases", guarded.seed)));
    }
    if !naive_breaks {
        return Err(Fault::new(
            Class::DemoFailed,
            "the naive lane came through unharmed, so this run proves nothing",
        ));
    }
    if format == Format::Text {
        println!(
            "next: oncebox demo --svg proof.svg   |   oncebox migrate up --db app.db   |   oncebox relay --db app.db --to stdout"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn random_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64 % 1_000_000
}

fn fresh_directory(seed: u64) -> Result<PathBuf, Fault> {
    let dir = std::env::temp_dir().join(format!("oncebox-demo-{seed}-{}", std::process::id()));
    std::fs::create_dir_all(&dir)
        .map_err(|error| Fault::new(Class::Output, format!("cannot create {}: {error}", dir.display())))?;
    Ok(dir)
}
