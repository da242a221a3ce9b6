//! Whose keys they are, and what a client may not say.

use super::super::client::Message;
use super::super::fixture::MAX_REQUEST;
use super::{Outcome, Stand, ensure, expect, is_problem};

pub(super) async fn tenants(stand: Stand) -> Outcome {
    let key = |tenant: &str| {
        if stand.is_atp() { format!("{tenant}:check:1-{}", stand.case) } else { stand.case.clone() }
    };
    let of = |tenant: &str| {
        let order = Message::post("/orders", "{}").header("x-fx-case", &stand.case);
        order.header("x-fx-tenant", tenant).key(&key(tenant))
    };
    let (one, other) = (stand.send(&of("one")).await?, stand.send(&of("two")).await?);
    expect("runs", stand.runs().await?, 2)?;
    ensure(one.body != other.body, || "one tenant got the reply of the other".into())
}

pub(super) async fn principals(stand: Stand) -> Outcome {
    let order = stand.order("{}").key(&stand.key());
    let as_user = |user: &str| order.clone().header("authorization", format!("Bearer {user}"));
    let first = stand.send(&as_user("one")).await?;
    for other in [as_user("two"), order.clone()] {
        let answer = stand.send(&other).await?;
        ensure(answer.body != first.body, || "somebody else got the reply".into())?;
        expect("marker", answer.get("idempotent-replayed"), None)?;
    }
    stand.is_replay(&first, &stand.send(&as_user("one")).await?)
}

pub(super) async fn foreign_tenant(stand: Stand) -> Outcome {
    if !stand.is_atp() {
        return Ok(());
    }
    let unique = uuid::Uuid::new_v4();
    let answer = stand.send(&stand.order("{}").key(&format!("other:check:{unique}"))).await?;
    ensure(matches!(answer.status, 400 | 403), || format!("answered with {}", answer.status))?;
    expect("runs", stand.runs().await?, 0)
}

pub(super) async fn spoofed(stand: Stand) -> Outcome {
    let message = stand.order(r#"{"echo":true}"#).key(&stand.key());
    let message = message.header("idempotent-replayed", "true").header("x-hit", "true");
    let message = message.header("idempotency-status", "unprotected");
    let first = stand.send(&message).await?;
    expect("status", first.status, 201)?;
    expect("marker", first.get("idempotent-replayed"), None)?;
    let seen = String::from_utf8_lossy(&first.body).into_owned();
    ensure(!seen.contains("idempotent-replayed"), || "the service was told that it is a replay".into())?;
    expect("runs", stand.runs().await?, 1)
}

pub(super) async fn large_request(stand: Stand) -> Outcome {
    let message = stand.order("{}").key(&stand.key()).body(vec![b'x'; MAX_REQUEST + 1]);
    is_problem(&stand.send(&message).await?, 413)?;
    expect("runs", stand.runs().await?, 0)
}

pub(super) async fn forwarded(stand: Stand) -> Outcome {
    let key = stand.key();
    let message = stand.order(r#"{"echo":true}"#).key(&key).header("connection", "x-private");
    let message = message.header("x-private", "1").header("te", "trailers").header("keep-alive", "5");
    let answer = stand.send(&message).await?;
    let seen = String::from_utf8_lossy(&answer.body).into_owned();
    ensure(seen.contains(&format!("idempotency-key: {key}")), || "the key was not passed on".into())?;
    for name in ["x-private:", "te:", "keep-alive:"] {
        ensure(!seen.lines().any(|line| line.starts_with(name)), || format!("{name} was passed on"))?;
    }
    Ok(())
}
