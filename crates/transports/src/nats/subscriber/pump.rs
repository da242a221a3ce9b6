//! The task behind a feed: pulls, holds, hands out, and opens everything again
//! when the connection, the consumer or the stream is gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use futures_util::StreamExt;
use oncebox_core::{Delivery, Error, Kind, Result};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::super::connection::{API_TIMEOUT, Live};
use super::super::topology::{PINNED_GROUP, ensure_consumer};
use super::super::{Nats, wire};
use super::answer::{Desk, NatsAnswer, Stamp};
use super::pull::{Arrival, Pull};
use super::takeover::Takeover;
use crate::lanes::{Answer, LaneAck, Lanes, LanesOptions};

/// How often the pump looks whether all is well.
const TICK: Duration = Duration::from_millis(500);
/// The pause before everything is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Waits up to this long stay here; for longer ones the server counts the attempt.
const HOLD: Duration = Duration::from_secs(1);
/// How much longer than `ack_wait` a takeover may take.
const TAKEOVER_SLACK: Duration = Duration::from_secs(5);
/// The most messages that wait to be rescued; the rest stays in the stream.
const MAX_RESCUED: usize = 1_000;

type Sender = mpsc::Sender<Result<Delivery<LaneAck<NatsAnswer>>>>;

/// What is opened anew when it breaks.
pub(super) struct Session {
    live: Live,
    desk: Arc<Desk>,
    pull: Pull,
    /// Tells what the server gives up on, if it ever does.
    advisories: Option<async_nats::Subscriber>,
}

/// What a pump wakes up for.
enum Wake {
    Stop,
    /// Something may be handed out, or there is room.
    Changed,
    Arrival(Result<Arrival>),
    /// The server has given up on a message.
    Lost(Message),
    /// The clock.
    Due,
}

/// Why serving came to an end.
enum Ended {
    /// Nobody wants deliveries any more.
    Stopped,
    /// It has to be opened again.
    Failed(Error),
}

pub(super) struct Pump {
    nats: Nats,
    subject: String,
    group: String,
    lanes: Option<Lanes<NatsAnswer>>,
    takeover: Option<Takeover<Delivery<NatsAnswer>>>,
    rescued: VecDeque<Delivery<NatsAnswer>>,
    pin: Option<String>,
    deliveries: Sender,
    closed: CancellationToken,
}

impl Pump {
    pub(super) fn new(nats: Nats, subject: String, group: String, deliveries: Sender) -> Self {
        let closed = nats.inner.closed.clone();
        Self {
            nats,
            subject,
            group,
            lanes: None,
            takeover: None,
            rescued: VecDeque::new(),
            pin: None,
            deliveries,
            closed,
        }
    }

    /// Finds or makes the consumer and listens to it.
    pub(super) async fn open(&mut self) -> Result<Session> {
        let options = &self.nats.inner.options;
        let live = self.nats.inner.consuming.live().await?;
        let durable = ensure_consumer(&live, options, &self.subject, &self.group).await?;
        let lanes = LanesOptions {
            ordered: options.is_ordered(),
            hold: HOLD,
            prefetch: options.prefetch,
            keep_alive: Some(durable.ack_wait / 3),
        };
        self.lanes.get_or_insert_with(|| Lanes::new(lanes));
        let pull = Pull::new(&live, &durable, self.pin.take()).await?;
        let advisories = match durable.max_deliver {
            0 => None,
            _ => Some(listen_for_lost(&live, &durable.stream, &durable.name).await?),
        };
        let desk = Arc::new(Desk { nats: self.nats.clone(), durable });
        Ok(Session { live, desk, pull, advisories })
    }

    /// Serves until nobody wants deliveries any more.
    pub(super) async fn run(mut self, session: Session) {
        let mut opened = Some(session);
        loop {
            let session = match opened.take() {
                Some(session) => Ok(session),
                None => self.open().await,
            };
            let error = match session {
                Err(error) => error,
                Ok(mut session) => match self.serve(&mut session).await {
                    Ended::Stopped => return self.finish(session).await,
                    Ended::Failed(error) => {
                        self.pin = session.pull.pin().map(Into::into);
                        error
                    }
                },
            };
            debug!(subject = self.subject, error = error.chain(), "nats.feed_failed");
            // A feed nobody looks at has one error waiting, not many.
            drop(self.deliveries.try_send(Err(error)));
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = self.deliveries.closed() => return,
                () = sleep(REOPEN_PAUSE) => {}
            }
        }
    }

    async fn serve(&mut self, session: &mut Session) -> Ended {
        let mut tick = interval(TICK);
        loop {
            self.hand_out();
            if let Err(error) = session.pull.ask(self.wanted()).await {
                return Ended::Failed(error);
            }
            let done = match self.wake(session, &mut tick).await {
                Wake::Stop => return Ended::Stopped,
                Wake::Changed => Ok(()),
                Wake::Due => self.look_after(session).await,
                Wake::Lost(advisory) => {
                    self.rescue(session, &advisory).await;
                    Ok(())
                }
                Wake::Arrival(arrival) => match arrival {
                    Ok(arrival) => {
                        self.take_in(session, arrival).await;
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = done {
                return Ended::Failed(error);
            }
        }
    }

    /// Waits for something to do. Cancels nothing that would be lost.
    async fn wake(&self, session: &mut Session, tick: &mut Interval) -> Wake {
        let Some(lanes) = &self.lanes else { return Wake::Stop };
        // While nobody takes what is handed out, there is no use in looking for more.
        let is_full = self.deliveries.capacity() == 0;
        tokio::select! {
            () = self.closed.cancelled() => Wake::Stop,
            () = self.deliveries.closed() => Wake::Stop,
            _ = self.deliveries.reserve(), if is_full => Wake::Changed,
            () = lanes.changed(), if !is_full => Wake::Changed,
            arrival = session.pull.next() => Wake::Arrival(arrival),
            advisory = next_lost(&mut session.advisories) => Wake::Lost(advisory),
            _ = tick.tick() => Wake::Due,
        }
    }

    async fn take_in(&mut self, session: &Session, arrival: Arrival) {
        match arrival {
            Arrival::Nothing => {}
            Arrival::Message(message) => self.arrive(session, &message),
            Arrival::Pinned(message) => {
                let patience = session.desk.durable.ack_wait + TAKEOVER_SLACK;
                self.takeover = Some(Takeover::new(Instant::now() + patience));
                self.arrive(session, &message);
                self.learn(session).await;
            }
            Arrival::Unpinned => self.step_down(),
        }
    }

    /// Hands out what may go, as far as somebody takes it.
    fn hand_out(&mut self) {
        let Some(lanes) = &mut self.lanes else { return };
        if self.takeover.as_ref().is_some_and(|takeover| takeover.is_over(Instant::now()))
            && let Some(takeover) = self.takeover.take()
        {
            takeover.into_ordered().for_each(|delivery| lanes.push(delivery));
        }
        while lanes.room() > 0
            && let Some(delivery) = self.rescued.pop_front()
        {
            lanes.push(delivery);
        }
        while let Ok(place) = self.deliveries.try_reserve() {
            match lanes.take() {
                Some(delivery) => place.send(Ok(delivery)),
                None => break,
            }
        }
    }

    /// How many messages to ask for: none while there is little room, so that
    /// there are few requests and not one for each message.
    fn wanted(&self) -> usize {
        let held_back = self.takeover.as_ref().map_or(0, Takeover::len);
        let room = self.room().saturating_sub(held_back);
        let worth_it = self.nats.inner.options.prefetch.div_ceil(4);
        if room >= worth_it { room } else { 0 }
    }

    fn room(&self) -> usize {
        self.lanes.as_ref().map_or(0, Lanes::room)
    }

    /// How many messages the lanes hold.
    fn held(&self) -> usize {
        self.nats.inner.options.prefetch.saturating_sub(self.room())
    }

    fn arrive(&mut self, session: &Session, message: &Message) {
        let Some(reply) = message.reply.as_deref() else { return };
        let Some(stamp) = Stamp::of(reply) else {
            warn!(subject = self.subject, "nats.not_a_delivery");
            return;
        };
        let inner = &self.nats.inner;
        let attempt = inner.attempts.of(&session.desk.durable, stamp.sequence, stamp.delivered);
        let envelope =
            wire::read(&inner.options.prefix, &message.subject, message.headers.as_ref(), &message.payload);
        let ack =
            NatsAnswer::new(Arc::clone(&session.desk), reply.to_owned(), stamp.sequence, stamp.delivered);
        let delivery = Delivery { envelope, attempt, ack };
        match (&mut self.takeover, &mut self.lanes) {
            (Some(takeover), _) => takeover.hold_back(stamp.sequence, delivery),
            (None, Some(lanes)) => lanes.push(delivery),
            (None, None) => {}
        }
    }

    /// Another member is served now, and will be delivered what this one held.
    fn step_down(&mut self) {
        self.takeover = None;
        if let Some(lanes) = &mut self.lanes {
            lanes.reset();
        }
    }

    /// Learns what is under way at the moment of a takeover.
    async fn learn(&mut self, session: &Session) {
        let held = self.held();
        let Some(takeover) = &mut self.takeover else { return };
        let durable = &session.desk.durable;
        let subject = format!("CONSUMER.INFO.{}.{}", durable.stream, durable.name);
        let info: Result<Value, _> = session.live.api.request(subject, &Value::Object(Map::new())).await;
        match info {
            Ok(info) => {
                let number = |pointer: &str| info.pointer(pointer).and_then(Value::as_u64);
                if let (Some(through), Some(pending)) =
                    (number("/delivered/stream_seq"), number("/num_ack_pending"))
                {
                    takeover.learn(through, usize::try_from(pending).unwrap_or(usize::MAX), held);
                }
            }
            Err(error) => debug!(error = error.to_string(), "nats.takeover_unsure"),
        }
    }

    /// Everything that is due by the clock.
    async fn look_after(&mut self, session: &mut Session) -> Result<()> {
        if !session.live.is_unbroken() || session.pull.is_silent() {
            self.nats.inner.consuming.suspect(&session.live).await;
            return Err(Error::new(Kind::Unavailable, "the connection to NATS was lost"));
        }
        session.pull.stay_pinned().await?;
        if let Some(takeover) = &self.takeover {
            for delivery in takeover.iter() {
                delivery.ack.keep_alive().await;
            }
            self.learn(session).await;
        }
        Ok(())
    }

    /// The server has given up on a message. It is still in the stream: it is
    /// handed out once more as the attempt it is, so that the inbox, not the
    /// server, has the last word.
    async fn rescue(&mut self, session: &Session, advisory: &Message) {
        let told: Value = serde_json::from_slice(&advisory.payload).unwrap_or_default();
        let number = |name: &str| told.get(name).and_then(Value::as_u64);
        let (Some(sequence), Some(deliveries)) = (number("stream_seq"), number("deliveries")) else { return };
        let stream = &session.desk.durable.stream;
        warn!(stream, sequence, deliveries, "nats.given_up_by_server");
        if self.rescued.len() >= MAX_RESCUED {
            return;
        }
        let Ok(handle) = session.live.api.get_stream_no_info(stream).await else { return };
        let message = match handle.get_raw_message(sequence).await {
            Ok(message) => message,
            Err(error) => {
                let is_gone = error.kind() == LastRawMessageErrorKind::NoMessageFound;
                warn!(stream, sequence, is_gone, error = error.to_string(), "nats.not_rescued");
                return;
            }
        };
        let prefix = &self.nats.inner.options.prefix;
        let envelope = wire::read(prefix, &message.subject, Some(&message.headers), &message.payload);
        let attempt = u32::try_from(deliveries).unwrap_or(u32::MAX);
        let ack = NatsAnswer::rescued(Arc::clone(&session.desk), sequence, deliveries);
        self.rescued.push_back(Delivery { envelope, attempt, ack });
    }

    /// Gives back what was not handed out, in order, and makes way for another member.
    async fn finish(self, session: Session) {
        let Session { live, desk, pull, .. } = session;
        let is_pinned = pull.pin().is_some();
        let leave = async {
            let late = pull.stop().await;
            let mut rest: Vec<Delivery<Arc<NatsAnswer>>> = Vec::new();
            rest.extend(self.lanes.into_iter().flat_map(|mut lanes| lanes.drain_unanswered()));
            let held_back = self.takeover.into_iter().flat_map(Takeover::into_ordered);
            rest.extend(held_back.map(|delivery| {
                let Delivery { envelope, attempt, ack } = delivery;
                Delivery { envelope, attempt, ack: Arc::new(ack) }
            }));
            for Delivery { attempt, ack, .. } in rest {
                drop(ack.give_back(Duration::ZERO, false, attempt).await);
            }
            for reply in late {
                let Some(stamp) = Stamp::of(&reply) else { continue };
                let attempt = self.nats.inner.attempts.of(&desk.durable, stamp.sequence, stamp.delivered);
                let answer = NatsAnswer::new(Arc::clone(&desk), reply, stamp.sequence, stamp.delivered);
                drop(answer.give_back(Duration::ZERO, false, attempt).await);
            }
            if is_pinned {
                let subject = format!("CONSUMER.UNPIN.{}.{}", desk.durable.stream, desk.durable.name);
                let group = serde_json::json!({ "group": PINNED_GROUP });
                let unpinned: Result<Value, _> = live.api.request(subject, &group).await;
                drop(unpinned);
            }
        };
        if timeout(API_TIMEOUT, leave).await.is_err() {
            debug!(subject = self.subject, "nats.left_slowly");
        }
    }
}

/// What the server gives up on. One member of the group is told.
async fn listen_for_lost(live: &Live, stream: &str, consumer: &str) -> Result<async_nats::Subscriber> {
    let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{consumer}");
    let listening = timeout(API_TIMEOUT, live.client.queue_subscribe(subject, "oncebox".into())).await;
    listening
        .map_err(|elapsed| Error::new(Kind::Unavailable, "cannot listen for advisories").because(elapsed))?
        .map_err(|error| Error::new(Kind::Unavailable, "cannot listen for advisories").because(error))
}

async fn next_lost(advisories: &mut Option<async_nats::Subscriber>) -> Message {
    if let Some(advisories) = advisories
        && let Some(message) = advisories.next().await
    {
        return message;
    }
    std::future::pending().await
}
