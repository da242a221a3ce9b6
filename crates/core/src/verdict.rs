//! From what happened to what is done about it.
//!
//! The table of error classes lives here: only a failure that says something
//! about *this* message spends an attempt. Outages, locks and lost commits
//! cost time, never a message.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::error::Kind;

/// What came of handling one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The handler's writes are committed.
    Done {
        /// The reply the handler left for duplicates of a request, if it did.
        result: Option<Vec<u8>>,
    },
    /// They were committed before; nothing ran.
    Duplicate {
        /// The reply stored by the first run.
        result: Option<Vec<u8>>,
    },
    /// A copy of this message is being handled at this moment.
    Busy,
    /// The database or a dependency of oncebox is not usable; says nothing about the message.
    Unavailable {
        /// What is wrong.
        reason: String,
    },
    /// The handler failed and may succeed later.
    Failed {
        /// The handler's error, with its causes.
        reason: String,
        /// The handler's own wish for the next attempt.
        retry_after: Option<Duration>,
    },
    /// No later attempt can succeed.
    Refused {
        /// A stable code, for instance `undecodable`.
        code: &'static str,
        /// What is wrong, for people.
        reason: String,
    },
}

impl Outcome {
    /// What an error of the store says about the delivery that met it.
    #[must_use]
    pub fn of_error(kind: Kind, reason: String) -> Self {
        match kind {
            Kind::Busy | Kind::Contention => Self::Busy,
            Kind::Unavailable | Kind::CommitUnknown | Kind::Config | Kind::Fenced => {
                Self::Unavailable { reason }
            }
            Kind::Conflict => Self::Refused { code: "id_conflict", reason },
            Kind::Invalid => Self::Refused { code: "invalid", reason },
            Kind::Corrupt => Self::Refused { code: "undecodable", reason },
            Kind::Rejected => Self::Failed { reason, retry_after: None },
        }
    }
}

/// What is done with a delivery or a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Acknowledge it.
    Done,
    /// Try again after the delay.
    Retry {
        /// How long to wait.
        after: Duration,
        /// Whether the attempt counts towards the limit.
        spent: bool,
    },
    /// Bury it as a dead letter.
    Dead {
        /// A stable code.
        code: &'static str,
        /// What is wrong, for people.
        reason: String,
    },
}

/// How often and how patiently to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Executions in total; 1 means no retry, `None` means no limit.
    pub max_attempts: Option<u32>,
    /// The waits between them.
    pub backoff: Backoff,
    /// The wait when nothing was wrong with the message itself.
    pub busy_delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: Some(10), backoff: Backoff::default(), busy_delay: Duration::from_millis(500) }
    }
}

impl RetryPolicy {
    /// Judges an outcome; `attempt` counts executions including this one,
    /// `chance` is drawn by the caller.
    #[must_use]
    pub fn judge(&self, outcome: Outcome, attempt: u32, chance: f64) -> Verdict {
        match outcome {
            Outcome::Done { .. } | Outcome::Duplicate { .. } => Verdict::Done,
            Outcome::Busy | Outcome::Unavailable { .. } => {
                Verdict::Retry { after: self.busy_delay, spent: false }
            }
            Outcome::Failed { reason, retry_after } => {
                if self.max_attempts.is_some_and(|limit| attempt >= limit) {
                    return Verdict::Dead { code: "attempts_exhausted", reason };
                }
                let after = retry_after.unwrap_or_else(|| self.backoff.delay(attempt, chance));
                Verdict::Retry { after, spent: true }
            }
            Outcome::Refused { code, reason } => Verdict::Dead { code, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Outcome {
        Outcome::Failed { reason: "no".into(), retry_after: None }
    }

    #[test]
    fn max_attempts_counts_executions() {
        let policy = RetryPolicy { max_attempts: Some(3), ..RetryPolicy::default() };

        let spent: Vec<_> = (1..=3).map(|n| policy.judge(failed(), n, 0.5)).collect();

        assert!(matches!(spent.first(), Some(Verdict::Retry { spent: true, .. })));
        assert!(matches!(spent.get(1), Some(Verdict::Retry { spent: true, .. })));
        assert!(matches!(spent.get(2), Some(Verdict::Dead { code: "attempts_exhausted", .. })));
    }

    #[test]
    fn one_attempt_means_no_retry() {
        let policy = RetryPolicy { max_attempts: Some(1), ..RetryPolicy::default() };

        assert!(matches!(policy.judge(failed(), 1, 0.0), Verdict::Dead { .. }));
    }

    #[test]
    fn only_the_message_itself_spends_an_attempt() {
        let policy = RetryPolicy { max_attempts: Some(1), ..RetryPolicy::default() };

        for kind in
            [Kind::Busy, Kind::Contention, Kind::Unavailable, Kind::CommitUnknown, Kind::Config, Kind::Fenced]
        {
            let verdict = policy.judge(Outcome::of_error(kind, String::new()), 99, 0.0);
            assert!(matches!(verdict, Verdict::Retry { spent: false, .. }), "{kind:?}");
        }
        for kind in [Kind::Conflict, Kind::Invalid, Kind::Corrupt] {
            let verdict = policy.judge(Outcome::of_error(kind, String::new()), 1, 0.0);
            assert!(matches!(verdict, Verdict::Dead { .. }), "{kind:?}");
        }
    }

    #[test]
    fn a_handler_may_say_when_it_wants_to_be_called_again() {
        let wish = Duration::from_secs(77);
        let outcome = Outcome::Failed { reason: String::new(), retry_after: Some(wish) };

        let verdict = RetryPolicy::default().judge(outcome, 1, 0.0);

        assert_eq!(verdict, Verdict::Retry { after: wish, spent: true });
    }
}
