//! One request, from its arrival to its answer.

use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::HeaderValue;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use oncebox_core::crash::CrashPoint;
use oncebox_core::gate::{KeyMaker, Pass, ReceiptKey, Receipts, RequestKey};
use tower_service::Service;

use crate::answer::{Problem, STORE};
use crate::arrival::{Arrival, Way};
use crate::body::{self, BoxError, GateBody};
use crate::carry::{Call, Current};
use crate::claim::{Claim, Fate};
use crate::entrance::{Entrance, Mark, Verdict};
use crate::flight::Flight;
use crate::future::{Admitting, GateFuture};
use crate::gate::{Gate, Running};
use crate::grpc;
use crate::record;

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
    pub(crate) keys: Arc<KeyMaker>,
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
        let told = move |mut response: Response<GateBody>| {
            // A word between the handler and us.
            response.headers_mut().remove(STORE);
            if is_grpc { grpc::told(response) } else { response }
        };
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

/// A request whose body is there, and what the store is asked about it.
pub(crate) struct Visitor<S> {
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) key: IdempotencyKey,
    pub(crate) entrance: Entrance<S>,
}

/// The request as the handler gets it.
fn request<B: From<Bytes>>(mut parts: Parts, body: Bytes, key: IdempotencyKey) -> Request<B> {
    parts.extensions.insert(key);
    Request::from_parts(parts, B::from(body))
}

impl<S: Receipts> Visitor<S> {
    /// Lets the request through if it is the first.
    async fn pass<I, B, ResB>(
        self: Box<Self>,
        inner: I,
        admitting: Admitting,
    ) -> Result<Response<GateBody>, I::Error>
    where
        I: Service<Request<B>, Response = Response<ResB>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        B: From<Bytes> + Send + 'static,
        ResB: Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        if let Some(response) = self.entrance.known() {
            return Ok(response);
        }
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

    async fn pass_admitted<I, B, ResB>(self: Box<Self>, inner: I) -> Result<Response<GateBody>, I::Error>
    where
        I: Service<Request<B>, Response = Response<ResB>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        B: From<Bytes> + Send + 'static,
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

    fn pass_unprotected<I, B>(self, mut inner: I) -> Call<I::Future>
    where
        I: Service<Request<B>>,
        B: From<Bytes>,
    {
        let Self { parts, body, key, .. } = self;
        let current = Current::of(key.clone(), &parts.headers);
        current.call(|| inner.call(request(parts, body, key)))
    }

    /// Calls the service. Not in the future above, which would have to carry the request along until the end.
    fn take_off<I, B>(self, pass: Pass, mut inner: I) -> (Arc<Flight<S>>, thread::Result<Call<I::Future>>)
    where
        I: Service<Request<B>>,
        B: From<Bytes>,
    {
        let Self { parts, body, key, entrance: Entrance { gate, policy, admit, asked } } = self;
        let flight = Flight::begin(gate, policy, (admit, asked), pass);
        let current = Current::of(key.clone(), &parts.headers);
        let call = || current.call(|| inner.call(request(parts, body, key)));
        (flight, catch_unwind(AssertUnwindSafe(call)))
    }

    /// The handler claims the key in its own transaction, and is told there what is already decided.
    async fn pass_claim<I, B, ResB>(self: Box<Self>, mut inner: I) -> Result<Response<GateBody>, I::Error>
    where
        I: Service<Request<B>, Response = Response<ResB>> + Send + 'static,
        I::Future: Send,
        I::Error: Send + 'static,
        B: From<Bytes> + Send + 'static,
        ResB: Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        // Only keys that are there already count; all others are told by the claim itself.
        if self.entrance.is_full().await
            && let Verdict::Answer(response) = self.entrance.readmit().await
        {
            return Ok(response);
        }
        let Self { parts, body, key, entrance: Entrance { gate, policy, admit, asked } } = *self;
        let current = Current::of(key.clone(), &parts.headers);
        let mut request = request(parts, body, key);
        let _running = Running::begin(&gate);
        let claim = Claim { gate, policy, admit, asked, fate: Fate::default() };
        request.extensions_mut().insert(claim.clone());
        let ran = AssertUnwindSafe(current.call(|| inner.call(request))).catch_unwind().await;
        let is_forgotten = claim.fate.is_forgotten();
        let ran = match ran {
            Ok(Ok(response)) if is_forgotten && response.status().as_u16() < 400 => {
                tracing::error!(
                    "a handler has claimed its key and not sealed its reply: its transaction was rolled back"
                );
                Err(Problem::NotSealed)
            }
            Ok(response) => Ok(response),
            Err(_panic) => Err(Problem::Panicked),
        };
        if is_forgotten {
            claim.until_free().await;
        }
        let response = match ran {
            Ok(response) => response?,
            Err(problem) => return Ok(problem.answer(&claim.policy)),
        };
        Ok(response.map(body::other))
    }
}

fn marked(mut response: Response<GateBody>, (name, value): Mark) -> Response<GateBody> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}
