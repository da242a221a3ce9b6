//! The handler behind `oncebox consume`: takes messages of every type and
//! writes each to one place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oncebox_core::transport::{Class, Publisher};
use oncebox_core::{Envelope, HandlerError, HandlerKey, Message, Result};
use oncebox_flow::{Context, Handler, HandlerOptions};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::relay::Outlet;

/// Carries a message's own type while it is called a line.
const TYPE_HEADER: &str = "oncebox-consumed-type";

/// Any message. An inbox gives messages to handlers by type, so every delivery
/// is called a line on its way in, and by its own name again before it leaves.
#[derive(Serialize, Deserialize)]
pub(super) struct Line;

impl Message for Line {
    const NAME: &'static str = "oncebox.line";

    fn decode(_payload: &[u8]) -> Result<Self> {
        Ok(Self)
    }
}

impl Line {
    pub(super) fn disguise(mut envelope: Envelope) -> Envelope {
        let kind = std::mem::replace(&mut envelope.kind, Self::NAME.to_owned());
        envelope.headers.insert(TYPE_HEADER.to_owned(), kind);
        envelope
    }

    pub(super) fn reveal(envelope: &Envelope) -> Envelope {
        let mut envelope = envelope.clone();
        envelope.kind = envelope.headers.remove(TYPE_HEADER).unwrap_or_default();
        envelope
    }
}

/// What came and what was made of it.
pub(super) struct Tally {
    delivered: AtomicU64,
    taken: AtomicU64,
    buried: AtomicU64,
    limit: Option<u64>,
    stop: CancellationToken,
}

impl Tally {
    pub(super) fn new(limit: Option<u64>, stop: CancellationToken) -> Self {
        let (delivered, taken, buried) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { delivered, taken, buried, limit, stop }
    }

    pub(super) fn deliver(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
        if self.limit.is_some_and(|limit| taken >= limit) {
            // The delivery at hand is still finished and answered.
            self.stop.cancel();
        }
    }

    pub(super) fn bury(&self) {
        self.buried.fetch_add(1, Ordering::Relaxed);
    }

    /// Delivered, taken, buried.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.delivered), count(&self.taken), count(&self.buried))
    }
}

/// Writes each message to the outlet.
pub(super) struct LineHandler {
    pub(super) key: HandlerKey,
    pub(super) options: HandlerOptions,
    pub(super) outlet: Outlet,
    pub(super) tally: Arc<Tally>,
}

impl<Tx: Send + 'static> Handler<Tx> for LineHandler {
    type Message = Line;

    fn key(&self) -> HandlerKey {
        self.key
    }

    fn options(&self) -> HandlerOptions {
        self.options.clone()
    }

    async fn handle(&self, cx: &mut Context<'_, Tx>, _line: Line) -> Result<(), HandlerError> {
        let envelope = self.outlet.address(Line::reveal(cx.envelope()));
        match self.outlet.publish(&[envelope]).await.into_iter().next() {
            Some(Ok(())) => {
                self.tally.take();
                Ok(())
            }
            Some(Err(failure)) if failure.permanent && failure.class == Class::Message => {
                Err(HandlerError::permanent(failure.reason))
            }
            Some(Err(failure)) => match failure.retry_after {
                Some(wait) => Err(HandlerError::retry_after(wait, failure.reason)),
                None => Err(HandlerError::retry(failure.reason)),
            },
            None => Err(HandlerError::retry("no answer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disguised_message_is_the_same_afterwards() {
        let envelope = Envelope { id: "1".into(), kind: "order.placed.v1".into(), ..Envelope::default() };

        let disguised = Line::disguise(envelope.clone());

        assert_eq!(disguised.kind, Line::NAME);
        assert_eq!(Line::reveal(&disguised), envelope);
    }
}
