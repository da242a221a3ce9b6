//! What can be done to a store, with rows named by message id.

use std::time::Duration;

use oncebox_core::log::Parking;
use oncebox_core::store::Purge;
use oncebox_core::{Envelope, Timestamp};

/// One operation.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Begin,
    Commit,
    Rollback,
    Put(Vec<Envelope>),
    Mark(Marking),
    Reply(Marking, Vec<u8>),
    Holds(Envelope),
    Promote(usize),
    Claim(&'static str),
    Release(&'static str),
    Read { after: Option<String>, holes: Vec<String>, limit: usize },
    Settle(Settling),
    Due,
    Blocked(bool),
    Requeue(String),
    Discard(String),
    Purge(Purge, usize),
    Bury(Envelope),
    Status,
    Parked,
}

/// A mark that owns its parts.
#[derive(Clone, Debug)]
pub(super) struct Marking {
    pub(super) handler: &'static str,
    pub(super) id: String,
    pub(super) body: &'static str,
    pub(super) time: Option<Timestamp>,
    pub(super) window: Option<Duration>,
}

/// A settlement under the fences a holder last claimed.
#[derive(Clone, Debug, Default)]
pub(super) struct Settling {
    pub(super) holder: &'static str,
    pub(super) progress: Option<(Option<String>, Vec<String>)>,
    pub(super) park: Vec<(String, Parking, u32)>,
    pub(super) unpark: Vec<String>,
    pub(super) free: Vec<String>,
    pub(super) skip_dead: bool,
}
