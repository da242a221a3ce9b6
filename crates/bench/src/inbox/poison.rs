//! Healthy messages beside poison: one message in a hundred fails, panics or
//! never ends, three times each, and the others should hardly notice (F22).
//! Poison that takes its process along is the experiment's own affair: what
//! follows is a restart, whatever the worker does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncebox_core::backoff::Backoff;
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{HandlerError, HandlerKey, Verdict};
use oncebox_flow::{CancellationToken, Context, Handler, Inbox, WorkOptions, Worker};
use oncebox_stores::postgres::PostgresStore;
use sqlx::PgConnection;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Run;
use crate::lab::postgres::PostgresLab;
use crate::lab::{HANDLER, Lab as _};
use crate::order::{Order, deliveries};
use crate::report::{Measure, Target};
use crate::rounds::interleave;

const NAME: &str = "postgres.durable.poison.p99";
/// One message in so many is poison, where there is any.
const ONE_IN: i64 = 100;
const EVERY: Duration = Duration::from_millis(5);
/// How long a run may take before it is given up.
const TIMEOUT: Duration = Duration::from_millis(300);
const RETRY: RetryPolicy = RetryPolicy {
    max_attempts: Some(3),
    backoff: Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(1) },
    busy_delay: Duration::from_millis(500),
};

pub(super) async fn measure(run: &mut Run, lab: &PostgresLab) {
    if !run.wants(NAME) {
        return;
    }
    let rounds = interleave(
        run.sizes.rounds,
        async || p99_millis(lab, run.sizes.paced, true).await,
        async || p99_millis(lab, run.sizes.paced, false).await,
    )
    .await;
    run.report(&Measure { unit: "ms", ..Measure::new(NAME, rounds, Target::AtMost(2.0)) });
}

/// When the effects of healthy messages were written, by their numbers.
#[derive(Clone)]
struct Mixed {
    lab: PostgresLab,
    has_poison: bool,
    began: Arc<Mutex<Vec<Option<Instant>>>>,
    /// One more was.
    written: Arc<Notify>,
}

impl Mixed {
    fn is_poison(&self, sequence: i64) -> bool {
        self.has_poison && sequence % ONE_IN == ONE_IN / 2
    }
}

impl Handler<PgConnection> for Mixed {
    type Message = Order;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(&self, cx: &mut Context<'_, PgConnection>, order: Order) -> Result<(), HandlerError> {
        let sequence = order.sequence;
        if self.is_poison(sequence) {
            match sequence / ONE_IN % 3 {
                0 => return Err(HandlerError::retry("poison")),
                // As a panic does, but for the text on the terminal.
                1 => std::panic::resume_unwind(Box::new("poison")),
                _ => std::future::pending().await,
            }
        }
        self.lab.record(cx.tx(), order).await;
        let place = usize::try_from(sequence).expect("they are counted from zero");
        self.began.lock().unwrap_or_else(PoisonError::into_inner)[place].get_or_insert_with(Instant::now);
        self.written.notify_one();
        Ok(())
    }
}

/// Messages come one by one at a fixed pace; how long the slowest hundredth of
/// the healthy ones takes from there to its handler's write.
async fn p99_millis(lab: &PostgresLab, messages: u64, has_poison: bool) -> f64 {
    lab.forget_inbox().await;
    let count = usize::try_from(messages).expect("few");
    let began = Arc::new(Mutex::new(vec![None; count]));
    let handler = Mixed { lab: lab.clone(), has_poison, began, written: Arc::default() };
    let inbox: Inbox<PostgresStore> = Inbox::builder(lab.store().clone(), "bench")
        .handler_with(handler.clone(), |options| options.timeout(TIMEOUT).retry(RETRY))
        .durable()
        .build()
        .expect("an inbox");
    let worker = Worker::new(&inbox, WorkOptions::default()).expect("a worker");
    let stop = CancellationToken::new();
    let working = tokio::spawn(worker.run(stop.clone()));

    let mut pace = interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut sent, mut arriving) = (Vec::with_capacity(count), JoinSet::new());
    for envelope in deliveries(messages) {
        sent.push(pace.tick().await);
        let inbox = inbox.clone();
        arriving.spawn(async move { inbox.deliver(envelope, 1).await });
    }
    let stored = arriving.join_all().await;
    assert!(stored.iter().all(|verdict| *verdict == Verdict::Done), "every message is stored");

    let waits = tokio::time::timeout(Duration::from_secs(60), until_all_ran(&handler, &sent)).await;
    let mut waits = waits.expect("every healthy message is handled");
    stop.cancel();
    assert!(working.await.expect("the worker ends"), "in time");
    waits.sort_unstable();
    waits[waits.len() * 99 / 100].as_secs_f64() * 1e3
}

async fn until_all_ran(handler: &Mixed, sent: &[Instant]) -> Vec<Duration> {
    let healthy = |place: &usize| !handler.is_poison(i64::try_from(*place).expect("few"));
    loop {
        let began = handler.began.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let places = (0..sent.len()).filter(healthy);
        let waits: Option<Vec<Duration>> =
            places.map(|place| began[place].map(|began| began.duration_since(sent[place]))).collect();
        if let Some(waits) = waits {
            return waits;
        }
        handler.written.notified().await;
    }
}
