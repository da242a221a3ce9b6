//! For handlers of axum: the key, and the claim on it.

use axum_core::body::Body;
use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use oncebox_core::gate::Receipts;

use crate::answer::Problem;
use crate::arrival::KEY;
use crate::claim::{Claim, Claimed};
use crate::policy::Policy;
use crate::service::IdempotencyKey;

/// The key is there in every handler that a key was required for.
impl<T: Sync> FromRequestParts<T> for IdempotencyKey {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Self, Response> {
        let missing = || Problem::KeyMissing.answer(&Policy::default()).map(Body::new);
        parts.extensions.get().cloned().ok_or_else(missing)
    }
}

impl<T: Sync> OptionalFromRequestParts<T> for IdempotencyKey {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get().cloned())
    }
}

/// A transaction that has the key. If somebody else had it before, the handler
/// is not run, and the client gets what there is to tell.
impl<T: Sync, S: Receipts> FromRequestParts<T> for Claimed<S> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Self, Response> {
        let Some(claim) = parts.extensions.get::<Claim<S>>().cloned() else {
            // With a key it would have a claim, if there were a gate that gives any.
            if parts.extensions.get::<IdempotencyKey>().is_none() && !parts.headers.contains_key(KEY) {
                return Err(Problem::KeyMissing.answer(&Policy::default()).map(Body::new));
            }
            tracing::error!("a handler claims its key, but the gate before it is not transactional");
            return Err(StatusCode::INTERNAL_SERVER_ERROR.into_response());
        };
        claim.begin().await.map_err(|answer| answer.map(Body::new))
    }
}
