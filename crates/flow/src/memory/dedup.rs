//! The inbox's memory: markers and dead letters.

use std::collections::{BTreeSet, HashMap, HashSet};

use oncebox_core::store::{Burial, Mark, Marked};
use oncebox_core::{Dedup, Digest, Envelope, Result, Timestamp};

use super::state::Identity;
use super::store::{MemoryStore, MemoryTx, at, lock};

/// What a marker is found by.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct MarkerKey {
    handler: String,
    tenant: String,
    source: String,
    id: String,
}

impl MarkerKey {
    fn of(mark: &Mark<'_>) -> Self {
        Self {
            handler: mark.handler.to_owned(),
            tenant: mark.tenant.to_owned(),
            source: mark.key.source.clone(),
            id: mark.key.id.clone(),
        }
    }
}

/// Proof that one handler has handled one message.
#[derive(Clone)]
pub(super) struct Marker {
    digest: Digest,
    processed_at: Timestamp,
    result: Option<Vec<u8>>,
}

/// All markers, with their order by age.
#[derive(Default)]
pub(super) struct Markers {
    markers: HashMap<MarkerKey, Marker>,
    ages: HashMap<String, BTreeSet<(Timestamp, MarkerKey)>>,
}

impl Markers {
    pub(super) fn count(&self) -> usize {
        self.markers.len()
    }

    /// Writes a marker, or the reply of one that is there.
    pub(super) fn set(&mut self, key: MarkerKey, marker: Marker) {
        let ages = self.ages.entry(key.handler.clone()).or_default();
        ages.insert((marker.processed_at, key.clone()));
        self.markers.insert(key, marker);
    }

    /// Forgets the oldest markers of a handler, if they are older than `cutoff`.
    pub(super) fn purge(&mut self, handler: &str, limit: usize, cutoff: Timestamp) -> usize {
        let Some(ages) = self.ages.get_mut(handler) else { return 0 };
        let mut purged = 0;
        while purged < limit && ages.first().is_some_and(|(processed_at, _)| *processed_at < cutoff) {
            if let Some((_, key)) = ages.pop_first() {
                self.markers.remove(&key);
                purged += 1;
            }
        }
        purged
    }
}

/// A message no handler could take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Where it came from.
    pub channel: String,
    /// The handler that gave up, or empty.
    pub handler: String,
    /// A stable code.
    pub code: String,
    /// The error, with its causes.
    pub reason: String,
    /// Attempts spent.
    pub attempts: u32,
    /// The message, whole.
    pub envelope: Envelope,
}

/// All dead letters, each once.
#[derive(Default)]
pub(super) struct Graveyard {
    letters: Vec<DeadLetter>,
    graves: HashSet<(String, String, Identity, Digest)>,
}

impl Graveyard {
    pub(super) fn letters(&self) -> &[DeadLetter] {
        &self.letters
    }

    fn bury(&mut self, burial: &Burial<'_>) {
        let Burial { channel, handler, envelope, .. } = *burial;
        let grave = (channel.to_owned(), handler.to_owned(), Identity::of(envelope), envelope.digest());
        if self.graves.insert(grave) {
            self.letters.push(DeadLetter {
                channel: channel.to_owned(),
                handler: handler.to_owned(),
                code: burial.code.to_owned(),
                reason: burial.reason.to_owned(),
                attempts: burial.attempts,
                envelope: envelope.clone(),
            });
        }
    }
}

impl Dedup for MemoryStore {
    async fn mark(&self, tx: &mut MemoryTx, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<Marked> {
        let (key, now) = (MarkerKey::of(mark), at(now));
        if let Some(marker) = tx.marker(&key) {
            let is_same = marker.digest == mark.digest;
            return Ok(if is_same { Marked::Duplicate { result: marker.result } } else { Marked::Conflict });
        }
        let too_old = mark.time.zip(mark.window).is_some_and(|(time, window)| time < now.minus(window));
        if too_old {
            return Ok(Marked::TooOld);
        }
        tx.markers.insert(key, Marker { digest: mark.digest, processed_at: now, result: None });
        Ok(Marked::First)
    }

    async fn enter(&self, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<u32> {
        let key = MarkerKey::of(mark);
        self.write(|state| {
            let entry = state.entries.entry(key).or_insert((0, Timestamp::default()));
            *entry = (entry.0.saturating_add(1), at(now));
            entry.0
        })
        .await
    }

    async fn leave(&self, tx: &mut MemoryTx, mark: &Mark<'_>) -> Result<()> {
        tx.left.push(MarkerKey::of(mark));
        Ok(())
    }

    async fn reply(&self, tx: &mut MemoryTx, mark: &Mark<'_>, result: &[u8]) -> Result<()> {
        let key = MarkerKey::of(mark);
        if let Some(marker) = tx.marker(&key) {
            tx.markers.insert(key, Marker { result: Some(result.to_vec()), ..marker });
        }
        Ok(())
    }

    async fn bury(&self, burial: &Burial<'_>, _now: Option<Timestamp>) -> Result<()> {
        self.write(|state| state.graveyard.bury(burial)).await
    }
}

impl MemoryTx {
    /// A marker as this transaction sees it.
    fn marker(&self, key: &MarkerKey) -> Option<Marker> {
        self.markers.get(key).cloned().or_else(|| lock(&self.state).markers.markers.get(key).cloned())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncebox_core::Store;
    use oncebox_core::handler::MessageKey;

    use super::*;

    const NOW: Option<Timestamp> = Some(Timestamp::from_micros(10_000_000));

    fn key() -> MessageKey {
        MessageKey { source: "shop".into(), id: "1".into() }
    }

    fn mark<'a>(key: &'a MessageKey, body: &str) -> Mark<'a> {
        Mark { tenant: "", handler: "h", key, digest: Digest::of(body.as_bytes()), time: None, window: None }
    }

    #[tokio::test]
    async fn a_marker_counts_only_after_commit_and_replays_its_reply() {
        let (store, key) = (MemoryStore::new(), key());

        let mut lost = store.begin().await.unwrap();
        assert_eq!(store.mark(&mut lost, &mark(&key, "x"), NOW).await.unwrap(), Marked::First);
        store.rollback(lost).await.unwrap();
        let mut kept = store.begin().await.unwrap();
        assert_eq!(store.mark(&mut kept, &mark(&key, "x"), NOW).await.unwrap(), Marked::First);
        store.reply(&mut kept, &mark(&key, "x"), b"ok").await.unwrap();
        store.commit(kept).await.unwrap();

        let mut tx = store.begin().await.unwrap();
        let again = store.mark(&mut tx, &mark(&key, "x"), NOW).await.unwrap();
        assert_eq!(again, Marked::Duplicate { result: Some(b"ok".to_vec()) });
        assert_eq!(store.mark(&mut tx, &mark(&key, "y"), NOW).await.unwrap(), Marked::Conflict);
    }

    #[tokio::test]
    async fn an_old_message_is_refused_unless_its_marker_is_still_there() {
        let (store, key) = (MemoryStore::new(), key());
        let window = Some(Duration::from_secs(5));
        let at = |micros| Mark { time: Some(Timestamp::from_micros(micros)), window, ..mark(&key, "x") };
        let mut tx = store.begin().await.unwrap();

        assert_eq!(store.mark(&mut tx, &at(4_999_999), NOW).await.unwrap(), Marked::TooOld);
        assert_eq!(store.mark(&mut tx, &at(5_000_000), NOW).await.unwrap(), Marked::First);
        assert_eq!(
            store.mark(&mut tx, &at(0), NOW).await.unwrap(),
            Marked::Duplicate { result: None },
            "a marker proves more than an age"
        );
    }

    #[tokio::test]
    async fn burying_the_same_message_twice_keeps_one() {
        let store = MemoryStore::new();
        let envelope = Envelope { id: "1".into(), payload: b"x".to_vec(), ..Envelope::default() };
        let other = Envelope { payload: b"y".to_vec(), ..envelope.clone() };

        for envelope in [&envelope, &envelope, &other] {
            let burial =
                Burial { channel: "c", handler: "h", code: "bad", reason: "no", attempts: 3, envelope };
            store.bury(&burial, NOW).await.unwrap();
        }

        assert_eq!(store.dead_letters().await.len(), 2, "another body is another letter");
    }
}
