//! One handler's share of a stored message, and how it changes.
//!
//! Every change here is made of one row alone; what concerns its lane is in
//! [`stock`](super::stock).

use std::time::Duration;

use oncebox_core::depot::{HISTORY, Number, Ticket, reason_text};
use oncebox_core::handler::MessageKey;
use oncebox_core::letters::Attempt;
use oncebox_core::{Digest, Timestamp};

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Ready,
    Leased,
    Behind,
    Parked,
    Done,
    Dead,
    Discarded,
}

impl Stage {
    /// Nothing will happen to it unless an operator wants so.
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Discarded)
    }
}

/// A scope and a handler's key in it.
pub(super) type HandlerId = (String, String);

/// Deliveries of one lane go one after the other.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    handler: HandlerId,
    tenant: String,
    name: String,
}

/// What makes a delivery the same delivery.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct DeliveryKey {
    pub(super) handler: HandlerId,
    pub(super) tenant: String,
    pub(super) key: MessageKey,
}

/// A row.
#[derive(Clone)]
pub(super) struct Delivery {
    pub(super) message: Number,
    pub(super) identity: DeliveryKey,
    pub(super) digest: Digest,
    pub(super) lane: Option<String>,
    pub(super) stage: Stage,
    /// Its time. It keeps that while it is leased.
    pub(super) due_at: Timestamp,
    /// While it is leased: when somebody else may take it.
    pub(super) lease_until: Option<Timestamp>,
    pub(super) fence: i64,
    pub(super) holder: Option<String>,
    pub(super) started: bool,
    pub(super) attempts: u32,
    pub(super) deaths: u32,
    pub(super) generation: u32,
    pub(super) code: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) history: Vec<Attempt>,
    pub(super) ended_at: Option<Timestamp>,
}

impl Delivery {
    /// One that can be taken at once.
    pub(super) fn new(message: Number, identity: DeliveryKey, digest: Digest, now: Timestamp) -> Self {
        Self {
            message,
            identity,
            digest,
            lane: None,
            stage: Stage::Ready,
            due_at: now,
            lease_until: None,
            fence: 0,
            holder: None,
            started: false,
            attempts: 0,
            deaths: 0,
            generation: 0,
            code: None,
            reason: None,
            history: Vec::new(),
            ended_at: None,
        }
    }

    pub(super) fn lane(&self) -> Option<Lane> {
        self.lane.as_ref().map(|name| Lane {
            handler: self.identity.handler.clone(),
            tenant: self.identity.tenant.clone(),
            name: name.clone(),
        })
    }

    /// Whether the ticket gives the right to change it.
    pub(super) fn is_held_by(&self, ticket: Ticket) -> bool {
        self.stage == Stage::Leased && self.fence == ticket.fence
    }

    /// Whether a run of it ended with its lease, asked while it is due.
    pub(super) const fn is_suspect(&self) -> bool {
        self.has_died() || self.deaths > 0
    }

    /// A started run that is due again has lost its lease.
    const fn has_died(&self) -> bool {
        matches!(self.stage, Stage::Leased) && self.started
    }

    pub(super) fn lease(&mut self, holder: &str, until: Timestamp) {
        self.deaths += u32::from(self.has_died());
        self.stage = Stage::Leased;
        self.fence += 1;
        self.holder = Some(holder.to_owned());
        self.lease_until = Some(until);
        self.started = false;
    }

    /// Counts the attempt, once.
    pub(super) const fn start(&mut self) {
        if !self.started {
            self.started = true;
            self.attempts += 1;
        }
    }

    /// Can be taken from `due_at` on.
    pub(super) fn release(&mut self, due_at: Timestamp) {
        self.stage = Stage::Ready;
        self.let_go();
        self.due_at = due_at;
    }

    /// Takes back the attempt that was counted for this run.
    pub(super) const fn uncount(&mut self) {
        self.attempts = self.attempts.saturating_sub(self.started as u32);
    }

    pub(super) fn retry(&mut self, now: Timestamp, after: Duration) {
        self.deaths = 0;
        self.release(now.plus(after));
    }

    pub(super) fn die(&mut self, now: Timestamp) {
        self.end(Stage::Dead, now);
    }

    pub(super) fn finish(&mut self, now: Timestamp) {
        (self.code, self.reason) = (None, None);
        self.end(Stage::Done, now);
    }

    pub(super) fn discard(&mut self, now: Timestamp) {
        self.end(Stage::Discarded, now);
    }

    /// Fresh attempts. What it died of is kept until it is done.
    pub(super) fn revive(&mut self, now: Timestamp) {
        (self.attempts, self.deaths, self.ended_at) = (0, 0, None);
        self.release(now);
    }

    /// Remembers a failed attempt.
    pub(super) fn remember(&mut self, now: Timestamp, code: &str, reason: &str) {
        let reason = reason_text(reason);
        (self.code, self.reason) = (Some(code.to_owned()), Some(reason.clone()));
        self.history.push(Attempt { attempt: self.attempts, at: now, code: code.to_owned(), reason });
        let surplus = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..surplus);
    }

    fn end(&mut self, stage: Stage, now: Timestamp) {
        self.stage = stage;
        self.let_go();
        self.ended_at = Some(now);
    }

    fn let_go(&mut self) {
        self.started = false;
        self.holder = None;
        self.lease_until = None;
    }
}
