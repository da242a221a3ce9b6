//! A sign of life: whether the loops of a relay still turn.
//!
//! A pass is bounded and so is a wait, but only as long as the task gets to run:
//! a call that blocks its thread stops the clock that would end it. So each
//! worker says beforehand when it will be back, and somebody else compares.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Tells when a worker of a relay does not come back from a pass or a wait.
/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    /// When each worker at work is back at the latest.
    due: Arc<Mutex<BTreeMap<String, Instant>>>,
}

impl Heartbeat {
    /// Without a worker yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How much later than it said the slowest worker is, if one is late.
    #[must_use]
    pub fn overdue(&self) -> Option<Duration> {
        let now = Instant::now();
        let slowest = self.due().values().min().copied()?;
        now.checked_duration_since(slowest).filter(|late| !late.is_zero())
    }

    pub(super) fn worker(&self, holder: &str) -> Pulse {
        Pulse { heartbeat: self.clone(), holder: holder.to_owned() }
    }

    fn due(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's part of it; it is expected no more when this is dropped.
#[derive(Debug)]
pub(super) struct Pulse {
    heartbeat: Heartbeat,
    holder: String,
}

impl Pulse {
    /// The worker is back `within` this time.
    pub(super) fn expect(&self, within: Duration) {
        // A wait longer than the clock can tell is not watched.
        match Instant::now().checked_add(within) {
            Some(due) => _ = self.heartbeat.due().insert(self.holder.clone(), due),
            None => _ = self.heartbeat.due().remove(&self.holder),
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.heartbeat.due().remove(&self.holder);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use oncebox_core::{Envelope, Failure, Mailbox as _, Publisher, Result, Store as _};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::memory::MemoryStore;
    use crate::relay::Relay;

    #[tokio::test(start_paused = true)]
    async fn the_slowest_worker_counts_until_it_is_gone() {
        let heartbeat = Heartbeat::new();
        assert_eq!(heartbeat.overdue(), None, "nobody is expected");
        let (quick, slow) = (heartbeat.worker("quick"), heartbeat.worker("slow"));
        quick.expect(Duration::from_secs(60));
        slow.expect(Duration::from_secs(10));

        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(heartbeat.overdue(), None, "just in time");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(heartbeat.overdue(), Some(Duration::from_secs(5)));
        slow.expect(Duration::from_secs(10));
        assert_eq!(heartbeat.overdue(), None, "it is back");
        tokio::time::advance(Duration::from_secs(30)).await;
        drop(slow);
        assert_eq!(heartbeat.overdue(), None, "it has ended");
    }

    /// Blocks its thread until it is told not to, as no transport should.
    #[derive(Clone)]
    struct Blocking(Arc<AtomicBool>);

    impl Publisher for Blocking {
        async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
            while self.0.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            vec![Ok(()); batch.len()]
        }
    }

    /// A blocked thread may hold up every clock of its runtime, so the test keeps to its own.
    #[track_caller]
    fn eventually(mut holds: impl FnMut() -> bool) {
        let since = std::time::Instant::now();
        while !holds() {
            assert!(since.elapsed() < Duration::from_secs(10), "not within 10 s");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_loop_that_a_blocked_thread_holds_up_is_overdue_until_it_turns_again() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (store, gate, stop) = (MemoryStore::new(), Blocking(Arc::default()), CancellationToken::new());
        let (heartbeat, lease) = (Heartbeat::new(), Duration::from_millis(200));
        gate.0.store(true, Ordering::Relaxed);
        let text = || "x".to_owned();
        let (id, source, kind, destination) = (text(), text(), text(), text());
        let message = Envelope { id, source, kind, destination, ..Envelope::default() };
        runtime.block_on(async {
            let mut tx = store.begin().await.unwrap();
            store.put(&mut tx, &[message], None).await.unwrap();
            store.commit(tx).await.unwrap();
        });
        let relay = Relay::builder(store, gate.clone()).publish_timeout(lease / 2).lease(lease);
        let relay = relay.poll(Duration::from_millis(5)).heartbeat(heartbeat.clone()).build().unwrap();

        let running = runtime.spawn(relay.run(stop.clone()));
        eventually(|| heartbeat.overdue() > Some(lease));
        gate.0.store(false, Ordering::Relaxed);
        eventually(|| heartbeat.overdue().is_none());
        stop.cancel();

        assert_eq!(runtime.block_on(running).unwrap().published, 1);
        assert_eq!(heartbeat.overdue(), None);
    }
}
