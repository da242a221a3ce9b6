//! The durable inbox of the store: accepting messages and working through them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{
    Assigned, Assignment, Deposit, Deposited, Fate, Finish, Number, Savepoint, Standing, Stored, StoredPage,
    TakeRequest, Taken, Ticket, Want, reason_text,
};
use oncebox_core::store::Marked;
use oncebox_core::{Depot, Digest, Envelope, Error, Kind, Result, Timestamp};

use super::dedup::{Marker, MarkerKey};
use super::delivery::{Delivery, DeliveryKey, HandlerId, Stage};
use super::state::State;
use super::stock::{Message, MessageIdentity, Stock, View};
use super::store::{MemoryStore, MemoryTx, at, lock};

/// An announcement that is repeated sooner than this is not written.
const ANNOUNCED: Duration = Duration::from_secs(10);

impl Depot for MemoryStore {
    async fn deposit(
        &self,
        tx: &mut MemoryTx,
        deposits: &[Deposit<'_>],
        now: Option<Timestamp>,
    ) -> Result<Vec<Deposited>> {
        let (state, now) = (lock(&tx.state), at(now));
        let mut view = View::new(&state.stock, &mut tx.stock);
        let marked = |key: &MarkerKey| tx.markers.get(key).or_else(|| state.markers.get(key));
        Ok(deposits.iter().map(|deposit| accept(&mut view, marked, deposit, now)).collect())
    }

    async fn take(&self, request: &TakeRequest<'_>, now: Option<Timestamp>) -> Result<Vec<Taken>> {
        let now = at(now);
        // An idle worker must not queue with the writers.
        if due(&self.state().stock, request, now).is_empty() {
            return Ok(Vec::new());
        }
        self.write(|state| {
            let due = due(&state.stock, request, now);
            View::change(&mut state.stock, |view| {
                let rows = due.iter().enumerate();
                Ok(rows.filter_map(|(place, number)| take(view, request, *number, place, now)).collect())
            })
        })
        .await?
    }

    async fn has_suspects(&self, scope: &str, wants: &[Want<'_>], now: Option<Timestamp>) -> Result<bool> {
        let (state, now) = (self.state(), at(now));
        Ok(wants.iter().any(|want| due_of(&state.stock, scope, want.handler, true, now).next().is_some()))
    }

    async fn start(&self, tickets: &[Ticket]) -> Result<Vec<bool>> {
        self.write(|state| {
            View::change(&mut state.stock, |view| {
                Ok(tickets.iter().map(|ticket| view.start(*ticket)).collect())
            })
        })
        .await?
    }

    /// Does not queue with the writers: a handler may be one for longer than a lease lasts.
    async fn renew(&self, tickets: &[Ticket], lease: Duration, now: Option<Timestamp>) -> Result<Vec<bool>> {
        let (mut state, until) = (self.state(), at(now).plus(lease));
        Ok(tickets.iter().map(|ticket| state.stock.renew(*ticket, until)).collect())
    }

    async fn finish(&self, tx: &mut MemoryTx, finish: &Finish<'_>, now: Option<Timestamp>) -> Result<Marked> {
        let now = at(now);
        let state = lock(&tx.state);
        let mut view = View::new(&state.stock, &mut tx.stock);
        let mut delivery = view.held(finish.ticket)?;
        if let Some(mark) = &finish.mark {
            let key = MarkerKey::of(mark);
            if let Some(marker) = tx.markers.get(&key).or_else(|| state.markers.get(&key)) {
                return Ok(marker.found(mark.digest));
            }
            state.markers.check_room(&tx.markers)?;
            tx.markers.insert(key, Marker::new(mark.digest, now, finish.result));
        }
        let lane = delivery.lane().filter(|_| finish.frees_lane);
        delivery.finish(now);
        view.set(finish.ticket.number, delivery);
        view.free(lane.as_ref(), now);
        if let Some(next) = finish.next {
            view.start(next);
        }
        Ok(Marked::First)
    }

    async fn savepoint(&self, tx: &mut MemoryTx, step: Savepoint) -> Result<()> {
        match step {
            Savepoint::Set | Savepoint::Next => tx.save(),
            Savepoint::Undo => tx.undo(),
        }
        Ok(())
    }

    async fn conclude(
        &self,
        ticket: Ticket,
        fate: &Fate<'_>,
        next: Option<Ticket>,
        now: Option<Timestamp>,
    ) -> Result<()> {
        self.write(|state| {
            View::change(&mut state.stock, |view| {
                conclude(view, ticket, fate, at(now))?;
                if let Some(next) = next {
                    view.start(next);
                }
                Ok(())
            })
        })
        .await?
    }

    async fn give_back(&self, tickets: &[Ticket], now: Option<Timestamp>) -> Result<()> {
        self.write(|state| {
            View::change(&mut state.stock, |view| {
                for ticket in tickets {
                    let Ok(mut delivery) = view.held(*ticket) else { continue };
                    delivery.uncount();
                    delivery.release(at(now));
                    view.set(ticket.number, delivery);
                }
                Ok(())
            })
        })
        .await?
    }

    async fn standing(&self, ticket: Ticket) -> Result<Standing> {
        // As a writer, so that whoever is about to decide it has decided.
        self.write(|state| match state.stock.delivery(ticket.number) {
            Some(delivery) if delivery.fence != ticket.fence => Standing::Lost,
            Some(delivery) if delivery.stage == Stage::Done => Standing::Done,
            Some(delivery) if delivery.stage == Stage::Leased => Standing::Held,
            _ => Standing::Lost,
        })
        .await
    }

    async fn intend(&self, ticket: Ticket, name: &str, _now: Option<Timestamp>) -> Result<Option<Vec<u8>>> {
        self.write(|state| effect(&mut state.stock, ticket, name).cloned()).await?
    }

    async fn record(&self, ticket: Ticket, name: &str, result: &[u8]) -> Result<()> {
        self.write(|state| {
            *effect(&mut state.stock, ticket, name)? = Some(result.to_vec());
            Ok(())
        })
        .await?
    }

    async fn announce(&self, scope: &str, handlers: &[&str], now: Option<Timestamp>) -> Result<usize> {
        self.write(|state| {
            let now = at(now);
            let known: BTreeSet<HandlerId> =
                handlers.iter().map(|handler| (scope.to_owned(), (*handler).to_owned())).collect();
            for handler in &known {
                let seen_at = state.announced.entry(handler.clone()).or_insert(now);
                if *seen_at < now.minus(ANNOUNCED) {
                    *seen_at = now;
                }
            }
            unpark(&mut state.stock, &known, now)
        })
        .await?
    }

    async fn park_orphans(&self, after: Duration, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        self.write(|state| park_orphans(state, after, limit, at(now))).await?
    }

    async fn stored(&self, page: &StoredPage<'_>) -> Result<Vec<Stored>> {
        let state = self.state();
        let rows = state.stock.messages().range(page.after.saturating_add(1)..);
        let meant = rows.filter(|(_, message)| {
            message.scope == page.scope
                && message.channel == page.channel
                && message.envelope.kind == page.kind
                && message.received_at >= page.since
        });
        let stored = meant.map(|(number, message)| Stored {
            number: *number,
            envelope: Envelope::clone(&message.envelope),
        });
        Ok(stored.take(page.limit).collect())
    }

    async fn assign(
        &self,
        tx: &mut MemoryTx,
        message: Number,
        assignment: &Assignment<'_>,
        now: Option<Timestamp>,
    ) -> Result<Assigned> {
        let (state, now) = (lock(&tx.state), at(now));
        let mut view = View::new(&state.stock, &mut tx.stock);
        let marked = |key: &MarkerKey| tx.markers.get(key).or_else(|| state.markers.get(key));
        let share = Share::of(&view, message)?;
        Ok(assign(&mut view, marked, &share, assignment, now))
    }
}

/// What the deliveries of a message have in common.
struct Share {
    message: Number,
    scope: String,
    tenant: String,
    digest: Digest,
    time: Option<Timestamp>,
}

impl Share {
    fn of(view: &View<'_>, number: Number) -> Result<Self> {
        let missing = || Error::new(Kind::Invalid, format!("there is no message {number}"));
        let message = view.message(number).ok_or_else(missing)?;
        Ok(Self {
            message: number,
            scope: message.scope.clone(),
            tenant: message.envelope.tenant.clone(),
            digest: message.digest,
            time: message.envelope.time,
        })
    }
}

fn accept<'m>(
    view: &mut View<'_>,
    marked: impl Fn(&MarkerKey) -> Option<&'m Marker>,
    deposit: &Deposit<'_>,
    now: Timestamp,
) -> Deposited {
    let Deposit { scope, channel, envelope, .. } = *deposit;
    let (identity, digest) = (MessageIdentity::of(scope, channel, envelope), envelope.digest());
    if let Some(stored) = view.find_message(&identity).and_then(|number| view.message(number)) {
        return if stored.digest == digest { Deposited::Duplicate } else { Deposited::Conflict };
    }
    let number = view.add_message(Message {
        scope: scope.to_owned(),
        channel: channel.to_owned(),
        digest,
        received_at: now,
        envelope: Arc::new(envelope.clone()),
    });
    let share = Share {
        message: number,
        scope: scope.to_owned(),
        tenant: envelope.tenant.clone(),
        digest,
        time: envelope.time,
    };
    let assigned =
        deposit.assignments.iter().map(|assignment| assign(view, &marked, &share, assignment, now)).collect();
    Deposited::Stored { number, assigned }
}

fn assign<'m>(
    view: &mut View<'_>,
    marked: impl Fn(&MarkerKey) -> Option<&'m Marker>,
    share: &Share,
    assignment: &Assignment<'_>,
    now: Timestamp,
) -> Assigned {
    let Assignment { handler, marker, ref key, lane, window, refused, frees_lane } = *assignment;
    let identity = DeliveryKey {
        handler: (share.scope.clone(), handler.to_owned()),
        tenant: share.tenant.clone(),
        key: key.clone(),
    };
    let before = view.find_delivery(&identity).map(|delivery| delivery.digest);
    let before = before.or_else(|| marked(&MarkerKey::new(marker, &share.tenant, key)).map(Marker::digest));
    if let Some(before) = before {
        return if before == share.digest { Assigned::Duplicate } else { Assigned::Conflict };
    }
    let mut delivery = Delivery::new(share.message, identity, share.digest, now);
    delivery.lane = lane.map(str::to_owned);
    let is_too_old = share.time.zip(window).is_some_and(|(time, window)| time < now.minus(window));
    let too_old = is_too_old.then_some(("too_old", "the message is older than what the markers can prove"));
    if let Some((code, reason)) = refused.or(too_old) {
        (delivery.code, delivery.reason) = (Some(code.to_owned()), Some(reason_text(reason)));
        delivery.die(now);
        delivery.lane = delivery.lane.filter(|_| !frees_lane);
    } else {
        delivery.stage = view.place(delivery.lane().as_ref(), view.next_number());
    }
    view.add_delivery(delivery);
    Assigned::New
}

/// What a request gets: each handler's longest due, then the longest due of all.
fn due(stock: &Stock, request: &TakeRequest<'_>, now: Timestamp) -> Vec<Number> {
    let of = |want: &Want<'_>| {
        due_of(stock, request.scope, want.handler, request.suspects, now).take(want.limit).collect::<Vec<_>>()
    };
    let due: BTreeSet<(Timestamp, Number)> = request.wants.iter().flat_map(of).collect();
    due.into_iter().take(request.limit).map(|(_, number)| number).collect()
}

fn due_of(
    stock: &Stock,
    scope: &str,
    handler: &str,
    suspects: bool,
    now: Timestamp,
) -> impl Iterator<Item = (Timestamp, Number)> {
    let is_meant = move |number| stock.delivery(number).is_some_and(|row| row.is_suspect() == suspects);
    let due: Vec<_> = stock.due(&(scope.to_owned(), handler.to_owned()), now).collect();
    due.into_iter().filter(move |(_, number)| is_meant(*number))
}

fn take(
    view: &mut View<'_>,
    request: &TakeRequest<'_>,
    number: Number,
    place: usize,
    now: Timestamp,
) -> Option<Taken> {
    let mut delivery = view.delivery(number).cloned()?;
    delivery.lease(request.holder, now.plus(request.lease));
    if place < request.seats {
        delivery.start();
    }
    let message = view.message(delivery.message)?;
    let taken = Taken {
        ticket: Ticket { number, fence: delivery.fence },
        handler: delivery.identity.handler.1.clone(),
        channel: message.channel.clone(),
        key: delivery.identity.key.clone(),
        digest: delivery.digest,
        lane: delivery.lane.clone(),
        attempt: delivery.attempts + u32::from(!delivery.started),
        deaths: delivery.deaths,
        generation: delivery.generation,
        started: delivery.started,
        received_at: message.received_at,
        envelope: Envelope::clone(&message.envelope),
    };
    view.set(number, delivery);
    Some(taken)
}

fn conclude(view: &mut View<'_>, ticket: Ticket, fate: &Fate<'_>, now: Timestamp) -> Result<()> {
    let mut delivery = view.held(ticket)?;
    let lane = delivery.lane();
    match *fate {
        Fate::Retry { after, spent, code, reason } => {
            if spent {
                delivery.remember(now, code, reason);
            } else {
                delivery.uncount();
            }
            delivery.retry(now, after);
        }
        Fate::Dead { spent, code, reason, frees_lane } => {
            delivery.remember(now, code, reason);
            if !spent {
                delivery.uncount();
            }
            delivery.die(now);
            if frees_lane {
                // It has left: what comes later does not wait for it.
                delivery.lane = None;
            }
        }
        Fate::Duplicate => delivery.finish(now),
    }
    view.set(ticket.number, delivery);
    view.free(lane.as_ref(), now);
    Ok(())
}

fn effect<'s>(stock: &'s mut Stock, ticket: Ticket, name: &str) -> Result<&'s mut Option<Vec<u8>>> {
    let generation = View::new(stock, &mut Stock::default()).held(ticket)?.generation;
    Ok(stock.effect(ticket.number, generation, name))
}

/// Lets the parked deliveries of these handlers run; tells how many.
fn unpark(stock: &mut Stock, handlers: &BTreeSet<HandlerId>, now: Timestamp) -> Result<usize> {
    let parked: Vec<Number> = stock
        .open()
        .filter(|(_, row, _)| row.stage == Stage::Parked && handlers.contains(&row.identity.handler))
        .map(|(number, ..)| number)
        .collect();
    View::change(stock, |view| {
        for number in &parked {
            let Some(mut delivery) = view.delivery(*number).cloned() else { continue };
            delivery.release(now);
            delivery.stage = view.place(delivery.lane().as_ref(), *number);
            view.set(*number, delivery);
        }
        Ok(parked.len())
    })
}

/// Parks what has been due for longer than `after` if its handler was announced no later.
fn park_orphans(state: &mut State, after: Duration, limit: usize, now: Timestamp) -> Result<usize> {
    let cutoff = now.minus(after);
    let is_known =
        |handler: &HandlerId| state.announced.get(handler).is_some_and(|seen_at| *seen_at >= cutoff);
    let unknown = state.stock.handlers().filter(|handler| !is_known(handler));
    let mut orphans: Vec<(Timestamp, Number)> =
        unknown.flat_map(|handler| state.stock.due(handler, cutoff)).collect();
    orphans.retain(|(due_at, number)| {
        let is_ready = state.stock.delivery(*number).is_some_and(|row| row.stage == Stage::Ready);
        is_ready && *due_at < cutoff
    });
    orphans.sort_unstable();
    orphans.truncate(limit);
    View::change(&mut state.stock, |view| {
        for (_, number) in &orphans {
            let Some(mut delivery) = view.delivery(*number).cloned() else { continue };
            delivery.stage = Stage::Parked;
            let lane = delivery.lane();
            view.set(*number, delivery);
            view.free(lane.as_ref(), now);
        }
        Ok(orphans.len())
    })
}
