//! What becomes of a delivery whose run did not commit.

use oncebox_core::depot::{Fate, Taken};
use oncebox_core::plan::OnDead;
use oncebox_core::store::Mailbox;
use oncebox_core::{Depot, Kind, Outcome, Verdict};
use tracing::{error, warn};

use super::desk::{Desk, FIRST_WAIT, Job, LONGEST_WAIT, Turn};
use crate::chance;
use crate::crash::CrashPoint;

/// The code of a message that killed whatever ran it.
const PROCESS_DEATH: &str = "process_death";

impl<S: Mailbox + Depot> Desk<S> {
    /// Writes what becomes of a delivery whose run was rolled back; false if
    /// it is another's by now. Tried until it is written: as long as this
    /// process lives, its own troubles cost the message nothing.
    pub(super) async fn write_down(
        &self,
        job: &Job<'_, S>,
        outcome: Outcome,
        next: &mut Option<Turn<S>>,
    ) -> bool {
        if matches!(outcome, Outcome::Done { .. }) {
            return true;
        }
        if self.inner.probe.reach(CrashPoint::D6).await.is_err() {
            return false;
        }
        let policy = self.inner.policy(job.handler.key());
        let (mut code, mut reason) = explain(&outcome);
        let was_run = code != PROCESS_DEATH;
        let is_duplicate = matches!(outcome, Outcome::Duplicate { .. });
        let verdict = policy.judge(outcome, job.taken.attempt, chance::draw());
        let fate = match verdict {
            _ if is_duplicate => Fate::Duplicate,
            Verdict::Done => Fate::Duplicate,
            Verdict::Retry { after, spent } => Fate::Retry { after, spent, code, reason: &reason },
            Verdict::Dead { code: why, reason: text } => {
                (code, reason) = (why, text);
                error!(handler = %job.handler.key(), code, id = job.taken.envelope.id, "inbox.dead_letter");
                let frees_lane = job.handler.options().lanes == Some(OnDead::SkipKey);
                Fate::Dead { spent: was_run, code, reason: &reason, frees_lane }
            }
        };
        let following = next.as_ref().and_then(Turn::uncounted);
        let mut wait = FIRST_WAIT;
        loop {
            let concluded =
                self.inner.store.conclude(job.taken.ticket, &fate, following, self.inner.clock.now());
            match concluded.await {
                Ok(()) => break,
                Err(error) if error.kind() == Kind::Fenced => return false,
                Err(error) => warn!(error = error.chain(), "worker.conclude_failed"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        if let Some(next) = next {
            next.taken.started = true;
        }
        true
    }
}

pub(super) fn worn_out(taken: &Taken) -> Outcome {
    let runs = taken.attempt.saturating_sub(1);
    let reason =
        format!("it was started {runs} times, and the last time whoever ran it died or stopped answering");
    Outcome::Refused { code: PROCESS_DEATH, reason }
}

/// The code and the reason that are stored with an attempt.
fn explain(outcome: &Outcome) -> (&'static str, String) {
    match outcome {
        Outcome::Failed { reason, .. } => ("failed", reason.clone()),
        Outcome::Refused { code, reason } => (code, reason.clone()),
        Outcome::Unavailable { reason } => ("unavailable", reason.clone()),
        Outcome::Busy => ("busy", "a copy is being handled, or the database is contended".into()),
        Outcome::Done { .. } | Outcome::Duplicate { .. } => ("", String::new()),
    }
}
