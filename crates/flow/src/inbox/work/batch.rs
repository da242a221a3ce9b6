//! Several deliveries in one commit, each behind a savepoint of its own: a
//! failing one is undone by itself, and the commit is shared by the others.
//!
//! If the shared commit does not come about, each is run again by itself, as
//! if there had been no batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{Finish, Savepoint, Taken, Ticket};
use oncebox_core::store::{Mailbox, Marked};
use oncebox_core::{Depot, Error, Kind, Outcome, Result};
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::desk::{Desk, Ended, Job, ROLLBACK_TIMEOUT};
use super::floor::Health;
use crate::crash::CrashPoint;
use crate::inbox::handler::Erased;
use crate::inbox::receive::Interrupt;
use crate::telemetry;

/// How long a transaction may go without a word to the database.
const QUIET: Duration = Duration::from_secs(5);

/// What came of a batch before its commit.
struct Attempted<'d, S: Mailbox + Depot> {
    /// Ran well, with their replies.
    good: Vec<(Job<'d, S>, Option<Vec<u8>>)>,
    /// Were undone.
    bad: Vec<(Job<'d, S>, Outcome)>,
}

impl<S: Mailbox + Depot> Desk<S> {
    /// Runs a batch that all started when they were taken.
    pub(super) async fn handle_all(&self, batch: Vec<Taken>) {
        let (together, alone): (Vec<Taken>, Vec<Taken>) =
            batch.into_iter().partition(|taken| self.can_share(taken));
        let is_shared = together.len() > 1 && self.share(&together).await;
        let one_by_one = together.into_iter().filter(|_| !is_shared).chain(alone);
        let mut rest: VecDeque<Taken> = one_by_one.collect();
        while let Some(taken) = rest.pop_front() {
            self.handle(taken.into(), false).await;
            // Those that wait for it are not late.
            self.floor.begin(rest.iter().map(|taken| taken.ticket));
        }
    }

    /// A suspect is run by itself; so is what ends or asks for more than its own delivery.
    fn can_share(&self, taken: &Taken) -> bool {
        let has_formers = |handler: &Arc<dyn Erased<S>>| !handler.options().legacy.is_empty();
        taken.started
            && taken.deaths == 0
            && taken.lane.is_none()
            && self.runs_inside(taken)
            && !self.handler_of(taken).is_some_and(has_formers)
    }

    /// Runs them in one transaction; false if it did not commit, and nothing has happened.
    async fn share(&self, batch: &[Taken]) -> bool {
        let jobs: Vec<Job<'_, S>> = batch.iter().filter_map(|taken| self.job(taken)).collect();
        let attempted = match self.attempt_all(jobs).await {
            Ok(attempted) => attempted,
            Err(error) => {
                debug!(error = error.chain(), "worker.batch_undone");
                return false;
            }
        };
        for (job, reply) in attempted.good {
            let done = Outcome::Done { result: reply };
            telemetry::received(job.handler.key().as_str(), &done);
            self.leave(&job, Health::Good).await;
        }
        for (job, outcome) in attempted.bad {
            telemetry::received(job.handler.key().as_str(), &outcome);
            self.write_down(&job, outcome, &mut None).await;
            self.leave(&job, Health::Bad).await;
        }
        true
    }

    async fn attempt_all<'d>(&self, jobs: Vec<Job<'d, S>>) -> Result<Attempted<'d, S>> {
        let store = &self.inner.store;
        let mut begun = store.begin().await?;
        let mut attempted = Attempted { good: Vec::new(), bad: Vec::new() };
        store.savepoint(&mut begun, Savepoint::Set).await?;
        let tickets: Vec<Ticket> = jobs.iter().map(|job| job.taken.ticket).collect();
        let mut moved_at = Instant::now();
        for job in jobs {
            self.inner.probe.reach(CrashPoint::D3).await?;
            let ran = match self.body(&job, &mut begun).await {
                Ok(Some(left)) if !left.has_written && moved_at.elapsed() < QUIET => Ok(left.reply),
                // A statement that failed and was hidden by the handler shows here.
                Ok(Some(left)) => match store.savepoint(&mut begun, Savepoint::Next).await {
                    Ok(()) => {
                        if moved_at.elapsed() >= QUIET {
                            // All of them end with the commit, so none is late before it.
                            self.floor.begin(tickets.iter().copied());
                            moved_at = Instant::now();
                        }
                        Ok(left.reply)
                    }
                    Err(error) => Err(Interrupt::from(error)),
                },
                Ok(None) => return Err(Error::new(Kind::Fenced, "a lease was lost")),
                Err(interrupt) => Err(interrupt),
            };
            match ran {
                Ok(reply) => attempted.good.push((job, reply)),
                Err(Interrupt::Ended(outcome @ (Outcome::Failed { .. } | Outcome::Refused { .. }))) => {
                    let undone = store.savepoint(&mut begun, Savepoint::Undo);
                    let slow = |_| Error::new(Kind::Unavailable, "a savepoint could not be reached in time");
                    timeout(ROLLBACK_TIMEOUT, undone).await.map_err(slow)??;
                    attempted.bad.push((job, outcome));
                }
                // The database's troubles are everybody's.
                Err(Interrupt::Ended(_)) => return Err(Error::new(Kind::Unavailable, "not now")),
                Err(Interrupt::Rerun(reason)) => return Err(Error::new(Kind::Contention, reason)),
            }
        }
        self.inner.probe.reach(CrashPoint::D4).await?;
        let finishes: Vec<Finish<'_>> =
            attempted.good.iter().map(|(job, reply)| job.finish(reply.as_deref(), None)).collect();
        let finished = store.finish_all(&mut begun, &finishes, self.inner.clock.now()).await?;
        if finished.iter().any(|marked| *marked != Marked::First) {
            self.undo(begun).await;
            return Err(Error::new(Kind::Busy, "one of the batch took effect elsewhere"));
        }
        if let Err(error) = store.commit_sound(begun, false).await {
            self.resolve_all(&attempted, error).await?;
        }
        self.inner.probe.reach(CrashPoint::D5).await?;
        Ok(attempted)
    }

    /// Of a commit whose answer was lost: one commit, so one delivery tells for all.
    async fn resolve_all(&self, attempted: &Attempted<'_, S>, error: Error) -> Result<()> {
        let kind = error.kind();
        let text = error.chain();
        let Some((job, _)) = attempted.good.first().filter(|_| kind == Kind::CommitUnknown) else {
            return Err(error);
        };
        match self.resolve(job.taken.ticket, error).await {
            Ended::Outcome(Outcome::Done { .. }) => Ok(()),
            _ => Err(Error::new(kind, text)),
        }
    }
}
