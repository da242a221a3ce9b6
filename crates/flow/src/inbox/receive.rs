//! One handler, one message, one transaction.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use oncebox_core::handler::MessageKey;
use oncebox_core::store::{Dedup, Mailbox, Mark, Marked, Store};
use oncebox_core::{Digest, Envelope, Error, HandlerError, HandlerKey, Kind, MissingId, Outcome, Result};

use super::context::Context;
use super::handler::Erased;
use super::{Inbox, Inner};
use crate::chance;
use crate::crash::CrashPoint;
use crate::shield::Shield;
use crate::telemetry;

/// How often an unknown commit is looked up before the delivery is handed back.
const LOOKUPS: u32 = 3;
/// How long a rollback may take.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often, how patiently and how far apart an entry is taken back after
/// the delivery was answered: for an hour or more.
const LATE_LEAVES: u32 = 3600;
const LATE_LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
const LATE_LEAVE_WAIT: Duration = Duration::from_secs(1);
/// The longest wait between two runs of a contended unit.
const CONTENTION_WAIT: Duration = Duration::from_millis(20);

/// Why a unit did not end in an outcome.
pub(super) enum Interrupt {
    /// The database wants it run again from the start.
    Rerun(String),
    /// It ended, this way.
    Ended(Outcome),
}

impl From<Error> for Interrupt {
    fn from(error: Error) -> Self {
        match error.kind() {
            Kind::Contention => Self::Rerun(error.chain()),
            kind => Self::Ended(Outcome::of_error(kind, error.chain())),
        }
    }
}

/// What identifies one run.
struct Unit<S: Mailbox + Dedup> {
    inner: Arc<Inner<S>>,
    handler: Arc<dyn Erased<S>>,
    envelope: Arc<Envelope>,
    attempt: u32,
    key: Option<MessageKey>,
    /// The handler's name in markers.
    marker: Cow<'static, str>,
    digest: Digest,
}

impl<S: Mailbox + Dedup> Inbox<S> {
    pub(super) async fn receive_by(
        &self,
        handler: &Arc<dyn Erased<S>>,
        envelope: &Arc<Envelope>,
        attempt: u32,
    ) -> Outcome {
        let digest = envelope.digest();
        let key = match message_key(handler.as_ref(), envelope, &digest) {
            Ok(key) => key,
            Err(refused) => return refused,
        };
        let seat = match &key {
            None => None,
            Some(key) => match self.inner.flights.board(handler.key(), &envelope.tenant, key) {
                None => return Outcome::Busy,
                seat => seat,
            },
        };
        let unit = Unit {
            inner: Arc::clone(&self.inner),
            handler: Arc::clone(handler),
            envelope: Arc::clone(envelope),
            attempt,
            key,
            marker: self.inner.marker(handler.key()),
            digest,
        };
        // A caller that goes away must not cancel a transaction half-way, and a
        // panic must not take the consumer along.
        let run = Shield::new(async move {
            let (outcome, has_left) = AssertUnwindSafe(unit.counted()).catch_unwind().await?;
            if !has_left {
                // Until it has, a copy is turned away: to the count, this run is not over.
                tokio::spawn(async move {
                    unit.leave_at_last().await;
                    drop(seat);
                });
            }
            Ok::<_, Box<dyn std::any::Any + Send>>(outcome)
        });
        run.await.unwrap_or_else(|panic| Outcome::Failed {
            reason: format!("the inbox panicked: {}", panic_text(panic.as_ref())),
            retry_after: None,
        })
    }
}

pub(super) fn message_key<S: Mailbox + Dedup>(
    handler: &dyn Erased<S>,
    envelope: &Envelope,
    digest: &Digest,
) -> Result<Option<MessageKey>, Outcome> {
    let selected = handler
        .message_key(envelope)
        .map_err(|error| Outcome::Refused { code: "undecodable", reason: error.chain() })?;
    match (selected, handler.options().missing_id) {
        (Some(key), _) => Ok(Some(key)),
        (None, MissingId::ContentHash) => Ok(Some(MessageKey::business(&digest.to_string()))),
        (None, MissingId::AllowUnkeyed) => {
            telemetry::unkeyed(handler.key().as_str());
            Ok(None)
        }
        (None, _) => {
            let reason = format!("the message has no {} to tell it from others", handler.options().selector);
            Err(Outcome::Refused { code: "missing_id", reason })
        }
    }
}

impl<S: Mailbox + Dedup> Unit<S> {
    /// Runs the unit, with its entry counted beforehand if that is wanted;
    /// tells whether the entry was taken back, which is no matter where none was counted.
    async fn counted(&self) -> (Outcome, bool) {
        let (true, Some(mark)) = (self.inner.options.count_deaths, self.mark()) else {
            return (self.run(0).await, true);
        };
        let entries = match self.inner.store.enter(&mark, self.inner.clock.now()).await {
            Ok(entries) => entries,
            Err(error) => return (Outcome::of_error(error.kind(), error.chain()), true),
        };
        let outcome = self.run(entries.saturating_sub(1)).await;
        // A handler's own transaction has left already.
        let has_left = matches!(outcome, Outcome::Done { .. }) || self.leave(&mark).await;
        (outcome, has_left)
    }

    async fn leave(&self, mark: &Mark<'_>) -> bool {
        for _ in 0..LOOKUPS {
            match self.leave_once(mark).await {
                Ok(()) => return true,
                Err(error) => {
                    tracing::warn!(handler = %self.key(), error = error.chain(), "inbox.leave_failed");
                }
            }
            tokio::time::sleep(CONTENTION_WAIT).await;
        }
        false
    }

    async fn leave_once(&self, mark: &Mark<'_>) -> Result<()> {
        let store = &self.inner.store;
        let mut begun = store.begin().await?;
        store.leave(&mut begun, mark).await?;
        store.commit(begun).await
    }

    /// The delivery is answered; its entry is taken back when the database can
    /// be reached again. If the process ends before that, it counts as a death.
    async fn leave_at_last(&self) {
        let Some(mark) = self.mark() else { return };
        for _ in 0..LATE_LEAVES {
            tokio::time::sleep(LATE_LEAVE_WAIT).await;
            let left = tokio::time::timeout(LATE_LEAVE_TIMEOUT, self.leave_once(&mark)).await;
            if matches!(left, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Rolls back, but not for ever: a connection that does not answer is dropped.
    async fn undo(&self, begun: S::Begun) {
        tokio::time::timeout(ROLLBACK_TIMEOUT, self.inner.store.rollback(begun)).await.ok();
    }

    async fn run(&self, deaths: u32) -> Outcome {
        for rerun in 0..=self.inner.options.reruns {
            match self.once(deaths).await {
                Ok(outcome) | Err(Interrupt::Ended(outcome)) => return outcome,
                Err(Interrupt::Rerun(reason)) => {
                    tracing::debug!(handler = %self.key(), rerun, reason, "inbox.rerun")
                }
            }
            tokio::time::sleep(CONTENTION_WAIT.mul_f64(chance::draw())).await;
        }
        Outcome::Busy
    }

    async fn once(&self, deaths: u32) -> Result<Outcome, Interrupt> {
        let store = &self.inner.store;
        self.inner.probe.reach(CrashPoint::C1).await?;
        let mut begun = store.begin().await?;
        match self.mark_all(&mut begun).await {
            Ok(Marked::First) => {}
            other => {
                self.undo(begun).await;
                return Ok(self.not_first(other?));
            }
        }
        if let Some(refused) = self.worn_out(deaths) {
            self.undo(begun).await;
            return Ok(refused);
        }
        self.inner.probe.reach(CrashPoint::C2).await?;
        let reply = match self.handle(&mut begun).await {
            Ok(reply) => reply,
            Err(interrupt) => {
                self.undo(begun).await;
                return Err(interrupt);
            }
        };
        if let Some(mark) = self.mark() {
            if let Some(reply) = &reply {
                store.reply(&mut begun, &mark, reply).await?;
            }
            if self.inner.options.count_deaths {
                store.leave(&mut begun, &mark).await?;
            }
        }
        self.inner.probe.reach(CrashPoint::C3).await?;
        match store.commit(begun).await {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::CommitUnknown => return Ok(self.resolve(error).await),
            Err(error) => return Err(error.into()),
        }
        self.inner.probe.reach(CrashPoint::C5).await?;
        Ok(Outcome::Done { result: reply })
    }

    fn key(&self) -> HandlerKey {
        self.handler.key()
    }

    fn mark(&self) -> Option<Mark<'_>> {
        self.mark_as(&self.marker)
    }

    fn mark_as<'a>(&'a self, handler: &'a str) -> Option<Mark<'a>> {
        self.key.as_ref().map(|key| Mark {
            tenant: &self.envelope.tenant,
            handler,
            key,
            digest: self.digest,
            time: self.envelope.time,
            window: self.inner.window(self.handler.as_ref()),
        })
    }

    /// Marks the message as handled, under the handler's former keys too:
    /// while old and new versions run side by side, each sees what the other
    /// has done.
    async fn mark_all(&self, tx: &mut S::Tx) -> Result<Marked> {
        for legacy in &self.handler.options().legacy {
            let name = self.inner.marker(*legacy);
            let Some(mark) = self.mark_as(&name) else { break };
            match self.inner.store.mark(tx, &mark, self.inner.clock.now()).await? {
                Marked::First => {}
                other => return Ok(other),
            }
        }
        match self.mark() {
            None => Ok(Marked::First),
            Some(mark) => self.inner.store.mark(tx, &mark, self.inner.clock.now()).await,
        }
    }

    fn not_first(&self, marked: Marked) -> Outcome {
        let refused = |code, reason: &str| Outcome::Refused { code, reason: reason.to_owned() };
        match marked {
            Marked::Duplicate { result } => Outcome::Duplicate { result },
            Marked::Conflict => refused("id_conflict", "another body was handled under the same key"),
            Marked::TooOld => refused("too_old", "the message is older than what the markers can prove"),
            Marked::First => Outcome::Busy,
        }
    }

    /// A message that kills whatever handles it is not handled again. Asked
    /// only once the marker is ours: a message that took effect is a duplicate,
    /// and one that is being handled elsewhere has been entered but killed nobody.
    fn worn_out(&self, deaths: u32) -> Option<Outcome> {
        let limit = self.inner.policy(self.key()).max_attempts?;
        let (code, reason) = if deaths >= limit {
            ("process_death", format!("the process died {deaths} times while this message was handled"))
        } else if self.attempt > limit {
            (
                "attempts_exhausted",
                format!("it was delivered {limit} times and whoever handled it never answered"),
            )
        } else {
            return None;
        };
        Some(Outcome::Refused { code, reason })
    }

    async fn handle(&self, tx: &mut S::Tx) -> Result<Option<Vec<u8>>, Interrupt> {
        let mut cx = Context::new(tx, &self.envelope, self.attempt, &self.inner.outbox);
        let limit = self.handler.options().timeout.unwrap_or(self.inner.options.timeout);
        let run = AssertUnwindSafe(self.handler.handle(&mut cx)).catch_unwind();
        let failed = |reason| Interrupt::Ended(Outcome::Failed { reason, retry_after: None });
        match tokio::time::timeout(limit, run).await {
            Ok(Ok(Ok(()))) => Ok(cx.into_left().reply),
            Ok(Ok(Err(error))) => Err(judge(&self.inner.store, error)),
            Ok(Err(panic)) => Err(failed(format!("the handler panicked: {}", panic_text(panic.as_ref())))),
            Err(_elapsed) => Err(failed(format!("the handler took longer than {limit:?}"))),
        }
    }

    /// Finds out what became of a commit whose answer was lost, by asking for
    /// the same marker again: the unique index waits for a commit still under
    /// way. Never a guess: what cannot be found out comes again.
    async fn resolve(&self, unknown: Error) -> Outcome {
        let (store, Some(mark)) = (&self.inner.store, self.mark()) else {
            return Outcome::Unavailable { reason: unknown.chain() };
        };
        for _ in 0..LOOKUPS {
            let asked = async {
                let mut begun = store.begin().await?;
                let marked = store.mark(&mut begun, &mark, self.inner.clock.now()).await;
                self.undo(begun).await;
                marked
            };
            match asked.await {
                Ok(Marked::Duplicate { result }) => return Outcome::Done { result },
                Ok(_) => {
                    return Outcome::Unavailable { reason: format!("not committed: {}", unknown.chain()) };
                }
                Err(error) => {
                    tracing::debug!(handler = %self.key(), kind = error.kind().name(), "inbox.commit_unknown")
                }
            }
            tokio::time::sleep(CONTENTION_WAIT).await;
        }
        Outcome::Unavailable { reason: unknown.chain() }
    }
}

/// What a handler's error means: the database's troubles are not the message's fault.
pub(super) fn judge<S: Store>(store: &S, error: HandlerError) -> Interrupt {
    let reason = error.chain();
    let kind = store.classify(error.cause());
    match (error, kind) {
        (HandlerError::Permanent(_), _) => Interrupt::Ended(Outcome::Refused { code: "permanent", reason }),
        (_, Some(Kind::Contention)) => Interrupt::Rerun(reason),
        (_, Some(kind)) if kind.is_transient() => Interrupt::Ended(Outcome::of_error(kind, reason)),
        (HandlerError::RetryAfter(delay, _), _) => {
            Interrupt::Ended(Outcome::Failed { reason, retry_after: Some(delay) })
        }
        _ => Interrupt::Ended(Outcome::Failed { reason, retry_after: None }),
    }
}

pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
