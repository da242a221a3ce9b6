//! Gates that are killed, services that are gone, and what another gate knows of it.

use std::time::Instant;

use super::flights::started;
use super::{Ability, Outcome, Stand, ensure, expect, is_problem, pause};

/// The lease of the path that a gate is killed on, in seconds.
const LEASE: u64 = 4;

pub(super) async fn killed(stand: Stand) -> Outcome {
    let running = stand.message("/crash/orders").header("x-fx", r#"{"sleep":25000}"#);
    let (key, waits) = (stand.key(), running.clone());
    let first = started(&stand, &waits.key(&key));
    stand.until_running().await?;
    let killed_at = Instant::now();
    stand.restart().await?;
    let again = stand.message("/crash/orders").key(&key);
    // A service that was killed with its gate has lost its count.
    let before = stand.runs().await?;
    let copy = stand.send(&again).await?;
    // On a busy machine the lease may be over before the gate is back.
    if killed_at.elapsed().as_secs() < LEASE - 2 {
        is_problem(&copy, 409)?;
        let wait: Option<u64> = copy.get("retry-after").and_then(|wait| wait.parse().ok());
        ensure(wait.is_some_and(|wait| (1..=LEASE).contains(&wait)), || format!("retry-after: {wait:?}"))?;
        expect("runs before the end of the lease", stand.runs().await?, before)?;
    }
    let mut later = copy;
    while later.status == 409 && killed_at.elapsed().as_secs() < 3 * LEASE {
        pause(100).await;
        later = stand.send(&again).await?;
    }
    stand.note(format!("free {} ms after the kill", killed_at.elapsed().as_millis()));
    stand.is_run(&later)?;
    expect("runs after the end of the lease", stand.runs().await?, before + 1)?;
    first.abort();
    Ok(())
}

pub(super) async fn restarted(stand: Stand) -> Outcome {
    let message = stand.order("{}").key(&stand.key());
    let first = stand.send(&message).await?;
    stand.is_run(&first)?;
    stand.restart().await?;
    let before = stand.runs().await?;
    // Nothing is in memory: what comes back was in the database.
    let copy = stand.send(&message).await?;
    stand.is_replay(&first, &copy)?;
    is_problem(&stand.send(&message.body("{}")).await?, stand.mismatch())?;
    expect("runs after the restart", stand.runs().await?, before)
}

pub(super) async fn elsewhere(stand: Stand) -> Outcome {
    let (message, other) = (stand.order("{}").key(&stand.key()), stand.elsewhere()?);
    let first = stand.send(&message).await?;
    let copy = other.send(&message).await?;
    stand.is_replay(&first, &copy)?;
    is_problem(&other.send(&message.body("{}")).await?, stand.mismatch())?;
    expect("runs", stand.runs().await?, 1)?;
    // A profile whose copies keep a key for longer has nothing to outlive.
    if stand.can(Ability::Routes) && !stand.is_atp() { not_outlived(&stand, &other).await } else { Ok(()) }
}

/// What the other gate has in memory is no older than what is in the database.
async fn not_outlived(stand: &Stand, other: &Stand) -> Outcome {
    let (counted, there) = (stand.apart("ttl"), other.apart("ttl"));
    // The path keeps replies for 3 s.
    let message = counted.message("/ttl/orders").key(&stand.key());
    let first = counted.send(&message).await?;
    pause(1_600).await;
    stand.is_replay(&first, &there.send(&message).await?)?;
    pause(1_800).await;
    stand.is_run(&there.send(&message).await?)?;
    expect("runs after its time", counted.runs().await?, 2)
}

pub(super) async fn unreachable(stand: Stand) -> Outcome {
    let door = stand.apart("door");
    stand.send(&door.order(r#"{"refuse":1500}"#).method("GET").body("")).await?;
    until_reached(&door, false).await?;
    let message = stand.order("{}").key(&stand.key());
    let refused = stand.send(&message).await?;
    is_problem(&refused, 502)?;
    until_reached(&door, true).await?;
    let later = stand.send(&message).await?;
    stand.is_run(&later)?;
    expect("runs", stand.runs().await?, 1)?;
    stand.is_replay(&later, &stand.send(&message).await?)
}

/// Waits until the service behind the gate can be reached, or cannot.
async fn until_reached(stand: &Stand, is_wanted: bool) -> Outcome {
    let knock = stand.order("{}").method("GET").body("");
    for _ in 0..500 {
        let answer = stand.target.send(&knock).await;
        if answer.is_ok_and(|answer| answer.status == 201) == is_wanted {
            return Ok(());
        }
        pause(20).await;
    }
    Err(format!("the service is {} reached", if is_wanted { "not" } else { "still" }))
}

pub(super) async fn hangs_up(stand: Stand) -> Outcome {
    let message = stand.order(r#"{"hang_up":true}"#).key(&stand.key());
    expect("status", stand.send(&message).await?.status, 502)?;
    expect("runs", stand.runs().await?, 1)?;
    let again = stand.send(&message).await?;
    if again.status == 409 {
        // A gate that does not run it again says so, every time.
        expect("code", again.code().as_str(), "outcome-unknown")?;
        return expect("runs", stand.runs().await?, 1);
    }
    stand.is_run(&again)?;
    expect("runs", stand.runs().await?, 2)?;
    stand.is_replay(&again, &stand.send(&message).await?)?;
    if stand.can(Ability::Routes) { blocked(&stand.apart("block")).await } else { Ok(()) }
}

/// Where a doubt blocks.
async fn blocked(stand: &Stand) -> Outcome {
    let message = stand.message("/block/orders").header("x-fx", r#"{"hang_up":true}"#).key(&stand.key());
    expect("status", stand.send(&message).await?.status, 502)?;
    for _ in 0..2 {
        let again = stand.send(&message).await?;
        is_problem(&again, 409)?;
        expect("code", again.code().as_str(), "outcome-unknown")?;
    }
    expect("runs", stand.runs().await?, 1)
}
