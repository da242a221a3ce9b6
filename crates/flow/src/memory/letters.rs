//! What a person does with dead letters of the store.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::Number;
use oncebox_core::digest::bounded_key;
use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::BoxFuture;
use oncebox_core::{
    DeadLetter, Envelope, Error, Kind, LetterFilter, LetterId, Letters, Requeued, Result, Timestamp,
};

use super::dedup::Grave;
use super::delivery::{Delivery, DeliveryKey, Stage};
use super::inspect::capped;
use super::state::State;
use super::stock::{Message, MessageIdentity, Stock, View};
use super::store::{MemoryStore, at};

impl Letters for MemoryStore {
    fn letters<'s>(
        &'s self,
        filter: &'s LetterFilter,
        limit: usize,
    ) -> BoxFuture<'s, Result<Vec<DeadLetter>>> {
        Box::pin(async move {
            let state = self.state();
            let mut letters: Vec<DeadLetter> =
                all(&state).filter(|letter| is_meant(filter, letter)).collect();
            letters.sort_by_key(|letter| (letter.died_at, letter.id));
            letters.truncate(limit);
            Ok(letters)
        })
    }

    fn letter(&self, id: LetterId) -> BoxFuture<'_, Result<Option<DeadLetter>>> {
        Box::pin(async move {
            let state = self.state();
            let letter = all(&state).find(|letter| letter.id == id);
            Ok(letter.map(|mut letter| {
                if let LetterId::Delivery(number) = id {
                    let row = state.stock.delivery(number);
                    letter.history = row.map(|row| row.history.clone()).unwrap_or_default();
                }
                letter
            }))
        })
    }

    fn requeue_letter(
        &self,
        id: LetterId,
        window: Option<Duration>,
        now: Option<Timestamp>,
    ) -> BoxFuture<'_, Result<Requeued>> {
        Box::pin(async move {
            self.write(|state| {
                let now = at(now);
                let Some(letter) = all(state).find(|letter| letter.id == id) else {
                    return Ok(Requeued::Missing);
                };
                if letter.handler.is_empty() {
                    return Ok(Requeued::NoHandler);
                }
                if window.is_some_and(|window| letter.received_at < now.minus(window)) {
                    return Ok(Requeued::TooOld);
                }
                match id {
                    LetterId::Delivery(number) => revive(&mut state.stock, number, now, |_| {})?,
                    LetterId::Received(number) => {
                        adopt(&mut state.stock, &letter, now)?;
                        state.graveyard.exhume(number);
                    }
                }
                Ok(Requeued::Ready)
            })
            .await?
        })
    }

    fn discard_letter(&self, id: LetterId, now: Option<Timestamp>) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            self.write(|state| match id {
                LetterId::Received(number) => Ok(state.graveyard.exhume(number)),
                LetterId::Delivery(number) => View::change(&mut state.stock, |view| {
                    Ok(discard(view, number, at(now)).is_some_and(|discarded| {
                        view.free(discarded.lane().as_ref(), at(now));
                        true
                    }))
                }),
            })
            .await?
        })
    }

    fn amend_letter<'s>(
        &'s self,
        id: LetterId,
        edited: &'s Envelope,
        now: Option<Timestamp>,
    ) -> BoxFuture<'s, Result<Option<Number>>> {
        Box::pin(async move {
            self.write(|state| {
                let now = at(now);
                let Some(letter) = all(state).find(|letter| letter.id == id) else { return Ok(None) };
                if letter.handler.is_empty() {
                    return Err(Error::new(
                        Kind::Invalid,
                        "no handler was asked: there is nobody to give it to",
                    ));
                }
                let edited = DeadLetter { envelope: edited.clone(), ..letter };
                match id {
                    LetterId::Delivery(number) => replace(&mut state.stock, number, &edited, now).map(Some),
                    LetterId::Received(number) => {
                        let added = View::change(&mut state.stock, |view| {
                            let delivery = share(view, &edited, now)?;
                            Ok(view.add_delivery(delivery))
                        })?;
                        state.graveyard.exhume(number);
                        Ok(Some(added))
                    }
                }
            })
            .await?
        })
    }

    fn replay_delivery(&self, number: Number, now: Option<Timestamp>) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            self.write(|state| {
                if state.stock.delivery(number).is_none_or(|row| row.stage != Stage::Done) {
                    return Ok(false);
                }
                revive(&mut state.stock, number, at(now), |delivery| delivery.generation += 1)?;
                Ok(true)
            })
            .await?
        })
    }
}

/// Every dead letter, without history.
fn all(state: &State) -> impl Iterator<Item = DeadLetter> {
    let dead = state.stock.open().filter(|(_, row, _)| row.stage == Stage::Dead);
    let delivered = dead.map(|(number, row, message)| of_delivery(&state.stock, number, row, message));
    delivered.chain(state.graveyard.graves().map(|(number, grave)| of_grave(number, grave)))
}

fn of_delivery(stock: &Stock, number: Number, row: &Delivery, message: &Message) -> DeadLetter {
    let waits = |(other, row): &(Number, &Delivery)| *other > number && row.stage == Stage::Behind;
    let blocks = row.lane().map_or(0, |lane| stock.lane(&lane).filter(waits).count());
    DeadLetter {
        id: LetterId::Delivery(number),
        scope: message.scope.clone(),
        channel: message.channel.clone(),
        handler: row.identity.handler.1.clone(),
        code: row.code.clone().unwrap_or_default(),
        reason: row.reason.clone().unwrap_or_default(),
        attempts: row.attempts,
        received_at: message.received_at,
        died_at: row.ended_at.unwrap_or_default(),
        blocks: capped(blocks),
        history: Vec::new(),
        envelope: Envelope::clone(&message.envelope),
    }
}

fn of_grave(number: Number, grave: &Grave) -> DeadLetter {
    let letter = &grave.letter;
    DeadLetter {
        id: LetterId::Received(number),
        scope: String::new(),
        channel: letter.channel.clone(),
        handler: letter.handler.clone(),
        code: letter.code.clone(),
        reason: letter.reason.clone(),
        attempts: letter.attempts,
        received_at: grave.died_at,
        died_at: grave.died_at,
        blocks: 0,
        history: Vec::new(),
        envelope: letter.envelope.clone(),
    }
}

fn is_meant(filter: &LetterFilter, letter: &DeadLetter) -> bool {
    let fits = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
    fits(&filter.handler, &letter.handler)
        && fits(&filter.channel, &letter.channel)
        && fits(&filter.code, &letter.code)
}

/// Has a delivery that is over or dead run again, in its place in its lane.
fn revive(
    stock: &mut Stock,
    number: Number,
    now: Timestamp,
    change: impl FnOnce(&mut Delivery),
) -> Result<()> {
    View::change(stock, |view| {
        if let Some(mut delivery) = view.delivery(number).cloned() {
            delivery.revive(now);
            delivery.stage = view.place(delivery.lane().as_ref(), number);
            change(&mut delivery);
            view.set(number, delivery);
        }
        Ok(())
    })
}

/// Gives a dead delivery up; answers with it as it was.
fn discard(view: &mut View<'_>, number: Number, now: Timestamp) -> Option<Delivery> {
    let dead = view.delivery(number).filter(|delivery| delivery.stage == Stage::Dead)?.clone();
    let mut discarded = dead.clone();
    discarded.discard(now);
    view.set(number, discarded);
    Some(dead)
}

/// Puts an edited message in the place of a dead one: those behind it wait on.
fn replace(stock: &mut Stock, number: Number, edited: &DeadLetter, now: Timestamp) -> Result<Number> {
    View::change(stock, |view| {
        let mut delivery = share(view, edited, now)?;
        if let Some(dead) = discard(view, number, now) {
            delivery.stage = view.place(dead.lane().as_ref(), number);
            delivery.lane = dead.lane;
        }
        Ok(view.add_delivery(delivery))
    })
}

/// Makes a delivery of a message that came in receiver mode.
fn adopt(stock: &mut Stock, letter: &DeadLetter, now: Timestamp) -> Result<()> {
    View::change(stock, |view| {
        if let Some(before) = view.find_delivery(&identity(letter)) {
            return if before.digest == letter.envelope.digest() { Ok(()) } else { Err(taken(letter)) };
        }
        let stored =
            view.find_message(&MessageIdentity::of(&letter.scope, &letter.channel, &letter.envelope));
        let delivery = match stored {
            Some(message) => Delivery::new(message, identity(letter), letter.envelope.digest(), now),
            None => share(view, letter, now)?,
        };
        view.add_delivery(delivery);
        Ok(())
    })
}

/// Stores a letter's message, and makes its handler's share of it.
fn share(view: &mut View<'_>, letter: &DeadLetter, now: Timestamp) -> Result<Delivery> {
    let DeadLetter { scope, channel, envelope, .. } = letter;
    let is_taken = view.find_message(&MessageIdentity::of(scope, channel, envelope)).is_some()
        || view.find_delivery(&identity(letter)).is_some();
    if is_taken {
        return Err(taken(letter));
    }
    let digest = envelope.digest();
    let message = view.add_message(Message {
        scope: scope.clone(),
        channel: channel.clone(),
        digest,
        received_at: now,
        envelope: Arc::new(envelope.clone()),
    });
    Ok(Delivery::new(message, identity(letter), digest, now))
}

fn identity(letter: &DeadLetter) -> DeliveryKey {
    let DeadLetter { scope, handler, envelope, .. } = letter;
    let id = match envelope.id.as_str() {
        "" => format!("digest:{}", envelope.digest()),
        id => bounded_key(id),
    };
    DeliveryKey {
        handler: (scope.clone(), handler.clone()),
        tenant: envelope.tenant.clone(),
        key: MessageKey { source: bounded_key(&envelope.source), id },
    }
}

fn taken(letter: &DeadLetter) -> Error {
    Error::new(Kind::Conflict, format!("the inbox has another message with the id {:?}", letter.envelope.id))
}
