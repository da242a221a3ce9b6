//! Pull requests: one at a time, for as many messages as there is room for.
//!
//! Written out rather than left to the client's own stream, which asks ahead of
//! what is taken: messages that wait unseen get no sign of life, and come again.

use std::time::Duration;

use async_nats::header::NATS_PIN_ID;
use async_nats::{Client, Message, StatusCode};
use futures_util::StreamExt;
use oncebox_core::{Error, Kind, Result};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use super::super::connection::{API_TIMEOUT, Live};
use super::super::error::unavailable;
use super::super::topology::{Durable, PINNED_GROUP};

/// How long the server keeps a request. Short, because each of them also tells
/// that a pinned member is alive.
const EXPIRES: Duration = Duration::from_secs(5);
/// How often the server says that a request still stands; at most half of the above.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Silence after which the connection counts as broken.
const SILENCE: Duration = Duration::from_secs(6);

/// What came of a pull.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A message.
    Message(Message),
    /// The first message since this member was pinned.
    Pinned(Message),
    /// Another member was pinned.
    Unpinned,
    /// Nothing to tell.
    Nothing,
}

/// A request that stands.
#[derive(Debug)]
struct Standing {
    inbox: String,
    left: usize,
}

/// The pulling side of a consumer.
#[derive(Debug)]
pub(super) struct Pull {
    client: Client,
    messages: async_nats::Subscriber,
    next_subject: String,
    inbox: String,
    requests: u64,
    standing: Option<Standing>,
    is_pinned: bool,
    pin: Option<String>,
    heard: Instant,
    asked: Instant,
}

impl Pull {
    /// Listens; asks for nothing yet. `pin` is what an earlier pull was pinned by.
    pub(super) async fn new(live: &Live, durable: &Durable, pin: Option<String>) -> Result<Self> {
        let client = live.client.clone();
        let inbox = client.new_inbox();
        let listening = timeout(API_TIMEOUT, client.subscribe(format!("{inbox}.*"))).await;
        let messages = listening
            .map_err(|elapsed| unavailable("cannot listen for messages", elapsed))?
            .map_err(|error| unavailable("cannot listen for messages", error))?;
        let next_subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", durable.stream, durable.name);
        let now = Instant::now();
        Ok(Self {
            client,
            messages,
            next_subject,
            inbox,
            requests: 0,
            standing: None,
            is_pinned: durable.is_pinned,
            pin,
            heard: now,
            asked: now,
        })
    }

    /// What this member is pinned by, if it is.
    pub(super) fn pin(&self) -> Option<&str> {
        self.pin.as_deref()
    }

    /// Asks for `count` messages unless a request stands.
    pub(super) async fn ask(&mut self, count: usize) -> Result<()> {
        if self.standing.is_some() || count == 0 {
            return Ok(());
        }
        let bounds = [("expires", nanos(EXPIRES)), ("idle_heartbeat", nanos(HEARTBEAT))];
        let inbox = self.request(count, &bounds).await?;
        self.heard = Instant::now();
        self.standing = Some(Standing { inbox, left: count });
        Ok(())
    }

    /// A pinned member without room asks for one message of no size: it gets
    /// none and stays pinned.
    pub(super) async fn stay_pinned(&mut self) -> Result<()> {
        if self.pin.is_none() || self.standing.is_some() || self.asked.elapsed() < EXPIRES {
            return Ok(());
        }
        self.request(1, &[("no_wait", Value::Bool(true)), ("max_bytes", Value::from(1))]).await.map(drop)
    }

    async fn request(&mut self, batch: usize, more: &[(&str, Value)]) -> Result<String> {
        self.requests += 1;
        self.asked = Instant::now();
        let inbox = format!("{}.{}", self.inbox, self.requests);
        let mut request = Map::new();
        request.insert("batch".into(), batch.into());
        request.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        if self.is_pinned {
            request.insert("group".into(), PINNED_GROUP.into());
            request.extend(self.pin.as_deref().map(|pin| ("id".to_owned(), pin.into())));
        }
        let body = Value::Object(request).to_string();
        let sent = self.client.publish_with_reply(self.next_subject.clone(), inbox.clone(), body.into());
        timeout(API_TIMEOUT, sent)
            .await
            .map_err(|elapsed| unavailable("cannot ask for messages", elapsed))?
            .map_err(|error| unavailable("cannot ask for messages", error))?;
        Ok(inbox)
    }

    /// Whether the server should have been heard of by now.
    pub(super) fn is_silent(&self) -> bool {
        self.standing.is_some() && self.heard.elapsed() > SILENCE
    }

    /// What comes next. Cancel safe.
    ///
    /// # Errors
    /// [`Kind::Unavailable`]: the consumer must be looked up again.
    pub(super) async fn next(&mut self) -> Result<Arrival> {
        let Some(message) = self.messages.next().await else {
            return Err(Error::new(Kind::Unavailable, "the connection to NATS is closed"));
        };
        self.heard = Instant::now();
        match message.status {
            None | Some(StatusCode::OK) => Ok(self.take(message)),
            Some(status) => self.heed(status.as_u16(), &message),
        }
    }

    fn take(&mut self, message: Message) -> Arrival {
        if let Some(standing) = &mut self.standing {
            standing.left = standing.left.saturating_sub(1);
            if standing.left == 0 {
                self.standing = None;
            }
        }
        // A producer may have written such a header, too; the server's comes last.
        let pin = message.headers.as_ref().and_then(|headers| headers.get_last(NATS_PIN_ID));
        match pin {
            Some(pin) if self.is_pinned && self.pin.as_deref() != Some(pin.as_str()) => {
                self.pin = Some(pin.as_str().to_owned());
                Arrival::Pinned(message)
            }
            _ => Arrival::Message(message),
        }
    }

    fn heed(&mut self, status: u16, message: &Message) -> Result<Arrival> {
        let description = message.description.as_deref().unwrap_or_default();
        let is_over = match status {
            100 => false,
            404 | 408 => true,
            423 => {
                self.pin = None;
                self.standing = None;
                return Ok(Arrival::Unpinned);
            }
            409 if matches!(description, "Message Size Exceeds MaxBytes" | "Batch Completed") => true,
            503 => return Err(Error::new(Kind::Unavailable, "the consumer does not answer")),
            _ => {
                let text = format!("the consumer ended the pull: {status} {description}");
                return Err(Error::new(Kind::Unavailable, text));
            }
        };
        let is_ours =
            self.standing.as_ref().is_some_and(|standing| standing.inbox == message.subject.as_str());
        if is_over && is_ours {
            self.standing = None;
        }
        Ok(Arrival::Nothing)
    }

    /// Listens no more and tells where the answers to what came too late go.
    pub(super) async fn stop(mut self) -> Vec<String> {
        drop(timeout(API_TIMEOUT, self.messages.drain()).await);
        let mut late = Vec::new();
        while let Ok(Some(message)) = timeout(API_TIMEOUT, self.messages.next()).await {
            late.extend(message.reply.filter(|_| message.status.is_none()).map(|reply| reply.to_string()));
        }
        late
    }
}

fn nanos(span: Duration) -> Value {
    Value::from(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}
