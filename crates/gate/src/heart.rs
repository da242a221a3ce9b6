//! Renews the leases of all requests that take long, in one statement. Those
//! that are quick are never renewed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use oncebox_core::gate::{Pass, ReceiptKey, Receipts};
use tokio::task::JoinHandle;

use crate::gate::Inner;

/// The wait after a store could not be asked. The shortest lease has room for one or two.
const AGAIN: Duration = Duration::from_millis(250);

/// The requests of this process that run under a lease.
#[derive(Default)]
pub(crate) struct Heart {
    flights: Mutex<HashMap<ReceiptKey, Beat>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Beat {
    pass: Pass,
    lease: Duration,
    renewed: Instant,
}

impl Heart {
    fn flights(&self) -> MutexGuard<'_, HashMap<ReceiptKey, Beat>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self, pass: &Pass) {
        if let Entry::Occupied(beat) = self.flights().entry(pass.key)
            && beat.get().pass == *pass
        {
            beat.remove();
        }
    }

    /// Whether this process runs the request of this key.
    pub(crate) fn has(&self, key: &ReceiptKey) -> bool {
        self.flights().contains_key(key)
    }
}

impl<S: Receipts> Inner<S> {
    /// Keeps the lease until it is told to forget it.
    pub(crate) fn keep(self: &Arc<Self>, pass: Pass, lease: Duration) {
        let beat = Beat { pass, lease, renewed: Instant::now() };
        self.heart.flights().insert(pass.key, beat);
        let mut task = self.heart.task.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended with the runtime that it was started on.
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(beat_on(Arc::downgrade(self))));
        }
    }

    /// Tells whether all went well.
    async fn beat(&self) -> bool {
        let mut is_well = true;
        let due: Vec<(Pass, Duration)> = {
            let flights = self.heart.flights();
            let late = flights.values().filter(|beat| beat.renewed.elapsed() >= beat.lease / 3);
            late.map(|beat| (beat.pass, beat.lease)).collect()
        };
        let mut leases: Vec<Duration> = due.iter().map(|(_, lease)| *lease).collect();
        leases.sort_unstable();
        leases.dedup();
        for lease in leases {
            let passes: Vec<Pass> = due.iter().filter(|due| due.1 == lease).map(|due| due.0).collect();
            // Before the store is asked: from then on it counts.
            let renewed = Instant::now();
            match tokio::time::timeout(lease / 3, self.store.prolong(&passes, lease, None)).await {
                Ok(Ok(are_good)) => {
                    if are_good.contains(&false) {
                        tracing::warn!("a request has lost its lease, and may be run again");
                    }
                    let mut flights = self.heart.flights();
                    for pass in &passes {
                        if let Some(beat) = flights.get_mut(&pass.key).filter(|beat| beat.pass == *pass) {
                            beat.renewed = renewed;
                        }
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = %error.chain(), "leases of requests could not be renewed");
                    is_well = false;
                }
                Err(_elapsed) => {
                    tracing::warn!("leases of requests could not be renewed in time");
                    is_well = false;
                }
            }
        }
        is_well
    }

    /// How long until somebody's lease should be renewed.
    fn pause(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(1);
        let flights = self.heart.flights();
        let next = flights.values().map(|beat| (beat.lease / 3).saturating_sub(beat.renewed.elapsed())).min();
        next.unwrap_or(LONGEST).clamp(Duration::from_millis(20), LONGEST)
    }
}

async fn beat_on<S: Receipts>(gate: Weak<Inner<S>>) {
    loop {
        let Some(pause) = gate.upgrade().map(|gate| gate.pause()) else { return };
        tokio::time::sleep(pause).await;
        let Some(gate) = gate.upgrade() else { return };
        if !gate.beat().await {
            // What is late stays due: a store that is down is not asked, nor complained about, all the time.
            tokio::time::sleep(AGAIN).await;
        }
    }
}
