//! Sends batches and tells what the server has stored.
//!
//! Order: within one call a message of a key is written when the one before it
//! is confirmed, so nothing overtakes a refused message. Across calls the relay
//! keeps order, and a connection carries what is written in order; whatever is
//! written again after an unknown outcome is at worst a duplicate of something
//! already in the queue.

pub(super) mod queue;
pub(super) mod wave;

use std::sync::Arc;

use lapin::Channel;
use oncebox_core::{Envelope, Failure, Kind, Publisher};
use tokio::time::Instant;

use self::queue::{Bounds, Place, Queue};
use super::connection::Live;
use super::error::Trouble;
use super::wire::{self, Frame};
use super::{RabbitMq, topology};

/// A channel for one call.
struct Line {
    live: Arc<Live>,
    channel: Channel,
}

impl Publisher for RabbitMq {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let options = &self.shared.options;
        let bounds =
            Bounds { window: options.window, bytes: options.window_bytes, key_window: options.key_window };
        let mut queue = Queue::new(batch, bounds);
        let rest = self.send_all(batch, &mut queue).await;
        queue.finish(&rest)
    }
}

impl RabbitMq {
    /// Sends wave after wave; the failure of whatever could not be sent.
    async fn send_all(&self, batch: &[Envelope], queue: &mut Queue<'_>) -> Failure {
        let limit = self.shared.options.confirm_timeout;
        let started = Instant::now();
        let mut line = None;
        loop {
            let wave = queue.take();
            if wave.is_empty() {
                break;
            }
            // A wave that begins later would be blamed for what the others took.
            if started.elapsed() > limit / 2 {
                return Failure::pending("not sent yet: the server takes its time to confirm");
            }
            let Line { live, channel } = match self.line(line.take()).await {
                Ok(line) => line,
                Err(trouble) => return Failure::destination(trouble.text),
            };
            let (places, frames) = match self.frames(&live, batch, wave, queue).await {
                Ok(written) => written,
                Err(trouble) => return Failure::destination(trouble.text),
            };
            let landed = wave::send(&live, &channel, frames, started + limit).await;
            let results = places.into_iter().zip(landed.results);
            results.for_each(|(place, result)| queue.answer(place, named(batch, place, result)));
            if landed.is_clear {
                line = Some(Line { live, channel });
            }
        }
        if let Some(Line { live, channel }) = line {
            live.rest(channel);
        }
        Failure::unknown("it was not sent")
    }

    /// The line at hand if it still holds, or another. A channel with something
    /// under way is dropped, and closed by that.
    async fn line(&self, at_hand: Option<Line>) -> Result<Line, Trouble> {
        if let Some(line) = at_hand.filter(|line| line.live.is_usable() && line.channel.status().connected())
        {
            return line.live.blocked().map_or(Ok(line), |reason| Err(Trouble::unavailable(reason)));
        }
        let live = self.shared.publishing().await?;
        // A blocked connection would swallow the call.
        if let Some(reason) = live.blocked() {
            return Err(Trouble::unavailable(reason));
        }
        let channel = live.confirming().await?;
        Ok(Line { live, channel })
    }

    /// Writes the messages of a wave. What cannot be sent is answered here.
    async fn frames(
        &self,
        live: &Live,
        batch: &[Envelope],
        wave: Vec<Place>,
        queue: &mut Queue<'_>,
    ) -> Result<(Vec<Place>, Vec<Frame>), Trouble> {
        let (mut places, mut frames) = (Vec::with_capacity(wave.len()), Vec::with_capacity(wave.len()));
        let frame_bytes = live.frame_bytes();
        for place in wave {
            let Some(envelope) = batch.get(place) else { continue };
            let written = match wire::encode(envelope, &self.shared.options, frame_bytes) {
                Ok(frame) => self.reach(live, frame.exchange.as_str()).await?.map(|()| frame),
                Err(reason) => Err(Failure::message(reason).permanently()),
            };
            match written {
                Ok(frame) => {
                    places.push(place);
                    frames.push(frame);
                }
                Err(failure) => queue.answer(place, named(batch, place, Err(failure))),
            }
        }
        Ok((places, frames))
    }

    /// Whether an exchange can be published to: the server closes the channel,
    /// and with it what is under way to others, if it is not there.
    async fn reach(&self, live: &Live, exchange: &str) -> Result<Result<(), Failure>, Trouble> {
        if let Some(reason) = live.refusal(exchange) {
            return Ok(Err(Failure::destination(reason)));
        }
        match topology::exchange(live, exchange, &self.shared.options).await {
            Ok(()) => Ok(Ok(())),
            Err(trouble) if trouble.kind == Kind::Config => {
                live.note_refusal(exchange, &trouble.text);
                Ok(Err(Failure::destination(trouble.text)))
            }
            Err(trouble) => Err(trouble),
        }
    }
}

/// A failure names the destination it speaks of.
fn named(batch: &[Envelope], place: Place, result: Result<(), Failure>) -> Result<(), Failure> {
    let destination = batch.get(place).map_or("", |envelope| envelope.destination.as_str());
    result.map_err(|failure| Failure { reason: format!("{destination}: {}", failure.reason), ..failure })
}
