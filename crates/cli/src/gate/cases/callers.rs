//! Whose keys they are, and what a client may not say.

use super::super::client::Message;
use super::super::fixture::MAX_REQUEST;
use super::flights::started;
use super::{Ability, Outcome, Stand, ensure, expect, is_problem};

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
    let unique = uuid::Uuid::new_v4();
    let answer = stand.send(&stand.order("{}").key(&format!("other:check:{unique}"))).await?;
    ensure(matches!(answer.status, 400 | 403), || format!("answered with {}", answer.status))?;
    expect("runs", stand.runs().await?, 0)
}

/// What gates say in replies: the marker, that of the seed, and ours.
const OURS: [&str; 4] = ["idempotent-replayed", "x-hit", "idempotency-status", "idempotency-conflict"];

pub(super) async fn spoofed(stand: Stand) -> Outcome {
    let plain = stand.order(r#"{"echo":true}"#).key(&stand.key());
    let message = OURS.iter().fold(plain.clone(), |message, name| message.header(name, "true"));
    let first = stand.send(&message).await?;
    stand.is_run(&first)?;
    for name in OURS {
        expect(name, first.get(name), None)?;
    }
    let seen = String::from_utf8_lossy(&first.body).into_owned();
    // Of another gate's header only the reply matters: to the service it means nothing.
    for name in OURS.into_iter().filter(|name| *name != "x-hit") {
        ensure(!seen.contains(name), || format!("the service was told {name} by a client"))?;
    }
    let copy = stand.send(&plain).await?;
    expect("runs", stand.runs().await?, 1)?;
    expect("x-hit of the copy", copy.get("x-hit"), None)?;
    stand.is_replay(&first, &copy)
}

pub(super) async fn too_much(stand: Stand) -> Outcome {
    let message = stand.order("{}").key(&stand.key()).body(vec![b'x'; MAX_REQUEST + 1]);
    is_problem(&stand.send(&message).await?, 413)?;
    expect("runs", stand.runs().await?, 0)?;
    if stand.can(Ability::Capped) { crowd(&stand).await } else { Ok(()) }
}

/// Ten thousand keys while one runs, in a store that has no room for them.
async fn crowd(stand: &Stand) -> Outcome {
    const KEYS: usize = 10_000;
    const LINES: usize = 8;
    let (crowd, go) = (stand.apart("crowd"), stand.apart("go"));
    let on =
        |stand: &Stand, wish: &str| stand.message("/capped/orders").header("x-fx", wish).key(&stand.key());
    let message = on(stand, &format!(r#"{{"hold":"{}"}}"#, go.case));
    let first = started(stand, &message);
    stand.until_running().await?;
    let keys: Vec<_> = (0..KEYS).map(|_| on(&crowd, r#"{"size":1000}"#)).collect();
    let mut lines = tokio::task::JoinSet::new();
    for share in keys.chunks(KEYS.div_ceil(LINES)) {
        let (target, share) = (stand.target.clone(), share.to_vec());
        lines.spawn(async move { target.send_all(&share, 201).await });
    }
    let mut answered = 0;
    while let Some(line) = lines.join_next().await {
        let line = line.map_err(|error| super::describe(&error))?;
        answered += line.map_err(|error| error.to_string())?;
    }
    expect("answers of 201 to the crowd", answered, KEYS)?;
    // They had a thousand bytes each: what was sealed first has gone, and what runs is still known.
    let (early, late) = (keys.first().ok_or("no keys")?, keys.last().ok_or("no keys")?);
    stand.is_run(&crowd.send(early).await?)?;
    expect("marker of the last one", crowd.send(late).await?.get("idempotent-replayed"), Some("true"))?;
    expect("runs of the crowd", crowd.runs().await?, KEYS as u64 + 1)?;
    is_problem(&stand.send(&message).await?, 409)?;
    go.send(&go.order("{}").key(&go.key())).await?;
    stand.is_run(&super::joined(first).await?)?;
    expect("runs", stand.runs().await?, 1)
}
