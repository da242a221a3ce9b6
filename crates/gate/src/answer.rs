//! What the gate itself answers: problems as RFC 9457 has them. They tell
//! nothing about the first request: whoever guesses a body must not learn it.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_TYPE, HeaderName, HeaderValue, LINK, RETRY_AFTER,
};
use http::{Response, StatusCode};
use oncebox_core::gate::{KeyError, OnDoubt};

use crate::body::{self, GateBody};
use crate::grpc::Refusal;
use crate::policy::Policy;
use crate::telemetry;

/// Marks a replayed reply, unless a policy has another name for it.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Marks a reply that nothing protects.
pub(crate) const STATUS: HeaderName = HeaderName::from_static("idempotency-status");
/// Marks a reply of another request under a key that was taken.
pub(crate) const CONFLICT: HeaderName = HeaderName::from_static("idempotency-conflict");
/// By which a handler overrules what is kept: `yes` or `no`.
pub(crate) const STORE: HeaderName = HeaderName::from_static("idempotency-store");

/// The longest a client is asked to wait before it asks again.
const SOON: Duration = Duration::from_secs(2);

/// When a caller with too many keys may have fewer.
const LATER: Duration = Duration::from_secs(30);

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It has no key, and must have one.
    KeyMissing,
    /// What it has is no key.
    KeyMalformed(KeyError),
    /// The key names another tenant than the caller's.
    KeyOfAnother,
    /// The key claims a content that the body does not have.
    KeyNotOfContent,
    /// Nobody knows whose key it is.
    CallerUnknown,
    /// The key was used for another request.
    KeyReused,
    /// The key was used before, and its reply is no longer kept.
    KeyExpired,
    /// The caller has as many keys as it may have.
    TooManyKeys,
    /// The first request is still running.
    InFlight {
        /// How long it may still take without a sign of life.
        left: Duration,
    },
    /// The first request may or may not have taken effect.
    OutcomeUnknown,
    /// The first request was answered, but its reply was not kept: it was too large, or the policy keeps none.
    NotRetained {
        /// What it was answered with.
        status: u16,
        /// Where its result is.
        location: Option<Vec<u8>>,
    },
    /// The body is larger than what can be compared.
    BodyTooLarge {
        /// The most there may be.
        limit: usize,
    },
    /// The body ended before it was whole.
    BodyBroken,
    /// The store cannot be asked, so nobody knows whether the request was made before.
    StoreDown,
    /// Whether the request was committed is not known yet; a retry will be told.
    CommitUnknown,
    /// The handler fell over.
    Panicked,
    /// The handler claimed the key and did not seal its reply, so what it did was rolled back.
    NotSealed,
    /// The reply ended before it was whole.
    ReplyBroken,
}

impl Problem {
    /// The status and the code that programs can tell it by.
    fn kind(&self, policy: &Policy) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::KeyMissing => {
                let code =
                    if policy.atp_codes { "IdempotencyKeyRequired" } else { "idempotency-key-missing" };
                (StatusCode::BAD_REQUEST, code, "Idempotency-Key is missing")
            }
            Self::KeyMalformed(_) => {
                (StatusCode::BAD_REQUEST, "idempotency-key-malformed", "Idempotency-Key cannot be understood")
            }
            Self::KeyOfAnother => {
                (StatusCode::FORBIDDEN, "idempotency-key-foreign", "Idempotency-Key names another tenant")
            }
            Self::KeyNotOfContent => (
                StatusCode::BAD_REQUEST,
                "idempotency-key-content",
                "Idempotency-Key is not that of the body",
            ),
            Self::CallerUnknown => (
                StatusCode::UNAUTHORIZED,
                "idempotency-caller-unknown",
                "The caller of this request is unknown",
            ),
            Self::KeyReused => {
                let code = if policy.atp_codes { "IdempotencyConflict" } else { "idempotency-key-reused" };
                (policy.mismatch_status, code, "Idempotency-Key is already used")
            }
            Self::KeyExpired => {
                (StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-expired", "Idempotency-Key has expired")
            }
            Self::InFlight { .. } => {
                (StatusCode::CONFLICT, "operation-in-progress", "The same request is being worked on")
            }
            Self::TooManyKeys => (StatusCode::TOO_MANY_REQUESTS, "too-many-keys", "Too many keys are in use"),
            Self::OutcomeUnknown => (StatusCode::CONFLICT, "outcome-unknown", "The outcome is unknown"),
            Self::NotRetained { .. } => {
                (StatusCode::CONFLICT, "response-not-retained", "The reply was not kept")
            }
            Self::BodyTooLarge { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large")
            }
            Self::BodyBroken => (StatusCode::BAD_REQUEST, "body-incomplete", "The body is not whole"),
            Self::CommitUnknown => {
                (StatusCode::SERVICE_UNAVAILABLE, "outcome-unknown", "The outcome is not known yet")
            }
            Self::StoreDown => (
                StatusCode::SERVICE_UNAVAILABLE,
                "idempotency-unavailable",
                "Requests cannot be told apart now",
            ),
            Self::Panicked | Self::NotSealed => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal-error", "Something went wrong")
            }
            Self::ReplyBroken => (StatusCode::BAD_GATEWAY, "outcome-unknown", "The reply was cut off"),
        }
    }

    pub(crate) fn detail(&self) -> String {
        match self {
            Self::KeyMissing => {
                "This operation requires the header Idempotency-Key: a new random value, such as a \
                                 UUID, for each operation, and the same one for each retry of it."
                    .into()
            }
            Self::KeyMalformed(error) => format!("Idempotency-Key: {error}."),
            Self::KeyOfAnother => "The tenant in the key is not the tenant of the caller.".into(),
            Self::KeyNotOfContent => {
                "A key that begins with content: must go on with the SHA-256 of the body, in hex.".into()
            }
            Self::CallerUnknown => {
                "A key counts for the caller who sent it, so the caller must be known.".into()
            }
            Self::KeyReused => {
                "This key was used for another request. Send the same request again to get its \
                                reply, or use a new key for a new one."
                    .into()
            }
            Self::KeyExpired => {
                "This key was used before, and its reply is no longer kept. Nothing was done now; use a new key \
                 for a new request."
                    .into()
            }
            Self::TooManyKeys => {
                "Nothing was done. Keys that were used are remembered for a while; send the same request again \
                 after Retry-After."
                    .into()
            }
            Self::InFlight { .. } => "Send the same request again after Retry-After to get its reply.".into(),
            Self::OutcomeUnknown => {
                "An earlier request with this key was cut off, and it may or may not have taken \
                                     effect. Find out before you use a new key."
                    .into()
            }
            Self::NotRetained { status, .. } => {
                format!("The request was answered with {status}. That reply was not kept, and the request was not run again.")
            }
            Self::BodyTooLarge { limit } => {
                format!("With an Idempotency-Key the body may have {limit} bytes, as it must be compared.")
            }
            Self::BodyBroken => {
                "The connection ended before the body did. Nothing was done; send it again.".into()
            }
            Self::CommitUnknown => {
                "Send the same request again after Retry-After: if it took effect, you get its reply.".into()
            }
            Self::StoreDown => "Nothing was done. Send the same request again after Retry-After.".into(),
            Self::ReplyBroken => {
                "The service was cut off while it answered; nobody knows what it did.".into()
            }
            Self::Panicked => "The request was cut off by an error.".into(),
            Self::NotSealed => "Nothing was done; the service has a defect.".into(),
        }
    }

    /// When the same request may succeed.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InFlight { left } => Some((*left).min(SOON)),
            Self::StoreDown | Self::CommitUnknown => Some(SOON),
            Self::TooManyKeys => Some(LATER),
            _ => None,
        }
    }

    /// Whether the same request may succeed; one that was cut off only where it may run again.
    fn is_retryable(&self, policy: &Policy) -> bool {
        match self {
            Self::InFlight { .. }
            | Self::StoreDown
            | Self::TooManyKeys
            | Self::CommitUnknown
            | Self::BodyBroken
            | Self::NotSealed => true,
            Self::Panicked | Self::ReplyBroken => policy.on_doubt == OnDoubt::Retry,
            _ => false,
        }
    }

    pub(crate) fn answer(&self, policy: &Policy) -> Response<GateBody> {
        let (status, code, title) = self.kind(policy);
        let text = serde_json::json!({
            "type": policy.docs.as_deref().unwrap_or("about:blank"),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail(),
            "code": code,
            "retryable": self.is_retryable(policy),
        });
        let mut response = Response::new(body::whole(Bytes::from(text.to_string()), None));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CONTENT_LANGUAGE, HeaderValue::from_static("en"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after() {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        let link = policy.docs.as_ref().map(|docs| format!("<{docs}>; rel=\"describedby\""));
        if let Some(link) = link.and_then(|link| HeaderValue::try_from(link).ok()) {
            headers.insert(LINK, link);
        }
        if let Self::NotRetained { location: Some(location), .. } = self
            && let Ok(location) = HeaderValue::from_bytes(location)
        {
            headers.insert(http::header::LOCATION, location);
        }
        response.extensions_mut().insert(Refusal { problem: self.clone(), code });
        telemetry::refused(code);
        response
    }
}
