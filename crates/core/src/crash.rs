//! Where a process can die, by name, so that a test can make it die there.
//!
//! Production code calls [`Probe::reach`]; without a hook that is one branch.
//! A test's hook may block (for a parent process to kill it), note the visit,
//! or answer [`Reaction::Crash`], upon which the caller stops where it stands,
//! without cleaning up, as a dead process would.
//!
//! Points that are no place in this code (a late commit, a refused message, a
//! frozen holder, a swallowed error) have no name here; the end-to-end tests
//! bring them about by other means.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::{Error, Kind, Result};

/// A place at which a process can die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CrashPoint {
    /// Producer: before BEGIN.
    P1,
    /// Producer: after the business write, before the put.
    P2,
    /// Producer: after the put, before COMMIT.
    P3,
    /// Producer: COMMIT done, its reply not seen.
    P4,
    /// Producer: after COMMIT, before the wake-up.
    P5,
    /// Relay: rows read, nothing published.
    R2,
    /// Relay: published and stored, confirm not seen.
    R4,
    /// Relay: confirmed, not settled.
    R5,
    /// Relay: settled, reply not seen.
    R6,
    /// Relay: some of a batch confirmed.
    R7,
    /// Consumer: delivered, before BEGIN.
    C1,
    /// Consumer: after the marker, before the handler.
    C2,
    /// Consumer: in the handler, or after it and before COMMIT.
    C3,
    /// Consumer: COMMIT done, its reply not seen.
    C5,
    /// Consumer: committed, before the ack.
    C6,
    /// Durable inbox: stored, before the ack.
    D1,
    /// Durable inbox: taken and counted, before the handler.
    D3,
    /// Durable inbox: after the handler, before COMMIT.
    D4,
    /// Durable inbox: COMMIT done, its reply not seen.
    D5,
    /// Durable inbox: rolled back, before the failure is written.
    D6,
    /// Gate: admitted or claimed, before the handler.
    H1,
    /// Gate: the reply sealed or committed, before the client has it.
    H2,
    /// Gate: the handler has answered, before its reply is sealed or committed.
    H6,
}

impl CrashPoint {
    /// Every point between a put and an effect in receiver mode, for tests that must not miss one.
    pub const ALL: [Self; 15] = [
        Self::P1,
        Self::P2,
        Self::P3,
        Self::P4,
        Self::P5,
        Self::R2,
        Self::R4,
        Self::R5,
        Self::R6,
        Self::R7,
        Self::C1,
        Self::C2,
        Self::C3,
        Self::C5,
        Self::C6,
    ];

    /// The points of the durable inbox.
    pub const DURABLE: [Self; 5] = [Self::D1, Self::D3, Self::D4, Self::D5, Self::D6];

    /// The points of the gate. The rows between them are no places: who meets whom, and what is cut off.
    pub const GATE: [Self; 3] = [Self::H1, Self::H2, Self::H6];

    /// The point's name, for instance `R5`.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Where it is, for people.
    #[must_use]
    pub const fn place(self) -> &'static str {
        match self {
            Self::P1 => "producer: before BEGIN",
            Self::P2 => "producer: before the put",
            Self::P3 => "producer: after the put, before COMMIT",
            Self::P4 => "producer: COMMIT done, its reply not seen",
            Self::P5 => "producer: after COMMIT",
            Self::R2 => "relay: rows read, nothing published",
            Self::R4 => "relay: published, confirm not seen",
            Self::R5 => "relay: confirmed, not settled",
            Self::R6 => "relay: settled, reply not seen",
            Self::R7 => "relay: some of a batch confirmed",
            Self::C1 => "consumer: delivered, before BEGIN",
            Self::C2 => "consumer: before the handler",
            Self::C3 => "consumer: after the handler, before COMMIT",
            Self::C5 => "consumer: COMMIT done, its reply not seen",
            Self::C6 => "consumer: committed, before the ack",
            Self::D1 => "durable inbox: stored, before the ack",
            Self::D3 => "worker: before the handler",
            Self::D4 => "worker: after the handler, before COMMIT",
            Self::D5 => "worker: COMMIT done, its reply not seen",
            Self::D6 => "worker: rolled back, before the failure is written",
            Self::H1 => "gate: admitted, before the handler",
            Self::H2 => "gate: the reply sealed, before the client has it",
            Self::H6 => "gate: after the handler, before its reply is sealed",
        }
    }

    /// The point of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::DURABLE).chain(Self::GATE).find(|point| point.name() == name)
    }
}

/// What a hook wants to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Go on.
    Go,
    /// Stop here, cleaning up nothing.
    Crash,
}

type Hook = dyn Fn(CrashPoint) -> Pin<Box<dyn Future<Output = Reaction> + Send>> + Send + Sync;

/// Told whenever a crash point is reached.
#[derive(Clone, Default)]
pub struct Probe(Option<Arc<Hook>>);

impl Probe {
    /// A probe that asks `hook` at every point.
    pub fn new<F, Fut>(hook: F) -> Self
    where
        F: Fn(CrashPoint) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reaction> + Send + 'static,
    {
        Self(Some(Arc::new(move |point| Box::pin(hook(point)))))
    }

    /// Says that `point` was reached.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] if the hook wants a crash.
    pub async fn reach(&self, point: CrashPoint) -> Result<()> {
        let Some(hook) = &self.0 else { return Ok(()) };
        match hook(point).await {
            Reaction::Go => Ok(()),
            Reaction::Crash => Err(Error::new(Kind::Unavailable, format!("crashed at {point:?}"))),
        }
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Probe(armed)" } else { "Probe" })
    }
}
