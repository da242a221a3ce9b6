//! What the proxy itself refuses with, in the form of everything the gate refuses.

use axum::http::StatusCode;

/// The fields of a refusal.
pub(super) const FIELDS: [(&str, &str); 2] =
    [("content-type", "application/problem+json"), ("cache-control", "no-store")];

/// The body of one.
pub(super) fn text(status: StatusCode, code: &str, detail: &str, is_retryable: Option<bool>) -> String {
    let mut problem = serde_json::json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
        "code": code,
    });
    if let (Some(is_retryable), Some(members)) = (is_retryable, problem.as_object_mut()) {
        members.insert("retryable".into(), is_retryable.into());
    }
    problem.to_string()
}
