//! What becomes of another request under a key, where that is not refused.

use oncebox_core::Digest;

use super::{Outcome, Stand, expect, is_problem};

pub(super) async fn last_wins(stand: Stand) -> Outcome {
    let first = stand.message("/last-wins/orders").key(&stand.key());
    let last = first.clone().body("{\"item\":2}");
    stand.send(&first).await?;
    let newest = stand.send(&last).await?;
    expect("status of the other request", newest.status, 201)?;
    expect("runs", stand.runs().await?, 2)?;
    let copy = stand.send(&last).await?;
    expect("runs", stand.runs().await?, 2)?;
    stand.is_replay(&newest, &copy)
}

pub(super) async fn warned(stand: Stand) -> Outcome {
    let first = stand.message("/warn/orders").key(&stand.key());
    let original = stand.send(&first).await?;
    let other = stand.send(&first.clone().body("{\"item\":2}")).await?;
    expect("status of the other request", other.status, 201)?;
    expect("its warning", other.get("idempotency-conflict"), Some("allowed"))?;
    expect("runs", stand.runs().await?, 2)?;
    let copy = stand.send(&first).await?;
    expect("runs", stand.runs().await?, 2)?;
    stand.is_replay(&original, &copy)
}

pub(super) async fn of_content(stand: Stand) -> Outcome {
    let message = stand.message("/content/orders");
    // Another body for each try: the key is made of it.
    let body = format!("{{\"case\":\"{}\"}}", stand.case);
    let (good, bad) = (Digest::of(body.as_bytes()), Digest::of(b"another body"));
    let message = message.body(body);
    is_problem(&stand.send(&message.clone().key(&format!("content:{bad}"))).await?, 400)?;
    expect("runs", stand.runs().await?, 0)?;
    stand.twice(&message.key(&format!("content:{good}"))).await.map(drop)
}
