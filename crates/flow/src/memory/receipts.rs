//! The gate's receipts. They do not queue with the writers: a request that is
//! admitted inside a transaction is in flight for all others at once, and its
//! receipt vanishes if the transaction does not commit.

use std::time::Duration;

use oncebox_core::gate::receipt::{Ruling, Standing};
use oncebox_core::gate::{Admission, AdmitRequest, Pass, Receipts, Reply};
use oncebox_core::{Error, Kind, Result, Timestamp};

use super::shelf::Shelf;
use super::store::{MemoryStore, MemoryTx, at, lock};

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
                shelf.end(&pass, Standing::Sealed, Some(&reply)).ok();
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
        self.state().receipts.end(pass, Standing::Sealed, Some(reply))
    }

    async fn seal_in(&self, tx: &mut MemoryTx, pass: &Pass, reply: &Reply) -> Result<()> {
        if !lock(&tx.state).receipts.is_held(pass) {
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
        if state.receipts.is_held(pass) {
            state.receipts.end(pass, Standing::InDoubt, None)?;
        }
        Ok(())
    }

    async fn count(&self, scope: &[u8; 32], limit: usize) -> Result<usize> {
        Ok(self.state().receipts.count(scope).min(limit))
    }

    async fn forget(&self, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        Ok(self.state().receipts.forget(limit, at(now)))
    }
}
