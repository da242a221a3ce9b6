//! The gate's receipts. They do not queue with the writers: a request that is
//! admitted inside a transaction is in flight for all others at once, and its
//! receipt vanishes if the transaction does not commit.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use oncebox_core::gate::receipt::{Receipt, Ruling, Standing, judge};
use oncebox_core::gate::{Admission, AdmitRequest, Pass, ReceiptKey, Receipts, Reply};
use oncebox_core::{Error, Kind, Result, Timestamp};

use super::store::{MemoryStore, MemoryTx, at, lock};

/// What a receipt takes beside its reply, about: its places in the table and by age, and what allocations round up to.
const OVERHEAD: usize = 512;

struct Kept {
    receipt: Receipt,
    reply: Option<Reply>,
}

impl Kept {
    fn size(&self) -> usize {
        OVERHEAD + self.reply.as_ref().map_or(0, Reply::size)
    }

    /// Nobody runs it, so it may be forgotten.
    const fn is_over(&self) -> bool {
        !matches!(self.receipt.standing, Standing::InFlight { .. })
    }
}

/// All receipts, and how much room they take.
#[derive(Default)]
pub(super) struct Shelf {
    kept: HashMap<ReceiptKey, Kept>,
    /// Those that are over, by the end of their time.
    aging: BTreeSet<(Timestamp, ReceiptKey)>,
    /// Those in flight, likewise.
    running: BTreeSet<(Timestamp, ReceiptKey)>,
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

    fn set(&mut self, key: ReceiptKey, kept: Kept) {
        let (size, is_over, expires_at) = (kept.size(), kept.is_over(), kept.receipt.expires_at);
        if let Some(before) = self.kept.insert(key, kept) {
            self.strike(key, &before);
        }
        self.bytes += size;
        *self.scopes.entry(key.scope).or_default() += 1;
        self.by_age(is_over).insert((expires_at, key));
        // What is in flight stays.
        while self.capacity.is_some_and(|capacity| self.bytes > capacity) {
            let Some((_, oldest)) = self.aging.first().copied() else { break };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, key: ReceiptKey) {
        if let Some(kept) = self.kept.remove(&key) {
            self.strike(key, &kept);
        }
    }

    /// What is no longer kept takes no room, has no age and is not counted.
    fn strike(&mut self, key: ReceiptKey, kept: &Kept) {
        self.bytes -= kept.size();
        self.discount(key.scope);
        self.by_age(kept.is_over()).remove(&(kept.receipt.expires_at, key));
    }

    const fn by_age(&mut self, is_over: bool) -> &mut BTreeSet<(Timestamp, ReceiptKey)> {
        if is_over { &mut self.aging } else { &mut self.running }
    }

    fn discount(&mut self, scope: [u8; 32]) {
        let Some(count) = self.scopes.get_mut(&scope) else { return };
        *count -= 1;
        if *count == 0 {
            self.scopes.remove(&scope);
        }
    }

    fn ruling(&self, request: &AdmitRequest, now: Timestamp) -> Ruling {
        judge(self.kept.get(&request.key).map(|kept| &kept.receipt), request, now)
    }

    fn told(&self, request: &AdmitRequest, ruling: Ruling, now: Timestamp) -> Admission {
        match ruling {
            Ruling::Admit => Admission::Proceed(Pass { key: request.key, token: request.token }),
            Ruling::Replay => {
                let kept = self.kept.get(&request.key);
                Admission::Replay {
                    reply: kept.and_then(|kept| kept.reply.clone()).unwrap_or_default(),
                    left: kept.map_or(Duration::ZERO, |kept| kept.receipt.expires_at.since(now)),
                }
            }
            Ruling::InFlight { left } => Admission::InFlight { left },
            Ruling::Mismatch => Admission::Mismatch,
            Ruling::InDoubt => Admission::InDoubt,
        }
    }

    fn admit(&mut self, request: &AdmitRequest, now: Timestamp) -> Admission {
        let ruling = self.ruling(request, now);
        if ruling == Ruling::Admit {
            let receipt = Receipt {
                fingerprint: request.fingerprint,
                standing: Standing::InFlight { until: now.plus(request.lease) },
                token: request.token,
                expires_at: now.plus(request.ttl),
            };
            self.set(request.key, Kept { receipt, reply: None });
        }
        let told = self.told(request, ruling, now);
        if request.sliding && !matches!(ruling, Ruling::Admit | Ruling::Mismatch) {
            self.slide(request.key, now.plus(request.ttl));
        }
        told
    }

    fn slide(&mut self, key: ReceiptKey, expires_at: Timestamp) {
        let Some(kept) = self.kept.get_mut(&key) else { return };
        let before = std::mem::replace(&mut kept.receipt.expires_at, expires_at);
        for by_age in [&mut self.aging, &mut self.running] {
            if by_age.remove(&(before, key)) {
                by_age.insert((expires_at, key));
            }
        }
    }

    /// The receipt, if the pass is the latest and it is still in flight.
    fn held(&self, pass: &Pass) -> Option<Receipt> {
        let receipt = self.kept.get(&pass.key)?.receipt;
        let is_held = receipt.token == pass.token && matches!(receipt.standing, Standing::InFlight { .. });
        is_held.then_some(receipt)
    }

    fn end(&mut self, pass: &Pass, standing: Standing, reply: Option<Reply>) -> Result<()> {
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
        let both = [&self.aging, &self.running].into_iter();
        let old = both.flat_map(|by_age| by_age.iter().take_while(|(expires_at, _)| *expires_at <= now));
        let old = old.filter(|(_, key)| !self.is_running(*key, now));
        let old: Vec<ReceiptKey> = old.take(limit).map(|(_, key)| *key).collect();
        old.iter().for_each(|key| self.remove(*key));
        old.len()
    }
}

/// What a transaction has done to receipts: admitted at once, sealed at commit.
#[derive(Default)]
pub(super) struct Admitted(Vec<Entry>);

struct Entry {
    pass: Pass,
    /// Admitted by this transaction, and not before it.
    is_ours: bool,
    reply: Option<Reply>,
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
        Ok(self.state().receipts.admit(request, at(now)))
    }

    async fn admit_in(
        &self,
        tx: &mut MemoryTx,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Admission> {
        let admission = lock(&tx.state).receipts.admit(request, at(now));
        if let Admission::Proceed(pass) = admission {
            tx.admitted.0.push(Entry { pass, is_ours: true, reply: None });
        }
        Ok(admission)
    }

    async fn peek(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Result<Option<Admission>> {
        let (state, now) = (self.state(), at(now));
        let ruling = state.receipts.ruling(request, now);
        Ok((ruling != Ruling::Admit).then(|| state.receipts.told(request, ruling, now)))
    }

    async fn prolong(&self, passes: &[Pass], lease: Duration, now: Option<Timestamp>) -> Result<Vec<bool>> {
        let (mut state, until) = (self.state(), at(now).plus(lease));
        Ok(passes.iter().map(|pass| state.receipts.prolong(pass, until)).collect())
    }

    async fn seal(&self, pass: &Pass, reply: &Reply) -> Result<()> {
        self.state().receipts.end(pass, Standing::Sealed, Some(reply.clone()))
    }

    async fn seal_in(&self, tx: &mut MemoryTx, pass: &Pass, reply: &Reply) -> Result<()> {
        if lock(&tx.state).receipts.held(pass).is_none() {
            return Err(Error::new(Kind::Fenced, "the request was admitted once more"));
        }
        let reply = Some(reply.clone());
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
