//! Deposit and work, end to end, against the same statements by hand.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use oncebox_core::{HandlerError, HandlerKey, Verdict};
use oncebox_flow::{CancellationToken, Context, Handler, Inbox, WorkOptions, Worker};
use oncebox_stores::postgres::PostgresStore;
use serde_json::json;
use sqlx::PgConnection;

use super::{Run, hand};
use crate::lab::postgres::PostgresLab;
use crate::lab::{HANDLER, Lab as _};
use crate::order::{Order, deliveries};
use crate::report::{Measure, Target, median, note};
use crate::rounds::interleave;

/// Deliveries under way at once: enough for the largest deposits there are.
const UNDER_WAY: usize = 4_000;

pub(super) async fn measure(run: &mut Run, lab: &PostgresLab) {
    for workers in [1, 8] {
        let name = format!("postgres.durable.{workers}_workers");
        if !run.wants(&name) {
            continue;
        }
        let (messages, options) = (run.sizes.of(workers), run.singles(workers));
        let phases = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let rounds = interleave(
            run.sizes.rounds,
            async || {
                lab.forget_inbox().await;
                kept(&phases.0, ours(lab, Job::Record, messages, options.clone()).await)
            },
            async || {
                lab.forget_inbox().await;
                kept(&phases.1, hand::loops(lab, messages, &options).await)
            },
        )
        .await;
        let facts = json!({ "ours": shares(&phases.0), "by hand": shares(&phases.1) });
        note(&format!("{name}.phases"), &facts, run.output);
        run.report(&Measure::new(name, rounds, Target::AtLeast(0.8)));
    }
}

/// How long each half of a round took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phases {
    pub(super) messages: u64,
    pub(super) deposit: Duration,
    pub(super) work: Duration,
}

impl Phases {
    /// Messages per second, from the first deposit to the last commit.
    pub(super) fn rate(self) -> f64 {
        self.messages as f64 / (self.deposit + self.work).as_secs_f64()
    }
}

pub(super) fn kept(all: &RefCell<Vec<Phases>>, phases: Phases) -> f64 {
    all.borrow_mut().push(phases);
    phases.rate()
}

/// Microseconds per message in either half: medians.
pub(super) fn shares(all: &RefCell<Vec<Phases>>) -> serde_json::Value {
    let micros = |part: fn(&Phases) -> Duration| {
        let each = |phases: &Phases| part(phases).as_secs_f64() * 1e6 / phases.messages as f64;
        median(all.borrow().iter().map(each).collect()).round()
    };
    json!({ "deposit us/message": micros(|it| it.deposit), "work us/message": micros(|it| it.work) })
}

/// What the handler does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// Inserts one row.
    Record,
    /// Nothing.
    Nothing,
}

/// Counts its runs, and stops the worker at the last one: whoever has begun
/// comes to its commit before the worker ends.
struct Counting {
    lab: PostgresLab,
    job: Job,
    left: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl Handler<PgConnection> for Counting {
    type Message = Order;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(&self, cx: &mut Context<'_, PgConnection>, order: Order) -> Result<(), HandlerError> {
        match self.job {
            Job::Record => self.lab.record(cx.tx(), order).await,
            Job::Nothing => {}
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.stop.cancel();
        }
        Ok(())
    }
}

/// Stores messages, many at once, and then works them off.
pub(super) async fn ours(lab: &PostgresLab, job: Job, messages: u64, options: WorkOptions) -> Phases {
    let before = (lab.effects().await, lab.done().await);
    let (left, stop) = (Arc::new(AtomicU64::new(messages)), CancellationToken::new());
    let handler = Counting { lab: lab.clone(), job, left, stop: stop.clone() };
    let inbox: Inbox<PostgresStore> =
        Inbox::builder(lab.store().clone(), "bench").handler(handler).durable().build().expect("an inbox");
    let worker = Worker::new(&inbox, options).expect("a worker");
    let prepared = deliveries(messages);

    let started = Instant::now();
    let answers = stream::iter(prepared).map(|envelope| inbox.deliver(envelope, 1));
    let refused = answers.buffer_unordered(UNDER_WAY).filter(|verdict| {
        let is_refused = *verdict != Verdict::Done;
        async move { is_refused }
    });
    assert_eq!(refused.count().await, 0, "every message is stored");
    let deposit = started.elapsed();
    assert!(worker.run(stop).await, "the worker ends in time");
    let phases = Phases { messages, deposit, work: started.elapsed() - deposit };

    let effects = if matches!(job, Job::Record) { messages } else { 0 };
    assert_eq!(lab.effects().await - before.0, effects, "every message has its effect");
    assert_eq!(lab.done().await - before.1, messages, "every delivery is done");
    phases
}
