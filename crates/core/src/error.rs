//! The one error type of the seams: what went wrong, and what that costs.
//!
//! Each backend maps its driver's errors to a [`Kind`] in its own `error.rs`;
//! everything above decides by kind and never looks at a driver.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// What an error means to the code that meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The caller asked for something that cannot be stored: a limit is exceeded, a name is malformed.
    Invalid,
    /// Another copy of the same message is being handled right now.
    Busy,
    /// The database gave up on this unit (deadlock, serialization failure): run it again from the start.
    Contention,
    /// The database or broker cannot be used at the moment; nothing was decided.
    Unavailable,
    /// The connection broke while a commit was under way: it may or may not have happened.
    CommitUnknown,
    /// The same identity was used for something else.
    Conflict,
    /// The lease was lost; whoever holds it now decides.
    Fenced,
    /// A statement was refused on its own merits.
    Rejected,
    /// The set-up is wrong and will stay wrong until a person changes it.
    Config,
    /// Stored data cannot be understood.
    Corrupt,
}

impl Kind {
    /// Every kind, for tables that must not miss one.
    pub const ALL: [Self; 10] = [
        Self::Invalid,
        Self::Busy,
        Self::Contention,
        Self::Unavailable,
        Self::CommitUnknown,
        Self::Conflict,
        Self::Fenced,
        Self::Rejected,
        Self::Config,
        Self::Corrupt,
    ];

    /// The stable, lower-case name used in logs and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Busy => "busy",
            Self::Contention => "contention",
            Self::Unavailable => "unavailable",
            Self::CommitUnknown => "commit_unknown",
            Self::Conflict => "conflict",
            Self::Fenced => "fenced",
            Self::Rejected => "rejected",
            Self::Config => "config",
            Self::Corrupt => "corrupt",
        }
    }

    /// True if trying the same thing again, unchanged, can succeed.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Busy | Self::Contention | Self::Unavailable | Self::CommitUnknown)
    }
}

/// An error of a seam, with its [`Kind`] and its cause.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: Cow<'static, str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// A result of a seam.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that starts here.
    #[must_use]
    pub fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same error with what caused it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What this error means to the caller.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// This error and its causes on one line, outermost first.
    #[must_use]
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// An error and its causes on one line, outermost first, without repeating a
/// cause that its parent already quotes.
#[must_use]
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let line = inner.to_string();
        if !text.ends_with(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        cause = inner.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_every_cause_once() {
        let inner = Error::new(Kind::Unavailable, "connection refused");
        let outer = Error::new(Kind::Unavailable, "cannot read the log").because(inner);

        assert_eq!(outer.chain(), "cannot read the log: connection refused");
    }

    #[test]
    fn kind_names_are_unique() {
        let names: std::collections::BTreeSet<_> = Kind::ALL.iter().map(|k| k.name()).collect();

        assert_eq!(names.len(), Kind::ALL.len());
    }
}
