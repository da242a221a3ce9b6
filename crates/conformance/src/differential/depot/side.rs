//! One of the two stores, and what it takes to tell its numbers as names.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use oncebox_core::depot::{
    Assignment, Deposit, Fate, Finish, Number, StoredPage, TakeRequest, Taken, Ticket, Want, replayed,
};
use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::Inspect;
use oncebox_core::store::{Mark, Marked};
use oncebox_core::{Depot, LetterFilter, LetterId, Letters, Result, Retention, Timestamp};

use super::choice::HANDLERS;
use super::operation::{Arrival, Claim, Ending, Name, Operation};
use crate::sample::{moment, plain};

const LEASE: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);
/// More than a sequence can make.
const MANY: usize = 1000;

pub(super) struct Side<S> {
    store: S,
    /// Each time a delivery was taken, good or not.
    taken: BTreeMap<Name, Vec<Taken>>,
    /// The names of what was taken, in that order.
    order: Vec<Name>,
}

impl<S: Depot + Letters + Inspect + Retention> Side<S> {
    pub(super) const fn new(store: S) -> Self {
        Self { store, taken: BTreeMap::new(), order: Vec::new() }
    }

    /// Deliveries that were ever taken.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.taken.keys()
    }

    /// Those that were taken most recently, and may be held.
    pub(super) fn leased(&self) -> &[Name] {
        &self.order[self.order.len().saturating_sub(8)..]
    }

    /// Does it and tells everything that can be seen of it, as text.
    pub(super) async fn apply(&mut self, operation: &Operation, now: Timestamp) -> String {
        let now = Some(now);
        match operation {
            Operation::Deposit { batch, is_committed } => self.deposit(batch, *is_committed, now).await,
            Operation::Take { .. } => self.take(operation, now).await,
            Operation::HasSuspects => {
                let wants = HANDLERS.map(|handler| Want { handler, limit: 1 });
                tell(self.store.has_suspects("", &wants, now).await)
            }
            Operation::Start(claims) => tell(self.store.start(&self.tickets(claims)).await),
            Operation::Renew(claims) => tell(self.store.renew(&self.tickets(claims), LEASE, now).await),
            Operation::Finish { claim, next, is_committed } => {
                self.finish(claim, next.as_ref(), *is_committed, now).await
            }
            Operation::Conclude { claim, ending, next } => {
                let next = next.as_ref().map(|next| self.ticket(next));
                tell(self.store.conclude(self.ticket(claim), &fate(ending), next, now).await)
            }
            Operation::GiveBack(claims) => tell(self.store.give_back(&self.tickets(claims), now).await),
            Operation::Standing(claim) => tell(self.store.standing(self.ticket(claim)).await),
            Operation::Intend(claim, name) => tell(self.store.intend(self.ticket(claim), name, now).await),
            Operation::Record(claim, name, result) => {
                tell(self.store.record(self.ticket(claim), name, result).await)
            }
            Operation::Announce(handler) => tell(self.store.announce("", &[handler], now).await),
            Operation::ParkOrphans => tell(self.store.park_orphans(MINUTE, MANY, now).await),
            Operation::Purge(purge, limit) => tell(self.store.purge(purge, *limit, now).await),
            Operation::HoldBroom(holder) => tell(self.store.hold_broom(holder, LEASE, now).await),
            Operation::Stored { skip, limit } => self.stored(*skip, *limit).await,
            other => self.operate(other, now).await,
        }
    }

    async fn operate(&self, operation: &Operation, now: Option<Timestamp>) -> String {
        match operation {
            Operation::Requeue(name, window) => {
                tell(self.store.requeue_letter(self.letter(name).await, *window, now).await)
            }
            Operation::Discard(name) => tell(self.store.discard_letter(self.letter(name).await, now).await),
            Operation::Amend(name, edited) => {
                let amended = self.store.amend_letter(self.letter(name).await, edited, now).await;
                tell(amended.map(|number| number.is_some()))
            }
            Operation::Replay(name) => {
                let number = self.ticket(&Claim { name: name.clone(), ago: 0 }).number;
                tell(self.store.replay_delivery(number, now).await)
            }
            Operation::Assign(name) => self.assign(name, now).await,
            Operation::Letters => self.letters().await,
            _ => self.status().await,
        }
    }

    async fn deposit(&self, batch: &[Arrival], is_committed: bool, now: Option<Timestamp>) -> String {
        let deposits: Vec<Deposit<'_>> = batch.iter().map(deposit).collect();
        let mut tx = self.store.begin().await.unwrap();
        let deposited = self.store.deposit(&mut tx, &deposits, now).await;
        if is_committed {
            self.store.commit(tx).await.unwrap();
        } else {
            self.store.rollback(tx).await.unwrap();
        }
        tell(deposited.map(|deposited| deposited.into_iter().map(unnumbered).collect::<Vec<_>>()))
    }

    async fn take(&mut self, operation: &Operation, now: Option<Timestamp>) -> String {
        let Operation::Take { holder, limits: (limit, each), seats, suspects } = *operation else {
            return String::new();
        };
        let wants = HANDLERS.map(|handler| Want { handler, limit: each });
        let request = TakeRequest { scope: "", holder, lease: LEASE, limit, seats, wants: &wants, suspects };
        let taken = self.store.take(&request, now).await;
        tell(taken.map(|taken| {
            let told: Vec<_> = taken.iter().map(told).collect();
            for taken in taken {
                let handler = HANDLERS.into_iter().find(|handler| *handler == taken.handler).unwrap();
                let name = (handler, taken.envelope.id.clone());
                self.order.push(name.clone());
                self.taken.entry(name).or_default().push(taken);
            }
            told
        }))
    }

    async fn finish(
        &self,
        claim: &Claim,
        next: Option<&Claim>,
        is_committed: bool,
        now: Option<Timestamp>,
    ) -> String {
        let Some(taken) = self.held(claim) else { return String::new() };
        let key = replayed(&taken.key, taken.generation);
        let mark = Mark {
            tenant: "",
            handler: &taken.handler,
            key: &key,
            digest: taken.digest,
            time: None,
            window: None,
        };
        let finish = Finish {
            ticket: taken.ticket,
            mark: Some(mark),
            result: Some(taken.envelope.id.as_bytes()),
            frees_lane: taken.lane.is_some(),
            next: next.map(|next| self.ticket(next)),
        };
        let mut tx = self.store.begin().await.unwrap();
        let finished = self.store.finish(&mut tx, &finish, now).await;
        if is_committed && matches!(finished, Ok(Marked::First)) {
            self.store.commit(tx).await.unwrap();
        } else {
            self.store.rollback(tx).await.unwrap();
        }
        tell(finished)
    }

    async fn assign(&self, (handler, id): &Name, now: Option<Timestamp>) -> String {
        let found = self.page(0, MANY).await.into_iter().find(|stored| stored.envelope.id == *id);
        let Some(stored) = found else { return "no such message".into() };
        let key = MessageKey { source: stored.envelope.source.clone(), id: id.clone() };
        let lane = None;
        let assignment = Assignment {
            handler,
            marker: handler,
            key,
            lane,
            window: None,
            refused: None,
            frees_lane: false,
        };
        let mut tx = self.store.begin().await.unwrap();
        let assigned = self.store.assign(&mut tx, stored.number, &assignment, now).await;
        self.store.commit(tx).await.unwrap();
        tell(assigned)
    }

    async fn stored(&self, skip: usize, limit: usize) -> String {
        let after = self.page(0, MANY).await.get(skip).map_or(0, |stored| stored.number);
        let page = self.page(after, limit).await;
        format!("{:?}", page.iter().map(|stored| &stored.envelope.id).collect::<Vec<_>>())
    }

    async fn page(&self, after: Number, limit: usize) -> Vec<oncebox_core::depot::Stored> {
        let kind = &plain("").kind;
        let page = StoredPage { scope: "", channel: "c", kind, since: moment(0), after, limit };
        self.store.stored(&page).await.unwrap()
    }

    /// Sorted: letters that died at once have no order.
    async fn letters(&self) -> String {
        let mut told = Vec::new();
        for listed in self.store.letters(&LetterFilter::default(), MANY).await.unwrap() {
            let letter = self.store.letter(listed.id).await.unwrap().unwrap();
            let history: Vec<_> = letter.history.iter().map(|a| (a.attempt, a.at, a.code.clone())).collect();
            let name = (letter.died_at, letter.handler, letter.envelope.id);
            told.push((name, letter.code, letter.attempts, letter.received_at, letter.blocks, history));
        }
        told.sort();
        format!("{told:?}")
    }

    async fn status(&self) -> String {
        let status = self.store.status().await.unwrap();
        let counts: Vec<_> = status
            .handlers
            .iter()
            .map(|h| (&h.handler, h.ready, h.leased, h.behind, h.parked, h.dead, h.oldest.is_some()))
            .collect();
        format!("{counts:?} {:?}", (status.markers, status.dead_letters))
    }

    /// The dead letter of a delivery, or what its name would be if it were one.
    async fn letter(&self, name: &Name) -> LetterId {
        let letters = self.store.letters(&LetterFilter::default(), MANY).await.unwrap();
        let is_meant = |letter: &oncebox_core::DeadLetter| {
            (letter.handler.as_str(), &letter.envelope.id) == (name.0, &name.1)
        };
        let found = letters.into_iter().find(is_meant).map(|letter| letter.id);
        let claim = Claim { name: name.clone(), ago: 0 };
        found.unwrap_or_else(|| LetterId::Delivery(self.ticket(&claim).number))
    }

    fn held(&self, claim: &Claim) -> Option<&Taken> {
        self.taken.get(&claim.name).and_then(|taken| taken.iter().rev().nth(claim.ago))
    }

    fn ticket(&self, claim: &Claim) -> Ticket {
        self.held(claim).map_or(Ticket { number: Number::MAX, fence: 1 }, |taken| taken.ticket)
    }

    fn tickets(&self, claims: &[Claim]) -> Vec<Ticket> {
        claims.iter().map(|claim| self.ticket(claim)).collect()
    }
}

fn deposit(arrival: &Arrival) -> Deposit<'_> {
    let Arrival { channel, envelope, handlers, lane, window, is_refused, frees_lane } = arrival;
    let key = MessageKey { source: envelope.source.clone(), id: envelope.id.clone() };
    let assignments = handlers.iter().map(|handler| Assignment {
        handler,
        marker: handler,
        key: key.clone(),
        lane: *lane,
        window: *window,
        refused: is_refused.then_some(("refused", "no")),
        frees_lane: *frees_lane,
    });
    Deposit { scope: "", channel, envelope, assignments: assignments.collect() }
}

fn fate(ending: &Ending) -> Fate<'static> {
    match *ending {
        Ending::Retry { after, spent } => Fate::Retry { after, spent, code: "failed", reason: "no luck" },
        Ending::Dead { spent, frees_lane } => {
            Fate::Dead { spent, code: "hopeless", reason: "no use", frees_lane }
        }
        Ending::Duplicate => Fate::Duplicate,
    }
}

/// Numbers differ between stores.
fn unnumbered(deposited: oncebox_core::depot::Deposited) -> String {
    match deposited {
        oncebox_core::depot::Deposited::Stored { assigned, .. } => format!("{assigned:?}"),
        other => format!("{other:?}"),
    }
}

fn told(taken: &Taken) -> String {
    let name =
        (&taken.handler, &taken.envelope.id, taken.envelope.payload.len(), &taken.channel, &taken.lane);
    let counts = (taken.ticket.fence, taken.attempt, taken.deaths, taken.generation, taken.started);
    format!("{name:?} {counts:?} {}", taken.received_at)
}

/// A result as text: its value, or the kind of its error.
fn tell<T: Debug>(result: Result<T>) -> String {
    result.map_or_else(|error| error.kind().name().to_owned(), |value| format!("{value:?}"))
}
