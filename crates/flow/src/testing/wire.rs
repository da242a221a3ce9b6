//! What the relay of a stage publishes to: the transport, for channels of the
//! stage, and the world outside for everything else.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use oncebox_core::{Envelope, Failure, Publisher};

use super::locked;
use crate::memory::MemoryTransport;

/// Takes everything; keeps what somebody here wants.
#[derive(Clone)]
pub(super) struct Wire {
    transport: MemoryTransport,
    channels: Arc<Mutex<BTreeSet<String>>>,
}

impl Wire {
    pub(super) fn new(transport: MemoryTransport) -> Self {
        Self { transport, channels: Arc::default() }
    }

    /// Somebody here wants what goes there.
    pub(super) fn attach(&self, destination: &str) {
        locked(&self.channels).insert(destination.to_owned());
    }
}

impl Publisher for Wire {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let channels = locked(&self.channels).clone();
        let is_ours = |envelope: &&Envelope| channels.contains(&envelope.destination);
        let ours: Vec<Envelope> = batch.iter().filter(is_ours).cloned().collect();
        let mut answers = self.transport.publish(&ours).await.into_iter();
        let answered = batch.iter().map(|envelope| match is_ours(&envelope) {
            true => answers.next().unwrap_or_else(|| Err(Failure::unknown("no answer"))),
            false => Ok(()),
        });
        answered.collect()
    }
}
