//! What is known about each store and sink at this moment; `/readyz` reads it,
//! whoever does the work writes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncebox_flow::relay::Heartbeat;
use serde_json::{Value, json};

/// How something is doing, from good to bad.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Ready,
    /// Nobody knows yet.
    Starting,
    /// It does not work at the moment; it is tried again.
    Unavailable(String),
    /// It would not be safe, so it is not used until it is.
    Refused(String),
    /// Its task ended, which it never should.
    Ended,
}

/// Who says so.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Witness {
    /// Somebody looked.
    Look,
    /// Something was sent.
    Traffic,
}

impl State {
    const fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Unavailable(_) => "unavailable",
            Self::Refused(_) => "refused",
            Self::Ended => "ended",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Unavailable(reason) | Self::Refused(reason) => Some(reason),
            _ => None,
        }
    }
}

/// One store or sink on the board. Clones share the entry.
#[derive(Clone, Debug)]
pub(crate) struct Lamp {
    name: Arc<str>,
    /// What each witness said last: a connection that opens says nothing about
    /// messages that are turned away.
    said: Arc<Mutex<(State, State)>>,
}

impl Lamp {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), said: Arc::new(Mutex::new((State::Starting, State::Ready))) }
    }

    /// Notes a state; true if the whole is another kind of state than before.
    pub(crate) fn set(&self, witness: Witness, state: State) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let before = worst(&said).name();
        match witness {
            Witness::Look => said.0 = state,
            Witness::Traffic => said.1 = state,
        }
        before != worst(&said).name()
    }

    /// The worst that was said.
    pub(crate) fn state(&self) -> State {
        worst(&self.said.lock().unwrap_or_else(PoisonError::into_inner)).clone()
    }

    fn json(&self, with_reason: bool) -> Value {
        let state = self.state();
        match state.reason().filter(|_| with_reason) {
            None => json!({ "name": &*self.name, "state": state.name() }),
            Some(reason) => json!({ "name": &*self.name, "state": state.name(), "reason": reason }),
        }
    }
}

fn worst(said: &(State, State)) -> &State {
    (&said.0).max(&said.1)
}

/// The loop of a sink, as seen from outside of it.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    pub(crate) sink: String,
    pub(crate) heartbeat: Heartbeat,
    /// How much later than it said it may be.
    pub(crate) grace: Duration,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Board {
    stores: Vec<Lamp>,
    sinks: Vec<Lamp>,
    loops: Vec<Loop>,
    stopping: AtomicBool,
}

impl Board {
    pub(crate) fn new(stores: Vec<Lamp>, sinks: Vec<Lamp>) -> Self {
        Self { stores, sinks, loops: Vec::new(), stopping: AtomicBool::new(false) }
    }

    /// The same with loops to watch.
    pub(crate) fn watching(self, loops: Vec<Loop>) -> Self {
        Self { loops, ..self }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// What only a restart can mend, if there is something: a task that has
    /// ended, or one that does not come back.
    pub(crate) fn death(&self) -> Option<String> {
        if self.stopping.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(lamp) = self.lamps().find(|lamp| lamp.state() == State::Ended) {
            return Some(format!("the task of {} has ended", lamp.name));
        }
        self.loops.iter().find_map(|Loop { sink, heartbeat, grace }| {
            let late = heartbeat.overdue().filter(|late| late > grace)?;
            Some(format!("the loop of sink {sink} has not turned: it is {} s overdue", late.as_secs()))
        })
    }

    /// Whether everything works.
    pub(crate) fn is_ready(&self) -> bool {
        !self.stopping.load(Ordering::Relaxed) && self.lamps().all(|lamp| lamp.state() == State::Ready)
    }

    fn lamps(&self) -> impl Iterator<Item = &Lamp> {
        self.stores.iter().chain(&self.sinks)
    }

    pub(crate) fn json(&self, with_reasons: bool) -> Value {
        let all = |lamps: &[Lamp]| lamps.iter().map(|lamp| lamp.json(with_reasons)).collect::<Vec<_>>();
        json!({ "v": 1, "ready": self.is_ready(), "stopping": self.stopping.load(Ordering::Relaxed),
                "stores": all(&self.stores), "sinks": all(&self.sinks) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trouble_is_not_ready_and_a_stranger_is_not_told_why() {
        let board = Board::new(vec![Lamp::new("main")], vec![Lamp::new("orders")]);
        assert!(!board.is_ready(), "nothing is known yet");
        board.stores[0].set(Witness::Look, State::Ready);
        assert!(
            board.sinks[0].set(Witness::Look, State::Unavailable("no queue orders at mq.internal".into()))
        );

        assert!(!board.is_ready() && board.death().is_none());
        assert!(board.json(true).to_string().contains("mq.internal"));
        assert!(!board.json(false).to_string().contains("mq.internal"));
        board.sinks[0].set(Witness::Look, State::Ready);
        assert!(board.is_ready());
        board.sinks[0].set(Witness::Traffic, State::Unavailable("turned away".into()));
        board.sinks[0].set(Witness::Look, State::Ready);
        assert!(!board.is_ready(), "a look does not make up for messages that are turned away");
        board.sinks[0].set(Witness::Look, State::Ended);
        assert_eq!(board.death().as_deref(), Some("the task of orders has ended"));
        board.stop();
        assert_eq!(board.death(), None, "tasks end when they are told to");
    }
}
