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
use oncebox_core::gate::{Admission, AdmitRequest, Pass, Receipts};
use oncebox_core::{Kind, Transaction};

use crate::answer::{Problem, STORE};
use crate::body::{self, BoxError, GateBody};
use crate::policy::Policy;
use crate::record;
use crate::telemetry;

/// A reply that is sealed already; in its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed;

/// The right to try for the key of a request; in its extensions, behind a
/// gate that is [`transactional`](crate::GateBuilder::transactional).
#[derive(Clone)]
pub struct Claim<S> {
    store: S,
    policy: Arc<Policy>,
    admit: AdmitRequest,
}

impl<S> fmt::Debug for Claim<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", &self.admit.key).finish_non_exhaustive()
    }
}

impl<S: Receipts> Claim<S> {
    pub(crate) const fn new(store: S, policy: Arc<Policy>, admit: AdmitRequest) -> Self {
        Self { store, policy, admit }
    }

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
        let mut tx = self.store.begin().await.map_err(down)?;
        let problem = match self.store.admit_in(&mut tx, &self.admit, None).await.map_err(down)? {
            Admission::Proceed(pass) => {
                telemetry::admitted();
                return Ok(Claimed { store: self.store, policy: self.policy, admit: self.admit, tx, pass });
            }
            Admission::Replay(reply) => return Err(record::replay(reply, &self.policy)),
            Admission::Mismatch => Problem::KeyReused,
            Admission::InFlight { left } => Problem::InFlight { left },
            Admission::InDoubt => Problem::OutcomeUnknown,
        };
        Err(problem.answer(&self.policy))
    }
}

/// A transaction that has the key of its request. Dropped, it rolls back, and
/// the key is free.
pub struct Claimed<S: Receipts> {
    store: S,
    policy: Arc<Policy>,
    admit: AdmitRequest,
    tx: S::Begun,
    pass: Pass,
}

impl<S: Receipts> fmt::Debug for Claimed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed").field("key", &self.admit.key).finish_non_exhaustive()
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
        let Self { store, policy, admit, mut tx, pass } = self;
        let (mut parts, body) = response.into_parts();
        let Ok(collected) = body.collect().await else {
            store.rollback(tx).await.ok();
            return Problem::Panicked.answer(&policy);
        };
        let trailers = collected.trailers().cloned();
        let data = collected.to_bytes();
        if record::is_kept(&parts, trailers.as_ref(), &policy) {
            let kept = Some(data.to_vec()).filter(|data| data.len() <= policy.max_response_body);
            let reply = record::reply(&parts, kept, trailers.as_ref());
            let sealed = match store.seal_in(&mut tx, &pass, &reply).await {
                Ok(()) => store.commit(tx).await,
                Err(error) => Err(error),
            };
            if let Err(error) = sealed {
                tracing::warn!(error = %error.chain(), "the commit of a request has failed");
                if error.kind() != Kind::CommitUnknown {
                    return Problem::StoreDown.answer(&policy);
                }
                match store.peek(&admit, None).await {
                    Ok(Some(Admission::Replay(stored))) if stored == reply => {}
                    // Ours was rolled back, and a copy has been quicker.
                    Ok(Some(Admission::Replay(stored))) => return record::replay(stored, &policy),
                    _ => return Problem::CommitUnknown.answer(&policy),
                }
            }
        } else {
            store.rollback(tx).await.ok();
        }
        parts.headers.remove(STORE);
        parts.extensions.insert(Sealed);
        Response::from_parts(parts, body::whole(data, trailers))
    }
}
