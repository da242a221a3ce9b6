//! Copies that come while the first one runs.

use std::time::{Duration, Instant};

use super::super::client::{Answer, Message};
use super::{Outcome, Stand, ensure, expect, is_problem, joined, pause};

/// Sends a message beside what else is done.
pub(super) fn started(stand: &Stand, message: &Message) -> tokio::task::JoinHandle<Result<Answer, String>> {
    let (stand, message) = (stand.clone(), message.clone());
    tokio::spawn(async move { stand.send(&message).await })
}

/// A copy that is not to wait is told by then.
const AT_ONCE: Duration = Duration::from_millis(100);
/// On a busy machine not every copy is.
const COPIES: usize = 5;

pub(super) async fn refused(stand: Stand) -> Outcome {
    let message = stand.order(r#"{"sleep":1000}"#).key(&stand.key());
    let first = started(&stand, &message);
    stand.until_running().await?;
    let mut quickest = Duration::MAX;
    for _ in 0..COPIES {
        let copy = stand.send(&message).await?;
        ensure(!first.is_finished(), || "the copy was answered after the first one".into())?;
        is_problem(&copy, 409)?;
        let wait: Option<u64> = copy.get("retry-after").and_then(|wait| wait.parse().ok());
        ensure(wait.is_some_and(|wait| (1..=30).contains(&wait)), || format!("retry-after: {wait:?}"))?;
        quickest = quickest.min(copy.took);
        if quickest <= AT_ONCE {
            break;
        }
    }
    stand.note(format!("the copy was told after {} ms", quickest.as_millis()));
    ensure(quickest <= AT_ONCE, || format!("no copy was told within {AT_ONCE:?}"))?;
    let first = joined(first).await?;
    let later = stand.send(&message).await?;
    expect("runs", stand.runs().await?, 1)?;
    stand.is_replay(&first, &later)
}

pub(super) async fn waits(stand: Stand) -> Outcome {
    let message = stand.message("/wait/orders").header("x-fx", r#"{"sleep":800}"#).key(&stand.key());
    let first = started(&stand, &message);
    stand.until_running().await?;
    let copy = stand.send(&message).await?;
    let first = joined(first).await?;
    expect("runs", stand.runs().await?, 1)?;
    stand.is_replay(&first, &copy)
}

pub(super) async fn short_wait(stand: Stand) -> Outcome {
    let message = stand.message("/short-wait/orders").header("x-fx", r#"{"sleep":1300}"#).key(&stand.key());
    let first = started(&stand, &message);
    stand.until_running().await?;
    let copy = stand.send(&message).await?;
    ensure(!first.is_finished(), || "the copy waited for the first one".into())?;
    joined(first).await?;
    is_problem(&copy, 409)
}

pub(super) async fn fifty(stand: Stand) -> Outcome {
    let message = stand.order(r#"{"sleep":300}"#).key(&stand.key());
    let all: Vec<_> = (0..50).map(|_| started(&stand, &message)).collect();
    let mut unmarked = 0;
    for one in all {
        let answer = joined(one).await?;
        match (answer.status, answer.get("idempotent-replayed")) {
            (201, None) => unmarked += 1,
            (409, _) | (200 | 201, Some("true")) => {}
            (status, marker) => return Err(format!("answered with {status}, marker {marker:?}")),
        }
    }
    expect("first replies", unmarked, 1)?;
    expect("runs", stand.runs().await?, 1)
}

pub(super) async fn other_in_flight(stand: Stand) -> Outcome {
    let key = stand.key();
    let first = started(&stand, &stand.order(r#"{"sleep":1000}"#).key(&key));
    stand.until_running().await?;
    let other = stand.send(&stand.order(r#"{"sleep":1000}"#).key(&key).body("{}")).await?;
    let was_running = !first.is_finished();
    joined(first).await?;
    ensure(was_running, || "it was answered after the first one".into())?;
    is_problem(&other, stand.mismatch())?;
    expect("runs", stand.runs().await?, 1)
}

pub(super) async fn parallel(stand: Stand) -> Outcome {
    const TAKES: u64 = 500;
    let started_at = Instant::now();
    let all: Vec<_> = (0..10)
        .map(|_| started(&stand, &stand.order(&format!(r#"{{"sleep":{TAKES}}}"#)).key(&stand.key())))
        .collect();
    for one in all {
        expect("status", joined(one).await?.status, 201)?;
    }
    // One after the other they would take ten times as long.
    let took = started_at.elapsed();
    stand.note(format!("ten of {TAKES} ms took {} ms", took.as_millis()));
    expect("runs", stand.runs().await?, 10)?;
    ensure(took < Duration::from_millis(TAKES * 5), || format!("ten requests took {took:?}"))
}

pub(super) async fn hung_up(stand: Stand) -> Outcome {
    let message = stand.order(r#"{"sleep":700}"#).key(&stand.key());
    let stream = stand.target.open(&message).await.map_err(|error| error.to_string())?;
    stand.until_running().await?;
    drop(stream);
    let mut later = stand.send(&message).await?;
    for _ in 0..200 {
        if later.status != 409 {
            break;
        }
        pause(50).await;
        later = stand.send(&message).await?;
    }
    expect("runs", stand.runs().await?, 1)?;
    expect("status", later.status, if stand.is_atp() { 200 } else { 201 })?;
    expect("marker", later.get("idempotent-replayed"), Some("true"))
}
