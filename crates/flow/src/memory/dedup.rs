//! The inbox's memory: markers and dead letters.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use oncebox_core::depot::Number;
use oncebox_core::handler::MessageKey;
use oncebox_core::store::{Burial, Mark, Marked};
use oncebox_core::{Dedup, Digest, Envelope, Error, Kind, Result, Timestamp};

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
    pub(super) fn of(mark: &Mark<'_>) -> Self {
        Self::new(mark.handler, mark.tenant, mark.key)
    }

    pub(super) fn new(handler: &str, tenant: &str, key: &MessageKey) -> Self {
        Self {
            handler: handler.to_owned(),
            tenant: tenant.to_owned(),
            source: key.source.clone(),
            id: key.id.clone(),
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

impl Marker {
    pub(super) fn new(digest: Digest, processed_at: Timestamp, result: Option<&[u8]>) -> Self {
        Self { digest, processed_at, result: result.map(<[u8]>::to_vec) }
    }

    pub(super) const fn digest(&self) -> Digest {
        self.digest
    }

    /// What a message with this digest finds when the marker is there.
    pub(super) fn found(&self, digest: Digest) -> Marked {
        if self.digest == digest {
            Marked::Duplicate { result: self.result.clone() }
        } else {
            Marked::Conflict
        }
    }
}

/// All markers, with their order by age.
#[derive(Default)]
pub(super) struct Markers {
    markers: HashMap<MarkerKey, Marker>,
    ages: HashMap<String, BTreeSet<(Timestamp, MarkerKey)>>,
    /// The most there may be.
    capacity: Option<usize>,
}

impl Markers {
    pub(super) fn count(&self) -> usize {
        self.markers.len()
    }

    pub(super) fn limit(&mut self, capacity: usize) {
        self.capacity = Some(capacity);
    }

    /// Whether a transaction that has written these may write another one. No
    /// marker is forgotten to make room: its message would run again.
    pub(super) fn check_room(&self, written: &HashMap<MarkerKey, Marker>) -> Result<()> {
        let Some(capacity) = self.capacity else { return Ok(()) };
        let added = written.keys().filter(|key| !self.markers.contains_key(key)).count();
        if self.markers.len().saturating_add(added) < capacity {
            return Ok(());
        }
        let text = format!(
            "the store is full: it may hold {capacity} markers and must not forget one of them; \
             purge old markers or raise `marker_capacity`"
        );
        Err(Error::new(Kind::Unavailable, text))
    }

    pub(super) fn get(&self, key: &MarkerKey) -> Option<&Marker> {
        self.markers.get(key)
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

/// A dead letter in its place.
pub(super) struct Grave {
    pub(super) letter: DeadLetter,
    pub(super) died_at: Timestamp,
}

/// All dead letters, each once.
#[derive(Default)]
pub(super) struct Graveyard {
    graves: BTreeMap<Number, Grave>,
    last: Number,
    buried: HashSet<(String, String, Identity, Digest)>,
}

impl Graveyard {
    pub(super) fn letters(&self) -> impl ExactSizeIterator<Item = &DeadLetter> {
        self.graves.values().map(|grave| &grave.letter)
    }

    pub(super) fn graves(&self) -> impl Iterator<Item = (Number, &Grave)> {
        self.graves.iter().map(|(number, grave)| (*number, grave))
    }

    /// Takes a letter away; `false` if there is none.
    pub(super) fn exhume(&mut self, number: Number) -> bool {
        self.graves.remove(&number).is_some_and(|Grave { letter, .. }| {
            let DeadLetter { channel, handler, envelope, .. } = letter;
            self.buried.remove(&(channel, handler, Identity::of(&envelope), envelope.digest()));
            true
        })
    }

    fn bury(&mut self, burial: &Burial<'_>, died_at: Timestamp) {
        let Burial { channel, handler, envelope, .. } = *burial;
        let grave = (channel.to_owned(), handler.to_owned(), Identity::of(envelope), envelope.digest());
        if self.buried.insert(grave) {
            let letter = DeadLetter {
                channel: channel.to_owned(),
                handler: handler.to_owned(),
                code: burial.code.to_owned(),
                reason: burial.reason.to_owned(),
                attempts: burial.attempts,
                envelope: envelope.clone(),
            };
            self.last += 1;
            self.graves.insert(self.last, Grave { letter, died_at });
        }
    }
}

impl Dedup for MemoryStore {
    async fn mark(&self, tx: &mut MemoryTx, mark: &Mark<'_>, now: Option<Timestamp>) -> Result<Marked> {
        let (key, now) = (MarkerKey::of(mark), at(now));
        if let Some(marker) = tx.marker(&key) {
            return Ok(marker.found(mark.digest));
        }
        let too_old = mark.time.zip(mark.window).is_some_and(|(time, window)| time < now.minus(window));
        if too_old {
            return Ok(Marked::TooOld);
        }
        lock(&tx.state).markers.check_room(&tx.markers)?;
        tx.markers.insert(key, Marker::new(mark.digest, now, None));
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

    async fn bury(&self, burial: &Burial<'_>, now: Option<Timestamp>) -> Result<()> {
        self.write(|state| state.graveyard.bury(burial, at(now))).await
    }
}

impl MemoryTx {
    /// A marker as this transaction sees it.
    fn marker(&self, key: &MarkerKey) -> Option<Marker> {
        self.markers.get(key).cloned().or_else(|| lock(&self.state).markers.get(key).cloned())
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
    async fn a_full_store_takes_no_new_message_and_still_knows_the_old_ones() {
        let store = MemoryStore::new().marker_capacity(2);
        let keys = ["1", "2", "3"].map(|id| MessageKey { source: "shop".into(), id: id.into() });
        let [one, two, three] = keys.each_ref().map(|key| mark(key, "x"));
        let mut tx = store.begin().await.unwrap();
        store.mark(&mut tx, &one, NOW).await.unwrap();
        store.mark(&mut tx, &two, NOW).await.unwrap();

        let within = store.mark(&mut tx, &three, NOW).await.unwrap_err();
        store.commit(tx).await.unwrap();
        let mut tx = store.clone().begin().await.unwrap();
        let later = store.clone().mark(&mut tx, &three, NOW).await.unwrap_err();

        assert_eq!((within.kind(), later.kind()), (Kind::Unavailable, Kind::Unavailable));
        assert!(later.to_string().contains("2 markers"), "{later}");
        for known in [&one, &two] {
            let marked = store.mark(&mut tx, known, NOW).await.unwrap();
            assert_eq!(marked, Marked::Duplicate { result: None });
        }
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
