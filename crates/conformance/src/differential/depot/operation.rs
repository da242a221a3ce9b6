//! What can be done to the durable inbox, with deliveries named by handler and message id.

use std::time::Duration;

use oncebox_core::Envelope;
use oncebox_core::store::Purge;

/// A delivery.
pub(super) type Name = (&'static str, String);

/// A ticket for a delivery: the latest, or one that many takes ago.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) name: Name,
    pub(super) ago: usize,
}

/// One operation.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Deposit { batch: Vec<Arrival>, is_committed: bool },
    Take { holder: &'static str, limits: (usize, usize), seats: usize, suspects: bool },
    HasSuspects,
    Start(Vec<Claim>),
    Renew(Vec<Claim>),
    Finish { claim: Claim, next: Option<Claim>, is_committed: bool },
    Conclude { claim: Claim, ending: Ending, next: Option<Claim> },
    GiveBack(Vec<Claim>),
    Standing(Claim),
    Intend(Claim, &'static str),
    Record(Claim, &'static str, Vec<u8>),
    Announce(&'static str),
    ParkOrphans,
    Requeue(Name, Option<Duration>),
    Discard(Name),
    Amend(Name, Box<Envelope>),
    Replay(Name),
    Assign(Name),
    Stored { skip: usize, limit: usize },
    Purge(Purge, usize),
    HoldBroom(&'static str),
    Letters,
    Status,
}

/// A message that comes in.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) channel: &'static str,
    pub(super) envelope: Envelope,
    pub(super) handlers: Vec<&'static str>,
    pub(super) lane: Option<&'static str>,
    pub(super) window: Option<Duration>,
    pub(super) is_refused: bool,
    pub(super) frees_lane: bool,
}

/// A fate that owns its parts.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    Retry { after: Duration, spent: bool },
    Dead { spent: bool, frees_lane: bool },
    Duplicate,
}
