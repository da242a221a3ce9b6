//! What goes wrong, and what time does.

use tokio::io::AsyncWriteExt as _;

use super::flights::started;
use super::{Outcome, Stand, ensure, expect, is_problem, pause};

pub(super) async fn raises(stand: Stand) -> Outcome {
    let message = stand.order(r#"{"raise":true}"#).key(&stand.key());
    // A server may hang up instead of answering.
    if let Ok(answer) = stand.send(&message).await {
        ensure(answer.status >= 500, || {
            format!("a handler that fell over was answered with {}", answer.status)
        })?;
    }
    let second = stand.send(&message).await?;
    expect("status of the second", second.status, 201)?;
    expect("runs", stand.runs().await?, 2)
}

pub(super) async fn longer_than_lease(stand: Stand) -> Outcome {
    // The path has a lease of 2 s.
    let message = stand.message("/lease/orders").header("x-fx", r#"{"sleep":6000}"#).key(&stand.key());
    let first = started(&stand, &message);
    pause(4_500).await;
    is_problem(&stand.send(&message).await?, 409)?;
    let first = super::joined(first).await?;
    let later = stand.send(&message).await?;
    expect("runs", stand.runs().await?, 1)?;
    stand.is_replay(&first, &later)
}

pub(super) async fn truncated(stand: Stand) -> Outcome {
    let message = stand.order(r#"{"truncate":true}"#).key(&stand.key());
    if let Ok(answer) = stand.send(&message).await {
        ensure(answer.status >= 500, || "half a reply was passed on as a whole one".into())?;
    }
    let again = stand.send(&message).await;
    let is_replayed = again.as_ref().is_ok_and(|answer| answer.get("idempotent-replayed").is_some());
    ensure(!is_replayed, || "half a reply was replayed".into())
}

pub(super) async fn half_a_request(stand: Stand) -> Outcome {
    let key = stand.key();
    let mut half = tokio::net::TcpStream::connect(&stand.target.address).await.map_err(|e| e.to_string())?;
    let tenant = if stand.is_atp() { "x-fx-tenant: t\r\n" } else { "" };
    let text = format!(
        "POST {}/orders HTTP/1.1\r\nhost: x\r\n{tenant}idempotency-key: {key}\r\nx-fx-case: {}\r\n\
         content-length: 100\r\n\r\nonly this",
        stand.target.base, stand.case
    );
    half.write_all(text.as_bytes()).await.map_err(|error| error.to_string())?;
    pause(300).await;
    drop(half);
    let whole = stand.send(&stand.order("{}").key(&key)).await?;
    expect("status", whole.status, 201)?;
    expect("marker", whole.get("idempotent-replayed"), None)?;
    expect("runs", stand.runs().await?, 1)
}

pub(super) async fn expired(stand: Stand) -> Outcome {
    // The path keeps replies for 3 s.
    let message = stand.message("/ttl/orders").key(&stand.key());
    let (first, _) = stand.twice(&message).await?;
    pause(3_300).await;
    let later = stand.send(&message).await?;
    stand.is_run(&later)?;
    ensure(later.body != first.body, || "it was answered with the first reply".into())?;
    expect("runs", stand.runs().await?, 2)?;
    // And it is kept like any other.
    let copy = stand.send(&message).await?;
    expect("runs", stand.runs().await?, 2)?;
    stand.is_replay(&later, &copy)
}

pub(super) async fn refused_later(stand: Stand) -> Outcome {
    // The path keeps replies for 3 s, and refuses keys for an hour after that.
    let message = stand.message("/refused-later/orders").key(&stand.key());
    stand.twice(&message).await?;
    pause(3_300).await;
    is_problem(&stand.send(&message).await?, 422)?;
    expect("runs", stand.runs().await?, 1)
}

pub(super) async fn not_extended(stand: Stand) -> Outcome {
    let key = stand.key();
    let message = stand.message("/ttl/orders").key(&key);
    stand.send(&message).await?;
    pause(1_600).await;
    let copy = stand.send(&message).await?;
    expect("marker of the copy", copy.get("idempotent-replayed"), Some("true"))?;
    is_problem(&stand.send(&message.clone().body("{}")).await?, stand.mismatch())?;
    pause(1_800).await;
    let late = stand.send(&message).await?;
    let (marker, runs) = if stand.is_atp() { (Some("true"), 1) } else { (None, 2) };
    expect("marker after 3.4 s", late.get("idempotent-replayed"), marker)?;
    expect("runs", stand.runs().await?, runs)
}

pub(super) async fn store_down(stand: Stand) -> Outcome {
    let closed = stand.send(&stand.message("/down/orders").key(&stand.key())).await?;
    is_problem(&closed, 503)?;
    ensure(closed.get("retry-after").is_some(), || "no Retry-After".into())?;
    expect("runs", stand.runs().await?, 0)?;
    let open = stand.send(&stand.message("/down-open/orders").key(&stand.key())).await?;
    expect("status where it is open", open.status, 201)?;
    expect("idempotency-status", open.get("idempotency-status"), Some("unprotected"))?;
    expect("runs", stand.runs().await?, 1)
}

pub(super) async fn store_dies(stand: Stand) -> Outcome {
    let message = stand.message("/dying/orders").key(&stand.key());
    expect("status", stand.send(&message).await?.status, 201)?;
    let copy = stand.send(&message).await?;
    ensure([409, 503].contains(&copy.status), || format!("a copy got {}", copy.status))?;
    expect("runs", stand.runs().await?, 1)
}
