//! Keys that are claimed and sealed in the handler's own transaction: its
//! writes, its outgoing messages and its reply are committed at once. A crash
//! before the commit leaves nothing, one after it a reply to be replayed.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use http::header::HeaderValue;
use http_body::Body;
use http_body_util::BodyExt as _;
use oncebox_core::crash::CrashPoint;
use oncebox_core::gate::{Admission, AdmitRequest, Claiming, Receipts, Reply};
use oncebox_core::{Error, Kind, Timestamp, Transaction};

use crate::answer::{CONFLICT, Problem};
use crate::body::{self, BoxError, GateBody};
use crate::entrance::{GLANCE, LONGEST_GLANCE, Mark};
use crate::gate::Inner;
use crate::policy::{InFlight, Policy, Strategy};
use crate::record;
use crate::telemetry;

/// How long a client waits for its key to be free again after a handler has let go of it.
const MOMENT: Duration = Duration::from_millis(250);
/// The first wait between looks at whether it is.
const BLINK: Duration = Duration::from_millis(2);

/// What has become of a claim. A handler that has written something in its
/// transaction and then forgets to seal it would tell its client of what was rolled back.
#[derive(Clone, Default)]
pub(crate) struct Fate(Arc<AtomicU8>);

impl Fate {
    const BEGUN: u8 = 1;
    const SEALED: u8 = 2;

    fn note(&self, fate: u8) {
        self.0.store(fate, Ordering::Relaxed);
    }

    /// Whether it was begun and nothing came of it.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::BEGUN
    }
}

/// The right to try for the key of a request; in its extensions, behind a
/// gate that is [`transactional`](crate::GateBuilder::transactional).
pub struct Claim<S> {
    pub(crate) gate: Arc<Inner<S>>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) admit: AdmitRequest,
    /// Before anybody asked the store, by the clock of the cache.
    pub(crate) asked: Timestamp,
    pub(crate) fate: Fate,
}

impl<S> Clone for Claim<S> {
    fn clone(&self) -> Self {
        let Self { gate, policy, admit, asked, fate } = self;
        let (gate, policy, fate) = (Arc::clone(gate), Arc::clone(policy), fate.clone());
        Self { gate, policy, admit: *admit, asked: *asked, fate }
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
        let told = match (self.ask().await?, self.policy.in_flight) {
            (Claiming::Told(Admission::InFlight { left }), InFlight::Wait(limit)) => {
                Box::pin(self.wait(left, limit)).await?
            }
            (told, _) => told,
        };
        let problem = match told {
            Claiming::Begun(tx) => {
                telemetry::admitted();
                self.gate.look_after();
                self.gate.quota.add(&self.admit.key.scope);
                self.fate.note(Fate::BEGUN);
                self.gate.probe.reach(CrashPoint::H1).await.map_err(|error| self.down(&error))?;
                return Ok(Claimed { claim: self, tx, mark: None });
            }
            Claiming::Told(Admission::Replay { left, .. }) if self.policy.is_expired(left) => {
                Problem::KeyExpired
            }
            Claiming::Told(Admission::Replay { reply, left }) => {
                let response = record::replay(&reply, &self.policy);
                self.fate.note(Fate::SEALED);
                self.gate.cache.keep(&self.admit, self.asked, self.policy.replays_for(left), reply);
                return Err(response);
            }
            Claiming::Told(Admission::Mismatch) if self.policy.strategy == Strategy::WarnButAllow => {
                return self.begin_unprotected().await;
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

    async fn ask(&self) -> Result<Claiming<S::Begun>, Response<GateBody>> {
        match self.gate.store.begin_claim(&self.admit, None).await {
            // Somebody else's transaction is deciding it.
            Err(error) if error.kind() == Kind::Busy => {
                Ok(Claiming::Told(Admission::InFlight { left: self.policy.lease }))
            }
            asked => asked.map_err(|error| self.down(&error)),
        }
    }

    /// Asks again until whoever has the key has ended, for no longer than that.
    async fn wait(&self, left: Duration, limit: Duration) -> Result<Claiming<S::Begun>, Response<GateBody>> {
        let (started, mut glance) = (Instant::now(), GLANCE);
        let mut told = Claiming::Told(Admission::InFlight { left });
        while let Claiming::Told(Admission::InFlight { .. }) = told {
            let waits = limit.saturating_sub(started.elapsed());
            if waits.is_zero() {
                break;
            }
            tokio::time::sleep(glance.min(waits)).await;
            glance = (glance * 2).min(LONGEST_GLANCE);
            told = self.ask().await?;
        }
        Ok(told)
    }

    /// The key is another request's: this one runs all the same, and leaves that one's receipt as it is.
    async fn begin_unprotected(self) -> Result<Claimed<S>, Response<GateBody>> {
        telemetry::conflict_allowed();
        let tx = self.gate.store.begin().await.map_err(|error| self.down(&error))?;
        self.fate.note(Fate::BEGUN);
        Ok(Claimed { claim: self, tx, mark: Some((CONFLICT, "allowed")) })
    }

    /// A transaction that was dropped is rolled back soon, not at once. Until then the client's next try would be told that this one
    /// still runs, so it is not answered before. A copy that takes the key meanwhile cannot be told from it: hence no longer than a moment.
    pub(crate) async fn until_free(&self) {
        let freed = async {
            let mut blink = BLINK;
            while matches!(self.gate.store.is_claimed(&self.admit).await, Ok(true)) {
                tokio::time::sleep(blink).await;
                blink *= 2;
            }
        };
        tokio::time::timeout(MOMENT, freed).await.ok();
    }

    fn down(&self, error: &Error) -> Response<GateBody> {
        tracing::warn!(error = %error.chain(), "the store of the gate cannot be asked");
        Problem::StoreDown.answer(&self.policy)
    }
}

/// A transaction that has the key of its request. Dropped, it rolls back, and
/// the key is free.
pub struct Claimed<S: Receipts> {
    claim: Claim<S>,
    tx: S::Begun,
    /// Of a request that nothing protects.
    mark: Option<Mark>,
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
        let (store, policy, mark) = (&self.claim.gate.store, &self.claim.policy, self.mark.clone());
        let Ok(collected) = body.collect().await else {
            store.rollback(self.tx).await.ok();
            return Problem::Panicked.answer(policy);
        };
        let trailers = collected.trailers().cloned();
        let data = collected.to_bytes();
        self.claim.fate.note(Fate::SEALED);
        if record::is_kept(&parts, trailers.as_ref(), policy) {
            let kept = Some(&data).filter(|data| data.len() <= policy.max_response_body);
            let reply = record::reply(&parts, kept, trailers.as_ref(), policy);
            if let Err(instead) = self.commit(reply).await {
                return instead;
            }
        } else {
            store.rollback(self.tx).await.ok();
        }
        if let Some((name, value)) = mark {
            parts.headers.insert(name, HeaderValue::from_static(value));
        }
        Response::from_parts(parts, body::whole(data, trailers))
    }

    /// Commits with this reply; if that is not what happened, tells what to answer instead.
    async fn commit(self, reply: Reply) -> Result<(), Response<GateBody>> {
        let Self { claim: Claim { gate, policy, admit, asked, .. }, tx, mark } = self;
        let store = &gate.store;
        if mark.is_some() {
            let failed = |error: Error| match error.kind() {
                Kind::CommitUnknown => Problem::CommitUnknown.answer(&policy),
                _ => Problem::StoreDown.answer(&policy),
            };
            return store.commit(tx).await.map_err(failed);
        }
        let committed = async {
            gate.probe.reach(CrashPoint::H6).await?;
            store.seal_claim(tx, &admit, &reply, None).await?;
            gate.probe.reach(CrashPoint::H2).await
        };
        let Err(error) = committed.await else {
            gate.cache.keep(&admit, asked, policy.replays_for(admit.ttl), reply);
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
