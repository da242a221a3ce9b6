//! What makes two requests the same.

use super::super::client::Message;
use super::{Outcome, Stand, ensure, expect, is_problem};

/// Sends one, and then the other under its key, which must be refused.
async fn refused(stand: &Stand, one: Message, other: Message) -> Outcome {
    let key = stand.key();
    let before = stand.runs().await?;
    let first = stand.send(&one.key(&key)).await?;
    ensure(first.status < 300, || format!("the first was answered with {}", first.status))?;
    let second = stand.send(&other.key(&key)).await?;
    is_problem(&second, stand.mismatch())?;
    expect("runs", stand.runs().await? - before, 1)
}

/// Sends one, and then the other under its key, which must be a replay.
async fn same(stand: &Stand, one: Message, other: Message) -> Outcome {
    let key = stand.key();
    let before = stand.runs().await?;
    let (first, second) = (stand.send(&one.key(&key)).await?, stand.send(&other.key(&key)).await?);
    expect("runs", stand.runs().await? - before, 1)?;
    stand.is_replay(&first, &second)
}

pub(super) async fn other_body(stand: Stand) -> Outcome {
    refused(&stand, stand.order("{}"), stand.order("{}").body(r#"{"item":2,"count":2}"#)).await
}

pub(super) async fn original_survives(stand: Stand) -> Outcome {
    let key = stand.key();
    let first = stand.send(&stand.order("{}").key(&key)).await?;
    is_problem(&stand.send(&stand.order("{}").key(&key).body("{}")).await?, stand.mismatch())?;
    let third = stand.send(&stand.order("{}").key(&key)).await?;
    expect("runs", stand.runs().await?, 1)?;
    stand.is_replay(&first, &third)
}

/// Refused, or run as a request of its own; never answered with the first reply.
async fn never_the_first(stand: &Stand, other: Message) -> Outcome {
    let key = stand.key();
    let first = stand.send(&stand.order("{}").key(&key)).await?;
    let second = stand.send(&other.key(&key)).await?;
    stand.is_run(&first)?;
    ensure(second.body != first.body, || "it was answered with the first reply".into())?;
    if second.status == 201 {
        stand.is_run(&second)?;
        return expect("runs of two requests", stand.runs().await?, 2);
    }
    is_problem(&second, stand.mismatch())?;
    expect("runs", stand.runs().await?, 1)
}

pub(super) async fn other_path(stand: Stand) -> Outcome {
    never_the_first(&stand, stand.order("{}").path("/orders/7")).await
}

pub(super) async fn other_method(stand: Stand) -> Outcome {
    never_the_first(&stand, stand.order("{}").method("PATCH")).await
}

pub(super) async fn other_query(stand: Stand) -> Outcome {
    never_the_first(&stand, stand.order("{}").path("/orders?dry=1")).await
}

pub(super) async fn reordered(stand: Stand) -> Outcome {
    let other = "{ \"count\" : 2,\n\t\"item\":1 }";
    same(&stand, stand.order("{}"), stand.order("{}").body(other)).await
}

pub(super) async fn excluded(stand: Stand) -> Outcome {
    let (one, other) = (r#"{"item":1,"timestamp":1}"#, r#"{"item":1,"timestamp":2}"#);
    let at = |path: &str, body: &str| stand.message(path).body(body);
    same(&stand, at("/excluded/orders", one), at("/excluded/orders", other)).await?;
    if stand.is_atp() {
        return same(&stand, at("/orders", one), at("/orders", other)).await;
    }
    refused(&stand, at("/orders", one), at("/orders", other)).await
}

pub(super) async fn raw(stand: Stand) -> Outcome {
    let at = |body: &str| stand.message("/raw/orders").body(body);
    refused(&stand, at(r#"{"a":1,"b":2}"#), at(r#"{"b":2,"a":1}"#)).await
}

pub(super) async fn absent(stand: Stand) -> Outcome {
    let body = |body: &str| stand.order("{}").body(body);
    refused(&stand, body(r#"{"a":1,"b":null}"#), body(r#"{"a":1}"#)).await?;
    refused(&stand, body(""), body("{}")).await?;
    refused(&stand, body("{}"), body("{}").kind("text/plain")).await
}

pub(super) async fn numbers(stand: Stand) -> Outcome {
    let body = |number: &str| stand.order("{}").body(format!("{{\"amount\":{number}}}"));
    refused(&stand, body("9007199254740992"), body("9007199254740993")).await
}

pub(super) async fn doubled(stand: Stand) -> Outcome {
    let body = |body: &str| stand.order("{}").body(body);
    refused(&stand, body(r#"{"amount":1,"amount":1000}"#), body(r#"{"amount":1000}"#)).await?;
    refused(&stand, body(r#"{"amount":1,"amount":1000}"#), body(r#"{"amount":1}"#)).await
}

pub(super) async fn odd(stand: Stand) -> Outcome {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    for body in [b"\xff\xfe{".to_vec(), deep.into_bytes(), b"[1,2,3]".to_vec(), b"{\"a\":".to_vec()] {
        same(&stand, stand.order("{}").body(body.clone()), stand.order("{}").body(body)).await?;
    }
    Ok(())
}
