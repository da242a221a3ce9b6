//! Where the gate's receipts lie, and which of them go first.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::mem;
use std::time::Duration;

use indexmap::IndexMap;
use oncebox_core::gate::receipt::{Receipt, Ruling, Standing, judge};
use oncebox_core::gate::{Admission, AdmitRequest, Pass, ReceiptKey, Reply};
use oncebox_core::{Error, Kind, Result, Timestamp};

use super::sheets::{Sheets, Written};

/// What a receipt takes beside its reply, about: its places in the table and by age, and what these round up to.
const OVERHEAD: usize = 512;
/// Places that mean nothing any more are let be up to this many, or as many as there are receipts.
const SLACK: usize = 1_024;

struct Kept {
    receipt: Receipt,
    reply: Option<Stored>,
}

/// A reply, as tables have it: its head, then its body.
struct Stored {
    text: Written,
    head: usize,
}

impl Kept {
    fn size(&self) -> usize {
        OVERHEAD + self.reply.as_ref().map_or(0, |reply| reply.text.size())
    }

    /// Nobody runs it, so it may be forgotten.
    const fn is_over(&self) -> bool {
        !matches!(self.receipt.standing, Standing::InFlight { .. })
    }
}

/// When the time of a receipt ends, and which one it is.
type Place = (Timestamp, ReceiptKey);

/// The room there is unless somebody says otherwise.
const CAPACITY: usize = 256 << 20;

/// All receipts, and how much room they take.
pub(super) struct Shelf {
    /// Side by side, in about the order in which they came.
    kept: IndexMap<ReceiptKey, Kept>,
    sheets: Sheets,
    /// By the end of their time. There may be many, and a tree would have to be searched for each; a heap takes
    /// what ends last at once. So one that ends later by now, or is gone, keeps its place here until that comes up.
    aging: BinaryHeap<Reverse<Place>>,
    /// Those whose place came up while they were in flight.
    overdue: BTreeSet<Place>,
    bytes: usize,
    /// How many each scope has.
    scopes: HashMap<[u8; 32], usize>,
    /// The most room there is.
    capacity: usize,
}

impl Default for Shelf {
    fn default() -> Self {
        Self {
            kept: IndexMap::default(),
            sheets: Sheets::default(),
            aging: BinaryHeap::default(),
            overdue: BTreeSet::default(),
            bytes: 0,
            scopes: HashMap::default(),
            capacity: CAPACITY,
        }
    }
}

impl Shelf {
    pub(super) fn limit(&mut self, bytes: usize) {
        self.capacity = bytes;
    }

    /// How many a scope has.
    pub(super) fn count(&self, scope: &[u8; 32]) -> usize {
        self.scopes.get(scope).copied().unwrap_or_default()
    }

    /// In place of what was kept under this key, if anything was.
    fn set(&mut self, key: ReceiptKey, receipt: Receipt) {
        let kept = Kept { receipt, reply: None };
        self.bytes += kept.size();
        match self.kept.insert(key, kept) {
            Some(before) => self.strike(key, before),
            None => *self.scopes.entry(key.scope).or_default() += 1,
        }
        self.age((receipt.expires_at, key));
        self.make_room();
    }

    fn make_room(&mut self) {
        while self.bytes > self.capacity
            && let Some(Reverse(oldest)) = self.aging.pop()
        {
            self.retire(oldest);
        }
    }

    /// The receipt at this place goes, unless it is in flight: that stays. Tells whether it went.
    fn retire(&mut self, place: Place) -> bool {
        let Some(kept) = self.kept.get(&place.1).filter(|kept| kept.receipt.expires_at == place.0) else {
            return false;
        };
        let is_over = kept.is_over();
        if is_over {
            self.remove(place.1);
        } else {
            self.overdue.insert(place);
        }
        is_over
    }

    fn age(&mut self, place: Place) {
        self.aging.push(Reverse(place));
        if self.aging.len() > 2 * self.kept.len() + SLACK {
            let mut places = mem::take(&mut self.aging).into_vec();
            places.retain(|Reverse((expires_at, key))| {
                self.kept.get(key).is_some_and(|kept| kept.receipt.expires_at == *expires_at)
            });
            places.sort_unstable();
            places.dedup();
            self.aging = places.into();
        }
    }

    fn remove(&mut self, key: ReceiptKey) {
        let Some(kept) = self.kept.swap_remove(&key) else { return };
        self.strike(key, kept);
        let Some(count) = self.scopes.get_mut(&key.scope) else { return };
        *count -= 1;
        if *count == 0 {
            self.scopes.remove(&key.scope);
        }
    }

    /// What is no longer kept takes no room, and is not waited for.
    fn strike(&mut self, key: ReceiptKey, kept: Kept) {
        self.bytes -= kept.size();
        self.overdue.remove(&(kept.receipt.expires_at, key));
        if let Some(reply) = kept.reply {
            self.sheets.erase(reply.text);
        }
    }

    pub(super) fn ruling(&self, request: &AdmitRequest, now: Timestamp) -> Ruling {
        judge(self.kept.get(&request.key).map(|kept| &kept.receipt), request, now)
    }

    pub(super) fn told(&self, request: &AdmitRequest, ruling: Ruling, now: Timestamp) -> Result<Admission> {
        Ok(match ruling {
            Ruling::Admit => Admission::Proceed(request.pass()),
            Ruling::Replay => {
                let kept = self.kept.get(&request.key);
                Admission::Replay {
                    reply: kept.map(|kept| self.reply(kept)).transpose()?.unwrap_or_default(),
                    left: kept.map_or(Duration::ZERO, |kept| kept.receipt.expires_at.since(now)),
                }
            }
            Ruling::InFlight { left } => Admission::InFlight { left },
            Ruling::Mismatch => Admission::Mismatch,
            Ruling::InDoubt => Admission::InDoubt,
        })
    }

    fn reply(&self, kept: &Kept) -> Result<Reply> {
        let Some(stored) = &kept.reply else { return Ok(Reply::default()) };
        let mut head = self.sheets.read(&stored.text);
        let body = head.split_off(stored.head);
        Reply::from_stored(&head, Some(body))
    }

    pub(super) fn admit(&mut self, request: &AdmitRequest, now: Timestamp) -> Result<Admission> {
        let ruling = self.ruling(request, now);
        let told = self.told(request, ruling, now)?;
        if ruling == Ruling::Admit {
            let receipt = Receipt {
                fingerprint: request.fingerprint,
                standing: Standing::InFlight { until: now.plus(request.lease) },
                token: request.token,
                expires_at: now.plus(request.ttl),
            };
            self.set(request.key, receipt);
        } else if request.sliding && ruling != Ruling::Mismatch {
            self.slide(request.key, now.plus(request.ttl));
        }
        Ok(told)
    }

    fn slide(&mut self, key: ReceiptKey, expires_at: Timestamp) {
        let Some(kept) = self.kept.get_mut(&key) else { return };
        let before = mem::replace(&mut kept.receipt.expires_at, expires_at);
        self.overdue.remove(&(before, key));
        self.age((expires_at, key));
    }

    /// The receipt, if the pass is the latest.
    fn latest(&mut self, pass: &Pass) -> Option<&mut Kept> {
        self.kept.get_mut(&pass.key).filter(|kept| kept.receipt.token == pass.token)
    }

    /// Whether the pass is the latest and it is still in flight.
    pub(super) fn is_held(&mut self, pass: &Pass) -> bool {
        self.latest(pass).is_some_and(|kept| !kept.is_over())
    }

    /// It has run, and that is what came of it.
    pub(super) fn end(&mut self, pass: &Pass, standing: Standing, reply: Option<&Reply>) -> Result<()> {
        let Self { kept, sheets, .. } = self;
        let kept = match kept.get_mut(&pass.key).filter(|kept| kept.receipt.token == pass.token) {
            Some(kept) if !kept.is_over() => kept,
            // What it was sealed with stays.
            Some(kept) if kept.receipt.standing == Standing::Sealed => return Ok(()),
            _ => {
                return Err(Error::new(
                    Kind::Fenced,
                    "the request was admitted once more, or its receipt is gone",
                ));
            }
        };
        kept.receipt.standing = standing;
        kept.reply = reply.map(|reply| {
            let head = reply.head();
            let text = sheets.write(&[&head, reply.body.as_deref().unwrap_or_default()]);
            Stored { text, head: head.len() }
        });
        self.bytes += kept.size() - OVERHEAD;
        let place = (kept.receipt.expires_at, pass.key);
        if self.overdue.remove(&place) {
            self.age(place);
        }
        self.make_room();
        Ok(())
    }

    pub(super) fn withdraw(&mut self, pass: &Pass) {
        if self.is_held(pass) {
            self.remove(pass.key);
        }
    }

    pub(super) fn prolong(&mut self, pass: &Pass, until: Timestamp) -> bool {
        let held = self.latest(pass).filter(|kept| !kept.is_over());
        held.map(|kept| kept.receipt.standing = Standing::InFlight { until }).is_some()
    }

    fn is_running(&self, key: ReceiptKey, now: Timestamp) -> bool {
        let standing = self.kept.get(&key).map(|kept| kept.receipt.standing);
        matches!(standing, Some(Standing::InFlight { until }) if until > now)
    }

    pub(super) fn forget(&mut self, limit: usize, now: Timestamp) -> usize {
        let mut gone = 0;
        while gone < limit
            && self.aging.peek().is_some_and(|Reverse((expires_at, _))| *expires_at <= now)
            && let Some(Reverse(place)) = self.aging.pop()
        {
            gone += usize::from(self.retire(place));
        }
        let overdue = self.overdue.iter().take_while(|(expires_at, _)| *expires_at <= now);
        let lost = overdue.filter(|(_, key)| !self.is_running(*key, now)).map(|(_, key)| *key);
        let lost: Vec<ReceiptKey> = lost.take(limit - gone).collect();
        lost.iter().for_each(|key| self.remove(*key));
        gone + lost.len()
    }
}

#[cfg(test)]
mod tests {
    use oncebox_core::gate::{Durability, Fingerprint, OnDoubt, OnMismatch};

    use super::*;

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn request(number: u8) -> AdmitRequest {
        AdmitRequest {
            key: ReceiptKey { scope: [0; 32], key: [number; 32] },
            token: 1,
            fingerprint: Fingerprint::from_bytes([0; 32]),
            lease: Duration::from_secs(30),
            ttl: Duration::from_secs(100),
            sliding: true,
            on_doubt: OnDoubt::Retry,
            on_mismatch: OnMismatch::Refuse,
            durability: Durability::Full,
        }
    }

    fn sealed(shelf: &mut Shelf, request: &AdmitRequest, now: Timestamp) {
        shelf.admit(request, now).unwrap();
        let pass = request.pass();
        shelf.end(&pass, Standing::Sealed, Some(&Reply::default())).unwrap();
    }

    #[test]
    fn a_receipt_that_is_kept_for_longer_and_longer_takes_a_bounded_room_and_goes_once() {
        let mut shelf = Shelf::default();
        sealed(&mut shelf, &request(1), at(0));

        for second in 1..10_000 {
            assert!(matches!(shelf.admit(&request(1), at(second)), Ok(Admission::Replay { .. })));
            assert!(shelf.aging.len() <= 2 * shelf.kept.len() + SLACK, "{}", shelf.aging.len());
        }

        assert_eq!(shelf.forget(10, at(10_098)), 0, "kept for another 100 s by the last copy");
        assert_eq!((shelf.forget(10, at(10_099)), shelf.kept.len(), shelf.bytes), (1, 0, 0));
    }

    #[test]
    fn one_that_comes_and_goes_within_a_moment_is_counted_once() {
        let mut shelf = Shelf::default();
        for _ in 0..3_000 {
            sealed(&mut shelf, &request(1), at(0));
            shelf.remove(request(1).key);
        }
        sealed(&mut shelf, &request(1), at(0));

        assert!(shelf.aging.len() <= 2 * shelf.kept.len() + SLACK, "{}", shelf.aging.len());
        assert_eq!(shelf.forget(10, at(100)), 1);
        assert!(shelf.scopes.is_empty());
    }

    #[test]
    fn what_is_in_flight_stays_however_little_room_there_is_and_goes_in_its_turn_when_it_has_ended() {
        let mut shelf = Shelf::default();
        shelf.limit(4 * OVERHEAD);
        shelf.admit(&request(0), at(0)).unwrap();
        for number in 1..100 {
            sealed(&mut shelf, &request(number), at(i64::from(number)));
        }
        assert!(shelf.is_held(&request(0).pass()) && shelf.kept.len() > 1, "{}", shelf.kept.len());

        shelf.end(&request(0).pass(), Standing::Sealed, Some(&Reply::default())).unwrap();
        sealed(&mut shelf, &request(100), at(100));

        assert!(!shelf.kept.contains_key(&request(0).key), "it was the oldest");
        assert!(shelf.kept.contains_key(&request(100).key) && shelf.bytes <= 4 * OVERHEAD);
        assert!(shelf.overdue.is_empty());
    }

    #[test]
    fn one_that_nobody_runs_any_more_is_forgotten_when_its_time_and_its_lease_are_over() {
        let mut shelf = Shelf::default();
        for number in [1, 2] {
            shelf.admit(&request(number), at(0)).unwrap();
        }
        assert!(shelf.prolong(&request(2).pass(), at(200)));

        assert_eq!(shelf.forget(10, at(99)), 0);
        assert_eq!(shelf.forget(10, at(100)), 1);
        assert_eq!(shelf.forget(10, at(199)), 0, "somebody runs it");
        assert_eq!((shelf.forget(10, at(200)), shelf.kept.len(), shelf.bytes), (1, 0, 0));
        assert!(shelf.overdue.is_empty() && shelf.scopes.is_empty());
    }
}
