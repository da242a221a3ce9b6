//! The steps depot cases are made of. They expect to succeed; a case that
//! wants a refusal calls the store itself.

use std::time::Duration;

use oncebox_core::depot::{Assignment, Deposit, Deposited, Fate, Finish, TakeRequest, Taken, Want};
use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::{HandlerStatus, Inspect};
use oncebox_core::store::{Mark, Marked};
use oncebox_core::{Depot, Digest, Envelope, Result, Timestamp};

use crate::sample::{at, plain};

/// The handler of most cases.
pub const HANDLER: &str = "h";
/// The channel of most cases.
pub const CHANNEL: &str = "channel";
/// How long a lease lasts, in seconds.
pub const LEASE: i64 = 30;
/// The wish for anything of [`HANDLER`].
pub const WANTS: [Want<'static>; 1] = [Want { handler: HANDLER, limit: 1000 }];
/// It failed, and may work at once.
pub const RETRY: Fate<'static> =
    Fate::Retry { after: Duration::ZERO, spent: true, code: "failed", reason: "no luck" };
/// It failed for good, and keeps its lane.
pub const DEAD: Fate<'static> =
    Fate::Dead { spent: true, code: "hopeless", reason: "no use", frees_lane: false };

/// A handler's share of a message, without lane.
#[must_use]
pub fn share<'a>(handler: &'a str, envelope: &Envelope) -> Assignment<'a> {
    let key = MessageKey { source: envelope.source.clone(), id: envelope.id.clone() };
    Assignment { handler, marker: handler, key, lane: None, window: None, refused: None, frees_lane: false }
}

/// A message for some handlers.
#[must_use]
pub fn deposit<'a>(envelope: &'a Envelope, handlers: &[&'a str]) -> Deposit<'a> {
    let assignments = handlers.iter().map(|handler| share(handler, envelope)).collect();
    Deposit { scope: "", channel: CHANNEL, envelope, assignments }
}

/// A message for [`HANDLER`], in a lane.
#[must_use]
pub fn in_lane<'a>(envelope: &'a Envelope, lane: &'a str) -> Deposit<'a> {
    let mut deposit = deposit(envelope, &[HANDLER]);
    deposit.assignments[0].lane = Some(lane);
    deposit
}

/// Deposits a batch in a transaction of its own and commits it.
pub async fn put<S: Depot>(store: &S, deposits: &[Deposit<'_>], seconds: i64) -> Vec<Deposited> {
    try_put(store, deposits, at(seconds)).await.unwrap()
}

/// As [`put`], for those who meet others.
pub async fn try_put<S: Depot>(
    store: &S,
    deposits: &[Deposit<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<Deposited>> {
    let mut tx = store.begin().await?;
    match store.deposit(&mut tx, deposits, now).await {
        Ok(deposited) => store.commit(tx).await.map(|()| deposited),
        Err(error) => {
            drop(tx);
            Err(error)
        }
    }
}

/// Deposits plain messages for [`HANDLER`].
pub async fn give<S: Depot>(store: &S, ids: &[&str], seconds: i64) {
    let envelopes: Vec<Envelope> = ids.iter().map(|id| plain(*id)).collect();
    let deposits: Vec<Deposit<'_>> = envelopes.iter().map(|envelope| deposit(envelope, &[HANDLER])).collect();
    put(store, &deposits, seconds).await;
}

/// Deposits plain messages for [`HANDLER`] in a lane, one after the other.
pub async fn queue<S: Depot>(store: &S, lane: &str, ids: &[&str], seconds: i64) {
    for id in ids {
        put(store, &[in_lane(&plain(*id), lane)], seconds).await;
    }
}

/// A wish for anything of [`HANDLER`], all of it started.
#[must_use]
pub const fn request(holder: &str) -> TakeRequest<'_> {
    TakeRequest {
        scope: "",
        holder,
        lease: Duration::from_secs(LEASE as u64),
        limit: 1000,
        seats: 1000,
        wants: &WANTS,
        suspects: false,
    }
}

/// A wish for suspects of [`HANDLER`].
#[must_use]
pub const fn suspects(holder: &str) -> TakeRequest<'_> {
    TakeRequest { suspects: true, ..request(holder) }
}

/// Takes what is due of [`HANDLER`].
pub async fn take<S: Depot>(store: &S, seconds: i64) -> Vec<Taken> {
    store.take(&request("worker"), at(seconds)).await.unwrap()
}

/// Takes what must be due of [`HANDLER`], and alone.
pub async fn take_one<S: Depot>(store: &S, seconds: i64) -> Taken {
    let mut taken = take(store, seconds).await;
    assert_eq!(taken.len(), 1, "{:?}", ids(&taken));
    taken.remove(0)
}

/// The ids of what is due of [`HANDLER`]; it is leased from then on.
pub async fn taken<S: Depot>(store: &S, seconds: i64) -> Vec<String> {
    ids(&take(store, seconds).await)
}

/// The ids of messages, in their order.
#[must_use]
pub fn ids(taken: &[Taken]) -> Vec<String> {
    taken.iter().map(|taken| taken.envelope.id.clone()).collect()
}

/// The marker of a delivery.
#[must_use]
pub fn mark(taken: &Taken) -> Mark<'_> {
    Mark {
        tenant: &taken.envelope.tenant,
        handler: &taken.handler,
        key: &taken.key,
        digest: taken.digest,
        time: None,
        window: None,
    }
}

/// A finish with a marker and nothing else.
#[must_use]
pub fn finishing(taken: &Taken) -> Finish<'_> {
    Finish {
        ticket: taken.ticket,
        mark: Some(mark(taken)),
        result: None,
        frees_lane: taken.lane.is_some(),
        next: None,
    }
}

/// Finishes in a transaction of its own; rolls back if the delivery was not the first.
pub async fn finish<S: Depot>(store: &S, finish: &Finish<'_>, seconds: i64) -> Result<Marked> {
    let mut tx = store.begin().await?;
    match store.finish(&mut tx, finish, at(seconds)).await {
        Ok(Marked::First) => store.commit(tx).await.map(|()| Marked::First),
        other => {
            store.rollback(tx).await?;
            other
        }
    }
}

/// Finishes a delivery for the first time.
pub async fn done<S: Depot>(store: &S, taken: &Taken, seconds: i64) {
    assert_eq!(finish(store, &finishing(taken), seconds).await.unwrap(), Marked::First);
}

/// What a body finds under a key of [`HANDLER`] in the markers. Writes nothing.
pub async fn marked<S: Depot>(store: &S, id: &str, body: &[u8]) -> Marked {
    let key = MessageKey { source: crate::sample::SOURCE.into(), id: id.into() };
    let digest = Digest::of(body);
    let mark = Mark { tenant: "", handler: HANDLER, key: &key, digest, time: None, window: None };
    let mut tx = store.begin().await.unwrap();
    let marked = store.mark(&mut tx, &mark, at(0)).await.unwrap();
    store.rollback(tx).await.unwrap();
    marked
}

/// The counts of [`HANDLER`] without scope, all zero if it has nothing open.
pub async fn counts<S: Inspect>(store: &S) -> HandlerStatus {
    let handlers = store.status().await.unwrap().handlers;
    let found = handlers.into_iter().find(|status| status.handler == HANDLER && status.scope.is_empty());
    found.unwrap_or_default()
}

/// Does it until it meets nobody: others may be in the way, but not for long.
/// A macro, because a task cannot be seen to be `Send` through an async closure.
macro_rules! patiently {
    ($attempt:expr) => {
        loop {
            match $attempt.await {
                Err(error) if error.kind().is_transient() => tokio::task::yield_now().await,
                other => break other,
            }
        }
    };
}
pub(super) use patiently;
