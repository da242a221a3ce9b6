//! Sealed receipts that this process has seen, so that a replay need not ask
//! the store.
//!
//! Only sealed ones: until its time is over nothing changes a sealed receipt,
//! whichever process sealed it, so what is here is what the store would say.
//! What is absent, in flight or in doubt can change at any moment and is always
//! asked for. The time of an entry is counted from before the store was asked,
//! so it is over here no later than there.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oncebox_core::Timestamp;
use oncebox_core::gate::receipt::{Receipt, Ruling, Standing, judge};
use oncebox_core::gate::{AdmitRequest, OnMismatch, ReceiptKey, Reply};

/// What an entry takes beside its reply, about.
const OVERHEAD: usize = 320;

/// What is known without asking.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Replay(Arc<Reply>),
    Mismatch,
}

/// Two generations share the room: what is used is in the young one; when that
/// is full, it becomes the old one, and what nobody used meanwhile is dropped.
pub(crate) struct Cache {
    /// Its clock is its own: it must not jump.
    started: Instant,
    capacity: usize,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: Generation,
    old: Generation,
}

#[derive(Default)]
struct Generation {
    sealed: HashMap<ReceiptKey, Sealed>,
    bytes: usize,
}

struct Sealed {
    receipt: Receipt,
    reply: Arc<Reply>,
}

impl Sealed {
    fn size(&self) -> usize {
        OVERHEAD + self.reply.size()
    }
}

impl Generation {
    fn add(&mut self, key: ReceiptKey, sealed: Sealed) {
        self.take(&key);
        self.bytes += sealed.size();
        self.sealed.insert(key, sealed);
    }

    fn take(&mut self, key: &ReceiptKey) -> Option<Sealed> {
        let sealed = self.sealed.remove(key)?;
        self.bytes -= sealed.size();
        Some(sealed)
    }
}

impl Generations {
    /// Adds to the young ones; answers with those that had to go.
    fn add(&mut self, key: ReceiptKey, sealed: Sealed, capacity: usize) -> Generation {
        self.old.take(&key);
        let gone = if self.young.bytes + sealed.size() > capacity / 2 {
            let old = mem::take(&mut self.young);
            mem::replace(&mut self.old, old)
        } else {
            Generation::default()
        };
        self.young.add(key, sealed);
        gone
    }

    fn rejuvenate(&mut self, key: &ReceiptKey, capacity: usize) -> Generation {
        match self.old.take(key) {
            Some(sealed) => self.add(*key, sealed, capacity),
            None => Generation::default(),
        }
    }
}

impl Cache {
    /// One that takes at most that many bytes; with none it keeps nothing.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { started: Instant::now(), capacity, generations: Mutex::default() }
    }

    /// What time it is here; where nothing is kept, that does not matter.
    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = if self.capacity == 0 { Duration::ZERO } else { self.started.elapsed() };
        Timestamp::from_micros(0).plus(elapsed)
    }

    /// What the store would say, if that is known.
    pub(crate) fn find(&self, request: &AdmitRequest) -> Option<Known> {
        self.find_at(request, self.now())
    }

    fn find_at(&self, request: &AdmitRequest, now: Timestamp) -> Option<Known> {
        if !self.may_hold(request) {
            return None;
        }
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = generations.rejuvenate(&request.key, self.capacity);
        let sealed = generations.young.sealed.get(&request.key)?;
        let known = match judge(Some(&sealed.receipt), request, now) {
            Ruling::Replay => Some(Known::Replay(Arc::clone(&sealed.reply))),
            Ruling::Mismatch => Some(Known::Mismatch),
            // Its time is over.
            _ => {
                generations.young.take(&request.key);
                None
            }
        };
        drop(generations);
        // To free many of them takes a while, and nobody should wait for it.
        drop(gone);
        known
    }

    /// Keeps the reply that this request has in the store. `left` is how long
    /// it is kept there, counted from `asked`, which was before the store was.
    pub(crate) fn keep(&self, request: &AdmitRequest, asked: Timestamp, left: Duration, reply: Reply) {
        if !self.may_hold(request) {
            return;
        }
        let receipt = Receipt {
            fingerprint: request.fingerprint,
            standing: Standing::Sealed,
            token: request.token,
            expires_at: asked.plus(left),
        };
        let sealed = Sealed { receipt, reply: Arc::new(reply) };
        if sealed.size() > self.capacity / 2 {
            return;
        }
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = generations.add(request.key, sealed, self.capacity);
        drop(generations);
        drop(gone);
    }

    /// Where copies keep a receipt for longer, each of them must reach the
    /// store; where another request may replace it, it is not for good.
    fn may_hold(&self, request: &AdmitRequest) -> bool {
        self.capacity > 0 && !request.sliding && request.on_mismatch == OnMismatch::Refuse
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        let generations = self.generations.lock().unwrap();
        generations.young.bytes + generations.old.bytes
    }
}

#[cfg(test)]
mod tests {
    use oncebox_core::gate::{Durability, Fingerprint, OnDoubt, Request};

    use super::*;

    fn request(number: u8, body: &[u8]) -> AdmitRequest {
        let print = Request { method: "POST", path: "/", query: None, content_type: None, body };
        AdmitRequest {
            key: ReceiptKey { scope: [0; 32], key: [number; 32] },
            token: 1,
            fingerprint: Fingerprint::raw(&print),
            lease: Duration::from_secs(30),
            ttl: Duration::from_secs(100),
            sliding: false,
            on_doubt: OnDoubt::Retry,
            on_mismatch: OnMismatch::Refuse,
            durability: Durability::Full,
        }
    }

    fn reply(size: usize) -> Reply {
        Reply { status: 201, body: Some(vec![7; size]), ..Reply::default() }
    }

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn keep(cache: &Cache, number: u8, size: usize) {
        cache.keep(&request(number, b"a"), at(0), Duration::from_secs(100), reply(size));
    }

    #[test]
    fn a_sealed_reply_is_known_to_its_request_and_refused_to_another_until_its_time_is_over() {
        let cache = Cache::new(1 << 20);

        assert_eq!(cache.find_at(&request(1, b"a"), at(0)), None, "nobody has seen it");
        keep(&cache, 1, 10);

        assert_eq!(cache.find_at(&request(1, b"a"), at(99)), Some(Known::Replay(Arc::new(reply(10)))));
        assert_eq!(cache.find_at(&request(1, b"b"), at(99)), Some(Known::Mismatch));
        assert_eq!(cache.find_at(&request(2, b"a"), at(99)), None);
        assert_eq!(cache.find_at(&request(1, b"b"), at(100)), None, "over");
        assert_eq!((cache.find_at(&request(1, b"a"), at(1)), cache.bytes()), (None, 0), "and gone");
    }

    #[test]
    fn its_room_is_bounded_and_what_is_used_stays() {
        let cache = Cache::new(20_000);
        for number in 0..=255 {
            keep(&cache, number, 1_000);
            cache.find_at(&request(0, b"a"), at(1));
            assert!(cache.bytes() <= 20_000, "{}", cache.bytes());
        }

        assert!(cache.find_at(&request(0, b"a"), at(1)).is_some(), "used all the time");
        assert!(cache.find_at(&request(255, b"a"), at(1)).is_some(), "the latest");
        assert!(cache.find_at(&request(100, b"a"), at(1)).is_none(), "long ago");
    }

    #[test]
    fn what_is_too_large_or_slides_is_not_kept_and_one_without_room_keeps_nothing() {
        let (cache, none) = (Cache::new(20_000), Cache::new(0));
        keep(&cache, 1, 10_000);
        keep(&none, 1, 1);
        let sliding = AdmitRequest { sliding: true, ..request(2, b"a") };
        cache.keep(&sliding, at(0), Duration::from_secs(100), reply(1));

        assert_eq!((cache.bytes(), none.bytes()), (0, 0));
        keep(&cache, 2, 1);
        assert_eq!(cache.find_at(&sliding, at(1)), None, "the store must hear of each copy");
        keep(&cache, 2, 5);
        assert_eq!(cache.bytes(), OVERHEAD + 5, "kept twice, it takes its room once");
    }
}
