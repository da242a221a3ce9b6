//! Takes deliveries one by one: looks at who wrote each, gives it to the inbox
//! as a line, and buries what is dead under the type it came with.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::signature::Keyring;
use oncebox_core::store::{Burial, Dedup, Mailbox};
use oncebox_core::transport::{Acknowledge, Delivery, Feed};
use oncebox_core::verdict::{RetryPolicy, Verdict};
use oncebox_core::{Envelope, HandlerKey, cloudevents};
use oncebox_flow::Inbox;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::line::{Line, Tally};
use super::tap::Tap;
use crate::output::{Format, plain};

/// The wait after a feed failed.
const FEED_BACKOFF: Duration = Duration::from_secs(1);
/// How long a stop waits for the delivery at hand.
const DRAIN: Duration = Duration::from_secs(30);
/// The code of a message whose signature is missing or wrong, as an inbox has it.
const FORGED: &str = "forged";
/// Nobody else takes turns with this process, so its waits need no jitter.
const NO_CHANCE: f64 = 0.5;

/// Everything a delivery meets between the feed and its answer.
pub(super) struct Taker<S: Mailbox + Dedup> {
    pub(super) store: S,
    pub(super) inbox: Inbox<S>,
    pub(super) channel: String,
    pub(super) handler: HandlerKey,
    pub(super) retry: RetryPolicy,
    /// Whose messages are taken; everybody's if there is none.
    pub(super) keyring: Option<Keyring>,
    pub(super) tally: Arc<Tally>,
    /// Whether the store forgets everything with the process.
    pub(super) is_forgetful: bool,
    pub(super) format: Format,
}

impl<S: Mailbox + Dedup> Taker<S> {
    /// Takes until `stop` is cancelled or the feed ends; true if the delivery at
    /// hand was answered by then.
    pub(super) async fn run<F: Feed>(self, mut feed: Tap<F>, stop: CancellationToken) -> bool {
        while let Some(next) = stop.run_until_cancelled(feed.next()).await {
            match next {
                Ok(None) => break,
                Err(error) => {
                    warn!(error = error.chain(), "consume.feed_failed");
                    stop.run_until_cancelled(tokio::time::sleep(FEED_BACKOFF)).await;
                }
                Ok(Some(delivery)) => {
                    let impatience = async {
                        stop.cancelled().await;
                        tokio::time::sleep(DRAIN).await;
                    };
                    tokio::select! {
                        () = self.take(delivery) => {}
                        () = impatience => return false,
                    }
                }
            }
        }
        true
    }

    async fn take<A: Acknowledge>(&self, delivery: Delivery<A>) {
        let Delivery { envelope, attempt, ack } = delivery;
        let id = envelope.id.clone();
        let answered = match self.judge(envelope, attempt).await {
            Verdict::Done | Verdict::Dead { .. } => ack.ack().await,
            Verdict::Retry { after, spent } => ack.nack(after, spent).await,
        };
        if let Err(error) = answered {
            // It will come again and be recognised as a duplicate.
            warn!(id, error = error.chain(), "consume.answer_lost");
        }
    }

    /// The signature covers the type, so it is looked at before the message is
    /// called a line; and before any marker, lest a forgery takes the place of
    /// the message it pretends to be.
    async fn judge(&self, envelope: Envelope, attempt: u32) -> Verdict {
        if let Some(Err(forgery)) = self.keyring.as_ref().map(|keyring| keyring.verify(&envelope)) {
            return self.bury(FORGED, &format!("forged: {forgery}"), &envelope, attempt).await;
        }
        let received = self.inbox.receive(Line::disguise(envelope.clone()), attempt).await;
        let Some(outcome) = received.single() else { return self.later() };
        match self.retry.judge(outcome, attempt, NO_CHANCE) {
            Verdict::Dead { code, reason } => self.bury(code, &reason, &envelope, attempt).await,
            verdict => verdict,
        }
    }

    const fn later(&self) -> Verdict {
        Verdict::Retry { after: self.retry.busy_delay, spent: false }
    }

    /// A message is dead for the broker only once it is safely stored.
    async fn bury(&self, code: &'static str, reason: &str, envelope: &Envelope, attempts: u32) -> Verdict {
        let (channel, handler) = (self.channel.as_str(), self.handler.as_str());
        let burial = Burial { channel, handler, code, reason, attempts, envelope };
        if let Err(error) = self.store.bury(&burial, None).await {
            warn!(error = error.chain(), "consume.burial_failed");
            return self.later();
        }
        self.tally.bury();
        self.report(code, reason, envelope);
        Verdict::Done
    }

    /// Says what was buried. If nobody can look it up later, it is told whole.
    fn report(&self, code: &str, reason: &str, envelope: &Envelope) {
        let (id, kind) = (&envelope.id, &envelope.kind);
        match self.format {
            _ if self.is_forgetful => {
                let event = cloudevents::to_json(envelope);
                eprintln!("{}", json!({ "v": 1, "buried": code, "reason": reason, "event": event }));
            }
            Format::Text => eprintln!("buried {} of type {}: {}", plain(id), plain(kind), plain(reason)),
            Format::Json => {
                eprintln!("{}", json!({ "v": 1, "buried": code, "reason": reason, "id": id, "type": kind }));
            }
        }
    }
}
