//! For handlers of axum: the key, and the claim on it.

use axum_core::body::Body;
use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use oncebox_core::gate::Receipts;

use crate::claim::{Claim, Claimed};
use crate::service::IdempotencyKey;

/// The key is there in every handler that a key was required for.
impl<T: Sync> FromRequestParts<T> for IdempotencyKey {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Self, StatusCode> {
        parts.extensions.get().cloned().ok_or(StatusCode::BAD_REQUEST)
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
            tracing::error!(
                "a handler claims a key, but the request has none, or the gate is not transactional"
            );
            return Err(StatusCode::INTERNAL_SERVER_ERROR.into_response());
        };
        claim.begin().await.map_err(|answer| answer.map(Body::new))
    }
}
