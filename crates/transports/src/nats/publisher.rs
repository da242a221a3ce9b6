//! Publishing: pipelined, every confirm awaited, order by key kept.
//!
//! Messages without a key, and those of different keys, are sent one after the
//! other without waiting, up to a window. Of one key, the next is sent when the
//! one before is confirmed: the server may refuse one message (a stream that is
//! full takes a smaller one), and a connection may break between two, and in
//! both cases the later one would be stored alone.
//!
//! The server drops a message whose id it has seen, whatever the message is. A
//! confirm that says *duplicate* therefore counts only after a look at what is
//! stored: this process cannot know whether an earlier one had sent the message.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;

use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use oncebox_core::transport::Class;
use oncebox_core::{Envelope, Failure, Publisher, Result};
use tokio::time::{Instant, interval, sleep_until, timeout_at};
use tracing::{error, warn};

use super::Nats;
use super::connection::{API_TIMEOUT, GLANCE, Live};
use super::error::refused;
use super::topology::{ensure_stream, is_missing};
use super::wire::{Likeness, Outbound, Writer};

/// How often a message is sent under another id because its own was taken by
/// something that is not there any more.
const RENAMES: usize = 3;

impl Publisher for Nats {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        if batch.is_empty() {
            return Vec::new();
        }
        if self.inner.closed.is_cancelled() {
            return vec![Err(Failure::destination("the transport is closed")); batch.len()];
        }
        match self.inner.publishing.live().await {
            Ok(live) => Call::new(self, &live, batch).run().await,
            Err(error) => vec![Err(Failure::destination(error.chain())); batch.len()],
        }
    }
}

/// One call: what may be sent, what waits for its key, what was answered.
struct Call<'c> {
    nats: &'c Nats,
    live: &'c Live,
    batch: &'c [Envelope],
    ready: VecDeque<usize>,
    /// For each message, the one that comes after it under its key.
    next: Vec<Option<usize>>,
    is_sent: Vec<bool>,
    results: Vec<Option<Result<(), Failure>>>,
    unanswered: usize,
    started: Instant,
    deadline: Instant,
}

impl<'c> Call<'c> {
    fn new(nats: &'c Nats, live: &'c Live, batch: &'c [Envelope]) -> Self {
        let mut ready = VecDeque::with_capacity(batch.len());
        let (mut next, is_sent) = (vec![None; batch.len()], vec![false; batch.len()]);
        let mut last: HashMap<(&str, &str), usize> = HashMap::with_capacity(batch.len());
        for (index, envelope) in batch.iter().enumerate() {
            let lane = envelope.key.as_deref().map(|key| (envelope.tenant.as_str(), key));
            let before = lane.and_then(|lane| last.insert(lane, index));
            match before.and_then(|before| next.get_mut(before)) {
                Some(place) => *place = Some(index),
                None => ready.push_back(index),
            }
        }
        let started = Instant::now();
        let deadline = started + nats.inner.options.confirm_timeout;
        let (results, unanswered) = (vec![None; batch.len()], batch.len());
        Self { nats, live, batch, ready, next, is_sent, results, unanswered, started, deadline }
    }

    async fn run(mut self) -> Vec<Result<(), Failure>> {
        let mut awaited = FuturesUnordered::new();
        let mut glance = interval(GLANCE);
        let mut deadline = pin!(sleep_until(self.deadline));
        while self.unanswered > 0 {
            while awaited.len() < self.nats.inner.options.window
                && let Some(index) = self.ready.pop_front()
            {
                if !self.is_open(index) {
                    continue;
                }
                match self.send(index).await {
                    Ok(confirm) => awaited.push(self.confirm_of(index, confirm)),
                    Err(failure) => self.answer(index, Err(failure)),
                }
            }
            tokio::select! {
                biased;
                Some((index, result)) = awaited.next() => self.answer(index, result),
                _ = glance.tick() => {
                    if !self.live.is_unbroken() {
                        self.give_up("the connection was lost");
                        break;
                    }
                    self.hear_complaints();
                }
                () = &mut deadline => {
                    let waited = self.nats.inner.options.confirm_timeout;
                    self.give_up(&format!("no confirm within {waited:?}"));
                    self.nats.inner.publishing.suspect(self.live).await;
                    break;
                }
            }
        }
        drop(awaited);
        self.results.into_iter().map(|result| result.unwrap_or_else(unanswered)).collect()
    }

    /// Hands a message to the client.
    async fn send(&mut self, index: usize) -> Result<Confirm, Failure> {
        let Some(envelope) = self.batch.get(index) else { return unanswered() };
        self.is_sent.get_mut(index).into_iter().for_each(|is_sent| *is_sent = true);
        let inner = &self.nats.inner;
        let sent = writer(self.nats).write(envelope)?;
        if inner.options.streams == super::Topology::Declare && !inner.known.contains(&sent.subject) {
            ensure_stream(self.live, &inner.options, &sent.subject)
                .await
                .map_err(|error| Failure::destination(error.chain()))?;
            inner.known.add(&sent.subject);
        }
        send(self.live, sent, self.deadline).await
    }

    /// The answer to a message that was sent.
    fn confirm_of(
        &self,
        index: usize,
        confirm: Confirm,
    ) -> impl Future<Output = (usize, Result<(), Failure>)> + use<'c> {
        let (nats, live, batch) = (self.nats, self.live, self.batch);
        async move {
            let result = match (batch.get(index), confirm.await) {
                (_, Ok(ack)) if !ack.duplicate => Ok(()),
                (Some(envelope), answer) => judge(nats, live, envelope, answer).await,
                (None, _) => unanswered(),
            };
            (index, result)
        }
    }

    /// Notes an answer, and lets the next of the key go or none of them.
    fn answer(&mut self, index: usize, result: Result<(), Failure>) {
        let Some(envelope) = self.batch.get(index).filter(|_| self.is_open(index)) else { return };
        let next = self.after(index);
        match &result {
            Ok(()) => self.ready.extend(next),
            Err(failure) => {
                if failure.class == Class::Destination {
                    // It may have lost its stream: looked up again, and made again if that is allowed.
                    let subject =
                        super::wire::subject(&self.nats.inner.options.prefix, &envelope.destination);
                    subject.iter().for_each(|subject| self.nats.inner.known.remove(subject));
                }
                self.hold_back(next, failure.class);
            }
        }
        self.note(index, result);
    }

    fn is_open(&self, index: usize) -> bool {
        self.results.get(index).is_some_and(Option::is_none)
    }

    fn after(&self, index: usize) -> Option<usize> {
        self.next.get(index).copied().flatten()
    }

    /// Answers this one and those after it, none of which was sent.
    fn hold_back(&mut self, mut next: Option<usize>, class: Class) {
        while let Some(index) = next {
            let reason = "an earlier message of its key was not confirmed";
            // A message that was refused says nothing about its destination, so
            // neither do those behind it.
            let failure = match class {
                Class::Unknown => Failure::unknown(reason),
                Class::Destination => Failure::destination(reason),
                Class::Message | Class::Pending => Failure::pending(reason),
            };
            self.note(index, Err(failure));
            next = self.after(index);
        }
    }

    fn note(&mut self, index: usize, result: Result<(), Failure>) {
        if let Some(place) = self.results.get_mut(index)
            && place.is_none()
        {
            *place = Some(result);
            self.unanswered -= 1;
        }
    }

    /// Answers what is not answered: what was sent is unknown, the rest was never sent.
    fn give_up(&mut self, why: &str) {
        let hosts = self.nats.inner.publishing.hosts();
        for index in 0..self.batch.len() {
            let failure = match self.is_sent.get(index) {
                Some(true) => Failure::unknown(format!("NATS at {hosts}: {why}")),
                _ => Failure::destination(format!("not sent to NATS at {hosts}: {why}")),
            };
            self.note(index, Err(failure));
        }
    }

    /// A publish that is not permitted gets no answer at all, only a complaint
    /// on the connection.
    fn hear_complaints(&mut self) {
        let Some(complaint) = self.live.complaint_since(self.started) else { return };
        for (index, envelope) in self.batch.iter().enumerate() {
            let subject = super::wire::subject(&self.nats.inner.options.prefix, &envelope.destination);
            let is_meant = subject.is_ok_and(|subject| complaint.contains(&format!("\"{subject}\"")));
            if is_meant {
                self.answer(index, Err(Failure::destination(complaint.clone())));
            }
        }
    }
}

fn writer(nats: &Nats) -> Writer<'_> {
    let options = &nats.inner.options;
    Writer { prefix: &options.prefix, mode: options.mode, keyring: options.keyring.as_ref() }
}

fn unanswered<T>() -> Result<T, Failure> {
    Err(Failure::unknown("no answer"))
}

/// The second await of a publish: the first only hands it to the client.
type Confirm = async_nats::jetstream::context::PublishAckFuture;

async fn send(live: &Live, sent: Outbound, deadline: Instant) -> Result<Confirm, Failure> {
    let Outbound { subject, headers, body, .. } = sent;
    let message = PublishMessage::build().headers(headers).payload(body.into());
    let handed_over = live.publishing.send_publish(subject.clone(), message);
    match timeout_at(deadline, handed_over).await {
        Ok(handed_over) => handed_over.map_err(|error| refused(&subject, &error)),
        Err(_elapsed) => Err(Failure::destination(format!("{subject} is not taking messages"))),
    }
}

/// What an answer means that is no plain confirm. A duplicate is looked at: if
/// the stored message is this one, it was sent before; if it is another one,
/// somebody took its id; if it is gone, or is this one under a signature that
/// anybody may have put there, nobody can tell, and it is sent once more under
/// an id of its own.
async fn judge(
    nats: &Nats,
    live: &Live,
    envelope: &Envelope,
    mut answer: Result<PublishAck, PublishError>,
) -> Result<(), Failure> {
    let mut sent = writer(nats).write(envelope)?;
    for _ in 0..RENAMES {
        let ack = match answer {
            Err(error) => return Err(refused(&sent.subject, &error)),
            Ok(ack) if !ack.duplicate => return Ok(()),
            Ok(ack) => ack,
        };
        let place = format!("the stream {} at {}", ack.stream, ack.sequence);
        let stored = stored(live, &ack).await?;
        let likeness = stored.map(|stored| sent.compare(&stored.subject, &stored.headers, &stored.payload));
        match likeness {
            Some(Likeness::Same) => return Ok(()),
            // Nobody else can have known the id, so it is ours from before the key was changed.
            Some(Likeness::SignedOtherwise) if nats.inner.options.keyring.is_some() => return Ok(()),
            Some(Likeness::Other) => {
                error!(id = envelope.id, subject = sent.subject, place, "nats.id_conflict");
                return Err(Failure::message(format!("conflict: another message has its id in {place}")));
            }
            Some(Likeness::SignedOtherwise) | None => {
                warn!(id = envelope.id, subject = sent.subject, place, "nats.sent_under_another_id");
                let renamed = format!("{}+{}", sent.id, ack.sequence);
                sent = sent.renamed(renamed);
                let deadline = Instant::now() + API_TIMEOUT;
                answer = send(live, sent.clone(), deadline).await?.await;
            }
        }
    }
    Err(Failure::message("conflict: its id is taken again and again"))
}

/// The message a confirm speaks of, read from the stream's leader; `None` if it is not there any more.
async fn stored(live: &Live, ack: &PublishAck) -> Result<Option<StreamMessage>, Failure> {
    let unreadable = |reason: String| {
        Failure::unknown(format!("cannot read {} of the stream {}: {reason}", ack.sequence, ack.stream))
    };
    let stream =
        live.api.get_stream_no_info(&ack.stream).await.map_err(|error| unreadable(error.to_string()))?;
    match stream.get_raw_message(ack.sequence).await {
        Ok(message) => Ok(Some(message)),
        Err(error) => match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => Ok(None),
            LastRawMessageErrorKind::JetStream(cause) if is_missing(cause.error_code()) => Ok(None),
            _ => Err(unreadable(error.to_string())),
        },
    }
}
