//! Death at named points, and a scenario that has to survive it everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use oncebox_core::inspect::Inspect;
use oncebox_core::{Depot, Letters, Mailbox};

use super::{Stage, locked};
use crate::crash::{CrashPoint, Probe, Reaction};
use crate::inbox::Inbox;
use crate::memory::MemoryStore;

/// Every message that was put passes these.
const SENDING: [CrashPoint; 8] = [
    CrashPoint::P1,
    CrashPoint::P2,
    CrashPoint::P3,
    CrashPoint::P4,
    CrashPoint::P5,
    CrashPoint::R2,
    CrashPoint::R5,
    CrashPoint::R6,
];
/// Every message that is handled in receiver mode passes these.
const RECEIVING: [CrashPoint; 5] =
    [CrashPoint::C1, CrashPoint::C2, CrashPoint::C3, CrashPoint::C5, CrashPoint::C6];
/// Every message that is handled in durable mode passes these.
const WORKING: [CrashPoint; 4] = [CrashPoint::D1, CrashPoint::D3, CrashPoint::D4, CrashPoint::D5];

/// Where to die, and where it happened.
#[derive(Default)]
pub(super) struct Crashes {
    armed: BTreeMap<CrashPoint, usize>,
    reached: BTreeSet<CrashPoint>,
    deaths: usize,
    /// The process is dead since it was there; it does nothing more.
    dead_at: Option<CrashPoint>,
    /// The producer is a process of its own.
    producer_dead_at: Option<CrashPoint>,
    is_silent_commit: bool,
    has_receivers: bool,
    has_workers: bool,
}

impl Crashes {
    pub(super) fn probe(crashes: &Arc<Mutex<Self>>) -> Probe {
        let crashes = Arc::clone(crashes);
        Probe::new(move |point| std::future::ready(locked(&crashes).reach(point)))
    }

    pub(super) fn arm(&mut self, point: CrashPoint, times: usize) {
        self.armed.insert(point, times);
    }

    /// The modes of handlers decide which points have to be reached.
    pub(super) fn expect_of<S: Mailbox + Depot>(&mut self, inbox: &Inbox<S>) {
        self.has_receivers |= !inbox.is_all_durable();
        self.has_workers |= inbox.is_durable();
    }

    pub(super) fn take_death(&mut self) -> Option<CrashPoint> {
        self.dead_at.take()
    }

    pub(super) fn take_producer_death(&mut self) -> Option<CrashPoint> {
        self.producer_dead_at.take()
    }

    /// Whether the handler that is spoken of died after its commit.
    pub(super) fn take_silent_commit(&mut self) -> bool {
        std::mem::take(&mut self.is_silent_commit)
    }

    pub(super) fn reached(&self) -> Vec<CrashPoint> {
        self.reached.iter().copied().collect()
    }

    fn reach(&mut self, point: CrashPoint) -> Reaction {
        let is_producer = point <= CrashPoint::P5;
        if self.dead_at.is_some() && !is_producer {
            return Reaction::Crash;
        }
        self.reached.insert(point);
        match self.armed.get_mut(&point) {
            Some(left) if *left > 0 => *left -= 1,
            _ => return Reaction::Go,
        }
        self.deaths += 1;
        if is_producer {
            self.producer_dead_at = Some(point);
        } else {
            self.dead_at = Some(point);
        }
        self.is_silent_commit = point == CrashPoint::C5;
        Reaction::Crash
    }

    /// The points that had to be reached and were not.
    fn missed(&self) -> Vec<CrashPoint> {
        let mut expected = Vec::new();
        if self.reached.contains(&CrashPoint::P1) {
            expected.extend(SENDING);
        }
        if self.has_receivers {
            expected.extend(RECEIVING);
        }
        if self.has_workers {
            expected.extend(WORKING);
        }
        expected.retain(|point| !self.reached.contains(point));
        expected
    }
}

/// Runs a scenario once as it is, to learn which crash points it reaches, and
/// then once for each of them with a process that dies there the first time.
/// The scenario gets a fresh stage, sets it up, lets something happen and
/// checks what came of it; the checks have to hold wherever the process dies.
/// Answers with the points.
///
/// ```
/// # use oncebox_core::{HandlerError, Message};
/// # use oncebox_flow::memory::MemoryTx;
/// # use oncebox_flow::testing::every_crash_point;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced;
/// # impl Message for OrderPlaced {
/// #     const NAME: &'static str = "order.placed.v1";
/// # }
/// # async fn ship(tx: &mut MemoryTx, _: OrderPlaced) -> Result<(), HandlerError> {
/// #     tx.append("shipments", "one".into());
/// #     Ok(())
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// every_crash_point(|stage| async move {
///     let mut stage =
///         stage.channel(OrderPlaced::NAME, |inbox| inbox.durable().on::<OrderPlaced, _>("ship", ship));
///
///     let id = stage.put(&OrderPlaced).await;
///     stage.run_until_idle().await;
///
///     stage.assert_handled_once("ship", &id);
///     assert_eq!(stage.store().rows("shipments").await, ["one"]);
/// })
/// .await;
/// # }
/// ```
///
/// # Panics
/// If the scenario fails, with the point at which the process died; or if it
/// does not reach points that each message passes in the mode of its handlers.
pub async fn every_crash_point<F, Fut>(scenario: F) -> Vec<CrashPoint>
where
    F: Fn(Stage) -> Fut,
    Fut: Future<Output = ()>,
{
    every_crash_point_on(async || MemoryStore::new(), scenario).await
}

/// As [`every_crash_point`], on stores of yours: `store` makes an empty one
/// for each run.
///
/// # Panics
/// As [`every_crash_point`].
pub async fn every_crash_point_on<S, F, Fut>(store: impl AsyncFn() -> S, scenario: F) -> Vec<CrashPoint>
where
    S: Mailbox + Depot + Letters + Inspect,
    F: Fn(Stage<S>) -> Fut,
    Fut: Future<Output = ()>,
{
    let (reached, missed) = {
        let stage = Stage::on(store().await);
        let crashes = Arc::clone(&stage.crashes);
        if let Err(failure) = played(&scenario, stage).await {
            panic!("the scenario fails even if no process dies: {failure}");
        }
        let crashes = locked(&crashes);
        (crashes.reached(), crashes.missed())
    };
    assert!(!reached.is_empty(), "the scenario reaches no crash point: it puts and delivers nothing");
    let names = names(&reached);
    assert!(missed.is_empty(), "the scenario does not reach {}; it reaches {names}", self::names(&missed));
    for point in &reached {
        let mut stage = Stage::on(store().await);
        stage.crash_at(*point, 1);
        let crashes = Arc::clone(&stage.crashes);
        if let Err(failure) = played(&scenario, stage).await {
            panic!(
                "the scenario fails if the process dies at {point:?} ({}): {failure}\nit reaches {names}",
                point.place()
            );
        }
        let deaths = locked(&crashes).deaths;
        assert!(deaths == 1, "the scenario reached {point:?} when it was rehearsed, and not when it counted");
    }
    reached
}

/// Plays a scenario to its end; the error is what it panicked with.
async fn played<S, F, Fut>(scenario: &F, stage: Stage<S>) -> Result<(), String>
where
    S: Mailbox + Depot,
    F: Fn(Stage<S>) -> Fut,
    Fut: Future<Output = ()>,
{
    let played = AssertUnwindSafe(async { scenario(stage).await }).catch_unwind().await;
    played.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("it panicked without a message").to_owned()
    })
}

fn names(points: &[CrashPoint]) -> String {
    points.iter().map(|point| point.name()).collect::<Vec<_>>().join(", ")
}
