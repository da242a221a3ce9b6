//! The gate's receipts. They do not queue with the writers: a request that is
//! admitted inside a transaction is in flight for all others at once, and its
//! receipt vanishes if the transaction does not commit.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::mem;
use std::time::Duration;

use oncebox_core::gate::receipt::{Receipt, Ruling, Standing, judge};
use oncebox_core::gate::{Admission, AdmitRequest, Pass, ReceiptKey, Receipts, Reply};
use oncebox_core::{Error, Kind, Result, Timestamp};

use super::store::{MemoryStore, MemoryTx, at, lock};

/// What a receipt takes beside its reply, about: its places in the table and by age, and what allocations round up to.
const OVERHEAD: usize = 512;
/// Places that mean nothing any more are let be up to this many, or as many as there are receipts.
const SLACK: usize = 1_024;

struct Kept {
    receipt: Receipt,
    reply: Option<Stored>,
}

/// A reply in two pieces, as tables have it: to copy every field of it takes longer, and more room.
struct Stored {
    head: Vec<u8>,
    body: Option<Vec<u8>>,
}

impl Stored {
    fn of(reply: &Reply) -> Self {
        Self { head: reply.head(), body: reply.body.clone() }
    }

    fn size(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, Vec::len)
    }
}

impl Kept {
    fn size(&self) -> usize {
        OVERHEAD + self.reply.as_ref().map_or(0, Stored::size)
    }

    /// Nobody runs it, so it may be forgotten.
    const fn is_over(&self) -> bool {
        !matches!(self.receipt.standing, Standing::InFlight { .. })
    }

    fn reply(&self) -> Result<Reply> {
        match &self.reply {
            Some(Stored { head, body }) => Reply::from_stored(head, body.clone()),
            None => Ok(Reply::default()),
        }
    }
}

/// When the time of a receipt ends, and which one it is.
type Place = (Timestamp, ReceiptKey);

/// All receipts, and how much room they take.
#[derive(Default)]
pub(super) struct Shelf {
    kept: HashMap<ReceiptKey, Kept>,
    /// Those in flight, by the end of their time.
    running: BTreeSet<Place>,
    /// Those that are over, likewise. There may be many, and a tree would have to be searched for each; a heap takes
    /// what ends last at once. So one that ends later by now, or is gone, keeps its place here until that comes up.
    aging: BinaryHeap<Reverse<Place>>,
    bytes: usize,
    /// How many each scope has.
    scopes: HashMap<[u8; 32], usize>,
    /// The most room there is.
    capacity: Option<usize>,
}

impl Shelf {
    pub(super) fn limit(&mut self, bytes: usize) {
        self.capacity = Some(bytes);
    }

    /// In place of what was kept under this key, if anything was.
    fn set(&mut self, key: ReceiptKey, kept: Kept) {
        let (size, is_over, expires_at) = (kept.size(), kept.is_over(), kept.receipt.expires_at);
        match self.kept.insert(key, kept) {
            Some(before) => self.strike(key, &before),
            None => *self.scopes.entry(key.scope).or_default() += 1,
        }
        self.bytes += size;
        if is_over {
            self.age((expires_at, key));
        } else {
            self.running.insert((expires_at, key));
        }
        // What is in flight stays.
        while self.capacity.is_some_and(|capacity| self.bytes > capacity) {
            let Some(Reverse(oldest)) = self.aging.pop() else { break };
            if self.is_aging(&oldest) {
                self.remove(oldest.1);
            }
        }
    }

    fn age(&mut self, place: Place) {
        self.aging.push(Reverse(place));
        if self.aging.len() > 2 * self.kept.len() + SLACK {
            let mut places = mem::take(&mut self.aging).into_vec();
            places.retain(|Reverse(place)| self.is_aging(place));
            places.sort_unstable();
            places.dedup();
            self.aging = places.into();
        }
    }

    /// Whether a receipt is over, and that is its place.
    fn is_aging(&self, (expires_at, key): &Place) -> bool {
        let is_its = |kept: &Kept| kept.is_over() && kept.receipt.expires_at == *expires_at;
        self.kept.get(key).is_some_and(is_its)
    }

    fn remove(&mut self, key: ReceiptKey) {
        let Some(kept) = self.kept.remove(&key) else { return };
        self.strike(key, &kept);
        let Some(count) = self.scopes.get_mut(&key.scope) else { return };
        *count -= 1;
        if *count == 0 {
            self.scopes.remove(&key.scope);
        }
    }

    /// What is no longer kept takes no room and does not run.
    fn strike(&mut self, key: ReceiptKey, kept: &Kept) {
        self.bytes -= kept.size();
        if !kept.is_over() {
            self.running.remove(&(kept.receipt.expires_at, key));
        }
    }

    fn ruling(&self, request: &AdmitRequest, now: Timestamp) -> Ruling {
        judge(self.kept.get(&request.key).map(|kept| &kept.receipt), request, now)
    }

    fn told(&self, request: &AdmitRequest, ruling: Ruling, now: Timestamp) -> Result<Admission> {
        Ok(match ruling {
            Ruling::Admit => Admission::Proceed(request.pass()),
            Ruling::Replay => {
                let kept = self.kept.get(&request.key);
                Admission::Replay {
                    reply: kept.map(Kept::reply).transpose()?.unwrap_or_default(),
                    left: kept.map_or(Duration::ZERO, |kept| kept.receipt.expires_at.since(now)),
                }
            }
            Ruling::InFlight { left } => Admission::InFlight { left },
            Ruling::Mismatch => Admission::Mismatch,
            Ruling::InDoubt => Admission::InDoubt,
        })
    }

    fn admit(&mut self, request: &AdmitRequest, now: Timestamp) -> Result<Admission> {
        let ruling = self.ruling(request, now);
        let told = self.told(request, ruling, now)?;
        if ruling == Ruling::Admit {
            let receipt = Receipt {
                fingerprint: request.fingerprint,
                standing: Standing::InFlight { until: now.plus(request.lease) },
                token: request.token,
                expires_at: now.plus(request.ttl),
            };
            self.set(request.key, Kept { receipt, reply: None });
        } else if request.sliding && ruling != Ruling::Mismatch {
            self.slide(request.key, now.plus(request.ttl));
        }
        Ok(told)
    }

    fn slide(&mut self, key: ReceiptKey, expires_at: Timestamp) {
        let Some(kept) = self.kept.get_mut(&key) else { return };
        let before = mem::replace(&mut kept.receipt.expires_at, expires_at);
        if kept.is_over() {
            self.age((expires_at, key));
        } else {
            self.running.remove(&(before, key));
            self.running.insert((expires_at, key));
        }
    }

    /// The receipt, if the pass is the latest and it is still in flight.
    fn held(&self, pass: &Pass) -> Option<Receipt> {
        let receipt = self.kept.get(&pass.key)?.receipt;
        let is_held = receipt.token == pass.token && matches!(receipt.standing, Standing::InFlight { .. });
        is_held.then_some(receipt)
    }

    fn end(&mut self, pass: &Pass, standing: Standing, reply: Option<Stored>) -> Result<()> {
        if let Some(receipt) = self.held(pass) {
            self.set(pass.key, Kept { receipt: Receipt { standing, ..receipt }, reply });
            return Ok(());
        }
        let is_sealed = self.kept.get(&pass.key).is_some_and(|kept| {
            kept.receipt.token == pass.token && kept.receipt.standing == Standing::Sealed
        });
        if is_sealed {
            return Ok(());
        }
        Err(Error::new(Kind::Fenced, "the request was admitted once more, or its receipt is gone"))
    }

    fn withdraw(&mut self, pass: &Pass) {
        if self.held(pass).is_some() {
            self.remove(pass.key);
        }
    }

    fn prolong(&mut self, pass: &Pass, until: Timestamp) -> bool {
        let is_held = self.held(pass).is_some();
        if let Some(kept) = self.kept.get_mut(&pass.key).filter(|_| is_held) {
            kept.receipt.standing = Standing::InFlight { until };
        }
        is_held
    }

    fn is_running(&self, key: ReceiptKey, now: Timestamp) -> bool {
        let standing = self.kept.get(&key).map(|kept| kept.receipt.standing);
        matches!(standing, Some(Standing::InFlight { until }) if until > now)
    }

    fn forget(&mut self, limit: usize, now: Timestamp) -> usize {
        let mut gone = 0;
        while gone < limit
            && self.aging.peek().is_some_and(|Reverse((expires_at, _))| *expires_at <= now)
            && let Some(Reverse(place)) = self.aging.pop()
        {
            if self.is_aging(&place) {
                self.remove(place.1);
                gone += 1;
            }
        }
        let running = self.running.iter().take_while(|(expires_at, _)| *expires_at <= now);
        let lost = running.filter(|(_, key)| !self.is_running(*key, now)).map(|(_, key)| *key);
        let lost: Vec<ReceiptKey> = lost.take(limit - gone).collect();
        lost.iter().for_each(|key| self.remove(*key));
        gone + lost.len()
    }
}

/// What a transaction has done to receipts: admitted at once, sealed at commit.
#[derive(Default)]
pub(super) struct Admitted(Vec<Entry>);

struct Entry {
    pass: Pass,
    /// Admitted by this transaction, and not before it.
    is_ours: bool,
    reply: Option<Stored>,
}

impl Admitted {
    /// The transaction commits.
    pub(super) fn publish(&mut self, shelf: &mut Shelf) {
        for Entry { pass, reply, .. } in self.0.drain(..) {
            if let Some(reply) = reply {
                // Its lease may have run out meanwhile; then somebody else answers for it.
                shelf.end(&pass, Standing::Sealed, Some(reply)).ok();
            }
        }
    }

    /// It does not.
    pub(super) fn undo(&mut self, shelf: &mut Shelf) {
        self.0.drain(..).filter(|entry| entry.is_ours).for_each(|entry| shelf.withdraw(&entry.pass));
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Receipts for MemoryStore {
    const IN_MEMORY: bool = true;

    async fn admit(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Result<Admission> {
        self.state().receipts.admit(request, at(now))
    }

    async fn admit_in(
        &self,
        tx: &mut MemoryTx,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Admission> {
        let admission = lock(&tx.state).receipts.admit(request, at(now))?;
        if let Admission::Proceed(pass) = admission {
            tx.admitted.0.push(Entry { pass, is_ours: true, reply: None });
        }
        Ok(admission)
    }

    async fn peek(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Result<Option<Admission>> {
        let (state, now) = (self.state(), at(now));
        let ruling = state.receipts.ruling(request, now);
        (ruling != Ruling::Admit).then(|| state.receipts.told(request, ruling, now)).transpose()
    }

    async fn prolong(&self, passes: &[Pass], lease: Duration, now: Option<Timestamp>) -> Result<Vec<bool>> {
        let (mut state, until) = (self.state(), at(now).plus(lease));
        Ok(passes.iter().map(|pass| state.receipts.prolong(pass, until)).collect())
    }

    async fn seal(&self, pass: &Pass, reply: &Reply) -> Result<()> {
        // Copied before anybody waits for it.
        let reply = Some(Stored::of(reply));
        self.state().receipts.end(pass, Standing::Sealed, reply)
    }

    async fn seal_in(&self, tx: &mut MemoryTx, pass: &Pass, reply: &Reply) -> Result<()> {
        if lock(&tx.state).receipts.held(pass).is_none() {
            return Err(Error::new(Kind::Fenced, "the request was admitted once more"));
        }
        let reply = Some(Stored::of(reply));
        match tx.admitted.0.iter_mut().find(|entry| entry.pass == *pass) {
            Some(entry) => entry.reply = reply,
            None => tx.admitted.0.push(Entry { pass: *pass, is_ours: false, reply }),
        }
        Ok(())
    }

    async fn withdraw(&self, pass: &Pass) -> Result<()> {
        self.state().receipts.withdraw(pass);
        Ok(())
    }

    async fn doubt(&self, pass: &Pass) -> Result<()> {
        let mut state = self.state();
        if state.receipts.held(pass).is_some() {
            state.receipts.end(pass, Standing::InDoubt, None)?;
        }
        Ok(())
    }

    async fn count(&self, scope: &[u8; 32], limit: usize) -> Result<usize> {
        Ok(self.state().receipts.scopes.get(scope).map_or(0, |count| *count.min(&limit)))
    }

    async fn forget(&self, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        Ok(self.state().receipts.forget(limit, at(now)))
    }
}

#[cfg(test)]
mod tests {
    use oncebox_core::gate::{Fingerprint, OnDoubt, OnMismatch};

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
        }
    }

    fn sealed(shelf: &mut Shelf, request: &AdmitRequest, now: Timestamp) {
        shelf.admit(request, now).unwrap();
        let pass = request.pass();
        shelf.end(&pass, Standing::Sealed, Some(Stored::of(&Reply::default()))).unwrap();
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
}
