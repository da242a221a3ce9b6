//! Messages that are under way together: all are written, then all confirms
//! are awaited, by one deadline.
//!
//! lapin hands a returned message to whichever confirm it resolves next, which
//! under a pipelined window is often another message's (a confirm of several at
//! once resolves them in no order). So nothing counts as stored before the whole
//! wave is answered, and a return is matched to its message by its id: taken at
//! its word, the client would report an unroutable message as stored.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::{FutureExt, poll};
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use oncebox_core::Failure;
use tokio::time::{Instant, timeout_at};

use super::super::connection::Live;
use super::super::error::{Trouble, number_after, quoted_after};
use super::super::wire::Frame;

/// How often a wait for confirms looks whether the server has blocked the connection.
const GLANCE: Duration = Duration::from_millis(100);
/// How long confirms may still come once it has.
const GRACE: Duration = Duration::from_millis(500);
/// A call that is given up after this long says something about the connection.
const TELLING: Duration = Duration::from_secs(1);

type Confirm<'c> = Pin<Box<dyn Future<Output = lapin::Result<Confirmation>> + Send + 'c>>;

/// What was said about one message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Ack,
    Nack,
    Trouble(Trouble),
}

/// One message under way.
struct Flight<'c> {
    exchange: ShortString,
    key: ShortString,
    id: Option<ShortString>,
    bytes: usize,
    confirm: Option<Confirm<'c>>,
    answer: Option<Answer>,
}

/// What came of a wave, message by message.
pub(in super::super) struct Landed {
    pub(in super::super) results: Vec<Result<(), Failure>>,
    /// Whether nothing is under way any more, so that the channel can be used again.
    pub(in super::super) is_clear: bool,
}

/// Sends messages and waits for their confirms.
pub(in super::super) async fn send(
    live: &Live,
    channel: &Channel,
    frames: Vec<Frame>,
    deadline: Instant,
) -> Landed {
    let mut watch = Watch { live, since: Instant::now(), is_over: false };
    let mut wave =
        Wave { live, flights: Vec::with_capacity(frames.len()), returned: Vec::new(), alarm: None };
    for frame in frames {
        wave.launch(channel, frame).await;
    }
    wave.wait(deadline).await;
    watch.is_over = true;
    wave.conclude()
}

/// Whoever drops a call that had waited for long has waited for a dead peer.
struct Watch<'l> {
    live: &'l Live,
    since: Instant,
    is_over: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.is_over && self.since.elapsed() >= TELLING && self.live.blocked().is_none() {
            self.live.condemn();
        }
    }
}

struct Wave<'l, 'c> {
    live: &'l Live,
    flights: Vec<Flight<'c>>,
    returned: Vec<BasicReturnMessage>,
    /// Why the wait was cut short.
    alarm: Option<String>,
}

impl<'c> Wave<'_, 'c> {
    /// Queues a message for writing: the client does so at the first poll, and
    /// what it resolves to afterwards is waited for by all together.
    async fn launch(&mut self, channel: &'c Channel, frame: Frame) {
        let Frame { exchange, key, properties, body } = frame;
        let mut flight = Flight {
            exchange: exchange.clone(),
            key: key.clone(),
            id: properties.message_id().clone(),
            bytes: body.len(),
            confirm: None,
            answer: None,
        };
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirm: Confirm<'c> =
            Box::pin(
                async move { channel.basic_publish(exchange, key, options, &body, properties).await?.await },
            );
        match poll!(&mut confirm) {
            Poll::Ready(said) => self.returned.extend(flight.hear(said)),
            Poll::Pending => flight.confirm = Some(confirm),
        }
        self.flights.push(flight);
    }

    async fn wait(&mut self, mut deadline: Instant) {
        for flight in &mut self.flights {
            while let Some(confirm) = flight.confirm.as_mut() {
                let glance = deadline.min(Instant::now() + GLANCE);
                match timeout_at(glance, confirm).await {
                    Ok(said) => self.returned.extend(flight.hear(said)),
                    Err(_elapsed) if Instant::now() >= deadline => break,
                    Err(_elapsed) if self.alarm.is_none() => {
                        self.alarm = self.live.blocked();
                        if self.alarm.is_some() {
                            deadline = deadline.min(Instant::now() + GRACE);
                        }
                    }
                    Err(_elapsed) => {}
                }
            }
        }
        // A confirm that was seen unresolved may have resolved before a later one
        // that was seen resolved, and have taken its return along.
        for flight in &mut self.flights {
            if let Some(said) = flight.confirm.as_mut().and_then(|confirm| confirm.now_or_never()) {
                self.returned.extend(flight.hear(said));
            }
        }
    }

    fn conclude(self) -> Landed {
        let is_clear =
            self.flights.iter().all(|flight| matches!(flight.answer, Some(Answer::Ack | Answer::Nack)));
        if self.alarm.is_none() && self.flights.iter().any(|flight| flight.answer.is_none()) {
            self.live.condemn();
        }
        // A return that is nobody's means that one of these was not stored.
        let is_muddled = self.returned.iter().any(|back| !self.flights.iter().any(|flight| flight.is(back)));
        let results = self.flights.iter().map(|flight| {
            let back = self.returned.iter().find(|back| flight.is(back));
            match (&flight.answer, back) {
                (Some(Answer::Trouble(trouble)), _) => Err(self.fault(flight, trouble)),
                (_, Some(back)) => Err(Failure::destination(unroutable(flight, back))),
                (Some(Answer::Nack), None) => {
                    Err(Failure::destination("refused by the queue: it is full, or has no leader"))
                }
                (Some(Answer::Ack), None) if is_muddled => {
                    Err(Failure::unknown("a return came that was nobody's"))
                }
                (Some(Answer::Ack), None) => Ok(()),
                (None, None) => {
                    let reason = self.alarm.clone().unwrap_or_else(|| "no confirm came in time".into());
                    Err(Failure::unknown(reason))
                }
            }
        });
        Landed { results: results.collect(), is_clear }
    }

    /// The server closes the whole channel for the fault of one message, and its
    /// text tells whose. The others may or may not be stored.
    fn fault(&self, flight: &Flight<'_>, trouble: &Trouble) -> Failure {
        let text = &trouble.text;
        match trouble.code {
            Some(403 | 404) if quoted_after(text, "exchange") == Some(flight.exchange.as_str()) => {
                self.live.note_refusal(flight.exchange.as_str(), text);
                Failure::destination(text.as_str())
            }
            Some(406) if number_after(text, "message size") == Some(flight.bytes) => {
                Failure::message(text.as_str()).permanently()
            }
            _ => Failure::unknown(format!("the channel was lost: {text}")),
        }
    }
}

impl Flight<'_> {
    /// Takes an answer; the return that came with it, not necessarily its own.
    fn hear(&mut self, said: lapin::Result<Confirmation>) -> Option<BasicReturnMessage> {
        self.confirm = None;
        let (answer, back) = match said {
            Ok(Confirmation::Ack(back)) => (Answer::Ack, back),
            Ok(Confirmation::Nack(back)) => (Answer::Nack, back),
            Ok(Confirmation::NotRequested) => {
                (Answer::Trouble(Trouble::unavailable("the channel does not confirm")), None)
            }
            Err(error) => (Answer::Trouble(error.into()), None),
        };
        self.answer = Some(answer);
        back
    }

    /// Whether this is the message that came back. Two of one id by one route
    /// both count: sent again is safe, lost is not.
    fn is(&self, back: &BasicReturnMessage) -> bool {
        self.exchange == back.exchange
            && self.key == back.routing_key
            && self.id == *back.properties.message_id()
    }
}

fn unroutable(flight: &Flight<'_>, back: &BasicReturnMessage) -> String {
    let (exchange, key) = (&flight.exchange, &flight.key);
    match exchange.as_str() {
        "" => format!("unroutable ({}): there is no queue {key}", back.reply_text),
        _ => format!("unroutable ({}): no queue is bound to exchange {exchange} for {key}", back.reply_text),
    }
}
