//! What a worker holds: deliveries that run, deliveries that wait for a seat,
//! and how many more of each handler may be taken.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncebox_core::depot::{Taken, Ticket};
use oncebox_core::pace::{Ahead, Bucket, Circuit};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::inbox::HandlerOptions;

/// What a handler allows.
pub(super) struct Rule {
    /// Its key and its former ones.
    keys: Vec<&'static str>,
    concurrency: usize,
    options: HandlerOptions,
}

impl Rule {
    pub(super) fn of(keys: Vec<&'static str>, options: &HandlerOptions) -> Self {
        Self { keys, concurrency: options.concurrency.unwrap_or(usize::MAX), options: options.clone() }
    }
}

struct Load {
    keys: Vec<&'static str>,
    concurrency: usize,
    held: usize,
    bucket: Option<Bucket>,
    circuit: Option<Circuit>,
}

impl Load {
    fn free(&mut self, now: Duration) -> usize {
        let by_rate = self.bucket.as_mut().map_or(usize::MAX, |bucket| bucket.left(now));
        let by_circuit = self.circuit.as_ref().map_or(usize::MAX, |circuit| circuit.admits(now));
        self.concurrency.min(by_circuit).saturating_sub(self.held).min(by_rate)
    }
}

struct Held {
    handler: usize,
    /// When it began to run.
    since: Option<Instant>,
    lost: CancellationToken,
}

struct State {
    waiting: VecDeque<Taken>,
    held: HashMap<Ticket, Held>,
    loads: Vec<Load>,
    ahead: Ahead,
    is_closed: bool,
}

/// How much room there is.
pub(super) struct Room {
    pub(super) held: usize,
    pub(super) free: usize,
}

/// What a run says about its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Good,
    Bad,
    Unknown,
}

pub(super) struct Floor {
    state: Mutex<State>,
    /// How many run at once.
    seats: usize,
    began: Instant,
    /// Something waits for a seat, or the floor is closed.
    arrived: Notify,
    /// Something is over.
    left: Notify,
}

impl Floor {
    /// Has room for `seats` that run and up to `prefetch` that wait.
    pub(super) fn new(rules: Vec<Rule>, seats: usize, prefetch: usize) -> Self {
        let loads = rules.into_iter().map(|rule| Load {
            keys: rule.keys,
            concurrency: rule.concurrency,
            held: 0,
            bucket: rule.options.rate.map(|rate| Bucket::new(rate, Duration::ZERO)),
            circuit: rule.options.breaker.map(Circuit::new),
        });
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                held: HashMap::new(),
                loads: loads.collect(),
                ahead: Ahead::new(seats, prefetch),
                is_closed: false,
            }),
            seats,
            began: Instant::now(),
            arrived: Notify::new(),
            left: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All keys of all handlers.
    pub(super) fn keys(&self) -> Vec<&'static str> {
        self.state().loads.iter().flat_map(|load| load.keys.clone()).collect()
    }

    pub(super) fn room(&self) -> Room {
        let mut state = self.state();
        let (held, ahead) = (state.held.len(), state.ahead.look(self.began.elapsed()));
        Room { held, free: self.seats.saturating_add(ahead).saturating_sub(held) }
    }

    /// How many of each key may be taken.
    pub(super) fn wants(&self) -> Vec<(&'static str, usize)> {
        let now = self.began.elapsed();
        let mut state = self.state();
        let wants = state.loads.iter_mut().flat_map(|load| {
            let free = load.free(now);
            load.keys.iter().map(move |key| (*key, free)).collect::<Vec<_>>()
        });
        wants.filter(|(_, free)| *free > 0).collect()
    }

    /// Whether it is time to take more: not before half of what may wait is
    /// gone, so that taking is worth its commit, and not much later, so that
    /// no seat finds nothing: the first delivery of an idle seat costs a commit
    /// to be counted.
    pub(super) fn wants_more(&self) -> bool {
        let mut state = self.state();
        let ahead = state.ahead.look(self.began.elapsed());
        let is_low = state.waiting.len() <= ahead / 2 && state.held.len() < self.seats.saturating_add(ahead);
        drop(state);
        is_low && !self.wants().is_empty()
    }

    /// Puts deliveries on the floor; answers with those it has no room for.
    pub(super) fn accept(&self, taken: Vec<Taken>) -> Vec<Ticket> {
        let now = self.began.elapsed();
        let mut surplus = Vec::new();
        let mut state = self.state();
        let State { waiting, held, loads, .. } = &mut *state;
        for one in taken {
            let handler = loads.iter().position(|load| load.keys.contains(&one.handler.as_str()));
            let load = handler.and_then(|handler| Some((handler, loads.get_mut(handler)?)));
            if let Some((handler, load)) = load
                && load.free(now) > 0
            {
                load.held += 1;
                if let Some(bucket) = &mut load.bucket {
                    bucket.spend(1.0);
                }
                held.insert(one.ticket, Held { handler, since: None, lost: CancellationToken::new() });
                waiting.push_back(one);
            } else {
                surplus.push(one.ticket);
            }
        }
        drop(state);
        self.arrived.notify_waiters();
        surplus
    }

    /// The next delivery to run, as soon as there is one; `None` when closed.
    pub(super) async fn next(&self) -> Option<Taken> {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            // Before looking, so that nothing arrives in between unnoticed.
            arrived.as_mut().enable();
            if let Some(taken) = self.reserve() {
                return Some(taken);
            }
            if self.state().is_closed {
                return None;
            }
            arrived.await;
        }
    }

    /// The next delivery to run, if there is one.
    pub(super) fn reserve(&self) -> Option<Taken> {
        let mut state = self.state();
        let taken = state.waiting.pop_front()?;
        if let Some(held) = state.held.get_mut(&taken.ticket) {
            held.since = Some(Instant::now());
        }
        Some(taken)
    }

    /// Cancelled when the lease of a delivery is lost.
    pub(super) fn lost(&self, ticket: Ticket) -> CancellationToken {
        self.state().held.get(&ticket).map_or_else(CancellationToken::new, |held| held.lost.clone())
    }

    /// These begin to run now, or are still about to.
    pub(super) fn begin(&self, tickets: impl IntoIterator<Item = Ticket>) {
        let (now, mut state) = (Instant::now(), self.state());
        for ticket in tickets {
            if let Some(held) = state.held.get_mut(&ticket) {
                held.since = Some(now);
            }
        }
    }

    /// A delivery is over. If its handler is to be left alone from now on,
    /// answers with those that wait for it in vain.
    pub(super) fn leave(&self, ticket: Ticket, health: Health) -> Vec<Ticket> {
        let now = self.began.elapsed();
        let mut state = self.state();
        let mut parked = Vec::new();
        if let Some(held) = state.held.remove(&ticket) {
            state.ahead.finish_one();
            let opened = state.loads.get_mut(held.handler).is_some_and(|load| load.close_one(health, now));
            if opened {
                parked = state.drop_waiting(held.handler);
            }
        }
        drop(state);
        self.left.notify_one();
        parked
    }

    /// The lease of a delivery is another's.
    pub(super) fn lose(&self, ticket: Ticket) {
        let mut state = self.state();
        if let Some(held) = state.held.get(&ticket) {
            held.lost.cancel();
            if held.since.is_none() {
                state.waiting.retain(|taken| taken.ticket != ticket);
                drop(state);
                self.leave(ticket, Health::Unknown);
            }
        }
    }

    /// What is held and may be renewed: not what has been running for longer than this.
    pub(super) fn renewable(&self, longest: impl Fn(usize) -> Duration) -> Vec<Ticket> {
        let state = self.state();
        let is_sound = |held: &Held| held.since.is_none_or(|since| since.elapsed() <= longest(held.handler));
        state.held.iter().filter(|(_, held)| is_sound(held)).map(|(ticket, _)| *ticket).collect()
    }

    /// Everything that is held.
    pub(super) fn tickets(&self) -> Vec<Ticket> {
        self.state().held.keys().copied().collect()
    }

    /// Resolves when something is over.
    pub(super) async fn freed(&self) {
        self.left.notified().await;
    }

    /// Waits until nothing is held; false if that takes longer than `patience`.
    /// A run that has outlived all bounds does not count: it will never end.
    pub(super) async fn cleared(&self, patience: Duration, longest: impl Fn(usize) -> Duration) -> bool {
        let began = Instant::now();
        while !self.renewable(&longest).is_empty() {
            if began.elapsed() > patience {
                return false;
            }
            // A hint may have been taken by somebody else's wait.
            tokio::time::timeout(Duration::from_millis(20), self.left.notified()).await.ok();
        }
        true
    }

    /// Lets nothing more begin; answers with what had not begun.
    pub(super) fn close(&self) -> Vec<Ticket> {
        let mut state = self.state();
        state.is_closed = true;
        let waiting: Vec<Ticket> = state.waiting.drain(..).map(|taken| taken.ticket).collect();
        for ticket in &waiting {
            state.held.remove(ticket);
        }
        drop(state);
        self.arrived.notify_waiters();
        waiting
    }
}

impl Load {
    /// One is over; tells whether the circuit has just been opened.
    fn close_one(&mut self, health: Health, now: Duration) -> bool {
        self.held = self.held.saturating_sub(1);
        let Some(circuit) = &mut self.circuit else { return false };
        match health {
            Health::Good => circuit.succeed(),
            Health::Bad => return circuit.fail(now),
            Health::Unknown => {}
        }
        false
    }
}

impl State {
    /// Takes what waits for a handler off the floor.
    fn drop_waiting(&mut self, handler: usize) -> Vec<Ticket> {
        let held = &self.held;
        let is_its = |taken: &Taken| held.get(&taken.ticket).is_some_and(|held| held.handler == handler);
        let tickets: Vec<Ticket> =
            self.waiting.iter().filter(|taken| is_its(taken)).map(|taken| taken.ticket).collect();
        self.waiting.retain(|taken| !tickets.contains(&taken.ticket));
        for ticket in &tickets {
            self.held.remove(ticket);
        }
        if let Some(load) = self.loads.get_mut(handler) {
            load.held = load.held.saturating_sub(tickets.len());
            if let Some(bucket) = &mut load.bucket {
                bucket.spend(-(tickets.len() as f64));
            }
        }
        tickets
    }
}
