//! Deletes receipts whose time is over, so that a table does not grow for ever
//! and a caller with as many keys as it may have gets new ones. Never on the
//! way of a request.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use oncebox_core::Result;
use oncebox_core::gate::Receipts;
use tokio::task::JoinHandle;

use crate::gate::Inner;

/// How many are deleted by one statement.
const BATCH: usize = 1_000;
/// How often that is done at once; the rest waits for the next time.
const BATCHES: usize = 1_000;

/// Sweeps now and then, once there was a request.
pub(crate) struct Broom {
    every: Duration,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Broom {
    /// One that sweeps that often; never if that is no time at all.
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, task: Mutex::default() }
    }
}

impl<S: Receipts> Inner<S> {
    /// Sees to it that what is over is deleted, as long as there is this gate.
    pub(crate) fn look_after(self: &Arc<Self>) {
        if self.broom.every.is_zero() {
            return;
        }
        let mut task = self.broom.task.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended with the runtime that it was started on.
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(sweep_on(Arc::downgrade(self), self.broom.every)));
        }
    }

    pub(crate) async fn sweep(&self) -> Result<usize> {
        let mut gone = 0;
        for _ in 0..BATCHES {
            let batch = self.store.forget(BATCH, None).await?;
            gone += batch;
            if batch < BATCH {
                break;
            }
            // Others have something to do, too.
            tokio::task::yield_now().await;
        }
        Ok(gone)
    }
}

async fn sweep_on<S: Receipts>(gate: Weak<Inner<S>>, every: Duration) {
    loop {
        // First: a process that has just started has enough to do.
        tokio::time::sleep(every).await;
        let Some(gate) = gate.upgrade() else { return };
        if let Err(error) = gate.sweep().await {
            tracing::warn!(error = %error.chain(), "old receipts could not be deleted");
        }
    }
}
