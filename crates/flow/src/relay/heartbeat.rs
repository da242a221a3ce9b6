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
    use oncebox_core::{Envelope, Failure, Publisher, Result, Store};
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
    struct Blocking(Arc<Mutex<()>>);

    impl Publisher for Blocking {
        async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
            drop(self.0.lock());
            vec![Ok(()); batch.len()]
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_loop_that_a_blocked_thread_holds_up_is_overdue_and_an_idle_one_is_not() {
        let (store, gate, stop) = (MemoryStore::new(), Blocking(Arc::default()), CancellationToken::new());
        let (heartbeat, step) = (Heartbeat::new(), Duration::from_millis(5));
        let held = gate.0.lock().unwrap();
        let relay = Relay::builder(store.clone(), gate.clone())
            .publish_timeout(Duration::from_millis(100))
            .lease(Duration::from_millis(200))
            .poll(step)
            .heartbeat(heartbeat.clone())
            .build()
            .unwrap();
        let running = tokio::spawn(relay.run(stop.clone()));
        let until = async |wanted: fn(Option<Duration>) -> bool| {
            while !wanted(heartbeat.overdue()) {
                tokio::time::sleep(step).await;
            }
        };

        let text = || "x".to_owned();
        let (id, source, kind, destination) = (text(), text(), text(), text());
        let message = Envelope { id, source, kind, destination, ..Envelope::default() };
        let mut tx = store.begin().await.unwrap();
        store.put(&mut tx, &[message], None).await.unwrap();
        store.commit(tx).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), until(|late| late > Some(Duration::from_millis(200))))
            .await
            .expect("the loop is overdue while its thread is blocked");
        drop(held);

        tokio::time::timeout(Duration::from_secs(10), until(|late| late.is_none()))
            .await
            .expect("the loop turns again");
        stop.cancel();
        assert_eq!(running.await.unwrap().published, 1);
        assert_eq!(heartbeat.overdue(), None);
    }
}
