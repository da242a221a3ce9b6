//! What comes back.

use std::time::Duration;

use super::super::fixture::{MAX_REPLY, ZIPPED};
use super::{Ability, Outcome, Stand, ensure, expect, is_problem};

pub(super) async fn replay(stand: Stand) -> Outcome {
    stand.twice(&stand.order("{}").key(&stand.key())).await.map(drop)
}

pub(super) async fn headers(stand: Stand) -> Outcome {
    let (first, second) = stand.twice(&stand.order(r#"{"multi":true}"#).key(&stand.key())).await?;
    for name in ["location", "etag", "content-type", "x-fx-n"] {
        ensure(first.get(name).is_some(), || format!("the fixture sends no {name}"))?;
        expect(name, second.get(name), first.get(name))?;
    }
    expect("link", second.all("link"), vec!["</first>", "</second>"])
}

pub(super) async fn cookie(stand: Stand) -> Outcome {
    let (first, second) = stand.twice(&stand.order(r#"{"cookie":true}"#).key(&stand.key())).await?;
    ensure(first.get("set-cookie").is_some(), || "the first reply has lost its cookie".into())?;
    expect("cookie of the copy", second.get("set-cookie"), None)
}

pub(super) async fn bytes(stand: Stand) -> Outcome {
    let first = stand.send(&stand.order(r#"{"empty":true}"#).key(&stand.key())).await?;
    expect("status", first.status, 204)?;
    expect("runs", stand.runs().await?, 1)?;
    let (key, empty) = (stand.key(), stand.order(r#"{"empty":true}"#));
    let (first, second) = (stand.send(&empty.clone().key(&key)).await?, stand.send(&empty.key(&key)).await?);
    expect("runs", stand.runs().await?, 2)?;
    stand.is_replay(&first, &second)?;
    let (key, binary) = (stand.key(), stand.order(r#"{"bin":true}"#));
    let (first, second) =
        (stand.send(&binary.clone().key(&key)).await?, stand.send(&binary.key(&key)).await?);
    expect("runs", stand.runs().await?, 3)?;
    ensure(first.body.contains(&0xff) && first.body.contains(&0), || "the fixture sends no binary".into())?;
    stand.is_replay(&first, &second)
}

pub(super) async fn compressed(stand: Stand) -> Outcome {
    let message = stand.order(r#"{"gzip":true}"#).key(&stand.key()).header("accept-encoding", "gzip");
    let (first, second) = stand.twice(&message).await?;
    ensure(first.body == ZIPPED, || "the first reply is not as the service sent it".into())?;
    expect("content-encoding of the first", first.get("content-encoding"), Some("gzip"))?;
    expect("content-encoding of the copy", second.get("content-encoding"), Some("gzip"))
}

pub(super) async fn streamed(stand: Stand) -> Outcome {
    let (first, _) = stand.twice(&stand.order(r#"{"chunks":3}"#).key(&stand.key())).await?;
    expect("pieces", first.body.windows(5).filter(|window| window == b"data:").count(), 3)
}

pub(super) async fn too_large(stand: Stand) -> Outcome {
    let wish = format!(r#"{{"size":{}}}"#, MAX_REPLY + 1);
    let message = stand.order(&wish).key(&stand.key());
    let first = stand.send(&message).await?;
    expect("bytes of the first", first.body.len(), MAX_REPLY + 1)?;
    let second = stand.send(&message).await?;
    is_problem(&second, 409)?;
    expect("code", second.code().as_str(), "response-not-retained")?;
    expect("location", second.get("location"), first.get("location"))?;
    expect("runs", stand.runs().await?, 1)
}

pub(super) async fn not_found(stand: Stand) -> Outcome {
    let message = stand.order(r#"{"status":404}"#).key(&stand.key());
    if !stand.is_atp() {
        return stand.twice(&message).await.map(drop);
    }
    for _ in 0..2 {
        expect("status", stand.send(&message).await?.status, 404)?;
    }
    expect("runs", stand.runs().await?, 2)
}

async fn runs_again(stand: &Stand, status: u16) -> Outcome {
    let message = stand.order(&format!(r#"{{"fail_first":{status}}}"#)).key(&stand.key());
    expect("status of the first", stand.send(&message).await?.status, status)?;
    expect("status of the second", stand.send(&message).await?.status, 201)?;
    expect("runs", stand.runs().await?, 2)
}

pub(super) async fn unavailable(stand: Stand) -> Outcome {
    runs_again(&stand, 503).await
}

pub(super) async fn unauthorised(stand: Stand) -> Outcome {
    runs_again(&stand, 401).await
}

pub(super) async fn events(stand: Stand) -> Outcome {
    let answer = stand.send(&stand.order(r#"{"sse":true,"chunks":8}"#).key(&stand.key())).await?;
    expect("status", answer.status, 201)?;
    let first = answer.first_byte.unwrap_or_default();
    let before_the_end = answer.took.saturating_sub(first);
    stand.note(format!("first event {} ms before the end", before_the_end.as_millis()));
    ensure(before_the_end > Duration::from_millis(300), || {
        format!("the first event came {before_the_end:?} before the end")
    })?;
    if stand.can(Ability::Proxy) { forwarded(&stand).await } else { Ok(()) }
}

/// What reaches the service of a request.
async fn forwarded(stand: &Stand) -> Outcome {
    let key = stand.key();
    let message = stand.order(r#"{"echo":true}"#).key(&key).header("connection", "x-private");
    let message = message.header("x-private", "1").header("te", "trailers").header("keep-alive", "5");
    let answer = stand.send(&message).await?;
    let seen = String::from_utf8_lossy(&answer.body).into_owned();
    ensure(seen.contains(&format!("idempotency-key: {key}")), || "the key was not passed on".into())?;
    for name in ["x-private:", "te:", "keep-alive:"] {
        ensure(!seen.lines().any(|line| line.starts_with(name)), || format!("{name} was passed on"))?;
    }
    stand.note("the service saw the key and nothing for one connection".into());
    Ok(())
}
