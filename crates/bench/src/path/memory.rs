//! How much memory a relay and a worker need, in a process of their own.
//!
//! The child relays a backlog to itself through a bounded channel and handles
//! every message. It says how far its resident memory rose above what it was
//! when everything had been set up and warmed up.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use oncebox_core::store::{Dedup, Mailbox};
use oncebox_core::{Envelope, Failure, Outcome, Publisher};
use oncebox_flow::{Inbox, Relay};
use oncebox_stores::postgres::PostgresStore;
use oncebox_stores::sqlite::SqliteStore;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use super::Run;
use crate::lab::postgres::PostgresLab;
use crate::lab::sqlite::SqliteLab;
use crate::lab::{Lab, postgres as pg, sqlite as lite};
use crate::machine;
use crate::report::{Measure, Target};

const LIMIT_MIB: f64 = 64.0;
const WORKERS: usize = 8;
/// Deliveries in flight between relay and workers.
const WINDOW: usize = 1000;
const DATABASE: &str = "ONCEBOX_MEMORY_DATABASE";
const NAME: &str = "memory.relay_and_worker_mib";

/// What the child is told.
#[derive(Args)]
pub(crate) struct ChildArguments {
    /// Given in the environment, where no other user sees the password in it.
    #[arg(long, env = DATABASE, hide_env_values = true)]
    database: String,
    #[arg(long)]
    messages: u64,
}

pub(super) async fn sqlite(run: &mut Run) {
    if run.wants(&format!("{}.{NAME}", SqliteLab::NAME)) {
        let lab = SqliteLab::create().await;
        watch(run, &lab, lab.url()).await;
    }
}

pub(super) async fn postgres(run: &mut Run, url: &str) {
    if run.wants(&format!("{}.{NAME}", PostgresLab::NAME)) {
        let lab = PostgresLab::create(url).await;
        watch(run, &lab, lab.url()).await;
        lab.drop().await;
    }
}

async fn watch<L: Lab>(run: &mut Run, lab: &L, database: String) {
    lab.load(run.sizes.memory).await;
    lab.settle_down().await;
    let child = tokio::process::Command::new(std::env::current_exe().expect("this program's file"))
        .args(["memory-child", "--messages", &run.sizes.memory.to_string()])
        .env(DATABASE, &database)
        .stderr(Stdio::inherit())
        .output()
        .await
        .expect("a child runs");
    assert!(child.status.success(), "the child failed: {}", child.status);
    let grown: f64 = String::from_utf8_lossy(&child.stdout).trim().parse().expect("a number of MiB");
    assert_eq!(lab.effects().await, run.sizes.memory, "every message has its effect");
    let mut measure =
        Measure::new(format!("{}.{NAME}", L::NAME), vec![(grown, LIMIT_MIB)], Target::Below(1.0));
    measure.unit = "MiB of resident growth";
    run.report(&measure);
}

/// The child's whole life.
pub(crate) async fn child(arguments: ChildArguments) -> bool {
    let (messages, database) = (arguments.messages, arguments.database);
    let grown = if database.starts_with("postgres") {
        let store = PostgresStore::connect(&database).await.expect("the database answers");
        relay_and_handle(store.clone(), pg::inbox(store), messages).await
    } else {
        let store = SqliteStore::connect(&database).await.expect("the database opens");
        relay_and_handle(store.clone(), lite::inbox(store), messages).await
    };
    println!("{grown:.1}");
    true
}

/// Hands envelopes to the workers; a confirm means that the channel has it.
struct Channel(mpsc::Sender<Envelope>);

impl Publisher for Channel {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let mut results = Vec::with_capacity(batch.len());
        for envelope in batch {
            let sent = self.0.send(envelope.clone()).await;
            results.push(sent.map_err(|_closed| Failure::destination("the workers are gone")));
        }
        results
    }
}

async fn relay_and_handle<S: Mailbox + Dedup>(store: S, inbox: Inbox<S>, messages: u64) -> f64 {
    let (sender, receiver) = mpsc::channel(WINDOW);
    let receiver = Arc::new(Mutex::new(receiver));
    let (handled, mut count) = mpsc::channel::<()>(WINDOW);
    for _ in 0..WORKERS {
        tokio::spawn(work(Arc::clone(&receiver), inbox.clone(), handled.clone()));
    }
    let stop = CancellationToken::new();
    let relay = Relay::builder(store, Channel(sender)).build().expect("a relay");
    let relay = tokio::spawn(relay.run(stop.clone()));
    // The first messages warm up connections, statements and buffers.
    let warm = (messages / 20).min(5_000);
    let (mut start, mut peak) = (0, 0);
    for n in 1..=messages {
        let one = tokio::time::timeout(Duration::from_secs(60), count.recv()).await;
        one.expect("messages go on arriving");
        if n == warm {
            start = machine::resident();
        }
        if n % 1000 == 0 {
            peak = peak.max(machine::resident());
        }
    }
    stop.cancel();
    relay.await.expect("the relay ends");
    peak.saturating_sub(start) as f64 / f64::from(1 << 20)
}

async fn work<S: Mailbox + Dedup>(
    receiver: Arc<Mutex<mpsc::Receiver<Envelope>>>,
    inbox: Inbox<S>,
    handled: mpsc::Sender<()>,
) {
    loop {
        let next = receiver.lock().await.recv().await;
        let Some(envelope) = next else { return };
        let mut outcome = inbox.receive(envelope.clone(), 1).await.single();
        while matches!(outcome, Some(Outcome::Busy)) {
            outcome = inbox.receive(envelope.clone(), 1).await.single();
        }
        assert!(matches!(outcome, Some(Outcome::Done { .. })), "a delivery ended in {outcome:?}");
        handled.send(()).await.expect("somebody counts");
    }
}
