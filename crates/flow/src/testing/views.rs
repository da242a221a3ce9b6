//! What a test can say about a stage.

use std::sync::{Arc, Mutex};

use oncebox_core::inspect::Inspect;
use oncebox_core::letters::LetterFilter;
use oncebox_core::log::{SHARDS, Shard, Window};
use oncebox_core::{Depot, Envelope, HandlerKey, Letters, Mailbox, Message, Outcome};

use super::crashes::Crashes;
use super::{Stage, locked};
use crate::crash::CrashPoint;
use crate::inbox::{Observer, Worked};

/// Rows of the log that are read at once.
const PAGE: usize = 1_000;
/// Dead letters that are shown.
const MOST_LETTERS: usize = 10_000;

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Buried {
    /// The key of the handler that gave up; empty if none was asked, and
    /// `relay` if the message never left.
    pub by: String,
    /// The message's id.
    pub id: String,
    /// A stable code, for instance `attempts_exhausted`.
    pub code: String,
}

impl Buried {
    /// A dead letter to compare with.
    pub fn new(by: impl Into<String>, id: impl Into<String>, code: impl Into<String>) -> Self {
        Self { by: by.into(), id: id.into(), code: code.into() }
    }
}

/// What came of deliveries.
#[derive(Default)]
pub(super) struct Record {
    handled: Vec<(HandlerKey, String)>,
    skipped: Vec<(HandlerKey, String)>,
}

impl Record {
    /// Writes down what an inbox says of its handlers.
    pub(super) fn observer(record: &Arc<Mutex<Self>>, crashes: &Arc<Mutex<Crashes>>) -> Observer {
        let (record, crashes) = (Arc::clone(record), Arc::clone(crashes));
        Arc::new(move |handler: HandlerKey, envelope: &Envelope, outcome: &Outcome| {
            // A process that dies after its commit cannot say so itself.
            let is_committed = locked(&crashes).take_silent_commit();
            locked(&record).note(handler, &envelope.id, is_committed, outcome);
        })
    }

    /// Writes down what a worker says of one run.
    pub(super) fn note_run(&mut self, worked: &Worked, died_at: Option<CrashPoint>) {
        let is_committed = died_at == Some(CrashPoint::D5);
        let outcome = worked.outcome.as_ref().unwrap_or(&Outcome::Busy);
        self.note(worked.handler, &worked.id, is_committed, outcome);
    }

    fn note(&mut self, handler: HandlerKey, id: &str, is_committed: bool, outcome: &Outcome) {
        match outcome {
            Outcome::Done { .. } => self.handled.push((handler, id.to_owned())),
            _ if is_committed => self.handled.push((handler, id.to_owned())),
            Outcome::Duplicate { .. } => self.skipped.push((handler, id.to_owned())),
            _ => {}
        }
    }
}

fn ids_of(noted: &[(HandlerKey, String)], handler: &str) -> Vec<String> {
    noted.iter().filter(|(key, _)| key.as_str() == handler).map(|(_, id)| id.clone()).collect()
}

impl<S: Mailbox + Depot + Letters + Inspect> Stage<S> {
    /// The messages of one type that were put and committed, by the producer
    /// or by handlers, in the order of the log. One that was put for a later
    /// time is there when that has come.
    ///
    /// # Panics
    /// If the store fails, or a message of this name is none of this type.
    pub async fn put_of<M: Message>(&self) -> Vec<M> {
        let shards: Vec<Shard> = (0..SHARDS).collect();
        let (mut after, mut found) = (0, Vec::new());
        loop {
            let window = Window { shards: &shards, after, holes: &[], limit: PAGE };
            let span = self.store.read(window).await.unwrap_or_else(|error| panic!("log: {}", error.chain()));
            for envelope in span.rows.into_iter().filter_map(|row| row.envelope.ok()) {
                if envelope.kind == M::NAME {
                    let message = M::decode(&envelope.payload);
                    found.push(message.unwrap_or_else(|error| panic!("{}: {}", envelope.id, error.chain())));
                }
            }
            if !span.full || span.through <= after {
                return found;
            }
            after = span.through;
        }
    }

    /// The ids of messages on which a handler's run took effect, in that order.
    #[must_use]
    pub fn handled(&self, handler: &str) -> Vec<String> {
        ids_of(&locked(&self.record).handled, handler)
    }

    /// The ids of messages that came to a handler again and were not run.
    #[must_use]
    pub fn skipped(&self, handler: &str) -> Vec<String> {
        ids_of(&locked(&self.record).skipped, handler)
    }

    /// All dead letters, of handlers and of the relay, sorted. What else is
    /// known of them is in the [store](Self::store).
    ///
    /// # Panics
    /// If the store fails.
    pub async fn buried(&self) -> Vec<Buried> {
        let letters = self.store.letters(&LetterFilter::default(), MOST_LETTERS).await;
        let letters = letters.unwrap_or_else(|error| panic!("dead letters: {}", error.chain()));
        let parked = self.store.dead(None, MOST_LETTERS).await;
        let parked = parked.unwrap_or_else(|error| panic!("dead letters: {}", error.chain()));
        let handlers = letters.into_iter().map(|one| Buried::new(one.handler, one.envelope.id, one.code));
        let relay = parked.into_iter().map(|row| Buried::new("relay", row.id, "refused"));
        let mut buried: Vec<Buried> = handlers.chain(relay).collect();
        buried.sort_unstable();
        buried
    }

    /// The crash points that were reached so far.
    #[must_use]
    pub fn reached(&self) -> Vec<CrashPoint> {
        locked(&self.crashes).reached()
    }

    /// Checks that a handler's run took effect on a message, and only one did.
    ///
    /// # Panics
    /// If that is not so, with what the handler did.
    #[track_caller]
    pub fn assert_handled_once(&self, handler: &str, id: &str) {
        let (handled, skipped) = (self.handled(handler), self.skipped(handler));
        let times = handled.iter().filter(|one| *one == id).count();
        assert!(
            times == 1,
            "{handler} took effect {times} times on message {id}; it handled {handled:?} and skipped {skipped:?}"
        );
    }
}
