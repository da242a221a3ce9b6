//! What cases about receipts have in common.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use oncebox_core::gate::{
    Admission, AdmitRequest, Durability, Fields, Fingerprint, OnDoubt, OnMismatch, Pass, ReceiptKey,
    Receipts, Reply, Request,
};
use oncebox_core::{Kind, Result, Timestamp};

/// Seconds a request may run.
pub const LEASE: i64 = 30;
/// Seconds its receipt is kept.
pub const TTL: i64 = 1_000;

#[must_use]
pub const fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp::from_micros(1_800_000_000_000_000 + seconds * 1_000_000))
}

#[must_use]
pub const fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(seconds.unsigned_abs())
}

fn key(name: &str) -> [u8; 32] {
    *oncebox_core::Digest::of(name.as_bytes()).as_bytes()
}

/// A request with this body under a key of this name; each call draws another token.
#[must_use]
pub fn request(name: &str, body: &str) -> AdmitRequest {
    static TOKENS: AtomicI64 = AtomicI64::new(1);
    let request =
        Request { method: "POST", path: "/orders", query: None, content_type: None, body: body.as_bytes() };
    AdmitRequest {
        key: ReceiptKey { scope: key("somebody"), key: key(name) },
        token: TOKENS.fetch_add(1, Ordering::Relaxed),
        fingerprint: Fingerprint::raw(&request),
        lease: seconds(LEASE),
        ttl: seconds(TTL),
        sliding: false,
        on_doubt: OnDoubt::Retry,
        on_mismatch: OnMismatch::Refuse,
        durability: Durability::Full,
    }
}

/// The same request of another caller.
#[must_use]
pub fn of_another(request: AdmitRequest) -> AdmitRequest {
    AdmitRequest { key: ReceiptKey { scope: key("another"), ..request.key }, ..request }
}

#[must_use]
pub fn reply(body: &str) -> Reply {
    Reply {
        status: 201,
        headers: Fields::from_iter([("content-type", &b"text/plain"[..])]),
        body: Some(body.as_bytes().to_vec()),
        trailers: Fields::default(),
    }
}

/// What a copy is told while the receipt is kept for that many seconds more.
#[must_use]
pub const fn replay(reply: Reply, left: i64) -> Admission {
    Admission::Replay { reply, left: seconds(left) }
}

/// Admits a request that nothing is in the way of.
pub async fn admitted<S: Receipts>(store: &S, request: &AdmitRequest, second: i64) -> Pass {
    match store.admit(request, at(second)).await.unwrap() {
        Admission::Proceed(pass) => pass,
        other => panic!("not admitted: {other:?}"),
    }
}

/// What a copy of the request `a` is told.
pub async fn told<S: Receipts>(store: &S, second: i64) -> Admission {
    store.admit(&request("a", "body"), at(second)).await.unwrap()
}

pub fn is_fenced(result: &Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == Kind::Fenced)
}
