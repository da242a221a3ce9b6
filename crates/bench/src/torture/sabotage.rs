//! What a run breaks on purpose: if the ledger does not notice, the ledger is
//! worth nothing.

use std::time::Duration;

use clap::ValueEnum;

/// How long a sabotaged child lingers at the moment it must not die.
pub(super) const LINGER: Duration = Duration::from_millis(20);

/// What to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sabotage {
    /// The publisher says "confirmed" and sends afterwards.
    SettleBeforeConfirm,
    /// The worker acknowledges first and handles afterwards.
    AckBeforeCommit,
    /// The worker knows only from memory what it has handled.
    DedupInMemory,
}

impl Sabotage {
    /// Its name on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::SettleBeforeConfirm => "settle-before-confirm",
            Self::AckBeforeCommit => "ack-before-commit",
            Self::DedupInMemory => "dedup-in-memory",
        }
    }
}
