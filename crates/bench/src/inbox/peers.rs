//! apalis on the same server, in the same run, with jobs of the same payload
//! that do nothing. It lives in a program of its own (`crates/bench/peers`).
//!
//! Three times: each as it is tuned for throughput, each with ten in a commit,
//! and each as it comes. apalis completes in one commit what has piled up since
//! the last one, after the jobs have run: a crash repeats them. Ours completes
//! with the handler's own writes, so that even batches take effect once; as it
//! comes, each message has a commit of its own.

use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

use oncebox_flow::WorkOptions;
use serde_json::json;

use super::Run;
use super::durable::{Job, Phases, kept, ours, shares};
use crate::lab::postgres::PostgresLab;
use crate::order::Order;
use crate::report::{Measure, Target, not_available, note};
use crate::rounds::interleave;

/// Where `./dev bench` has put the program.
const PROGRAM: &str = "ONCEBOX_PEERS";
const VERSION: &str = "apalis 1.0.0, apalis-postgres 1.0.0";
/// Jobs it fetches at once. Of 10, 50, 200, 500 and 1000 the best for one worker; for eight 200 is as good.
const FETCH: u32 = 500;
/// Jobs it fetches, and completes, at once unless told otherwise.
const THEIR_DEFAULT: usize = 10;

/// Who is compared with whom.
struct Pair {
    name: &'static str,
    peer: &'static str,
    workers: usize,
    options: WorkOptions,
    messages: u64,
}

pub(super) async fn measure(run: &mut Run, lab: &PostgresLab) {
    let pair = |name, peer, workers, options, messages| Pair { name, peer, workers, options, messages };
    let (many, sizes) = (run.sizes.batched, run.sizes);
    let pairs = [
        pair("postgres.peer.apalis.1_workers", "apalis", 1, run.batches(1), many),
        pair("postgres.peer.apalis.8_workers", "apalis", 8, run.batches(8), many),
        pair("postgres.peer.apalis_by_ten.1_workers", "apalis-default", 1, by_ten(run, 1), sizes.of(1)),
        pair("postgres.peer.apalis_by_ten.8_workers", "apalis-default", 8, by_ten(run, 8), sizes.of(8)),
        pair("postgres.peer.apalis_as_it_comes.1_workers", "apalis-default", 1, as_it_comes(1), sizes.of(1)),
        pair("postgres.peer.apalis_as_it_comes.8_workers", "apalis-default", 8, as_it_comes(8), sizes.of(8)),
    ];
    let wanted: Vec<Pair> = pairs.into_iter().filter(|pair| run.wants(pair.name)).collect();
    let Some(program) = std::env::var(PROGRAM).ok().filter(|_| !wanted.is_empty()) else {
        for pair in wanted {
            not_available(pair.name, "run it by `./dev bench`, which builds the peers", run.output);
        }
        return;
    };
    let settings = json!({
        "version": VERSION,
        "tuned": format!("batch_size {FETCH}, lock_tasks false, pushed by 1000, three at once, queue full before a worker starts"),
        "as it comes": "batch_size 10, lock_tasks true, pushed by 1000, three at once, queue full before a worker starts",
        "ours as it comes": "one worker with its four seats, or with eight; a commit per message",
        "ours by ten": format!("as many seats as apalis has workers, batch {THEIR_DEFAULT}; apalis as it comes"),
        "ours tuned": format!("batch {}, prefetch {}", run.batch, run.batches(1).prefetch),
    });
    note("postgres.peer.apalis.settings", &settings, run.output);
    for pair in wanted {
        compare(run, lab, &program, pair).await;
    }
}

/// As many in a commit as apalis has when it is not tuned.
fn by_ten(run: &Run, workers: usize) -> WorkOptions {
    WorkOptions { batch: THEIR_DEFAULT, ..run.singles(workers) }
}

/// A worker as it comes, or with more seats. One of apalis, too, has more than one job under way.
fn as_it_comes(seats: usize) -> WorkOptions {
    let one = WorkOptions::default();
    WorkOptions { concurrency: one.concurrency.max(seats), ..one }
}

async fn compare(run: &mut Run, lab: &PostgresLab, program: &str, pair: Pair) {
    // The first run makes their tables, and tells whether they can be had at all.
    if let Err(reason) = theirs(program, lab, &pair) {
        not_available(pair.name, &reason, run.output);
        return;
    }
    let phases = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let rounds = interleave(
        run.sizes.rounds,
        async || {
            lab.forget_inbox().await;
            kept(&phases.0, ours(lab, Job::Nothing, pair.messages, pair.options.clone()).await)
        },
        async || kept(&phases.1, theirs(program, lab, &pair).expect("it worked before")),
    )
    .await;
    let facts = json!({ "ours": shares(&phases.0), "apalis": shares(&phases.1) });
    note(&format!("{}.phases", pair.name), &facts, run.output);
    run.report(&Measure::new(pair.name, rounds, Target::AtLeast(1.0)));
}

/// The program prints for how many microseconds it pushed, and for how many it worked.
fn theirs(program: &str, lab: &PostgresLab, pair: &Pair) -> Result<Phases, String> {
    let payload = String::from_utf8(Order::nth(1).payload()).map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args([pair.peer, &lab.url(), &pair.messages.to_string(), &FETCH.to_string(), &payload]);
    command.arg(pair.workers.to_string());
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut micros = text.split_whitespace().map_while(|word| word.parse().ok().map(Duration::from_micros));
    match (micros.next(), micros.next()) {
        (Some(deposit), Some(work)) => Ok(Phases { messages: pair.messages, deposit, work }),
        _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
