//! What the store is asked about a request, and what its answer means.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use http::header::HeaderName;
use oncebox_core::gate::{Admission, AdmitRequest, Pass, Receipts};
use oncebox_core::{Error, Kind, Timestamp};
use tokio::time::timeout;

use crate::answer::{CONFLICT, Problem, STATUS};
use crate::body::GateBody;
use crate::cache::Known;
use crate::gate::Inner;
use crate::patience::within;
use crate::policy::{InFlight, Policy, Strategy};
use crate::record;
use crate::telemetry;

/// How long the store may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The wait before a copy looks again for a reply that another process makes.
pub(crate) const GLANCE: Duration = Duration::from_millis(20);
pub(crate) const LONGEST_GLANCE: Duration = Duration::from_millis(250);

/// What an unprotected reply is marked with.
pub(crate) type Mark = (HeaderName, &'static str);

/// What is asked about a request, and what its answer means.
pub(crate) struct Entrance<S> {
    pub(crate) gate: Arc<Inner<S>>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) admit: AdmitRequest,
    /// By the clock of the cache: before anybody asked the store.
    pub(crate) asked: Timestamp,
}

/// What an admission comes to.
pub(crate) enum Verdict {
    Run(Pass),
    Answer(Response<GateBody>),
    Unprotected(Mark),
}

impl<S: Receipts> Entrance<S> {
    /// Asks the store, as long as the policy waits for a request that runs.
    pub(crate) async fn admit(&self) -> Verdict {
        // What is seldom needed is in a box, so that the others need not carry its room along.
        if self.policy.max_keys.is_some() && Box::pin(self.is_full()).await {
            return Box::pin(self.readmit()).await;
        }
        match (self.ask(&self.admit).await, self.policy.in_flight) {
            (Ok(told @ Admission::InFlight { .. }), InFlight::Wait(limit)) => {
                Box::pin(self.wait(told, limit)).await
            }
            (Ok(admission), _) => self.told(admission),
            (Err(verdict), _) => verdict,
        }
    }

    async fn ask(&self, admit: &AdmitRequest) -> Result<Admission, Verdict> {
        let asked = within(PATIENCE, self.gate.store.admit(admit, None)).await;
        let late = |_| Err(Error::new(Kind::Unavailable, "the store did not answer"));
        match asked.unwrap_or_else(late) {
            Ok(admission) => Ok(admission),
            // A transaction is deciding it.
            Err(error) if error.kind() == Kind::Busy => Ok(Admission::InFlight { left: self.policy.lease }),
            Err(error) => {
                // The store may have let it in, and its answer got lost.
                self.gate.disown(admit.pass(), self.policy.lease);
                Err(self.without_store(&error))
            }
        }
    }

    /// Asks again until the request that runs has ended, for no longer than that.
    async fn wait(&self, mut told: Admission, limit: Duration) -> Verdict {
        let (started, mut glance) = (Instant::now(), GLANCE);
        while let Admission::InFlight { .. } = told {
            let waits = limit.saturating_sub(started.elapsed());
            if waits.is_zero() {
                break;
            }
            if self.gate.heart.has(&self.admit.key) {
                timeout(waits, self.until_landed()).await.ok();
            } else {
                tokio::time::sleep(glance.min(waits)).await;
                glance = (glance * 2).min(LONGEST_GLANCE);
            }
            if let Some(response) = self.known() {
                return Verdict::Answer(response);
            }
            // As somebody else: a question that is given up may be answered yet, and is then taken back.
            let again = AdmitRequest { token: self.gate.tokens.draw(), ..self.admit };
            told = match self.ask(&again).await {
                Ok(admission) => admission,
                Err(verdict) => return verdict,
            };
        }
        self.told(told)
    }

    pub(crate) async fn is_full(&self) -> bool {
        match self.policy.max_keys {
            Some(limit) => self.gate.quota.is_full(&self.gate.store, &self.admit.key.scope, limit).await,
            None => false,
        }
    }

    /// The caller has all the keys it may have: those it has are answered for.
    pub(crate) async fn readmit(&self) -> Verdict {
        // What is over counts until it is swept, and after a start nobody else may see to that.
        self.gate.look_after();
        let looked = timeout(PATIENCE, self.gate.store.peek(&self.admit, None)).await;
        let late = |_| Err(Error::new(Kind::Unavailable, "the store did not answer"));
        match looked.unwrap_or_else(late) {
            Ok(Some(admission)) => self.told(admission),
            Ok(None) => Verdict::Answer(Problem::TooManyKeys.answer(&self.policy)),
            Err(error) => self.without_store(&error),
        }
    }

    /// What needs no question.
    pub(crate) fn known(&self) -> Option<Response<GateBody>> {
        let response = match self.gate.cache.find(&self.admit)? {
            Known::Replay(reply) => record::replay(&reply, &self.policy),
            Known::Mismatch if self.policy.strategy == Strategy::WarnButAllow => return None,
            Known::Mismatch => Problem::KeyReused.answer(&self.policy),
        };
        telemetry::known();
        Some(response)
    }

    /// Until this process no longer runs the request: others that land do not make it ask the store.
    async fn until_landed(&self) {
        loop {
            let landed = self.gate.landed.notified();
            tokio::pin!(landed);
            // Before the look: whoever lands between it and the wait is not missed.
            landed.as_mut().enable();
            if !self.gate.heart.has(&self.admit.key) {
                return;
            }
            landed.await;
        }
    }

    fn without_store(&self, error: &Error) -> Verdict {
        tracing::warn!(error = %error.chain(), "the store of the gate cannot be asked");
        telemetry::store_failed();
        // One that answers and cannot be understood is not down, and may know the request.
        if self.policy.fail_open && error.kind() == Kind::Unavailable {
            return Verdict::Unprotected((STATUS, "unprotected"));
        }
        Verdict::Answer(Problem::StoreDown.answer(&self.policy))
    }

    fn told(&self, admission: Admission) -> Verdict {
        let problem = match admission {
            Admission::Proceed(pass) => {
                telemetry::admitted();
                self.gate.look_after();
                self.gate.quota.add(&pass.key.scope);
                return Verdict::Run(pass);
            }
            Admission::Replay { left, .. } if self.policy.is_expired(left) => Problem::KeyExpired,
            Admission::Replay { reply, left } => {
                let response = record::replay(&reply, &self.policy);
                self.gate.cache.keep(&self.admit, self.asked, self.policy.replays_for(left), reply);
                return Verdict::Answer(response);
            }
            Admission::Mismatch if self.policy.strategy == Strategy::WarnButAllow => {
                telemetry::conflict_allowed();
                return Verdict::Unprotected((CONFLICT, "allowed"));
            }
            Admission::Mismatch => Problem::KeyReused,
            Admission::InFlight { left } => Problem::InFlight { left },
            Admission::InDoubt => Problem::OutcomeUnknown,
        };
        Verdict::Answer(problem.answer(&self.policy))
    }
}
