//! One seat's work: a delivery is run in a transaction of its own, and what
//! came of it is written.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use oncebox_core::depot::{Finish, Standing, Taken, Ticket, replayed};
use oncebox_core::handler::MessageKey;
use oncebox_core::store::{Mailbox, Mark, Marked};
use oncebox_core::{Depot, Envelope, Error, HandlerError, HandlerKey, Kind, Outcome, Result};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::fate;
use super::floor::{Floor, Health};
use crate::chance;
use crate::crash::CrashPoint;
use crate::inbox::Inner;
use crate::inbox::context::{Context, Left};
use crate::inbox::effects::{Effects, Log};
use crate::inbox::handler::Erased;
use crate::inbox::receive::{Interrupt, judge, panic_text};
use crate::telemetry;

/// How long a rollback may take.
pub(super) const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest wait between two runs of a contended unit.
const CONTENTION_WAIT: Duration = Duration::from_millis(20);
/// How often a seat keeps its connection before others get their turn at it.
const KEEPS: usize = 32;
/// How often an unknown commit is looked up before the lease decides.
const LOOKUPS: u32 = 5;
/// The waits between two tries to write what came of a run.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(50);
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// What came of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Worked {
    /// The handler.
    pub handler: HandlerKey,
    /// The message's id.
    pub id: String,
    /// The execution, counted from 1.
    pub attempt: u32,
    /// What came of it; `None` if the delivery was lost to another worker.
    pub outcome: Option<Outcome>,
}

/// A delivery with everything that is needed to run it.
pub(super) struct Job<'d, S: Mailbox + Depot> {
    pub(super) taken: &'d Taken,
    pub(super) handler: Arc<dyn Erased<S>>,
    marker: String,
    key: MessageKey,
    lost: CancellationToken,
}

impl<S: Mailbox + Depot> Job<'_, S> {
    /// The age of the message was looked at when it was stored.
    fn mark(&self) -> Mark<'_> {
        Mark {
            tenant: &self.taken.envelope.tenant,
            handler: &self.marker,
            key: &self.key,
            digest: self.taken.digest,
            time: None,
            window: None,
        }
    }

    /// What its run leaves if it went well.
    pub(super) fn finish<'a>(&'a self, reply: Option<&'a [u8]>, next: Option<Ticket>) -> Finish<'a> {
        Finish {
            ticket: self.taken.ticket,
            mark: Some(self.mark()),
            result: reply,
            frees_lane: self.taken.lane.is_some(),
            next,
        }
    }
}

/// A delivery whose turn it is, with its transaction if that is open already.
pub(super) struct Turn<S: Mailbox + Depot> {
    pub(super) taken: Taken,
    open: Option<S::Begun>,
    /// How often the connection has been kept.
    kept: usize,
}

impl<S: Mailbox + Depot> From<Taken> for Turn<S> {
    fn from(taken: Taken) -> Self {
        Self { taken, open: None, kept: 0 }
    }
}

impl<S: Mailbox + Depot> Turn<S> {
    /// Its ticket if its attempt is yet to be counted.
    pub(super) fn uncounted(&self) -> Option<Ticket> {
        (!self.taken.started).then_some(self.taken.ticket)
    }
}

/// How a run ended.
pub(super) enum Ended {
    Outcome(Outcome),
    /// The delivery is another's by now.
    Lost,
}

pub(super) struct Desk<S: Mailbox + Depot> {
    pub(super) inner: Arc<Inner<S>>,
    handlers: Vec<Arc<dyn Erased<S>>>,
    pub(super) floor: Arc<Floor>,
    lease: Duration,
}

impl<S: Mailbox + Depot> Desk<S> {
    pub(super) fn new(
        inner: Arc<Inner<S>>,
        handlers: Vec<Arc<dyn Erased<S>>>,
        floor: Arc<Floor>,
        lease: Duration,
    ) -> Self {
        Self { inner, handlers, floor, lease }
    }

    /// Runs deliveries until the floor is closed.
    pub(super) async fn sit(self: Arc<Self>, batch: usize) {
        while let Some(taken) = self.floor.next().await {
            if batch > 1 {
                let more = std::iter::from_fn(|| self.floor.reserve()).take(batch - 1);
                let together = std::iter::once(taken).chain(more).collect();
                self.handle_all(together).await;
                continue;
            }
            let mut current = Some(Turn::from(taken));
            while let Some(turn) = current {
                current = self.handle(turn, true).await.1;
            }
        }
    }

    /// Renews leases for as long as it is polled.
    pub(super) async fn beat(&self, lease: Duration) {
        let pause = lease / 3;
        loop {
            tokio::time::sleep(pause).await;
            let tickets = self.floor.renewable(|handler| self.longest(handler));
            if tickets.is_empty() {
                continue;
            }
            let renewal = self.inner.store.renew(&tickets, lease, self.inner.clock.now());
            match tokio::time::timeout(pause, renewal).await {
                Ok(Ok(good)) => {
                    let lost = tickets.iter().zip(good).filter(|(_, good)| !good);
                    for (ticket, _) in lost {
                        warn!(delivery = ticket.number, "worker.lease_lost");
                        self.floor.lose(*ticket);
                    }
                }
                Ok(Err(error)) => warn!(error = error.chain(), "worker.renewal_failed"),
                Err(_elapsed) => warn!("worker.renewal_slow"),
            }
        }
    }

    /// A run that is this old does not listen to its timeout: its lease is
    /// left to run out, so that the attempt is known to have failed.
    pub(super) fn longest(&self, handler: usize) -> Duration {
        self.handlers.get(handler).map_or(self.lease, |handler| self.timeout(handler.as_ref())) + self.lease
    }

    fn timeout(&self, handler: &dyn Erased<S>) -> Duration {
        handler.options().timeout.unwrap_or(self.inner.options.timeout)
    }

    pub(super) fn handler_of(&self, taken: &Taken) -> Option<&Arc<dyn Erased<S>>> {
        let is_its = |key: &HandlerKey| key.as_str() == taken.handler;
        self.handlers
            .iter()
            .find(|handler| is_its(&handler.key()) || handler.options().legacy.iter().any(is_its))
    }

    /// Runs one delivery to the end. With `goes_on`, the next one that waits
    /// is counted by the same commit and handed back to be run.
    pub(super) async fn handle(&self, turn: Turn<S>, goes_on: bool) -> (Worked, Option<Turn<S>>) {
        let Turn { taken, mut open, kept } = turn;
        let Some(job) = self.job(&taken) else {
            self.floor.leave(taken.ticket, Health::Unknown);
            let handler = HandlerKey::new("unknown");
            return (Worked { handler, id: taken.envelope.id, attempt: taken.attempt, outcome: None }, None);
        };
        let mut next: Option<Turn<S>> = None;
        let goes_on = goes_on.then_some(kept);
        let ended = if taken.started || self.start(taken.ticket).await {
            self.run(&job, &mut open, &mut next, goes_on).await
        } else {
            Ended::Lost
        };
        if let Some(unused) = open {
            self.undo(unused).await;
        }
        let handler = job.handler.key();
        let outcome = match ended {
            Ended::Lost => None,
            Ended::Outcome(outcome) => {
                telemetry::received(handler.as_str(), &outcome);
                self.write_down(&job, outcome.clone(), &mut next).await.then_some(outcome)
            }
        };
        let health = match &outcome {
            Some(Outcome::Done { .. }) => Health::Good,
            Some(Outcome::Failed { .. } | Outcome::Refused { .. }) => Health::Bad,
            _ => Health::Unknown,
        };
        self.leave(&job, health).await;
        (Worked { handler, id: taken.envelope.id.clone(), attempt: taken.attempt, outcome }, next)
    }

    /// What is needed to run a delivery, from now on.
    pub(super) fn job<'d>(&self, taken: &'d Taken) -> Option<Job<'d, S>> {
        let handler = Arc::clone(self.handler_of(taken)?);
        self.floor.begin([taken.ticket]);
        Some(Job {
            taken,
            marker: self.inner.marker(handler.key()).into_owned(),
            handler,
            key: replayed(&taken.key, taken.generation),
            lost: self.floor.lost(taken.ticket),
        })
    }

    /// A delivery is over. If that opens its handler's circuit, those that
    /// wait for it are given back.
    pub(super) async fn leave(&self, job: &Job<'_, S>, health: Health) {
        let parked = self.floor.leave(job.taken.ticket, health);
        if parked.is_empty() {
            return;
        }
        warn!(handler = %job.handler.key(), "worker.circuit_open");
        if let Err(error) = self.inner.store.give_back(&parked, self.inner.clock.now()).await {
            warn!(error = error.chain(), "worker.give_back_failed");
        }
    }

    /// Counts the attempt of a delivery that was only held so far.
    async fn start(&self, ticket: Ticket) -> bool {
        let mut wait = FIRST_WAIT;
        loop {
            match self.inner.store.start(&[ticket]).await {
                Ok(good) => return good.first().copied().unwrap_or(false),
                Err(error) => warn!(error = error.chain(), "worker.start_failed"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// `goes_on` is how often the connection has been kept, if another may follow.
    async fn run(
        &self,
        job: &Job<'_, S>,
        open: &mut Option<S::Begun>,
        next: &mut Option<Turn<S>>,
        goes_on: Option<usize>,
    ) -> Ended {
        if self.is_worn_out(job.taken, &job.handler) {
            return Ended::Outcome(fate::worn_out(job.taken));
        }
        if let Err(crashed) = self.inner.probe.reach(CrashPoint::D3).await {
            return died(&crashed);
        }
        for rerun in 0..=self.inner.options.reruns {
            match self.once(job, open.take(), next, goes_on).await {
                Ok(ended) => return ended,
                Err(Interrupt::Ended(outcome)) => return Ended::Outcome(outcome),
                Err(Interrupt::Rerun(reason)) => {
                    debug!(handler = %job.handler.key(), rerun, reason, "worker.rerun");
                }
            }
            tokio::time::sleep(CONTENTION_WAIT.mul_f64(chance::draw())).await;
        }
        Ended::Outcome(Outcome::Busy)
    }

    /// A message that kills whatever handles it is not handled again.
    pub(super) fn is_worn_out(&self, taken: &Taken, handler: &Arc<dyn Erased<S>>) -> bool {
        self.inner.policy(handler.key()).max_attempts.is_some_and(|limit| taken.attempt > limit)
    }

    async fn once(
        &self,
        job: &Job<'_, S>,
        open: Option<S::Begun>,
        next: &mut Option<Turn<S>>,
        goes_on: Option<usize>,
    ) -> Result<Ended, Interrupt> {
        let store = &self.inner.store;
        if job.handler.is_outside() {
            self.cause(job).await?;
        }
        let mut begun = match open {
            Some(begun) => begun,
            None => store.begin().await?,
        };
        match self.mark_formers(job, &mut begun).await {
            Ok(Marked::First) => {}
            other => {
                self.undo(begun).await;
                return not_first(other);
            }
        }
        let reply = match self.body(job, &mut begun).await {
            Ok(Some(left)) => left.reply,
            Ok(None) => {
                self.undo(begun).await;
                return Ok(Ended::Lost);
            }
            Err(interrupt) => {
                self.undo(begun).await;
                return Err(interrupt);
            }
        };
        if let Err(crashed) = self.inner.probe.reach(CrashPoint::D4).await {
            return Ok(died(&crashed));
        }
        if goes_on.is_some() && next.is_none() {
            *next = self.floor.reserve().map(Turn::from);
        }
        let finish = job.finish(reply.as_deref(), next.as_ref().and_then(Turn::uncounted));
        let finished = store.finish(&mut begun, &finish, self.inner.clock.now()).await;
        match finished {
            Ok(Marked::First) => {}
            other => {
                self.undo(begun).await;
                return not_first(other);
            }
        }
        let kept = goes_on.map_or(0, |kept| kept + 1);
        let is_followed = kept < KEEPS && next.as_ref().is_some_and(|next| self.runs_inside(&next.taken));
        let mut open = None;
        match store.commit_sound(begun, is_followed).await {
            Ok(begun) => open = begun,
            Err(unknown) if unknown.kind() == Kind::CommitUnknown => {
                match self.resolve(job.taken.ticket, unknown).await {
                    Ended::Outcome(Outcome::Done { .. }) => {}
                    other => return Ok(other),
                }
            }
            Err(error) => return Err(error.into()),
        }
        if let Some(next) = next {
            next.taken.started = true;
            next.kept = if open.is_some() { kept } else { 0 };
            next.open = open;
        }
        if let Err(crashed) = self.inner.probe.reach(CrashPoint::D5).await {
            return Ok(died(&crashed));
        }
        Ok(Ended::Outcome(Outcome::Done { result: reply }))
    }

    /// Writes the markers of the handler's former keys: under one of them it may
    /// have handled the message already.
    async fn mark_formers(&self, job: &Job<'_, S>, tx: &mut S::Tx) -> Result<Marked> {
        for former in &job.handler.options().legacy {
            let name = self.inner.marker(*former);
            let mark = Mark { handler: &name, ..job.mark() };
            match self.inner.store.mark(tx, &mark, self.inner.clock.now()).await? {
                Marked::First => {}
                other => return Ok(other),
            }
        }
        Ok(Marked::First)
    }

    /// Whether a delivery will run in a transaction, and at once.
    pub(super) fn runs_inside(&self, taken: &Taken) -> bool {
        let runs = |handler: &Arc<dyn Erased<S>>| !handler.is_outside() && !self.is_worn_out(taken, handler);
        self.handler_of(taken).is_some_and(runs)
    }

    /// Runs the handler. `None` if the delivery was lost meanwhile, else what it left.
    pub(super) async fn body(&self, job: &Job<'_, S>, tx: &mut S::Tx) -> Result<Option<Left>, Interrupt> {
        if job.handler.is_outside() {
            return Ok(Some(Left::default()));
        }
        let taken = job.taken;
        let mut cx = Context::new(tx, &taken.envelope, taken.attempt, &self.inner.outbox);
        // Called inside: what decodes the message may panic as well.
        let run = async { job.handler.handle(&mut cx).await };
        match self.bounded(job, run).await? {
            Some(()) => Ok(Some(cx.into_left())),
            None => Ok(None),
        }
    }

    /// Runs a handler whose effects are outside.
    async fn cause(&self, job: &Job<'_, S>) -> Result<(), Interrupt> {
        let (inner, taken) = (&self.inner, job.taken);
        let identity = format!(
            "{}\0{}\0{}\0{}\0{}",
            inner.scope,
            job.handler.key(),
            taken.envelope.tenant,
            job.key.source,
            job.key.id
        );
        let log = Arc::new(Log { store: inner.store.clone(), clock: inner.clock.clone() });
        let envelope: Arc<Envelope> = Arc::new(taken.envelope.clone());
        let effects = Effects::new(log, taken.ticket, identity, taken.attempt, envelope);
        match self.bounded(job, async { job.handler.cause(effects).await }).await? {
            Some(()) => Ok(()),
            None => Err(Interrupt::Ended(Outcome::Unavailable { reason: "the lease was lost".into() })),
        }
    }

    async fn bounded(
        &self,
        job: &Job<'_, S>,
        run: impl Future<Output = Result<(), HandlerError>>,
    ) -> Result<Option<()>, Interrupt> {
        let limit = self.timeout(job.handler.as_ref());
        let failed = |reason| Interrupt::Ended(Outcome::Failed { reason, retry_after: None });
        let run = tokio::time::timeout(limit, AssertUnwindSafe(run).catch_unwind());
        match job.lost.run_until_cancelled(run).await {
            None => Ok(None),
            Some(Ok(Ok(Ok(())))) => Ok(Some(())),
            Some(Ok(Ok(Err(error)))) => Err(judge(&self.inner.store, error)),
            Some(Ok(Err(panic))) => {
                Err(failed(format!("the handler panicked: {}", panic_text(panic.as_ref()))))
            }
            Some(Err(_elapsed)) => Err(failed(format!("the handler took longer than {limit:?}"))),
        }
    }

    /// Rolls back, but does not wait for ever: a connection that does not answer
    /// is left to the pool, which has it back when it does.
    pub(super) async fn undo(&self, begun: S::Begun) {
        tokio::time::timeout(ROLLBACK_TIMEOUT, self.inner.store.rollback(begun)).await.ok();
    }

    /// Finds out what became of a commit whose answer was lost. Never a guess:
    /// what cannot be found out is decided when the lease has run out.
    pub(super) async fn resolve(&self, ticket: Ticket, unknown: Error) -> Ended {
        for _ in 0..LOOKUPS {
            match self.inner.store.standing(ticket).await {
                Ok(Standing::Done) => return Ended::Outcome(Outcome::Done { result: None }),
                Ok(Standing::Held) => {
                    let reason = format!("not committed: {}", unknown.chain());
                    return Ended::Outcome(Outcome::Unavailable { reason });
                }
                Ok(Standing::Lost) => return Ended::Lost,
                Err(error) => debug!(kind = error.kind().name(), "worker.commit_unknown"),
            }
            tokio::time::sleep(FIRST_WAIT).await;
        }
        Ended::Lost
    }
}

/// What a finish that was not the first one means.
fn not_first(finished: Result<Marked>) -> Result<Ended, Interrupt> {
    match finished {
        Ok(Marked::Duplicate { result }) => Ok(Ended::Outcome(Outcome::Duplicate { result })),
        Ok(Marked::Conflict) => {
            let reason = "another body was handled under the same key".to_owned();
            Ok(Ended::Outcome(Outcome::Refused { code: "id_conflict", reason }))
        }
        Ok(_) => Ok(Ended::Outcome(Outcome::Busy)),
        Err(error) if error.kind() == Kind::Fenced => Ok(Ended::Lost),
        Err(error) => Err(error.into()),
    }
}

/// A crash that a test has asked for: nothing is cleaned up.
fn died(_crashed: &Error) -> Ended {
    Ended::Lost
}
