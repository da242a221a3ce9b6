//! One request, from its key to its answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use oncebox_core::gate::{
    Admission, AdmitRequest, Caller, Fingerprint, KeyMaker, KeySyntax, OnMismatch, Pass, ReceiptKey,
    Receipts, Reply, RequestKey,
};
use oncebox_core::{Digest, Error, Kind, Timestamp};
use tokio::time::timeout;
use tower_service::Service;

use crate::answer::{CONFLICT, Problem, REPLAYED, STATUS};
use crate::body::{self, BoxError, GateBody};
use crate::cache::Known;
use crate::carry::Current;
use crate::claim::{Claim, Sealed};
use crate::flight::Flight;
use crate::gate::{Gate, Inner, Running};
use crate::grpc;
use crate::patience::{ToItsEnd, within};
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
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        // The one that was polled ready is the one to call.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let gate = Arc::clone(&self.gate.0);
        let is_grpc = record::is_grpc(request.headers());
        Box::pin(async move {
            let response = match Entrance::open(&gate, request).await {
                Way::Past(request, mark) => {
                    let response = inner.call(request).await?.map(body::other);
                    marked(response, mark)
                }
                Way::Refused(response) => response,
                Way::Through(entrance, request) => entrance.pass(inner, request).await?,
            };
            Ok(if is_grpc { grpc::told(response) } else { response })
        })
    }
}

/// What an unprotected reply is marked with.
type Mark = Option<(HeaderName, &'static str)>;

fn marked(mut response: Response<GateBody>, mark: Mark) -> Response<GateBody> {
    if let Some((name, value)) = mark {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Where a request goes.
enum Way<S: Receipts, B> {
    /// To the service, without protection.
    Past(Request<B>, Mark),
    /// Nowhere.
    Refused(Response<GateBody>),
    /// To the service, if it is the first.
    Through(Box<Entrance<S>>, Request<B>),
}

/// A request whose key and body are known.
struct Entrance<S: Receipts> {
    gate: Arc<Inner<S>>,
    policy: Arc<Policy>,
    key: IdempotencyKey,
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

impl<S: Receipts> Entrance<S> {
    /// Reads key, caller and body.
    async fn open<B>(gate: &Arc<Inner<S>>, mut request: Request<B>) -> Way<S, B>
    where
        B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        // What only we say, nobody says to us.
        for ours in [REPLAYED, STATUS, CONFLICT] {
            request.headers_mut().remove(ours);
        }
        let policy = Arc::clone(gate.policy(request.uri().path()));
        if !policy.methods.contains(request.method()) || is_other_protocol(&request) {
            return Way::Past(request, None);
        }
        let values = request.headers().get_all(KEY).iter().map(HeaderValue::as_bytes);
        let key = match RequestKey::parse(values, policy.key_syntax) {
            Ok(Some(key)) => key,
            Ok(None) if policy.required.contains(request.method()) => {
                return Way::Refused(Problem::KeyMissing.answer(&policy));
            }
            Ok(None) => return Way::Past(request, None),
            Err(error) => return Way::Refused(Problem::KeyMalformed(error).answer(&policy)),
        };
        let (parts, body) = request.into_parts();
        let opened = match (gate.scope)(&parts) {
            None => Err(Problem::CallerUnknown),
            Some(caller) if is_foreign(&key, &caller, &policy) => Err(Problem::KeyOfAnother),
            Some(caller) => read(&parts, body, &policy).await.map(|body| (caller, body)),
        };
        let (caller, body) = match opened {
            Ok(opened) => opened,
            Err(problem) => return Way::Refused(problem.answer(&policy)),
        };
        if policy.strategy == Strategy::ContentBased && !is_of_content(&key, &body) {
            return Way::Refused(Problem::KeyNotOfContent.answer(&policy));
        }
        let route = if policy.key_per_route {
            format!("{} {}", parts.method, parts.uri.path())
        } else {
            String::new()
        };
        let receipt = gate.keys.make(&caller, &route, &key);
        let fingerprint = fingerprint(&parts, &body, &policy);
        let admit = admit_request(receipt, gate.tokens.draw(), fingerprint, &policy);
        let key = IdempotencyKey { key, receipt, keys: Arc::clone(&gate.keys) };
        let entrance = Self { gate: Arc::clone(gate), policy, key, admit, asked: gate.cache.now() };
        Way::Through(Box::new(entrance), Request::from_parts(parts, B::from(body)))
    }

    /// Lets the request through if it is the first.
    async fn pass<I, ReqB, ResB>(
        self,
        mut inner: I,
        mut request: Request<ReqB>,
    ) -> Result<Response<GateBody>, I::Error>
    where
        I: Service<Request<ReqB>, Response = Response<ResB>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        ReqB: Send + 'static,
        ResB: Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        if let Some(response) = self.known() {
            return Ok(response);
        }
        request.extensions_mut().insert(self.key.clone());
        let current = Current::of(&self.key, request.headers());
        if self.gate.is_transactional {
            return self.pass_claim(inner, request, current).await;
        }
        let policy = Arc::clone(&self.policy);
        // With the admission: a client that hangs up during it must not leave a key that nobody runs.
        let running = ToItsEnd::new(async move {
            match self.admit().await {
                Verdict::Answer(response) => Ok(response),
                Verdict::Unprotected(mark) => {
                    let response = current.run(async { inner.call(request).await }).await?;
                    Ok(marked(response.map(body::other), mark))
                }
                Verdict::Run(pass) => {
                    let flight = Flight::begin(self.gate, self.policy, (self.admit, self.asked), pass);
                    // In a box: a future takes its room twice in each that it is handed on to, and 17 KiB
                    // were moved for a request.
                    let call = Box::pin(current.run(async move { inner.call(request).await }));
                    flight.run(call).await
                }
            }
        });
        running.await.unwrap_or_else(|| Ok(Problem::Panicked.answer(&policy)))
    }

    /// The handler claims the key in its own transaction, and is told there what is already decided.
    async fn pass_claim<I, ReqB, ResB>(
        self,
        mut inner: I,
        mut request: Request<ReqB>,
        current: Current,
    ) -> Result<Response<GateBody>, I::Error>
    where
        I: Service<Request<ReqB>, Response = Response<ResB>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        ReqB: Send + 'static,
        ResB: Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        // Only keys that are there already count; all others are told by the claim itself.
        if self.is_full().await
            && let Verdict::Answer(response) = self.readmit().await
        {
            return Ok(response);
        }
        let policy = Arc::clone(&self.policy);
        let gate = self.gate;
        request.extensions_mut().insert(Claim {
            gate: Arc::clone(&gate),
            policy: Arc::clone(&policy),
            admit: self.admit,
            asked: self.asked,
        });
        let running = ToItsEnd::new(async move {
            let _running = Running::begin(&gate);
            current.run(async { inner.call(request).await }).await
        });
        let Some(response) = running.await else { return Ok(Problem::Panicked.answer(&policy)) };
        let mut response = response?;
        if response.extensions_mut().remove::<Sealed>().is_none() {
            tracing::debug!("a handler behind a transactional gate has not sealed its reply");
        }
        Ok(response.map(body::other))
    }

    /// Asks the store, as long as the policy waits for a request that runs.
    async fn admit(&self) -> Verdict {
        if self.is_full().await {
            return self.readmit().await;
        }
        let (started, mut glance) = (Instant::now(), GLANCE);
        loop {
            let asked = within(PATIENCE, self.gate.store.admit(&self.admit, None)).await;
            let late = |_| Err(Error::new(Kind::Unavailable, "the store did not answer"));
            let admission = match asked.unwrap_or_else(late) {
                Ok(admission) => admission,
                // A transaction is deciding it.
                Err(error) if error.kind() == Kind::Busy => Admission::InFlight { left: self.policy.lease },
                Err(error) => {
                    // The store may have let it in, and its answer got lost.
                    let pass = Pass { key: self.admit.key, token: self.admit.token };
                    self.gate.disown(pass, self.policy.lease);
                    return self.without_store(&error);
                }
            };
            let waits = match (&admission, self.policy.in_flight) {
                (Admission::InFlight { .. }, InFlight::Wait(limit)) => {
                    limit.saturating_sub(started.elapsed())
                }
                _ => Duration::ZERO,
            };
            if waits.is_zero() {
                return self.told(admission);
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
        }
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
            Known::Replay(reply) => record::replay(Reply::clone(&reply), &self.policy),
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
            return Verdict::Unprotected(Some((STATUS, "unprotected")));
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
                self.gate.cache.keep(&self.admit, self.asked, left, reply.clone());
                return Verdict::Answer(record::replay(reply, &self.policy));
            }
            Admission::Mismatch if self.policy.strategy == Strategy::WarnButAllow => {
                return Verdict::Unprotected(Some((CONFLICT, "allowed")));
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

/// The whole body, before anything is admitted: a client that does not finish
/// its request has not made one.
async fn read<B>(parts: &Parts, body: B, policy: &Policy) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let too_large = Problem::BodyTooLarge { limit: policy.max_request_body };
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: usize| length > policy.max_request_body) {
        return Err(too_large);
    }
    let mut body = std::pin::pin!(Limited::new(body, policy.max_request_body));
    let mut whole = BytesMut::new();
    // However slow it is, as long as something comes.
    while let Some(frame) = timeout(policy.stall, body.frame()).await.map_err(|_| Problem::BodyBroken)? {
        match frame {
            Ok(frame) => whole.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new())),
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large),
            Err(_broken) => return Err(Problem::BodyBroken),
        }
    }
    Ok(whole.freeze())
}

fn fingerprint(parts: &Parts, body: &[u8], policy: &Policy) -> Fingerprint {
    let request = oncebox_core::gate::Request {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query(),
        content_type: parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()),
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
