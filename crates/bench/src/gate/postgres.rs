//! Receipts in PostgreSQL: in commits of their own, and in the handler's.

use std::time::Instant;

use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;

use super::load::Keys;
use super::server::{Before, Service};
use super::{Run, of, slow};
use crate::lab::postgres::PostgresLab;
use crate::report::{Target, median};

const CLIENTS: usize = 8;
/// The server waits that long before each flush, as a disk across a network would. Where a flush takes a tenth of a
/// millisecond, what is compared is processor time.
const SLOW_DISK: &str = "postgres.claimed_vs_insert_slow_disk.8.rate";
const FLUSH_MICROS: &str = "3000";
const INSERT: &str = "INSERT INTO bench_order (customer, sequence, amount) VALUES ('bench', 1, 1)";

pub(super) async fn measure(run: &mut Run, url: &str) {
    let lab = PostgresLab::create(url).await;
    let with = |before| Service { store: lab.url(), ..Service::new(before) };
    claimed_vs_insert(run, "postgres.claimed_vs_insert.8.rate", lab.url()).await;
    if run.wants(SLOW_DISK) {
        let url = format!("{}&options[commit_delay]={FLUSH_MICROS}&options[commit_siblings]=0", lab.url());
        match PgConnection::connect(&url).await {
            Ok(_) => claimed_vs_insert(run, SLOW_DISK, url).await,
            Err(error) => run.not_available(SLOW_DISK, &format!("commits cannot be slowed down: {error}")),
        }
    }
    if run.wants("postgres.claimed_vs_by_hand.8.rate") {
        let load = run.durable(CLIENTS, Keys::Unique);
        let rounds = run.compare((&with(Before::Claimed), load), (&with(Before::ByHand), load)).await;
        let rates = of(&rounds, |report| report.rate);
        run.report("postgres.claimed_vs_by_hand.8.rate", "requests/s", rates, Target::AtLeast(0.85));
    }
    if run.wants("postgres.handler_5_ms.8.p50") {
        let rounds = beside_a_handler(run, &lab, with(Before::Postgres)).await;
        run.report("postgres.handler_5_ms.8.p50", "ms", rounds, Target::AtMost(1.0));
    }
    slow::one(run, "postgres", with(Before::Postgres)).await;
    slow::one(run, "postgres_relaxed", Service { is_relaxed: true, ..with(Before::Postgres) }).await;
    lab.drop().await;
}

/// A handler that inserts a row, behind a transactional gate and without one.
async fn claimed_vs_insert(run: &mut Run, name: &str, url: String) {
    if run.wants(name) {
        let with = |before| Service { store: url.clone(), ..Service::new(before) };
        let (ours, bare) = (run.durable(CLIENTS, Keys::Unique), run.durable(CLIENTS, Keys::None));
        let rounds = run.compare((&with(Before::Claimed), ours), (&with(Before::Insert), bare)).await;
        let rates = of(&rounds, |report| report.rate);
        run.report(name, "requests/s", rates, Target::AtLeast(0.9));
    }
}

/// A request with a handler of 5 ms, against one without the gate and 2.2
/// commits of as many clients, all of this round.
async fn beside_a_handler(run: &Run, lab: &PostgresLab, gated: Service) -> Vec<(f64, f64)> {
    let gated = Service { millis: 5, ..gated };
    let plain = Service { millis: 5, ..Service::new(Before::Nothing) };
    let (ours, bare) = (run.durable(CLIENTS, Keys::Unique), run.durable(CLIENTS, Keys::None));
    let mut rounds = Vec::new();
    for _ in 0..run.sizes.rounds {
        let commit = commit_millis(lab, run.sizes.durable / CLIENTS).await;
        let request = run.once(&gated, ours).await.p50_millis;
        let handler = run.once(&plain, bare).await.p50_millis;
        rounds.push((request, handler + 2.2 * commit));
    }
    rounds
}

/// The median of a commit of one row, in milliseconds.
async fn commit_millis(lab: &PostgresLab, each: usize) -> f64 {
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        let pool = lab.pool().clone();
        tasks.spawn(async move {
            let mut took = Vec::with_capacity(each);
            for _ in 0..each {
                let started = Instant::now();
                sqlx::query(INSERT).execute(&pool).await.expect("a row");
                took.push(started.elapsed().as_secs_f64() * 1e3);
            }
            took
        });
    }
    median(tasks.join_all().await.into_iter().flatten().collect())
}
