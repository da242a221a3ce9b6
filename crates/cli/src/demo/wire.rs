//! What the demo's supervisor and its workers say to each other, one JSON
//! object per line: requests of the client and traffic of the broker.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Which service a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Write, then publish; apply whatever arrives.
    Naive,
    /// Put in the transaction; apply once.
    Oncebox,
}

impl Service {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Oncebox => "oncebox",
        }
    }
}

/// Where a worker is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KillPoint {
    /// The order is stored, its message has not left.
    Committed,
    /// The broker has the message, the service has not noted it.
    Published,
    /// The effect is stored, the broker has not been told.
    Applied,
}

impl KillPoint {
    pub(crate) const ALL: [Self; 3] = [Self::Committed, Self::Published, Self::Applied];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Committed => "after_commit_before_publish",
            Self::Published => "after_publish_before_mark",
            Self::Applied => "after_effect_before_ack",
        }
    }
}

/// A message as the broker carries it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Parcel {
    pub(crate) id: String,
    pub(crate) source: String,
    pub(crate) kind: String,
    pub(crate) body: String,
    /// Which order it is about; the fault schedule goes by it.
    pub(crate) order: u32,
}

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToWorker {
    Place { order: u32, amount: i64, kill: Option<KillPoint> },
    Confirm { token: u64, stored: bool },
    Deliver { tag: u64, attempt: u32, parcel: Parcel, kill: Option<KillPoint> },
    Stop,
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromWorker {
    Ready,
    Placed {
        order: u32,
    },
    Publish {
        token: u64,
        parcel: Parcel,
    },
    Ack {
        tag: u64,
    },
    Nack {
        tag: u64,
    },
    /// It stands at a kill point and waits for the end.
    At {
        point: KillPoint,
        order: u32,
    },
}
