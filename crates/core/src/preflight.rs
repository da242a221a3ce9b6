//! What a transport finds out about a destination before anything is sent there.
//!
//! A broker accepts set-ups that lose messages: a queue that is not durable, an
//! exchange without bindings, a stream that drops its oldest. Each transport
//! looks at its own kind of destination; the grades mean the same everywhere.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Kind, Result};

/// How safe a destination is. The best comes first, so the worst of several is their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grade {
    /// A confirmed message stays until it is consumed.
    A,
    /// It works, but on one node, or with a weaker promise than the server could give.
    B,
    /// Messages expire, or are pushed out by a limit, while the relay or a consumer still counts on them.
    C,
    /// Messages are lost when the broker restarts.
    D,
    /// Messages are lost in normal operation: unconfirmed, unroutable or dropped.
    F,
}

impl Grade {
    /// The grade's letter.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
            Self::F => "F",
        }
    }

    /// Whether this grade is at least as good as `required`.
    #[must_use]
    pub fn satisfies(self, required: Self) -> bool {
        self <= required
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.letter())
    }
}

impl FromStr for Grade {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let grades = [Self::A, Self::B, Self::C, Self::D, Self::F];
        grades
            .into_iter()
            .find(|grade| grade.letter().eq_ignore_ascii_case(text))
            .ok_or_else(|| Error::new(Kind::Config, format!("{text:?} is not a grade: use A, B, C, D or F")))
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it makes of the destination.
    pub grade: Grade,
    /// What was found.
    pub reason: String,
    /// What to do about it.
    pub advice: String,
}

impl Finding {
    /// A finding.
    #[must_use]
    pub fn new(grade: Grade, reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { grade, reason: reason.into(), advice: advice.into() }
    }
}

/// What was found about one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The destination.
    pub destination: String,
    /// The transport that looked.
    pub transport: &'static str,
    /// What it found; nothing means nothing to complain about.
    pub findings: Vec<Finding>,
}

impl Inspection {
    /// The worst finding's grade, or A.
    #[must_use]
    pub fn grade(&self) -> Grade {
        self.findings.iter().map(|finding| finding.grade).max().unwrap_or(Grade::A)
    }
}

/// Looks at destinations without sending anything there.
pub trait Preflight {
    /// Inspects `destinations`, one answer for each in order. `horizon` is how
    /// long a message may have to wait for its consumer: what expires earlier
    /// is lost.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] if the broker cannot be asked, [`Kind::Config`] if it must not be asked. A
    /// destination that does not exist is a finding, not an error.
    fn inspect(
        &self,
        destinations: &[String],
        horizon: Duration,
    ) -> impl Future<Output = Result<Vec<Inspection>>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inspection_is_as_good_as_its_worst_finding() {
        let of = |grades: &[Grade]| Inspection {
            destination: "orders".into(),
            transport: "test",
            findings: grades.iter().map(|grade| Finding::new(*grade, "", "")).collect(),
        };

        assert_eq!(of(&[]).grade(), Grade::A);
        assert_eq!(of(&[Grade::B, Grade::F, Grade::C]).grade(), Grade::F);
        assert!(Grade::A.satisfies(Grade::B) && !Grade::C.satisfies(Grade::B));
    }

    #[test]
    fn a_grade_is_read_as_it_is_written() {
        for grade in [Grade::A, Grade::B, Grade::C, Grade::D, Grade::F] {
            assert_eq!(grade.to_string().parse::<Grade>().ok(), Some(grade));
        }
        assert_eq!("b".parse::<Grade>().ok(), Some(Grade::B));
        assert_eq!("E".parse::<Grade>().err().map(|error| error.kind()), Some(Kind::Config));
    }
}
