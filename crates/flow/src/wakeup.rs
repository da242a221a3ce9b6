//! A hint that there may be work.
//!
//! Never a promise: a hint may come before the commit it announces, may come
//! for nothing, or may be lost. The relay polls in any case; a hint only makes
//! it poll sooner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Gives and takes hints within one process. Clones share the signal.
#[derive(Clone, Debug, Default)]
pub struct Wakeup {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    given: AtomicU64,
    notify: Notify,
}

impl Wakeup {
    /// A signal nobody listens to yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that there may be work.
    pub fn hint(&self) {
        self.inner.given.fetch_add(1, Ordering::Release);
        self.inner.notify.notify_waiters();
    }

    /// A listener that has seen every hint so far.
    #[must_use]
    pub fn listen(&self) -> Listener {
        Listener { seen: self.inner.given.load(Ordering::Acquire), wakeup: self.clone() }
    }
}

/// Waits for hints.
#[derive(Debug)]
pub struct Listener {
    wakeup: Wakeup,
    seen: u64,
}

impl Listener {
    /// Waits until a hint has been given since the last call. Cancel safe.
    pub async fn hinted(&mut self) {
        let inner = Arc::clone(&self.wakeup.inner);
        loop {
            let notified = inner.notify.notified();
            tokio::pin!(notified);
            // Registered before the count is read, so that no hint falls between the two.
            notified.as_mut().enable();
            let given = inner.given.load(Ordering::Acquire);
            if given != self.seen {
                self.seen = given;
                return;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hint_given_before_the_wait_is_not_lost() {
        let wakeup = Wakeup::new();
        let (mut one, mut two) = (wakeup.listen(), wakeup.listen());

        wakeup.hint();

        one.hinted().await;
        two.hinted().await;
    }
}
