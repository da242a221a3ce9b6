//! A broker in the parent: at-least-once, in order per key, one message of
//! a key at a time. What it confirmed it keeps until it is acknowledged. It
//! doubles messages, loses confirms and drops connections now and then.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;

use super::chance::Chance;
use super::wire::{Answer, Parcel, Request, receive, send};

/// Deliveries one worker may have unanswered.
const PREFETCH: usize = 8;

/// What the broker did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) stored: u64,
    pub(super) doubled: u64,
    pub(super) confirms_lost: u64,
    pub(super) redelivered: u64,
}

#[derive(Debug)]
struct Stored {
    parcel: Parcel,
    attempt: u32,
}

#[derive(Debug)]
struct State {
    queues: BTreeMap<String, VecDeque<Stored>>,
    /// Keys whose first message nobody has.
    ready: VecDeque<String>,
    /// Copies to be stored behind the next message of their key.
    late: HashMap<String, Parcel>,
    flights: HashMap<u64, (String, u64)>,
    tags: u64,
    chance: Chance,
    faults: bool,
    counts: Counts,
}

/// The queue. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct MemoryBroker {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl MemoryBroker {
    /// Listens on `path` until the runtime ends.
    pub(super) fn start(path: &Path, chance: Chance) -> Self {
        let listener = UnixListener::bind(path).expect("a socket for the broker");
        let state = State {
            queues: BTreeMap::new(),
            ready: VecDeque::new(),
            late: HashMap::new(),
            flights: HashMap::new(),
            tags: 0,
            chance,
            faults: true,
            counts: Counts::default(),
        };
        let broker = Self { state: Arc::new(Mutex::new(state)), changed: Arc::default() };
        let serving = broker.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let broker = serving.clone();
                tokio::spawn(async move {
                    // A child that died ends its connection; what it held goes to others.
                    broker.serve(stream, connection).await.ok();
                    broker.hang_up(connection);
                });
            }
        });
        broker
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No more faults from here on.
    pub(super) fn heal(&self) {
        self.state().faults = false;
    }

    /// Messages stored and not acknowledged.
    pub(super) fn backlog(&self) -> usize {
        self.state().queues.values().map(VecDeque::len).sum()
    }

    pub(super) fn counts(&self) -> Counts {
        self.state().counts
    }

    async fn serve(&self, stream: UnixStream, connection: u64) -> std::io::Result<()> {
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        while let Some(request) = receive(&mut reader).await? {
            match request {
                Request::Publish(parcel) => {
                    if !self.store(parcel) {
                        return Ok(());
                    }
                    send(&mut writer, &Answer::Confirm).await?;
                }
                Request::Subscribe => return self.deliver_all(reader, writer, connection).await,
                Request::Ack(_) | Request::Nack { .. } => {}
            }
        }
        Ok(())
    }

    /// Stores a message; false if its confirm is to be lost with the connection.
    fn store(&self, parcel: Parcel) -> bool {
        let mut state = self.state();
        let doubled = state.faults && state.chance.per_mille(30);
        let late = state.faults && state.chance.per_mille(20);
        let confirmed = !(state.faults && state.chance.per_mille(3));
        state.counts.stored += 1;
        state.counts.doubled += u64::from(doubled) + u64::from(late);
        state.counts.confirms_lost += u64::from(!confirmed);
        let key = parcel.key.clone();
        let copies = [doubled.then(|| parcel.clone()), state.late.remove(&key)];
        if late {
            state.late.insert(key.clone(), parcel.clone());
        }
        let queue = state.queues.entry(key.clone()).or_default();
        let was_empty = queue.is_empty();
        let all = std::iter::once(parcel).chain(copies.into_iter().flatten());
        queue.extend(all.map(|parcel| Stored { parcel, attempt: 0 }));
        if was_empty {
            state.ready.push_back(key);
        }
        drop(state);
        self.changed.notify_waiters();
        confirmed
    }

    async fn deliver_all(
        &self,
        mut reader: BufReader<OwnedReadHalf>,
        mut writer: OwnedWriteHalf,
        connection: u64,
    ) -> std::io::Result<()> {
        let answers = async {
            while let Some(request) = receive(&mut reader).await? {
                match request {
                    Request::Ack(tag) => self.acknowledge(tag),
                    Request::Nack { tag, after_ms, spent } => self.refuse(tag, after_ms, spent),
                    Request::Publish(_) | Request::Subscribe => {}
                }
            }
            std::io::Result::Ok(())
        };
        let deliveries = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                while let Some(delivery) = self.take(connection) {
                    send(&mut writer, &delivery).await?;
                }
                changed.await;
            }
        };
        tokio::select! {
            ended = answers => ended,
            failed = deliveries => failed,
        }
    }

    fn take(&self, connection: u64) -> Option<Answer> {
        let mut state = self.state();
        if state.flights.values().filter(|(_, holder)| *holder == connection).count() >= PREFETCH {
            return None;
        }
        let key = state.ready.pop_front()?;
        state.tags += 1;
        let tag = state.tags;
        state.flights.insert(tag, (key.clone(), connection));
        let stored = state.queues.get_mut(&key)?.front_mut()?;
        stored.attempt += 1;
        let (attempt, parcel) = (stored.attempt, stored.parcel.clone());
        state.counts.redelivered += u64::from(attempt > 1);
        Some(Answer::Deliver { tag, attempt, parcel })
    }

    fn acknowledge(&self, tag: u64) {
        let mut state = self.state();
        // An answer from a connection that was given up meanwhile means nothing.
        let Some((key, _)) = state.flights.remove(&tag) else { return };
        let Some(queue) = state.queues.get_mut(&key) else { return };
        queue.pop_front();
        if !queue.is_empty() {
            state.ready.push_back(key);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    fn refuse(&self, tag: u64, after_ms: u64, spent: bool) {
        let mut state = self.state();
        let Some((key, _)) = state.flights.remove(&tag) else { return };
        if let Some(stored) = state.queues.get_mut(&key).and_then(VecDeque::front_mut) {
            stored.attempt -= u32::from(!spent);
        }
        drop(state);
        let broker = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            broker.state().ready.push_back(key);
            broker.changed.notify_waiters();
        });
    }

    fn hang_up(&self, connection: u64) {
        let mut state = self.state();
        let held: Vec<u64> = state
            .flights
            .iter()
            .filter(|(_, (_, holder))| *holder == connection)
            .map(|(tag, _)| *tag)
            .collect();
        for tag in held {
            if let Some((key, _)) = state.flights.remove(&tag) {
                state.ready.push_front(key);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }
}
