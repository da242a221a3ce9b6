//! The transport inside the process: at least once, per-key order, bounded.
//!
//! A message is confirmed when it was *handled*, unless told otherwise: nothing
//! here survives the process, so an earlier confirm would let the relay settle
//! what a crash then loses. Whoever publishes a message that is still under way
//! joins the wait for it instead of sending it twice.
//!
//! One lock, never held across an await, guards all queues; feeds sleep on their
//! queue's [`Notify`] and on the time of its next delayed message.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use oncebox_core::log::LaneKey;
use oncebox_core::{
    Acknowledge, Capabilities, Delivery, Envelope, Error, Failure, Feed, Kind, Order, Publisher, Result,
    Subscriber,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::queue::{Number, Queue, Taken};
use super::state::Identity;
use super::store::lock;

/// When a published message counts as confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confirm {
    /// When every group has acknowledged it: nothing is lost with the process,
    /// because the relay has not settled it yet.
    #[default]
    OnAck,
    /// When it is queued. Faster, and a message that is queued or in flight
    /// when the process dies is lost.
    OnEnqueue,
}

/// A transport within this process. Clones share everything.
#[derive(Clone)]
pub struct MemoryTransport {
    broker: Arc<Mutex<Broker>>,
}

impl MemoryTransport {
    /// What this transport can do.
    pub const CAPABILITIES: Capabilities = Capabilities {
        name: "memory",
        survives_process: false,
        order: Order::ByKey,
        delayed_nack: true,
        exact_attempts: true,
    };

    /// A transport without subscribers.
    #[must_use]
    pub fn new() -> Self {
        Self { broker: Arc::default() }
    }

    /// The most messages queued and in flight for one group on one destination; 1 000 unless changed.
    #[must_use]
    pub fn capacity(self, messages: usize) -> Self {
        self.broker().options.capacity = messages;
        self
    }

    /// How long a publish waits for acknowledgements; 1 s unless changed.
    #[must_use]
    pub fn confirm_timeout(self, timeout: Duration) -> Self {
        self.broker().options.confirm_timeout = timeout;
        self
    }

    /// When a message counts as confirmed.
    #[must_use]
    pub fn confirm(self, confirm: Confirm) -> Self {
        self.broker().options.confirm = confirm;
        self
    }

    /// Ends all feeds and refuses to publish. What was delivered can still be answered.
    pub fn close(&self) {
        let mut broker = self.broker();
        broker.is_closed = true;
        broker.lines.iter().for_each(|line| line.changed.notify_waiters());
    }

    /// For tests: delivers each of the next `deliveries` twice. The copy is a
    /// delivery of its own that waits for nothing, not even for its key.
    pub fn duplicate_next(&self, deliveries: usize) {
        self.broker().faults.duplicates = deliveries;
    }

    /// For tests: refuses to publish until called with `false`.
    pub fn set_down(&self, is_down: bool) {
        self.broker().faults.is_down = is_down;
    }

    /// For tests: queues the next `messages` but answers that their confirm was lost.
    pub fn lose_confirms(&self, messages: usize) {
        self.broker().faults.lost_confirms = messages;
    }

    /// For tests: delivers messages without a key in an order drawn from the
    /// seed; `None` goes back to the order of arrival.
    pub fn reorder(&self, seed: Option<u64>) {
        self.broker().faults.seed = seed;
    }

    fn broker(&self) -> MutexGuard<'_, Broker> {
        lock(&self.broker)
    }
}

impl Default for MemoryTransport {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTransport").finish_non_exhaustive()
    }
}

/// What was set before use.
struct Options {
    capacity: usize,
    confirm_timeout: Duration,
    confirm: Confirm,
}

impl Default for Options {
    fn default() -> Self {
        Self { capacity: 1_000, confirm_timeout: Duration::from_secs(1), confirm: Confirm::default() }
    }
}

/// What a test has asked to go wrong.
#[derive(Default)]
struct Faults {
    duplicates: usize,
    is_down: bool,
    lost_confirms: usize,
    seed: Option<u64>,
}

/// One group's queue, and how its feeds are woken.
struct Line {
    queue: Queue<Arc<Tracked>>,
    changed: Arc<Notify>,
}

/// A message under way, whoever published it.
#[derive(PartialEq, Eq, Hash)]
struct Tracked {
    destination: String,
    identity: Identity,
}

/// Who waits for a message, and for how many groups.
struct Wait {
    groups: usize,
    waiters: Vec<oneshot::Sender<()>>,
    /// A test wants its confirm to be lost for good.
    is_lost: bool,
}

#[derive(Default)]
struct Broker {
    options: Options,
    faults: Faults,
    is_closed: bool,
    /// Never shrinks: feeds and acknowledgements hold indices into it.
    lines: Vec<Line>,
    groups: HashMap<String, BTreeMap<String, usize>>,
    waits: HashMap<Arc<Tracked>, Wait>,
    /// Acked after their publish had given up waiting: the next publish of the
    /// same message is told so instead of delivering it again, out of order.
    /// Oldest first, as many as a queue may hold.
    unheard: VecDeque<Arc<Tracked>>,
}

/// How far a publish has come with one message.
enum Sent {
    Answered(Result<(), Failure>),
    Waiting(oneshot::Receiver<()>),
}

impl Broker {
    /// Queues a batch. Once a message is refused, so are the later ones of its key.
    fn accept(&mut self, batch: &[Envelope]) -> Vec<Sent> {
        let mut refused: HashSet<LaneKey> = HashSet::new();
        let accept = |envelope: &Envelope| {
            let lane = if refused.is_empty() { None } else { LaneKey::of(envelope) };
            if lane.is_some_and(|lane| refused.contains(&lane)) {
                return Sent::Answered(Err(Failure::destination(
                    "an earlier message of its key was refused",
                )));
            }
            self.accept_one(envelope).unwrap_or_else(|failure| {
                refused.extend(LaneKey::of(envelope));
                Sent::Answered(Err(failure))
            })
        };
        batch.iter().map(accept).collect()
    }

    fn accept_one(&mut self, envelope: &Envelope) -> Result<Sent, Failure> {
        if self.is_closed {
            return Err(Failure::destination("the transport is closed"));
        }
        if self.faults.is_down {
            return Err(Failure::destination("the transport is down"));
        }
        let sent = match self.options.confirm {
            Confirm::OnEnqueue => {
                self.enqueue(envelope, None)?;
                Sent::Answered(Ok(()))
            }
            Confirm::OnAck => Sent::Waiting(self.enqueue_or_join(envelope)?),
        };
        if self.faults.lost_confirms > 0 {
            self.faults.lost_confirms -= 1;
            return Ok(Sent::Answered(Err(Failure::unknown("confirm lost"))));
        }
        Ok(sent)
    }

    fn enqueue_or_join(&mut self, envelope: &Envelope) -> Result<oneshot::Receiver<()>, Failure> {
        let tracked = Tracked { destination: envelope.destination.clone(), identity: Identity::of(envelope) };
        let (waiter, confirmed) = oneshot::channel();
        if let Some(place) = self.unheard.iter().position(|unheard| **unheard == tracked) {
            self.unheard.remove(place);
            _ = waiter.send(());
            return Ok(confirmed);
        }
        if let Some(wait) = self.waits.get_mut(&tracked) {
            // Those whose publish has timed out would pile up.
            wait.waiters.retain(|waiter| !waiter.is_closed());
            wait.waiters.push(waiter);
            return Ok(confirmed);
        }
        let tracked = Arc::new(tracked);
        let groups = self.enqueue(envelope, Some(&tracked))?;
        let is_lost = self.faults.lost_confirms > 0;
        self.waits.insert(tracked, Wait { groups, waiters: vec![waiter], is_lost });
        Ok(confirmed)
    }

    /// Adds a message to the queue of each group, or to none; tells how many.
    fn enqueue(&mut self, envelope: &Envelope, tracked: Option<&Arc<Tracked>>) -> Result<usize, Failure> {
        let destination = &envelope.destination;
        let Some(groups) = self.groups.get(destination) else {
            return Err(Failure::destination(format!("nobody subscribes to {destination}")));
        };
        for (group, line) in groups {
            if self.lines.get(*line).is_some_and(|line| line.queue.len() >= self.options.capacity) {
                return Err(Failure::destination(format!("the queue of {group} on {destination} is full")));
            }
        }
        let envelope = Arc::new(envelope.clone());
        for line in groups.values() {
            if let Some(line) = self.lines.get_mut(*line) {
                line.queue.push(Arc::clone(&envelope), tracked.cloned());
                line.changed.notify_waiters();
            }
        }
        Ok(groups.len())
    }

    /// The queue of a group, made if it is the group's first feed.
    fn join(&mut self, destination: &str, group: &str) -> (usize, Arc<Notify>) {
        let groups = self.groups.entry(destination.to_owned()).or_default();
        let line = *groups.entry(group.to_owned()).or_insert(self.lines.len());
        if let Some(line_there) = self.lines.get(line) {
            return (line, Arc::clone(&line_there.changed));
        }
        let changed = Arc::new(Notify::new());
        self.lines.push(Line { queue: Queue::new(), changed: Arc::clone(&changed) });
        (line, changed)
    }

    fn take(&mut self, line: usize) -> Next {
        if self.is_closed {
            return Next::End;
        }
        let Some(line) = self.lines.get_mut(line) else { return Next::End };
        let Some(taken) = line.queue.take(Instant::now(), self.faults.seed.as_mut()) else {
            return Next::NotBefore(line.queue.next_delayed());
        };
        if self.faults.duplicates > 0 && !line.queue.is_copy(taken.number) {
            self.faults.duplicates -= 1;
            line.queue.push_copy(&taken);
            line.changed.notify_waiters();
        }
        Next::Taken(taken)
    }

    fn ack(&mut self, line: usize, number: Number) {
        let Some(line) = self.lines.get_mut(line) else { return };
        let tracked = line.queue.ack(number);
        line.changed.notify_waiters();
        let Some(tracked) = tracked else { return };
        let Some(wait) = self.waits.get_mut(&tracked) else { return };
        wait.groups = wait.groups.saturating_sub(1);
        if wait.groups == 0
            && let Some(wait) = self.waits.remove(&tracked)
        {
            let heard = wait.waiters.into_iter().filter_map(|waiter| waiter.send(()).ok()).count();
            if heard == 0 && !wait.is_lost {
                self.unheard.push_back(tracked);
                let surplus = self.unheard.len().saturating_sub(self.options.capacity);
                self.unheard.drain(..surplus);
            }
        }
    }

    fn put_back(&mut self, line: usize, number: Number, until: Option<Instant>, spent: bool) {
        let Some(line) = self.lines.get_mut(line) else { return };
        line.queue.put_back(number, until, spent);
        line.changed.notify_waiters();
    }
}

impl Publisher for MemoryTransport {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let (sent, confirm_timeout) = {
            let mut broker = self.broker();
            (broker.accept(batch), broker.options.confirm_timeout)
        };
        let deadline = after(confirm_timeout);
        let mut results = Vec::with_capacity(sent.len());
        for sent in sent {
            results.push(match sent {
                Sent::Answered(result) => result,
                // Past the deadline this still sees a confirm that is there.
                Sent::Waiting(confirmed) => match timeout_at(deadline, confirmed).await {
                    Ok(Ok(())) => Ok(()),
                    _ => Err(Failure::pending("not acknowledged yet")),
                },
            });
        }
        results
    }
}

impl Subscriber for MemoryTransport {
    type Feed = MemoryFeed;
    const COUNTS_DEATHS: bool = false;

    /// A group is kept when its feeds are dropped: what is published meanwhile waits for the next one.
    async fn subscribe(&self, destination: &str, group: &str) -> Result<MemoryFeed> {
        let mut broker = self.broker();
        if broker.is_closed {
            return Err(Error::new(Kind::Unavailable, "the transport is closed"));
        }
        let (line, changed) = broker.join(destination, group);
        Ok(MemoryFeed { transport: self.clone(), line, changed })
    }
}

/// What a feed finds in its queue.
enum Next {
    Taken(Taken),
    NotBefore(Option<Instant>),
    End,
}

/// One member of a group.
#[derive(Debug)]
pub struct MemoryFeed {
    transport: MemoryTransport,
    line: usize,
    changed: Arc<Notify>,
}

impl Feed for MemoryFeed {
    type Ack = MemoryAck;

    async fn next(&mut self) -> Result<Option<Delivery<MemoryAck>>> {
        loop {
            // Made before looking, so that a change in between wakes it.
            let changed = self.changed.notified();
            let next = self.transport.broker().take(self.line);
            let delayed = match next {
                Next::Taken(taken) => return Ok(Some(self.deliver(taken))),
                Next::End => return Ok(None),
                Next::NotBefore(delayed) => delayed,
            };
            match delayed {
                None => changed.await,
                Some(until) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(until) => {}
                },
            }
        }
    }
}

impl MemoryFeed {
    fn deliver(&self, taken: Taken) -> Delivery<MemoryAck> {
        let Taken { number, envelope, attempt } = taken;
        let ack =
            MemoryAck { transport: self.transport.clone(), line: self.line, number, is_answered: false };
        Delivery { envelope: Envelope::clone(&envelope), attempt, ack }
    }
}

/// The answer to one delivery; valid even when its feed is gone.
#[derive(Debug)]
pub struct MemoryAck {
    transport: MemoryTransport,
    line: usize,
    number: Number,
    is_answered: bool,
}

// The answer is given at the call, not at the first poll: a future that is
// dropped unpolled would otherwise answer by being dropped.
impl Acknowledge for MemoryAck {
    fn ack(mut self) -> impl Future<Output = Result<()>> + Send {
        self.is_answered = true;
        self.transport.broker().ack(self.line, self.number);
        std::future::ready(Ok(()))
    }

    fn nack(mut self, delay: Duration, spent: bool) -> impl Future<Output = Result<()>> + Send {
        self.is_answered = true;
        let until = (!delay.is_zero()).then(|| after(delay));
        self.transport.broker().put_back(self.line, self.number, until, spent);
        std::future::ready(Ok(()))
    }
}

impl Drop for MemoryAck {
    fn drop(&mut self) {
        if !self.is_answered {
            self.transport.broker().put_back(self.line, self.number, None, true);
        }
    }
}

/// The point `span` from here, or one nobody will live to see.
fn after(span: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(span).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365 * 30))
}

#[cfg(test)]
mod tests;
