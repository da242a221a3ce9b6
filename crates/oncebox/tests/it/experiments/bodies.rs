//! What handler bodies were seen doing, and how copies of a message are
//! delivered until they are done.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::store::{Dedup, Mailbox};
use oncebox::verdict::RetryPolicy;
use oncebox::{Backoff, Envelope, Inbox, Verdict};
use oncebox_conformance::Entry;
use oncebox_conformance::sample::{Posted, SOURCE};

/// The handler of the experiments.
pub(super) const HANDLER: &str = "book";
/// Deliveries of one copy after which something is stuck.
const DELIVERIES: u32 = 20_000;

#[derive(Default)]
struct Seen {
    runs: HashMap<String, usize>,
    live: HashMap<String, usize>,
    overlaps: usize,
    highest_attempt: u32,
}

/// Counts runs, and bodies of one message that run at the same time (I6).
#[derive(Clone, Default)]
pub(super) struct Bodies(Arc<Mutex<Seen>>);

/// Held while a body runs.
pub(super) struct Body {
    bodies: Bodies,
    id: String,
}

impl Bodies {
    pub(super) fn enter(&self, id: &str, attempt: u32) -> Body {
        let mut seen = self.0.lock().unwrap();
        *seen.runs.entry(id.into()).or_default() += 1;
        let live = seen.live.entry(id.into()).or_default();
        *live += 1;
        let overlaps = *live > 1;
        seen.overlaps += usize::from(overlaps);
        seen.highest_attempt = seen.highest_attempt.max(attempt);
        Body { bodies: self.clone(), id: id.into() }
    }

    pub(super) fn runs_of(&self, id: &str) -> usize {
        self.0.lock().unwrap().runs.get(id).copied().unwrap_or(0)
    }

    pub(super) fn total(&self) -> usize {
        self.0.lock().unwrap().runs.values().sum()
    }

    pub(super) fn overlaps(&self) -> usize {
        self.0.lock().unwrap().overlaps
    }

    pub(super) fn highest_attempt(&self) -> u32 {
        self.0.lock().unwrap().highest_attempt
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(live) = self.bodies.0.lock().unwrap().live.get_mut(&self.id) {
            *live -= 1;
        }
    }
}

/// Never gives a message up, and comes back within milliseconds.
pub(super) fn tireless() -> RetryPolicy {
    let backoff = Backoff { base: Duration::from_millis(1), cap: Duration::from_millis(5) };
    RetryPolicy { max_attempts: None, backoff, busy_delay: Duration::from_millis(10) }
}

/// A message as it arrives.
pub(super) fn arriving(id: &str, message: &Posted) -> Envelope {
    Envelope { source: SOURCE.into(), ..Envelope::of(id, message).unwrap() }
}

/// The effect a message must have.
pub(super) fn effect(id: &str, message: &Posted) -> Entry {
    Entry {
        handler: HANDLER.into(),
        id: id.into(),
        key: message.account.clone(),
        sequence: message.sequence,
        amount: message.amount,
    }
}

/// Delivers one copy as a transport would, until it is answered as done;
/// tells the attempt it was done with.
pub(super) async fn deliver_until_done<S: Mailbox + Dedup>(inbox: &Inbox<S>, envelope: &Envelope) -> u32 {
    let mut attempt = 1;
    for _ in 0..DELIVERIES {
        match inbox.deliver(envelope.clone(), attempt).await {
            Verdict::Done | Verdict::Dead { .. } => return attempt,
            Verdict::Retry { after, spent } => {
                attempt += u32::from(spent);
                tokio::time::sleep(after).await;
            }
        }
    }
    panic!("{} was not done after {DELIVERIES} deliveries", envelope.id);
}
