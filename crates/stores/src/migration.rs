//! What a migration is, the same for every database.

use oncebox_core::{Digest, Timestamp};

/// A numbered file that never changes once released.
pub(crate) struct Migration {
    pub(crate) version: i32,
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

impl Migration {
    pub(crate) fn checksum(&self) -> String {
        Digest::of(self.text.as_bytes()).to_string()
    }
}

/// A migration that was applied just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its number.
    pub version: i32,
    /// Its name.
    pub name: String,
}

/// Where a migration stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationState {
    /// It is in the database and in this build.
    Applied,
    /// It is only in this build.
    Pending,
    /// It is only in the database, put there by a newer build.
    Unknown,
}

/// A migration that is in the database, in this build, or in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationStatus {
    /// Its number.
    pub version: i32,
    /// Its name.
    pub name: String,
    /// When it was applied.
    pub applied_at: Option<Timestamp>,
    /// Where it stands.
    pub state: MigrationState,
}
