//! One request, from its key to its answer.

use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use oncebox_core::crash::CrashPoint;
use oncebox_core::gate::{
    Admission, AdmitRequest, Caller, Fingerprint, KeyMaker, KeySyntax, OnMismatch, Pass, ReceiptKey,
    Receipts, RequestKey,
};
use oncebox_core::{Digest, Error, Kind, Timestamp};
use tokio::time::timeout;
use tower_service::Service;

use crate::answer::{CONFLICT, Problem, REPLAYED, STATUS};
use crate::body::{self, BoxError, Gap, GateBody};
use crate::cache::Known;
use crate::carry::{Call, Current};
use crate::claim::{Claim, Sealed};
use crate::flight::Flight;
use crate::future::{Admitting, GateFuture};
use crate::gate::{Gate, Inner, Running};
use crate::grpc;
use crate::patience::within;
use crate::policy::{InFlight, Policy, Strategy};
use crate::record;
use crate::telemetry;

/// The header that carries the key.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// How long the store may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The wait before a copy looks again for a reply that another process makes.
const GLANCE: Duration = Duration::from_millis(20);
const LONGEST_GLANCE: Duration = Duration::from_millis(250);

/// A service behind the gate.
#[derive(Debug)]
pub struct GateService<S, I> {
    pub(crate) gate: Gate<S>,
    pub(crate) inner: I,
}

impl<S, I: Clone> Clone for GateService<S, I> {
    fn clone(&self) -> Self {
        Self { gate: self.gate.clone(), inner: self.inner.clone() }
    }
}

/// The key of the request that is being handled; in its extensions.
#[derive(Clone, Debug)]
pub struct IdempotencyKey {
    /// As the client sent it, without quotes.
    pub key: RequestKey,
    pub(crate) receipt: ReceiptKey,
    keys: Arc<KeyMaker>,
}

impl IdempotencyKey {
    /// A key for a call that the handler makes elsewhere: stable, so that a
    /// second run of the request sends it again, and apart from the client's own.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> String {
        self.keys.derive(&self.receipt, purpose)
    }
}

impl<S, I, ReqB, ResB> Service<Request<ReqB>> for GateService<S, I>
where
    S: Receipts,
    I: Service<Request<ReqB>, Response = Response<ResB>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send + 'static,
    ReqB: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    ReqB::Error: Into<BoxError>,
    ResB: Body<Data = Bytes> + Send + 'static,
    ResB::Error: Into<BoxError>,
{
    type Response = Response<GateBody>;
    type Error = I::Error;
    type Future = GateFuture<I::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        // The one that was polled ready is the one to call.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let is_grpc = record::is_grpc(request.headers());
        let told = move |response| if is_grpc { grpc::told(response) } else { response };
        match Arrival::look(&self.gate.0, request) {
            Way::Past(request) => GateFuture::new(async move {
                let response = inner.call(request).await?;
                Ok(told(response.map(body::other)))
            }),
            Way::Refused(response) => GateFuture::new(ready(Ok(told(response)))),
            Way::In(arrival) => GateFuture::to_its_end(async move |admitting: Admitting| {
                let visitor = match arrival.enter().await {
                    Ok(visitor) => visitor,
                    Err(response) => return Ok(told(response)),
                };
                visitor.pass(inner, admitting).await.map(told)
            }),
        }
    }
}

/// What an unprotected reply is marked with.
type Mark = (HeaderName, &'static str);

fn marked(mut response: Response<GateBody>, (name, value): Mark) -> Response<GateBody> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

/// Where a request goes.
enum Way<S, B> {
    /// To the service, without protection.
    Past(Request<B>),
    /// Nowhere.
    Refused(Response<GateBody>),
    /// To the service, if it is the first.
    In(Box<Arrival<S, B>>),
}

/// A request with a key, of which the body is yet to come.
struct Arrival<S, B> {
    gate: Arc<Inner<S>>,
    policy: Arc<Policy>,
    key: RequestKey,
    caller: Caller,
    request: Request<B>,
}

/// A request whose body is there, and what the store is asked about it.
struct Visitor<S, B> {
    request: Request<B>,
    key: IdempotencyKey,
    entrance: Entrance<S>,
}

/// What is asked about a request, and what its answer means.
struct Entrance<S> {
    gate: Arc<Inner<S>>,
    policy: Arc<Policy>,
    admit: AdmitRequest,
    /// By the clock of the cache: before anybody asked the store.
    asked: Timestamp,
}

/// What an admission comes to.
enum Verdict {
    Run(Pass),
    Answer(Response<GateBody>),
    Unprotected(Mark),
}

impl<S: Receipts, B> Arrival<S, B>
where
    B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    /// Reads key and caller.
    fn look(gate: &Arc<Inner<S>>, mut request: Request<B>) -> Way<S, B> {
        // What only we say, nobody says to us. Hardly anybody tries, and to look each of these up takes longer.
        let is_ours = |name: &HeaderName| [REPLAYED, STATUS, CONFLICT].contains(name);
        if request.headers().keys().any(is_ours) {
            for ours in [REPLAYED, STATUS, CONFLICT] {
                request.headers_mut().remove(ours);
            }
        }
        let policy = gate.policy(request.uri().path());
        if !policy.methods.contains(request.method()) || is_other_protocol(&request) {
            return Way::Past(request);
        }
        let values = request.headers().get_all(KEY).iter().map(HeaderValue::as_bytes);
        let key = match RequestKey::parse(values, policy.key_syntax) {
            Ok(Some(key)) => key,
            Ok(None) if policy.required.contains(request.method()) => {
                return Way::Refused(Problem::KeyMissing.answer(policy));
            }
            Ok(None) => return Way::Past(request),
            Err(error) => return Way::Refused(Problem::KeyMalformed(error).answer(policy)),
        };
        let (parts, body) = request.into_parts();
        let problem = match (gate.scope)(&parts) {
            None => Problem::CallerUnknown,
            Some(caller) if is_foreign(&key, &caller, policy) => Problem::KeyOfAnother,
            Some(_) if is_too_large(&parts, policy) => {
                Problem::BodyTooLarge { limit: policy.max_request_body }
            }
            Some(caller) => {
                let (gate, policy) = (Arc::clone(gate), Arc::clone(policy));
                let request = Request::from_parts(parts, body);
                return Way::In(Box::new(Self { gate, policy, key, caller, request }));
            }
        };
        Way::Refused(problem.answer(policy))
    }

    /// Reads the whole body, before anything is admitted: a client that does
    /// not finish its request has not made one.
    async fn enter(mut self: Box<Self>) -> Result<Box<Visitor<S, B>>, Response<GateBody>> {
        let body = std::mem::replace(self.request.body_mut(), B::from(Bytes::new()));
        let policy = Arc::clone(&self.policy);
        let limit = policy.max_request_body;
        let known = match body::gather(body, policy.stall, limit).await {
            Ok(gathered) => self.know(gathered.data),
            Err(Gap::TooLarge) => Err(Problem::BodyTooLarge { limit }),
            Err(Gap::Broken) => Err(Problem::BodyBroken),
        };
        known.map_err(|problem| problem.answer(&policy))
    }

    fn know(self, body: Bytes) -> Result<Box<Visitor<S, B>>, Problem> {
        let Self { gate, policy, key, caller, mut request } = self;
        if policy.strategy == Strategy::ContentBased && !is_of_content(&key, &body) {
            return Err(Problem::KeyNotOfContent);
        }
        let route = if policy.key_per_route {
            format!("{} {}", request.method(), request.uri().path())
        } else {
            String::new()
        };
        let receipt = gate.keys.make(&caller, &route, &key);
        let fingerprint = fingerprint(&request, &body, &policy);
        let admit = admit_request(receipt, gate.tokens.draw(), fingerprint, &policy);
        let key = IdempotencyKey { key, receipt, keys: Arc::clone(&gate.keys) };
        let asked = gate.cache.now();
        *request.body_mut() = B::from(body);
        Ok(Box::new(Visitor { request, key, entrance: Entrance { gate, policy, admit, asked } }))
    }
}

impl<S: Receipts, B: Send + 'static> Visitor<S, B> {
    /// Lets the request through if it is the first.
    async fn pass<I, ResB>(
        mut self: Box<Self>,
        inner: I,
        admitting: Admitting,
    ) -> Result<Response<GateBody>, I::Error>
    where
        I: Service<Request<B>, Response = Response<ResB>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        ResB: Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        if let Some(response) = self.entrance.known() {
            return Ok(response);
        }
        let key = self.key.clone();
        self.request.extensions_mut().insert(key);
        let policy = Arc::clone(&self.entrance.policy);
        // With the admission: a client that hangs up during it must not leave a key that nobody runs.
        admitting.begin();
        let passed = if self.entrance.gate.is_transactional {
            AssertUnwindSafe(Box::pin(self.pass_claim(inner))).catch_unwind().await
        } else {
            AssertUnwindSafe(self.pass_admitted(inner)).catch_unwind().await
        };
        passed.unwrap_or_else(|_panic| Ok(Problem::Panicked.answer(&policy)))
    }

    async fn pass_admitted<I, ResB>(self: Box<Self>, inner: I) -> Result<Response<GateBody>, I::Error>
    where
        I: Service<Request<B>, Response = Response<ResB>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        ResB: Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        let pass = match self.entrance.admit().await {
            Verdict::Run(pass) => pass,
            Verdict::Answer(response) => return Ok(response),
            Verdict::Unprotected(mark) => {
                let response = self.pass_unprotected(inner).await?;
                return Ok(marked(response.map(body::other), mark));
            }
        };
        if self.entrance.gate.probe.reach(CrashPoint::H1).await.is_err() {
            return Ok(Problem::Panicked.answer(&self.entrance.policy));
        }
        let (flight, call) = self.take_off(pass, inner);
        flight.run(call).await
    }

    fn pass_unprotected<I: Service<Request<B>>>(self, mut inner: I) -> Call<I::Future> {
        let Self { request, key, .. } = self;
        Current::of(key, request.headers()).call(|| inner.call(request))
    }

    /// Calls the service. Not in the future above, which would have to carry the request along until the end.
    fn take_off<I>(self, pass: Pass, mut inner: I) -> (Arc<Flight<S>>, thread::Result<Call<I::Future>>)
    where
        I: Service<Request<B>>,
    {
        let Self { request, key, entrance: Entrance { gate, policy, admit, asked } } = self;
        let flight = Flight::begin(gate, policy, (admit, asked), pass);
        let current = Current::of(key, request.headers());
        (flight, catch_unwind(AssertUnwindSafe(|| current.call(|| inner.call(request)))))
    }

    /// The handler claims the key in its own transaction, and is told there what is already decided.
    async fn pass_claim<I, ResB>(self: Box<Self>, mut inner: I) -> Result<Response<GateBody>, I::Error>
    where
        I: Service<Request<B>, Response = Response<ResB>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        ResB: Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        // Only keys that are there already count; all others are told by the claim itself.
        if self.entrance.is_full().await
            && let Verdict::Answer(response) = self.entrance.readmit().await
        {
            return Ok(response);
        }
        let Self { mut request, key, entrance: Entrance { gate, policy, admit, asked } } = *self;
        let current = Current::of(key, request.headers());
        let _running = Running::begin(&gate);
        request.extensions_mut().insert(Claim { gate, policy, admit, asked });
        let mut response = current.call(|| inner.call(request)).await?;
        if response.extensions_mut().remove::<Sealed>().is_none() {
            tracing::debug!("a handler behind a transactional gate has not sealed its reply");
        }
        Ok(response.map(body::other))
    }
}

impl<S: Receipts> Entrance<S> {
    /// Asks the store, as long as the policy waits for a request that runs.
    async fn admit(&self) -> Verdict {
        // What is seldom needed is in a box, so that the others need not carry its room along.
        if self.policy.max_keys.is_some() && Box::pin(self.is_full()).await {
            return Box::pin(self.readmit()).await;
        }
        match (self.ask().await, self.policy.in_flight) {
            (Ok(told @ Admission::InFlight { .. }), InFlight::Wait(limit)) => {
                Box::pin(self.wait(told, limit)).await
            }
            (Ok(admission), _) => self.told(admission),
            (Err(verdict), _) => verdict,
        }
    }

    async fn ask(&self) -> Result<Admission, Verdict> {
        let asked = within(PATIENCE, self.gate.store.admit(&self.admit, None)).await;
        let late = |_| Err(Error::new(Kind::Unavailable, "the store did not answer"));
        match asked.unwrap_or_else(late) {
            Ok(admission) => Ok(admission),
            // A transaction is deciding it.
            Err(error) if error.kind() == Kind::Busy => Ok(Admission::InFlight { left: self.policy.lease }),
            Err(error) => {
                // The store may have let it in, and its answer got lost.
                let pass = Pass { key: self.admit.key, token: self.admit.token };
                self.gate.disown(pass, self.policy.lease);
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
            told = match self.ask().await {
                Ok(admission) => admission,
                Err(verdict) => return verdict,
            };
        }
        self.told(told)
    }

    async fn is_full(&self) -> bool {
        match self.policy.max_keys {
            Some(limit) => self.gate.quota.is_full(&self.gate.store, &self.admit.key.scope, limit).await,
            None => false,
        }
    }

    /// The caller has all the keys it may have: those it has are answered for.
    async fn readmit(&self) -> Verdict {
        let looked = timeout(PATIENCE, self.gate.store.peek(&self.admit, None)).await;
        let late = |_| Err(Error::new(Kind::Unavailable, "the store did not answer"));
        match looked.unwrap_or_else(late) {
            Ok(Some(admission)) => self.told(admission),
            Ok(None) => Verdict::Answer(Problem::TooManyKeys.answer(&self.policy)),
            Err(error) => self.without_store(&error),
        }
    }

    /// What needs no question.
    fn known(&self) -> Option<Response<GateBody>> {
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
                self.gate.quota.add(&pass.key.scope);
                return Verdict::Run(pass);
            }
            Admission::Replay { reply, left } => {
                let response = record::replay(&reply, &self.policy);
                self.gate.cache.keep(&self.admit, self.asked, left, reply);
                return Verdict::Answer(response);
            }
            Admission::Mismatch if self.policy.strategy == Strategy::WarnButAllow => {
                return Verdict::Unprotected((CONFLICT, "allowed"));
            }
            Admission::Mismatch => Problem::KeyReused,
            Admission::InFlight { left } => Problem::InFlight { left },
            Admission::InDoubt => Problem::OutcomeUnknown,
        };
        Verdict::Answer(problem.answer(&self.policy))
    }
}

fn is_other_protocol<B>(request: &Request<B>) -> bool {
    request.method() == Method::CONNECT
}

/// A key may name its tenant, but only the caller's own.
fn is_foreign(key: &RequestKey, caller: &Caller, policy: &Policy) -> bool {
    let is_named = policy.key_syntax == KeySyntax::Atp && !caller.tenant.is_empty();
    is_named && key.atp_tenant() != Some(caller.tenant.as_str())
}

fn is_of_content(key: &RequestKey, body: &[u8]) -> bool {
    key.as_str().strip_prefix("content:").is_none_or(|hash| hash == Digest::of(body).to_string())
}

/// What says itself that it is too large need not be read.
fn is_too_large(parts: &Parts, policy: &Policy) -> bool {
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    announced.is_some_and(|length: usize| length > policy.max_request_body)
}

fn fingerprint<B>(request: &Request<B>, body: &[u8], policy: &Policy) -> Fingerprint {
    let request = oncebox_core::gate::Request {
        method: request.method().as_str(),
        path: request.uri().path(),
        query: request.uri().query(),
        content_type: request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()),
        body,
    };
    if policy.raw_fingerprint {
        Fingerprint::raw(&request)
    } else {
        Fingerprint::of(&request, &policy.excluded)
    }
}

fn admit_request(key: ReceiptKey, token: i64, fingerprint: Fingerprint, policy: &Policy) -> AdmitRequest {
    let replaces = policy.strategy == Strategy::LastWriteWins;
    AdmitRequest {
        key,
        token,
        fingerprint,
        lease: policy.lease,
        ttl: policy.ttl,
        sliding: policy.sliding,
        on_doubt: policy.on_doubt,
        on_mismatch: if replaces { OnMismatch::Replace } else { OnMismatch::Refuse },
    }
}
