//! How the server is told what became of a delivery.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::types::ShortString;
use lapin::{Acker, BasicProperties, Channel};
use oncebox_core::{Error, Kind, Result};
use tokio::time::Instant;

use super::super::Shared;
use super::super::error::{Trouble, within};
use super::super::publisher::wave;
use super::super::topology;
use super::super::wire::{Frame, retried};
use crate::lanes::Answer;

/// How long messages wait in the retry queues, in seconds. A delay is rounded
/// up to one of them; a longer one than the last is cut.
const TIERS: [u32; 11] = [5, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600, 86_400];

/// What is needed to send a message to a retry queue.
pub(super) struct Copy {
    pub(super) properties: BasicProperties,
    pub(super) body: Vec<u8>,
}

/// The answer to one delivery.
pub struct Reply {
    pub(super) shared: Arc<Shared>,
    pub(super) acker: Acker,
    /// Keeps the channel open while something on it is unanswered.
    pub(super) channel: Channel,
    pub(super) queue: ShortString,
    /// `None` where order forbids to send it behind others.
    pub(super) copy: Option<Copy>,
}

impl Reply {
    /// An answer that had been given before counts as given: the client says so
    /// itself, unless the channel is gone.
    fn given(&self, said: Result<bool, Trouble>) -> Result<()> {
        let lost =
            |text: String| Error::new(Kind::Unavailable, format!("answering queue {}: {text}", self.queue));
        match said {
            Ok(true) => Ok(()),
            Ok(false) if !self.acker.poisoned() && self.channel.status().connected() => Ok(()),
            Ok(false) => Err(lost("the channel is gone".into())),
            Err(trouble) => Err(lost(trouble.text)),
        }
    }

    async fn requeue(&self) -> Result<()> {
        let options = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
        let said = within(self.shared.options.call_timeout, "basic.nack", self.acker.nack(options)).await;
        self.given(said)
    }

    /// Sends a copy to a retry queue and, when that is confirmed, lets go of the
    /// original. In between both are there: a duplicate, never a loss.
    async fn defer(&self, copy: &Copy, after: Duration, attempts: u32) -> Result<(), Trouble> {
        let options = &self.shared.options;
        let live = self.shared.publishing().await?;
        if let Some(reason) = live.blocked() {
            return Err(Trouble::unavailable(reason));
        }
        let retry = topology::retry_queue(&live, &self.queue, tier(after), options).await?;
        let channel = live.confirming().await?;
        let frame = Frame {
            exchange: ShortString::default(),
            key: retry.clone(),
            properties: retried(&copy.properties, attempts),
            body: copy.body.clone(),
        };
        let landed = wave::send(&live, &channel, vec![frame], Instant::now() + options.confirm_timeout).await;
        if landed.is_clear {
            live.rest(channel);
        }
        match landed.results.into_iter().next() {
            Some(Ok(())) => Ok(()),
            Some(Err(failure)) => {
                live.forget_queue(retry.as_str());
                Err(Trouble::unavailable(failure.reason))
            }
            None => Err(Trouble::unavailable("nothing was sent")),
        }
    }
}

impl Answer for Reply {
    async fn ack(&self) -> Result<()> {
        let ack = self.acker.ack(BasicAckOptions::default());
        let said = within(self.shared.options.call_timeout, "basic.ack", ack).await;
        self.given(said)
    }

    async fn give_back(&self, after: Duration, spent: bool, attempt: u32) -> Result<()> {
        match &self.copy {
            Some(copy) if !after.is_zero() => {
                let attempts = attempt.saturating_sub(u32::from(!spent));
                let deferred = self.defer(copy, after, attempts).await;
                deferred.map_err(|trouble| {
                    trouble.error(format!("putting off a message of queue {}", self.queue))
                })?;
                self.ack().await
            }
            _ => self.requeue().await,
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("queue", &self.queue.as_str()).finish_non_exhaustive()
    }
}

fn tier(after: Duration) -> u32 {
    let longest = TIERS.last().copied().unwrap_or_default();
    TIERS.into_iter().find(|seconds| Duration::from_secs(u64::from(*seconds)) >= after).unwrap_or(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up_to_a_tier() {
        let of = |seconds: f64| tier(Duration::from_secs_f64(seconds));

        assert_eq!([of(0.1), of(5.0), of(5.1), of(61.0), of(1e6)], [5, 5, 15, 120, 86_400]);
    }
}
