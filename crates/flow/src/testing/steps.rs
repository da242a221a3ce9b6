//! One thing happens at a time, from the log towards the handlers.

use std::fmt::Write as _;
use std::time::Duration;

use futures_util::FutureExt;
use oncebox_core::inspect::{HandlerStatus, Inspect, SinkStatus, Status};
use oncebox_core::log::SHARDS;
use oncebox_core::{Acknowledge, Delivery, Depot, Feed, Letters, Mailbox, Timestamp, Verdict};

use super::{Stage, locked};
use crate::crash::CrashPoint;
use crate::inbox::Worked;
use crate::memory::MemoryAck;
use crate::relay::Relay;

/// Steps after which a stage is taken to be going round in circles.
const MOST_STEPS: usize = 20_000;
/// How long nothing may happen while something is pending.
const PATIENCE: Duration = Duration::from_secs(48 * 3600);
/// The time that passes when everything waits for it; doubled up to the longest.
const SHORTEST_HOP: Duration = Duration::from_secs(1);
const LONGEST_HOP: Duration = Duration::from_secs(3600);

/// What happened in one step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The relay sent messages.
    Relayed {
        /// How many.
        messages: usize,
    },
    /// A message was delivered to the inbox of a channel.
    Delivered {
        /// The channel.
        channel: String,
        /// The message's id.
        id: String,
        /// What the transport was answered.
        verdict: Verdict,
    },
    /// A durable handler was run.
    Worked(Worked),
    /// The process died there, and was started anew.
    Crashed(CrashPoint),
}

/// A delivery that the transport makes later.
pub(super) struct Held {
    id: String,
    due: Timestamp,
    ack: MemoryAck,
    spent: bool,
}

impl<S: Mailbox + Depot + Letters + Inspect> Stage<S> {
    /// Lets one thing happen: a pass of the relay, else one delivery, else one
    /// run of a durable handler. `None` if nothing can happen at this time.
    ///
    /// # Panics
    /// If the store fails.
    pub async fn step(&mut self) -> Option<Step> {
        if let Some(relayed) = self.relay().await {
            return Some(relayed);
        }
        if let Some(delivered) = self.take_delivery().await {
            return Some(delivered);
        }
        self.work().await
    }

    /// Lets everything happen until nothing is left, and time pass while what
    /// is left waits for it: for a retry, a delayed delivery or the lease of a
    /// process that died. Messages that were put for a later time are left alone.
    ///
    /// Rates and circuit breakers go by the time of the machine, not by this
    /// clock; a handler that has one may not become idle.
    ///
    /// # Panics
    /// With what is still pending if it does not end, or if the store fails.
    pub async fn run_until_idle(&mut self) {
        let (mut hop, mut waited) = (SHORTEST_HOP, Duration::ZERO);
        for _ in 0..MOST_STEPS {
            if self.step().await.is_some() {
                (hop, waited) = (SHORTEST_HOP, Duration::ZERO);
                continue;
            }
            if self.pending().await.is_empty() {
                return;
            }
            if waited >= PATIENCE {
                break;
            }
            self.advance(hop);
            waited += hop;
            hop = (hop * 2).min(LONGEST_HOP);
        }
        panic!("the stage does not become idle; still pending:{}", self.pending().await);
    }

    /// What is to happen yet, a line each.
    async fn pending(&self) -> String {
        let mut text = String::new();
        let status = self.status().await;
        if is_unread(&status) {
            text.push_str("\n  relay: messages that no relay has looked at");
        }
        for sink in status.sinks.iter().filter(|sink| is_open(sink)) {
            let SinkStatus { pending, waiting, behind, .. } = sink;
            _ = write!(text, "\n  relay: {pending} to send, {waiting} to send again, {behind} behind them");
        }
        for held in &self.held {
            _ = write!(text, "\n  transport: message {} comes again at {}", held.id, held.due);
        }
        for handler in status.handlers.iter().filter(|handler| is_busy(handler)) {
            let HandlerStatus { handler, ready, leased, behind, .. } = handler;
            _ = write!(text, "\n  handler {handler}: {ready} ready, {leased} leased, {behind} behind them");
        }
        text
    }

    async fn status(&self) -> Status {
        self.store.status().await.unwrap_or_else(|error| panic!("status: {}", error.chain()))
    }

    /// One pass of the relay, if there is something for it.
    async fn relay(&mut self) -> Option<Step> {
        let status = self.status().await;
        if !is_unread(&status) && status.scheduled == 0 && !status.sinks.iter().any(is_open) {
            return None;
        }
        let mut relay = self.relay.take().unwrap_or_else(|| self.new_relay());
        let stepped = relay.step().await;
        if let Some(point) = self.died() {
            return Some(Step::Crashed(point));
        }
        let progress = stepped.unwrap_or_else(|error| panic!("relay: {}", error.chain()));
        if progress.shards < usize::from(SHARDS.unsigned_abs()) {
            // Somebody who died holds the others. When to ask again, a relay
            // decides by the machine's clock; giving up makes it ask at once.
            relay.release().await.unwrap_or_else(|error| panic!("relay: {}", error.chain()));
        }
        self.relay = Some(relay);
        let messages = progress.published + progress.parked;
        (messages + progress.promoted > 0).then_some(Step::Relayed { messages })
    }

    fn new_relay(&self) -> Relay<S, super::Wire> {
        let relay = Relay::builder(self.store.clone(), self.wire.clone()).clock(self.clock.clone());
        let relay = relay.probe(super::Crashes::probe(&self.crashes));
        relay.build().unwrap_or_else(|error| panic!("relay: {}", error.chain()))
    }

    /// The next delivery of any channel.
    async fn take_delivery(&mut self) -> Option<Step> {
        self.release_held().await;
        for index in 0..self.channels.len() {
            while let Some(delivery) = self.next_of(index) {
                match self.delays.pop_front() {
                    None => return Some(self.hand_over(index, delivery).await),
                    Some(span) => self.hold(delivery.envelope.id, span, delivery.ack, false),
                }
            }
        }
        None
    }

    fn next_of(&mut self, index: usize) -> Option<Delivery<MemoryAck>> {
        let channel = self.channels.get_mut(index)?;
        channel.feed.next().now_or_never()?.ok()?
    }

    fn hold(&mut self, id: String, span: Duration, ack: MemoryAck, spent: bool) {
        self.held.push(Held { id, due: self.now().plus(span), ack, spent });
    }

    /// Gives deliveries whose time has come back to the transport, to be made again.
    async fn release_held(&mut self) {
        let now = self.now();
        let (due, later) = std::mem::take(&mut self.held).into_iter().partition(|held| held.due <= now);
        self.held = later;
        let due: Vec<Held> = due;
        for held in due {
            held.ack.nack(Duration::ZERO, held.spent).await.ok();
        }
    }

    async fn hand_over(&mut self, index: usize, delivery: Delivery<MemoryAck>) -> Step {
        let Delivery { envelope, attempt, ack } = delivery;
        let id = envelope.id.clone();
        let Some(channel) = self.channels.get(index) else { panic!("channel {index} is gone") };
        let name = channel.name.clone();
        let verdict = channel.inbox.deliver(envelope, attempt).await;
        if let Some(point) = self.died() {
            // Not answered: the transport delivers it again.
            drop(ack);
            return Step::Crashed(point);
        }
        match verdict {
            Verdict::Retry { after, spent } => self.hold(id.clone(), after, ack, spent),
            Verdict::Done | Verdict::Dead { .. } => _ = ack.ack().await,
        }
        Step::Delivered { channel: name, id, verdict }
    }

    /// One run of a durable handler.
    async fn work(&mut self) -> Option<Step> {
        for index in 0..self.channels.len() {
            let worker = self.channels.get(index).and_then(|channel| channel.worker.as_ref());
            let Some(worker) = worker else { continue };
            let stepped = worker.step().await.unwrap_or_else(|error| panic!("worker: {}", error.chain()));
            let Some(worked) = stepped else { continue };
            let point = self.died();
            locked(&self.record).note_run(&worked, point);
            return Some(point.map_or(Step::Worked(worked), Step::Crashed));
        }
        None
    }

    /// Whether the process has died in this step; if so, it is started anew.
    fn died(&mut self) -> Option<CrashPoint> {
        let point = locked(&self.crashes).take_death()?;
        self.restart();
        Some(point)
    }
}

/// There is a log, and no relay has ever looked at it.
fn is_unread(status: &Status) -> bool {
    status.logged > 0 && status.sinks.is_empty()
}

/// What is behind a dead letter waits for a person.
fn is_open(sink: &SinkStatus) -> bool {
    sink.pending > 0 || sink.waiting > 0 || (sink.behind > 0 && sink.dead == 0)
}

fn is_busy(handler: &HandlerStatus) -> bool {
    handler.ready > 0 || handler.leased > 0 || (handler.behind > 0 && handler.dead == 0)
}
