//! The messages and deliveries of the durable inbox, as they are committed and
//! as a transaction sees them.
//!
//! A transaction keeps the rows it has changed in a [`Stock`] of its own; a
//! [`View`] looks through that at what is committed. At commit the rows move.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use oncebox_core::depot::{Number, Ticket};
use oncebox_core::digest::bounded_key;
use oncebox_core::{Digest, Envelope, Error, Kind, Result, Timestamp};

use super::delivery::{Delivery, DeliveryKey, HandlerId, Lane, Stage};

/// What makes a stored message the same message.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct MessageIdentity {
    scope: String,
    channel: String,
    tenant: String,
    source: String,
    id: String,
}

impl MessageIdentity {
    /// A message without an id is told from others by its digest.
    pub(super) fn of(scope: &str, channel: &str, envelope: &Envelope) -> Self {
        let id = match envelope.id.as_str() {
            "" => format!("digest:{}", envelope.digest()),
            id => bounded_key(id),
        };
        Self {
            scope: scope.to_owned(),
            channel: channel.to_owned(),
            tenant: envelope.tenant.clone(),
            source: bounded_key(&envelope.source),
            id,
        }
    }
}

/// A stored message.
#[derive(Clone)]
pub(super) struct Message {
    pub(super) scope: String,
    pub(super) channel: String,
    pub(super) digest: Digest,
    pub(super) received_at: Timestamp,
    pub(super) envelope: Arc<Envelope>,
}

impl Message {
    fn identity(&self) -> MessageIdentity {
        MessageIdentity::of(&self.scope, &self.channel, &self.envelope)
    }
}

/// What runs of a delivery have caused outside, by generation and name, with its result.
type Effects = HashMap<(u32, String), Option<Vec<u8>>>;

/// Rows, and how they are found.
#[derive(Clone, Default)]
pub(super) struct Stock {
    messages: BTreeMap<Number, Message>,
    deliveries: BTreeMap<Number, Delivery>,
    /// Kept when rows are purged: a number is never given out twice.
    last_message: Number,
    last_delivery: Number,
    identities: HashMap<MessageIdentity, Number>,
    keys: HashMap<DeliveryKey, Number>,
    /// How many deliveries a message has.
    shares: HashMap<Number, usize>,
    /// Ready and leased.
    due: BTreeMap<HandlerId, BTreeSet<(Timestamp, Number)>>,
    /// Not over.
    open: BTreeSet<Number>,
    lanes: HashMap<Lane, BTreeSet<Number>>,
    ended: BTreeMap<HandlerId, BTreeSet<(Timestamp, Number)>>,
    effects: HashMap<Number, Effects>,
}

impl Stock {
    pub(super) fn messages(&self) -> &BTreeMap<Number, Message> {
        &self.messages
    }

    pub(super) fn delivery(&self, number: Number) -> Option<&Delivery> {
        self.deliveries.get(&number)
    }

    /// Deliveries that are not over, with their messages, by number.
    pub(super) fn open(&self) -> impl Iterator<Item = (Number, &Delivery, &Message)> {
        self.open.iter().filter_map(|number| {
            let delivery = self.deliveries.get(number)?;
            Some((*number, delivery, self.messages.get(&delivery.message)?))
        })
    }

    /// What is ready of a handler and due at `now`, or was when its lease ran out; longest due first.
    pub(super) fn due(
        &self,
        handler: &HandlerId,
        now: Timestamp,
    ) -> impl Iterator<Item = (Timestamp, Number)> {
        let is_free = move |number: Number| {
            let until = self.deliveries.get(&number).and_then(|delivery| delivery.lease_until);
            until.is_none_or(|until| until <= now)
        };
        let due = self.due.get(handler).into_iter().flatten().copied();
        due.take_while(move |(due_at, _)| *due_at <= now).filter(move |(_, number)| is_free(*number))
    }

    pub(super) fn handlers(&self) -> impl Iterator<Item = &HandlerId> {
        self.due.keys()
    }

    /// What is not over of a lane, by number.
    pub(super) fn lane(&self, lane: &Lane) -> impl Iterator<Item = (Number, &Delivery)> {
        let numbers = self.lanes.get(lane).into_iter().flatten();
        numbers.filter_map(|number| self.deliveries.get(number).map(|delivery| (*number, delivery)))
    }

    pub(super) fn effect(&mut self, number: Number, generation: u32, name: &str) -> &mut Option<Vec<u8>> {
        self.effects.entry(number).or_default().entry((generation, name.to_owned())).or_default()
    }

    /// Forgets deliveries of a handler that were over before `cutoff`.
    pub(super) fn purge_deliveries(&mut self, handler: &HandlerId, limit: usize, cutoff: Timestamp) -> usize {
        let ended = self.ended.get(handler).into_iter().flatten();
        let old: Vec<Number> =
            ended.take_while(|(at, _)| *at < cutoff).map(|(_, number)| *number).take(limit).collect();
        for number in &old {
            self.remove_delivery(*number);
            self.effects.remove(number);
        }
        old.len()
    }

    /// Forgets messages accepted before `cutoff` that no delivery needs.
    pub(super) fn purge_messages(&mut self, limit: usize, cutoff: Timestamp) -> usize {
        let is_old = |(number, message): &(&Number, &Message)| {
            message.received_at < cutoff && !self.shares.contains_key(number)
        };
        let mut old: Vec<(Timestamp, Number)> = self
            .messages
            .iter()
            .filter(is_old)
            .map(|(number, message)| (message.received_at, *number))
            .collect();
        old.sort_unstable();
        old.truncate(limit);
        for (_, number) in &old {
            if let Some(message) = self.messages.remove(number) {
                self.identities.remove(&message.identity());
            }
        }
        old.len()
    }

    /// Makes leases last longer; says whether the ticket is good. Touches
    /// nothing else, so it is the one change that a writer may see under way.
    pub(super) fn renew(&mut self, ticket: Ticket, until: Timestamp) -> bool {
        let held = self.deliveries.get(&ticket.number).filter(|delivery| delivery.is_held_by(ticket));
        let Some(mut renewed) = held.cloned() else { return false };
        renewed.lease_until = Some(until);
        self.put_delivery(ticket.number, renewed);
        true
    }

    /// Takes over what a transaction has changed.
    pub(super) fn absorb(&mut self, changed: Self) {
        for (number, message) in changed.messages {
            self.put_message(number, message);
        }
        for (number, mut delivery) in changed.deliveries {
            // Renewals do not wait for the transaction, and must not be undone by it.
            if let Some(renewed) = self.deliveries.get(&number)
                && delivery.stage == Stage::Leased
                && delivery.fence == renewed.fence
            {
                delivery.lease_until = delivery.lease_until.max(renewed.lease_until);
            }
            self.put_delivery(number, delivery);
        }
    }

    fn put_message(&mut self, number: Number, message: Message) {
        self.last_message = self.last_message.max(number);
        self.identities.insert(message.identity(), number);
        self.messages.insert(number, message);
    }

    fn put_delivery(&mut self, number: Number, delivery: Delivery) {
        self.remove_delivery(number);
        self.last_delivery = self.last_delivery.max(number);
        let handler = &delivery.identity.handler;
        match delivery.stage {
            Stage::Ready | Stage::Leased => {
                self.due.entry(handler.clone()).or_default().insert((delivery.due_at, number));
            }
            Stage::Done | Stage::Discarded => {
                let ended_at = delivery.ended_at.unwrap_or_default();
                self.ended.entry(handler.clone()).or_default().insert((ended_at, number));
            }
            Stage::Behind | Stage::Parked | Stage::Dead => {}
        }
        if !delivery.stage.is_over() {
            self.open.insert(number);
            if let Some(lane) = delivery.lane() {
                self.lanes.entry(lane).or_default().insert(number);
            }
        }
        *self.shares.entry(delivery.message).or_default() += 1;
        self.keys.insert(delivery.identity.clone(), number);
        self.deliveries.insert(number, delivery);
    }

    fn remove_delivery(&mut self, number: Number) {
        let Some(delivery) = self.deliveries.remove(&number) else { return };
        let handler = &delivery.identity.handler;
        if let Some(due) = self.due.get_mut(handler) {
            due.remove(&(delivery.due_at, number));
        }
        if let Some(ended) = self.ended.get_mut(handler) {
            ended.remove(&(delivery.ended_at.unwrap_or_default(), number));
        }
        self.open.remove(&number);
        if let Some(lane) = delivery.lane()
            && let Some(numbers) = self.lanes.get_mut(&lane)
        {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.lanes.remove(&lane);
            }
        }
        if let Some(shares) = self.shares.get_mut(&delivery.message) {
            *shares -= 1;
            if *shares == 0 {
                self.shares.remove(&delivery.message);
            }
        }
        self.keys.remove(&delivery.identity);
    }
}

/// What a transaction sees: its own changes, and below them what is committed.
pub(super) struct View<'a> {
    committed: &'a Stock,
    changed: &'a mut Stock,
}

impl<'a> View<'a> {
    pub(super) const fn new(committed: &'a Stock, changed: &'a mut Stock) -> Self {
        Self { committed, changed }
    }

    /// Makes changes in one step: all of them, or none if there is an error.
    pub(super) fn change<T>(stock: &mut Stock, change: impl FnOnce(&mut View<'_>) -> Result<T>) -> Result<T> {
        let mut changed = Stock::default();
        let made = change(&mut View::new(stock, &mut changed))?;
        stock.absorb(changed);
        Ok(made)
    }

    pub(super) fn message(&self, number: Number) -> Option<&Message> {
        self.changed.messages.get(&number).or_else(|| self.committed.messages.get(&number))
    }

    /// The message stored under an identity.
    pub(super) fn find_message(&self, identity: &MessageIdentity) -> Option<Number> {
        self.changed.identities.get(identity).or_else(|| self.committed.identities.get(identity)).copied()
    }

    pub(super) fn add_message(&mut self, message: Message) -> Number {
        let number = self.changed.last_message.max(self.committed.last_message) + 1;
        self.changed.put_message(number, message);
        number
    }

    pub(super) fn delivery(&self, number: Number) -> Option<&Delivery> {
        self.changed.deliveries.get(&number).or_else(|| self.committed.deliveries.get(&number))
    }

    pub(super) fn find_delivery(&self, key: &DeliveryKey) -> Option<&Delivery> {
        let number = self.changed.keys.get(key).or_else(|| self.committed.keys.get(key))?;
        self.delivery(*number)
    }

    pub(super) fn add_delivery(&mut self, delivery: Delivery) -> Number {
        let number = self.changed.last_delivery.max(self.committed.last_delivery) + 1;
        self.set(number, delivery);
        number
    }

    pub(super) fn set(&mut self, number: Number, delivery: Delivery) {
        self.changed.put_delivery(number, delivery);
    }

    /// A copy of the row, to be changed and [set](Self::set).
    pub(super) fn held(&self, ticket: Ticket) -> Result<Delivery> {
        let held = self.delivery(ticket.number).filter(|delivery| delivery.is_held_by(ticket));
        held.cloned().ok_or_else(|| {
            Error::new(Kind::Fenced, format!("the lease of delivery {} was lost", ticket.number))
        })
    }

    /// Counts the attempt of a held delivery; says whether the ticket is good.
    pub(super) fn start(&mut self, ticket: Ticket) -> bool {
        let Ok(mut delivery) = self.held(ticket) else { return false };
        delivery.start();
        self.set(ticket.number, delivery);
        true
    }

    /// The stage of a row that could run if it were alone. One in front keeps
    /// it back, and so does one that runs, wherever that stands.
    pub(super) fn place(&self, lane: Option<&Lane>, number: Number) -> Stage {
        let Some(lane) = lane else { return Stage::Ready };
        let keeps_back = |(other, stage): &(Number, Stage)| {
            match stage {
                Stage::Ready | Stage::Leased => *other != number,
                // It waits itself, for something that keeps back both.
                Stage::Behind => false,
                _ => *other < number,
            }
        };
        if self.lane(lane).iter().any(keeps_back) { Stage::Behind } else { Stage::Ready }
    }

    /// What the number of the next delivery is going to be.
    pub(super) fn next_number(&self) -> Number {
        self.changed.last_delivery.max(self.committed.last_delivery) + 1
    }

    /// The first of a lane may run, if it waits for nobody.
    pub(super) fn free(&mut self, lane: Option<&Lane>, now: Timestamp) {
        let Some(lane) = lane else { return };
        let rows = self.lane(lane);
        if rows.iter().any(|(_, stage)| matches!(stage, Stage::Ready | Stage::Leased)) {
            return;
        }
        let Some((first, Stage::Behind)) = rows.first() else { return };
        if let Some(mut delivery) = self.delivery(*first).cloned() {
            delivery.release(now);
            self.set(*first, delivery);
        }
    }

    fn lane(&self, lane: &Lane) -> Vec<(Number, Stage)> {
        let committed =
            self.committed.lane(lane).filter(|(number, _)| !self.changed.deliveries.contains_key(number));
        let mut rows: Vec<(Number, Stage)> =
            committed.chain(self.changed.lane(lane)).map(|(number, row)| (number, row.stage)).collect();
        rows.sort_by_key(|(number, _)| *number);
        rows
    }
}
