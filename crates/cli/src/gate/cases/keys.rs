//! What a key is.

use super::{Ability, Outcome, Stand, expect, is_problem};

pub(super) async fn required(stand: Stand) -> Outcome {
    let answer = stand.send(&stand.message("/required/orders")).await?;
    is_problem(&answer, 400)?;
    expect("runs", stand.runs().await?, 0)
}

pub(super) async fn optional(stand: Stand) -> Outcome {
    if stand.is_atp() {
        // Keys are required there, but for a path of the fixture.
        for _ in 0..2 {
            is_problem(&stand.send(&stand.order("{}")).await?, 400)?;
        }
        expect("runs where a key is required", stand.runs().await?, 0)?;
        if !stand.can(Ability::Routes) {
            return Ok(());
        }
    }
    let path = if stand.is_atp() { "/optional/orders" } else { "/orders" };
    for _ in 0..2 {
        stand.is_run(&stand.send(&stand.message(path)).await?)?;
    }
    expect("runs", stand.runs().await?, 2)
}

pub(super) async fn safe_method(stand: Stand) -> Outcome {
    let message = stand.order("{}").key(&stand.key()).method("GET").body("");
    for _ in 0..2 {
        expect("marker", stand.send(&message).await?.get("idempotent-replayed"), None)?;
    }
    expect("runs", stand.runs().await?, 2)
}

pub(super) async fn quotes(stand: Stand) -> Outcome {
    let key = stand.key();
    let bare = stand.send(&stand.order("{}").key(&key)).await?;
    let quoted = stand.send(&stand.order("{}").key(&format!("\"{key}\""))).await?;
    if stand.is_atp() {
        return is_problem(&quoted, 400);
    }
    expect("runs", stand.runs().await?, 1)?;
    stand.is_replay(&bare, &quoted)
}

pub(super) async fn malformed(stand: Stand) -> Outcome {
    for key in [&b""[..], b"\"\"", b"a\x01b", b"a\xffb", b"\"open"] {
        let answer = stand.send(&stand.order("{}").header("idempotency-key", key)).await?;
        expect("status", answer.status, 400)?;
        // Where a server refuses a control byte before anybody else sees it, the gate has nothing to say.
        if !key.contains(&1) {
            is_problem(&answer, 400)?;
        }
    }
    expect("runs", stand.runs().await?, 0)
}

pub(super) async fn length(stand: Stand) -> Outcome {
    let prefix = if stand.is_atp() { "t:check:" } else { "" };
    let limit = if stand.is_atp() { 128 } else { 255 };
    let unique = uuid::Uuid::new_v4().to_string();
    let of = |length: usize| format!("{prefix}{}{unique}", "k".repeat(length - prefix.len() - unique.len()));
    expect("status", stand.send(&stand.order("{}").key(&of(limit))).await?.status, 201)?;
    for length in [limit + 1, 4096] {
        is_problem(&stand.send(&stand.order("{}").key(&of(length))).await?, 400)?;
    }
    expect("runs", stand.runs().await?, 1)
}

pub(super) async fn two(stand: Stand) -> Outcome {
    let answer = stand.send(&stand.order("{}").key(&stand.key()).key(&stand.key())).await?;
    is_problem(&answer, 400)?;
    expect("runs", stand.runs().await?, 0)
}

pub(super) async fn case(stand: Stand) -> Outcome {
    let (tenant, unique) = (if stand.is_atp() { "t:check:" } else { "" }, uuid::Uuid::new_v4().simple());
    for key in [format!("{tenant}abc{unique}"), format!("{tenant}ABC{unique}")] {
        expect("status", stand.send(&stand.order("{}").key(&key)).await?.status, 201)?;
    }
    expect("runs", stand.runs().await?, 2)
}
