//! A request as it comes in: whether it has a key, whose that is, and all of its body.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use oncebox_core::gate::{
    AdmitRequest, Caller, Fingerprint, KeySyntax, OnMismatch, ReceiptKey, Receipts, RequestKey,
};

use crate::answer::{CONFLICT, Problem, REPLAYED, STATUS};
use crate::body::{self, BoxError, Gap, GateBody};
use crate::entrance::Entrance;
use crate::gate::Inner;
use crate::keys;
use crate::policy::{Policy, Strategy};
use crate::rule::Rule;
use crate::service::{IdempotencyKey, Visitor};

/// The header that carries the key.
pub(crate) const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Where a request goes.
pub(crate) enum Way<S, B> {
    /// To the service, without protection.
    Past(Request<B>),
    /// Nowhere.
    Refused(Response<GateBody>),
    /// To the service, if it is the first.
    In(Box<Arrival<S, B>>),
}

/// A request with a key, of which the body is yet to come.
pub(crate) struct Arrival<S, B> {
    gate: Arc<Inner<S>>,
    rule: Arc<Rule>,
    key: RequestKey,
    caller: Caller,
    parts: Parts,
    /// Until it is read.
    body: Option<B>,
}

impl<S: Receipts, B> Arrival<S, B>
where
    B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    /// Reads key and caller.
    pub(crate) fn look(gate: &Arc<Inner<S>>, mut request: Request<B>) -> Way<S, B> {
        let rule = gate.rule(request.uri().path());
        let policy = &rule.policy;
        if !policy.methods.contains(request.method()) || is_other_protocol(&request) {
            silence(request.headers_mut(), policy);
            return Way::Past(request);
        }
        let values = request.headers().get_all(KEY).iter().map(HeaderValue::as_bytes);
        let key = match RequestKey::parse(values, policy.key_syntax) {
            Ok(Some(key)) => key,
            Ok(None) if policy.required.contains(request.method()) => {
                return Way::Refused(Problem::KeyMissing.answer(policy));
            }
            Ok(None) => {
                silence(request.headers_mut(), policy);
                return Way::Past(request);
            }
            Err(error) => return Way::Refused(Problem::KeyMalformed(error).answer(policy)),
        };
        let (mut parts, body) = request.into_parts();
        let caller = (gate.scope)(&parts);
        // Not before: somebody may be known by a header that marks replays here.
        silence(&mut parts.headers, policy);
        let problem = match caller {
            None => Problem::CallerUnknown,
            Some(caller) if is_foreign(&key, &caller, policy) => Problem::KeyOfAnother,
            // What says itself that it is too large need not be read.
            Some(_) if body.size_hint().lower() > policy.max_request_body as u64 => {
                Problem::BodyTooLarge { limit: policy.max_request_body }
            }
            Some(caller) => {
                let (gate, rule) = (Arc::clone(gate), Arc::clone(rule));
                return Way::In(Box::new(Self { gate, rule, key, caller, parts, body: Some(body) }));
            }
        };
        Way::Refused(problem.answer(policy))
    }

    /// Reads the whole body, before anything is admitted: a client that does
    /// not finish its request has not made one.
    pub(crate) async fn enter(mut self: Box<Self>) -> Result<Box<Visitor<S>>, Response<GateBody>> {
        let (limit, stall) = (self.rule.policy.max_request_body, self.rule.policy.stall);
        let gathered = match self.body.take() {
            Some(body) => body::gather(body, stall, limit).await,
            None => Err(Gap::Broken),
        };
        let problem = match gathered {
            Ok(gathered) if self.is_mislabelled(&gathered.data) => Problem::KeyNotOfContent,
            Ok(gathered) => return Ok(self.know(gathered.data)),
            Err(Gap::TooLarge) => Problem::BodyTooLarge { limit },
            Err(Gap::Broken) => Problem::BodyBroken,
        };
        Err(problem.answer(&self.rule.policy))
    }

    /// Whether the key claims a content that the body does not have.
    fn is_mislabelled(&self, body: &[u8]) -> bool {
        self.rule.policy.strategy == Strategy::ContentBased && !is_of_content(&self.key, body)
    }

    fn know(self, body: Bytes) -> Box<Visitor<S>> {
        let Self { gate, rule, key, caller, parts, .. } = self;
        let policy = Arc::clone(&rule.policy);
        let route = if policy.key_per_route {
            format!("{} {}", parts.method, parts.uri.path())
        } else {
            String::new()
        };
        let receipt = gate.keys.make(&caller, &route, &key);
        let fingerprint = gate.keys.print(&fingerprint(&parts, &body, &rule));
        let admit = admit_request(receipt, gate.tokens.draw(), fingerprint, &policy);
        let key = IdempotencyKey { key, receipt, keys: Arc::clone(&gate.keys) };
        let asked = gate.cache.now();
        Box::new(Visitor { parts, body, key, entrance: Entrance { gate, policy, admit, asked } })
    }
}

/// What only we say, nobody says to us. Hardly anybody tries, and to look each of these up takes longer.
fn silence(headers: &mut HeaderMap, policy: &Policy) {
    let marker = &policy.replay_header;
    let is_ours = |name: &HeaderName| name == marker || [REPLAYED, STATUS, CONFLICT].contains(name);
    if headers.keys().any(is_ours) {
        for ours in [marker, &REPLAYED, &STATUS, &CONFLICT] {
            headers.remove(ours);
        }
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
    key.content().is_none_or(|hash| keys::content_hashes(body).any(|of_body| hash == of_body))
}

fn fingerprint(request: &Parts, body: &[u8], rule: &Rule) -> Fingerprint {
    let request = oncebox_core::gate::Request {
        method: request.method.as_str(),
        path: request.uri.path(),
        query: request.uri.query(),
        content_type: request.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()),
        body,
    };
    if rule.policy.raw_fingerprint {
        Fingerprint::raw(&request)
    } else {
        Fingerprint::of(&request, &rule.excluded)
    }
}

fn admit_request(key: ReceiptKey, token: i64, fingerprint: Fingerprint, policy: &Policy) -> AdmitRequest {
    let replaces = policy.strategy == Strategy::LastWriteWins;
    AdmitRequest {
        key,
        token,
        fingerprint,
        lease: policy.lease,
        ttl: policy.kept(),
        sliding: policy.sliding,
        on_doubt: policy.on_doubt,
        on_mismatch: if replaces { OnMismatch::Replace } else { OnMismatch::Refuse },
        durability: policy.reserve_durability,
    }
}
