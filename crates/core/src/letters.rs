//! Dead letters: what they say and what a person can do about them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::depot::Number;
use crate::envelope::Envelope;
use crate::error::{Error, Kind, Result};
use crate::inspect::BoxFuture;
use crate::timestamp::Timestamp;

/// Which dead letter. Written `d42` or `r17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LetterId {
    /// A delivery of the durable inbox.
    Delivery(Number),
    /// A message that an inbox in receiver mode, or none, could take.
    Received(Number),
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivery(number) => write!(f, "d{number}"),
            Self::Received(number) => write!(f, "r{number}"),
        }
    }
}

impl FromStr for LetterId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused =
            || Error::new(Kind::Invalid, format!("{text:?} names no dead letter: they look like d42 or r17"));
        let is_plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = |digits: &str| match digits.parse() {
            Ok(number) if is_plain(digits) => Ok(number),
            _ => Err(refused()),
        };
        match text.split_at_checked(1) {
            Some(("d", digits)) => Ok(Self::Delivery(number(digits)?)),
            Some(("r", digits)) => Ok(Self::Received(number(digits)?)),
            _ => Err(refused()),
        }
    }
}

/// One failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The execution, counted from 1.
    pub attempt: u32,
    /// When it ended.
    pub at: Timestamp,
    /// A stable code.
    pub code: String,
    /// The error, with its causes.
    pub reason: String,
}

/// A message that waits for a person.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// Which one.
    pub id: LetterId,
    /// The scope of its inbox.
    pub scope: String,
    /// Where it came from.
    pub channel: String,
    /// The handler that gave up; empty if none was asked.
    pub handler: String,
    /// A stable code.
    pub code: String,
    /// The error, with its causes.
    pub reason: String,
    /// Executions.
    pub attempts: u32,
    /// When it was accepted, or died if it never was.
    pub received_at: Timestamp,
    /// When it died.
    pub died_at: Timestamp,
    /// Deliveries of its lane that wait behind it.
    pub blocks: i64,
    /// The latest failed attempts, oldest first; only [`Letters::letter`] fills it.
    pub history: Vec<Attempt>,
    /// The message, whole.
    pub envelope: Envelope,
}

/// Which dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// Only of this handler.
    pub handler: Option<String>,
    /// Only of this channel.
    pub channel: Option<String>,
    /// Only with this code.
    pub code: Option<String>,
}

/// What became of a wish to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeued {
    /// It is ready, with fresh attempts.
    Ready,
    /// There is no such dead letter.
    Missing,
    /// It is so old that copies of it may have been handled and forgotten since.
    TooOld,
    /// No handler was ever asked; there is nobody to give it to.
    NoHandler,
}

/// What a person does with dead letters. Object safe.
pub trait Letters: Send + Sync {
    /// Dead letters, oldest first.
    fn letters<'s>(
        &'s self,
        filter: &'s LetterFilter,
        limit: usize,
    ) -> BoxFuture<'s, Result<Vec<DeadLetter>>>;

    /// One of them, with its history.
    fn letter(&self, id: LetterId) -> BoxFuture<'_, Result<Option<DeadLetter>>>;

    /// Tries it again with fresh attempts, unless it was accepted longer ago
    /// than `window`. One that came in receiver mode becomes a delivery.
    fn requeue_letter(
        &self,
        id: LetterId,
        window: Option<Duration>,
        now: Option<Timestamp>,
    ) -> BoxFuture<'_, Result<Requeued>>;

    /// Gives it up, freeing its lane; `false` if there is none.
    fn discard_letter(&self, id: LetterId, now: Option<Timestamp>) -> BoxFuture<'_, Result<bool>>;

    /// Gives it up and stores an edited message in its place, for the same
    /// handler, with an id of its own and the old one as its cause. Answers
    /// with the new delivery; `None` if there is no such dead letter.
    fn amend_letter<'s>(
        &'s self,
        id: LetterId,
        edited: &'s Envelope,
        now: Option<Timestamp>,
    ) -> BoxFuture<'s, Result<Option<Number>>>;

    /// Runs a finished delivery once more; `false` if there is none.
    fn replay_delivery(&self, number: Number, now: Option<Timestamp>) -> BoxFuture<'_, Result<bool>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_dead_letter_can_be_read_back() {
        for id in [LetterId::Delivery(42), LetterId::Received(17)] {
            assert_eq!(id.to_string().parse::<LetterId>().ok(), Some(id));
        }
        for text in ["", "d", "42", "x1", "d4x", "d-5", "d+5", "é1"] {
            assert_eq!(text.parse::<LetterId>().unwrap_err().kind(), Kind::Invalid, "{text}");
        }
    }
}
