//! Why the destination is unusable, for whoever asks the database.

use std::time::Duration;

use tokio::time::Instant;

use super::Progress;

/// A destination that comes and goes is not reported more often than this.
const NEWS_INTERVAL: Duration = Duration::from_secs(1);

/// What this relay last saw of its destination, and what of it the database
/// was told. It is told with the claims, which are written anyway.
#[derive(Debug, Default)]
pub(super) struct Outage {
    reason: Option<String>,
    told: Option<String>,
    told_at: Option<Instant>,
}

impl Outage {
    pub(super) fn reason(&self) -> Option<String> {
        self.reason.clone()
    }

    /// Takes over what a pass met. One that only waited for confirms has
    /// learnt nothing.
    pub(super) fn learn(&mut self, progress: &Progress) {
        let is_undecided = progress.pending && progress.published == 0;
        if progress.outage.is_some() || !is_undecided {
            self.reason.clone_from(&progress.outage);
        }
    }

    /// Whether the database should be told before the lease needs renewal.
    pub(super) fn is_news(&self) -> bool {
        self.reason != self.told && self.told_at.is_none_or(|at| at.elapsed() >= NEWS_INTERVAL)
    }

    pub(super) fn told(&mut self, reason: Option<String>) {
        if reason != self.told {
            self.told = reason;
            self.told_at = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use oncebox_core::inspect::Inspect as _;
    use oncebox_core::transport::Publisher;
    use oncebox_core::{Envelope, Failure, Mailbox as _, Store as _};

    use super::*;
    use crate::memory::MemoryStore;
    use crate::relay::Relay;

    /// Takes everything while it is up.
    #[derive(Clone, Default)]
    struct Broker(Arc<AtomicBool>);

    impl Publisher for Broker {
        async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
            let is_up = self.0.load(Ordering::Relaxed);
            vec![if is_up { Ok(()) } else { Err(Failure::destination("down")) }; batch.len()]
        }
    }

    async fn put(store: &MemoryStore, id: &str) {
        let text = || "x".to_owned();
        let (id, source) = (id.to_owned(), text());
        let message = Envelope { id, source, kind: text(), destination: text(), ..Envelope::default() };
        let mut tx = store.begin().await.unwrap();
        store.put(&mut tx, &[message], None).await.unwrap();
        store.commit(tx).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_pass_after_a_change_tells_it_but_not_more_than_once_a_second() {
        let (store, broker) = (MemoryStore::new(), Broker::default());
        let mut relay = Relay::builder(store.clone(), broker.clone()).build().unwrap();
        let shown = async || store.status().await.unwrap().sinks[0].outage.clone();
        put(&store, "1").await;

        relay.step().await.unwrap();
        assert_eq!(shown().await, None, "the claim came before the publish");
        relay.step().await.unwrap();
        assert_eq!(shown().await.as_deref(), Some("down"));

        broker.0.store(true, Ordering::Relaxed);
        assert_eq!(relay.step().await.unwrap().published, 1);
        relay.step().await.unwrap();
        assert_eq!(shown().await.as_deref(), Some("down"), "told a moment ago");
        tokio::time::advance(NEWS_INTERVAL).await;
        relay.step().await.unwrap();
        assert_eq!(shown().await, None);
    }

    #[test]
    fn a_pass_that_waits_for_confirms_changes_nothing() {
        let mut outage = Outage::default();
        outage.learn(&Progress { outage: Some("down".into()), ..Progress::default() });

        outage.learn(&Progress { pending: true, ..Progress::default() });
        assert_eq!(outage.reason().as_deref(), Some("down"));
        outage.learn(&Progress { pending: true, published: 1, ..Progress::default() });
        assert_eq!(outage.reason(), None);
    }
}
