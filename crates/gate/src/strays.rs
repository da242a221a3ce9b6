//! Admissions whose answer got lost: the store may have let the request in, and
//! nobody runs it. Without a word its key would be taken until its lease is
//! over, so it is given back as soon as the store can be reached.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oncebox_core::gate::{Pass, Receipts};
use tokio::task::JoinHandle;

use crate::gate::Inner;

/// The most that wait; the keys of others are free when their leases are over.
const MOST: usize = 1_024;
/// The wait before the first attempt. Each is twice as long as the one before: the
/// store may let a request in after it was told to forget it.
const FIRST: Duration = Duration::from_millis(250);
/// The time a store has for one of them.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Strays(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    strays: Vec<Stray>,
    task: Option<JoinHandle<()>>,
}

struct Stray {
    pass: Pass,
    due: Instant,
    pause: Duration,
    /// By then it is over anyway.
    until: Instant,
}

impl Strays {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is due, or how long none is; `None` if there is none and the task may end.
    fn next(&self) -> Option<Result<Stray, Duration>> {
        let mut waiting = self.waiting();
        let next = waiting.strays.iter().enumerate().min_by_key(|(_, stray)| stray.due);
        let Some((place, stray)) = next else {
            // Under the lock: whoever comes now starts another.
            waiting.task = None;
            return None;
        };
        let wait = stray.due.saturating_duration_since(Instant::now());
        Some(if wait.is_zero() { Ok(waiting.strays.swap_remove(place)) } else { Err(wait) })
    }

    fn again(&self, stray: Stray, pause: Duration) {
        let due = Instant::now() + pause;
        if due < stray.until {
            self.waiting().strays.push(Stray { due, pause, ..stray });
        }
    }
}

impl<S: Receipts> Inner<S> {
    /// Nobody runs what was admitted by this pass, if it was.
    pub(crate) fn disown(self: &Arc<Self>, pass: Pass, lease: Duration) {
        let now = Instant::now();
        let mut waiting = self.strays.waiting();
        if waiting.strays.len() >= MOST {
            return;
        }
        waiting.strays.push(Stray { pass, due: now + FIRST, pause: FIRST, until: now + lease });
        // It may have ended with the runtime that it was started on.
        if waiting.task.as_ref().is_none_or(JoinHandle::is_finished) {
            waiting.task = Some(tokio::spawn(bring_back(Arc::clone(self))));
        }
    }
}

async fn bring_back<S: Receipts>(gate: Arc<Inner<S>>) {
    while let Some(next) = gate.strays.next() {
        let stray = match next {
            Ok(stray) => stray,
            Err(wait) => {
                // One that comes meanwhile does not wait for those that have waited longer.
                tokio::time::sleep(wait.min(FIRST)).await;
                continue;
            }
        };
        let done = tokio::time::timeout(PATIENCE, gate.store.withdraw(&stray.pass)).await;
        let pause = if matches!(done, Ok(Ok(()))) { stray.pause * 2 } else { stray.pause };
        gate.strays.again(stray, pause);
    }
}
