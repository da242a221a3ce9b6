//! Keys that are claimed and sealed in the handler's own transaction: its
//! writes, its outgoing messages and its reply are committed at once. A crash
//! before the commit leaves nothing, one after it a reply to be replayed.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body::Body;
use http_body_util::BodyExt as _;
use oncebox_core::crash::CrashPoint;
use oncebox_core::gate::{Admission, AdmitRequest, Claiming, Receipts, Reply};
use oncebox_core::{Kind, Timestamp, Transaction};

use crate::answer::{Problem, STORE};
use crate::body::{self, BoxError, GateBody};
use crate::gate::Inner;
use crate::policy::Policy;
use crate::record;
use crate::telemetry;

/// A reply that is sealed already; in its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed;

/// The right to try for the key of a request; in its extensions, behind a
/// gate that is [`transactional`](crate::GateBuilder::transactional).
pub struct Claim<S> {
    pub(crate) gate: Arc<Inner<S>>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) admit: AdmitRequest,
    /// Before anybody asked the store, by the clock of the cache.
    pub(crate) asked: Timestamp,
}

impl<S> Clone for Claim<S> {
    fn clone(&self) -> Self {
        let Self { gate, policy, admit, asked } = self;
        Self { gate: Arc::clone(gate), policy: Arc::clone(policy), admit: *admit, asked: *asked }
    }
}

impl<S> fmt::Debug for Claim<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", &self.admit.key).finish_non_exhaustive()
    }
}

impl<S: Receipts> Claim<S> {
    /// Begins a transaction and claims the key in it.
    ///
    /// # Errors
    /// The answer to give instead: a replay, or why the request cannot run.
    pub async fn begin(self) -> Result<Claimed<S>, Response<GateBody>> {
        let down = |error: oncebox_core::Error| {
            tracing::warn!(error = %error.chain(), "the store of the gate cannot be asked");
            let problem = match error.kind() {
                Kind::Busy => Problem::InFlight { left: self.policy.lease },
                _ => Problem::StoreDown,
            };
            problem.answer(&self.policy)
        };
        let problem = match self.gate.store.begin_claim(&self.admit, None).await.map_err(down)? {
            Claiming::Begun(tx) => {
                telemetry::admitted();
                self.gate.quota.add(&self.admit.key.scope);
                self.gate.probe.reach(CrashPoint::H1).await.map_err(down)?;
                return Ok(Claimed { claim: self, tx });
            }
            Claiming::Told(Admission::Replay { reply, left }) => {
                let response = record::replay(&reply, &self.policy);
                self.gate.cache.keep(&self.admit, self.asked, left, reply);
                return Err(response);
            }
            Claiming::Told(Admission::Mismatch) => Problem::KeyReused,
            Claiming::Told(Admission::InFlight { left }) => Problem::InFlight { left },
            Claiming::Told(Admission::InDoubt) => Problem::OutcomeUnknown,
            Claiming::Told(Admission::Proceed(_)) => {
                tracing::error!("the store admits a request and begins no transaction for it");
                Problem::StoreDown
            }
        };
        Err(problem.answer(&self.policy))
    }
}

/// A transaction that has the key of its request. Dropped, it rolls back, and
/// the key is free.
pub struct Claimed<S: Receipts> {
    claim: Claim<S>,
    tx: S::Begun,
}

impl<S: Receipts> fmt::Debug for Claimed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed").field("key", &self.claim.admit.key).finish_non_exhaustive()
    }
}

impl<S: Receipts> Deref for Claimed<S> {
    type Target = S::Tx;

    fn deref(&self) -> &S::Tx {
        &self.tx
    }
}

impl<S: Receipts> DerefMut for Claimed<S> {
    fn deref_mut(&mut self) -> &mut S::Tx {
        &mut self.tx
    }
}

/// Messages can be put in it, as in any transaction.
impl<S: Receipts> Transaction<S> for Claimed<S> {
    fn connection(&mut self) -> &mut S::Tx {
        &mut self.tx
    }
}

impl<S: Receipts> Claimed<S> {
    /// Commits the transaction together with this reply, or, if it is one that
    /// is not kept, rolls everything back. Answers with the reply.
    pub async fn seal<B>(self, response: Response<B>) -> Response<GateBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = response.into_parts();
        let (store, policy) = (&self.claim.gate.store, &self.claim.policy);
        let Ok(collected) = body.collect().await else {
            store.rollback(self.tx).await.ok();
            return Problem::Panicked.answer(policy);
        };
        let trailers = collected.trailers().cloned();
        let data = collected.to_bytes();
        if record::is_kept(&parts, trailers.as_ref(), policy) {
            let kept = Some(data.to_vec()).filter(|data| data.len() <= policy.max_response_body);
            let reply = record::reply(&parts, kept, trailers.as_ref());
            if let Err(instead) = self.commit(reply).await {
                return instead;
            }
        } else {
            store.rollback(self.tx).await.ok();
        }
        parts.headers.remove(STORE);
        parts.extensions.insert(Sealed);
        Response::from_parts(parts, body::whole(data, trailers))
    }

    /// Commits with this reply; if that is not what happened, tells what to answer instead.
    async fn commit(self, reply: Reply) -> Result<(), Response<GateBody>> {
        let Self { claim: Claim { gate, policy, admit, asked }, tx } = self;
        let store = &gate.store;
        let committed = async {
            gate.probe.reach(CrashPoint::H6).await?;
            store.seal_claim(tx, &admit, &reply, None).await?;
            gate.probe.reach(CrashPoint::H2).await
        };
        let Err(error) = committed.await else {
            gate.cache.keep(&admit, asked, admit.ttl, reply);
            return Ok(());
        };
        tracing::warn!(error = %error.chain(), "the commit of a request has failed");
        if error.kind() != Kind::CommitUnknown {
            return Err(Problem::StoreDown.answer(&policy));
        }
        match store.peek(&admit, None).await {
            Ok(Some(Admission::Replay { reply: stored, .. })) if stored == reply => Ok(()),
            // Ours was rolled back, and a copy has been quicker.
            Ok(Some(Admission::Replay { reply: stored, .. })) => Err(record::replay(&stored, &policy)),
            _ => Err(Problem::CommitUnknown.answer(&policy)),
        }
    }
}
