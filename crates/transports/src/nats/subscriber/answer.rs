//! How the server is told what became of a delivery.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use oncebox_core::{Error, Kind, Result};
use tokio::time::timeout;

use super::super::Nats;
use super::super::connection::API_TIMEOUT;
use super::super::error::unavailable;
use super::super::topology::Durable;
use crate::lanes::Answer;

/// Where the answers of a consumer's deliveries go.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) nats: Nats,
    pub(super) durable: Durable,
}

/// The answer to one delivery. It goes by whatever connection there is when it
/// is given: an answer is a message like any other.
#[derive(Debug)]
pub struct NatsAnswer {
    desk: Arc<Desk>,
    /// Where the server takes the answer; `None` for a message that it has given up on.
    reply: Option<String>,
    sequence: u64,
    delivered: u64,
}

impl NatsAnswer {
    pub(super) fn new(desk: Arc<Desk>, reply: String, sequence: u64, delivered: u64) -> Self {
        Self { desk, reply: Some(reply), sequence, delivered }
    }

    /// For a message the server will never deliver again, whatever it is told.
    pub(super) fn rescued(desk: Arc<Desk>, sequence: u64, delivered: u64) -> Self {
        Self { desk, reply: None, sequence, delivered }
    }

    /// Whether the server has reached its own limit with this delivery.
    fn is_last(&self) -> bool {
        let limit = self.desk.durable.max_deliver;
        self.reply.is_none() || (limit > 0 && self.delivered >= limit)
    }

    async fn send(&self, kind: AckKind) -> Result<()> {
        let Some(reply) = &self.reply else { return Ok(()) };
        let live = self.desk.nats.inner.consuming.live().await?;
        let sent = timeout(API_TIMEOUT, live.client.publish(reply.clone(), kind.into())).await;
        sent.map_err(|elapsed| unavailable("the answer was not sent", elapsed))?
            .map_err(|error| unavailable("the answer was not sent", error))
    }

    async fn send_and_wait(&self, kind: AckKind) -> Result<()> {
        let Some(reply) = &self.reply else { return Ok(()) };
        let consuming = &self.desk.nats.inner.consuming;
        let live = consuming.live().await?;
        let answered = timeout(API_TIMEOUT, live.client.request(reply.clone(), kind.into())).await;
        match answered {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unavailable("the acknowledgement was not confirmed", error)),
            Err(elapsed) => {
                consuming.suspect(&live).await;
                Err(unavailable("the acknowledgement was not confirmed", elapsed))
            }
        }
    }
}

impl Answer for NatsAnswer {
    async fn ack(&self) -> Result<()> {
        let Desk { nats, durable } = self.desk.as_ref();
        if nats.inner.options.confirm_acks {
            self.send_and_wait(AckKind::Ack).await?;
        } else {
            self.send(AckKind::Ack).await?;
        }
        nats.inner.attempts.forget(durable, self.sequence);
        Ok(())
    }

    async fn give_back(&self, after: Duration, spent: bool, attempt: u32) -> Result<()> {
        if self.is_last() {
            // Given back, it would never come again; here, it is tried until the inbox gives up.
            return Err(Error::new(Kind::Unavailable, "the server would not deliver it again"));
        }
        let next = attempt.saturating_add(u32::from(spent));
        let Desk { nats, durable } = self.desk.as_ref();
        nats.inner.attempts.note(durable, self.sequence, self.delivered, next);
        self.send(AckKind::Nak((!after.is_zero()).then_some(after))).await
    }

    async fn keep_alive(&self) {
        // What is not heard is delivered again; nothing is left to do about it here.
        drop(self.send(AckKind::Progress).await);
    }

    fn identity(&self) -> Option<u64> {
        Some(self.sequence)
    }
}

/// What the server tells about a delivery in the subject of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) delivered: u64,
    pub(super) sequence: u64,
}

impl Stamp {
    /// Reads `$JS.ACK.[domain.account.]stream.consumer.delivered.sequence.…`.
    pub(super) fn of(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let first = match tokens.len() {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let number = |index: usize| tokens.get(index)?.parse().ok();
        Some(Self { delivered: number(first)?, sequence: number(first + 1)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_answer_s_subject_are_read() {
        let short = "$JS.ACK.ORDERS.billing.3.42.7.1700000000000000000.5";
        let long = "$JS.ACK.hub.ACC.ORDERS.billing.3.42.7.1700000000000000000.5.token";

        for reply in [short, long] {
            assert_eq!(Stamp::of(reply), Some(Stamp { delivered: 3, sequence: 42 }));
        }
        for reply in ["", "_INBOX.a.b", "$JS.ACK.S.c.1.2", "$JS.ACK.S.c.x.42.7.1.5"] {
            assert_eq!(Stamp::of(reply), None, "{reply}");
        }
    }
}
