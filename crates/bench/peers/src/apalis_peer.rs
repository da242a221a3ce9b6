//! `apalis` with `apalis-postgres`: jobs that do nothing, pushed in chunks and
//! then run to the last completion.
//!
//! Tuned in its favour: the queue is full before a worker starts, so that
//! nothing waits for a poll or a notification; no layers beyond its own; tasks
//! are not marked as running (`lock_tasks` off); no limit on jobs under way. A
//! worker completes what has piled up since its last round in one commit, so
//! that the size of a batch decides nearly everything.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::{BoxDynError, Data, TaskSink, WorkerBuilder, WorkerError};
use apalis_postgres::{Config, PostgresStorage};
use futures::future::try_join_all;
use futures::{TryStreamExt as _, stream};
use serde_json::Value;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::Backlog;

const QUEUE: &str = "bench";
/// Jobs of one INSERT.
const CHUNK: usize = 1000;
/// INSERTs at once: as many as our deposits.
const PUSHERS: usize = 3;
/// A worker that gives up leaves the others waiting for the last job.
const PATIENCE: Duration = Duration::from_secs(120);

/// How it is configured.
#[derive(Clone, Copy)]
pub(crate) enum Tuning {
    /// With the batch that is asked for, and nothing written before a job runs.
    Throughput,
    /// With its own defaults.
    AsItComes,
}

/// How long each half took.
pub(crate) struct Phases {
    pushed: Duration,
    worked: Duration,
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pushed.as_micros(), self.worked.as_micros())
    }
}

/// Counts jobs and says when all of them have run.
#[derive(Clone)]
struct Tally {
    left: Arc<AtomicU64>,
    all: Arc<watch::Sender<bool>>,
}

async fn nothing(_job: Value, tally: Data<Tally>) -> Result<(), BoxDynError> {
    if tally.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        tally.all.send_replace(true);
    }
    Ok(())
}

pub(crate) async fn work(backlog: &Backlog, tuning: Tuning) -> Result<Phases, Box<dyn std::error::Error>> {
    let pool = PgPoolOptions::new().min_connections(10).max_connections(20).connect(&backlog.url).await?;
    PostgresStorage::setup(&pool).await?;
    sqlx::raw_sql("TRUNCATE apalis.jobs, apalis.workers CASCADE").execute(&pool).await?;
    let config = Config::default().queue(QUEUE);
    let config = match tuning {
        Tuning::Throughput => config.batch_size(backlog.batch as usize).lock_tasks(false),
        Tuning::AsItComes => config,
    };
    let storage = PostgresStorage::<Value>::new(&pool).with_config(config);
    let jobs: Vec<Value> = (0..backlog.messages).map(|_| backlog.payload.clone()).collect();
    let (all, done) = watch::channel(false);
    let tally = Tally { left: Arc::new(AtomicU64::new(backlog.messages)), all: Arc::new(all) };

    let started = Instant::now();
    let chunks = jobs.chunks(CHUNK).map(|chunk| Ok(chunk.to_vec()));
    let push = |chunk| {
        let mut storage = storage.clone();
        async move { storage.push_bulk(chunk).await }
    };
    stream::iter(chunks).try_for_each_concurrent(PUSHERS, push).await?;
    let pushed = started.elapsed();
    let workers = (0..backlog.workers).map(|n| {
        let worker = WorkerBuilder::new(format!("bench-{n}"))
            .backend(storage.clone())
            .data(tally.clone())
            .build(nothing);
        let mut done = done.clone();
        // On its own task: a worker is one future that fetches, runs and completes.
        tokio::spawn(worker.run_until(async move {
            done.wait_for(|all| *all).await.ok();
            Ok::<(), WorkerError>(())
        }))
    });
    for ended in timeout(PATIENCE, try_join_all(workers)).await?? {
        ended?;
    }
    let phases = Phases { pushed, worked: started.elapsed() - pushed };
    check(&pool, backlog.messages).await?;
    Ok(phases)
}

/// A figure counts only if every job is completed in the database.
async fn check(pool: &PgPool, messages: u64) -> Result<(), Box<dyn std::error::Error>> {
    let done: i64 =
        sqlx::query_scalar("SELECT count(*) FROM apalis.jobs WHERE status = 'Done'").fetch_one(pool).await?;
    if done.unsigned_abs() != messages {
        return Err(format!("{done} of {messages} jobs are completed").into());
    }
    Ok(())
}
