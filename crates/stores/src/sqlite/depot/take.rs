//! How workers get hold of deliveries, keep them and give them back.

use std::collections::BTreeMap;
use std::time::Duration;

use oncebox_core::cloudevents;
use oncebox_core::depot::{Number, TakeRequest, Taken, Ticket, Want};
use oncebox_core::handler::MessageKey;
use oncebox_core::{Error, Result, Store, Timestamp};
use serde_json::json;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::super::error::failed;
use super::super::row::count;
use super::super::{SqliteStore, relay};
use super::{finish, good, text};

const TAKE: &str = "cannot take deliveries";
/// The code of a stored message that cannot be read.
const CORRUPT: &str = "corrupt";

pub(super) async fn take(
    store: &SqliteStore,
    request: &TakeRequest<'_>,
    now: Option<Timestamp>,
) -> Result<Vec<Taken>> {
    let limits = limits(request.wants);
    let most = limits.values().copied().max().unwrap_or_default().min(request.limit);
    if most == 0 || !is_any_due(store, request, &limits, now).await? {
        return Ok(Vec::new());
    }
    let mut tx = store.begin().await?;
    let now = relay::clock(store, &mut tx, now).await?;
    let due = due(store, &mut tx, (request, &limits), (now, most)).await?;
    let chosen = choose(due, limits, request.limit);
    if chosen.is_empty() {
        store.rollback(tx).await?;
        return Ok(Vec::new());
    }
    let until = now.plus(request.lease);
    sqlx::query(store.sql(include_str!("../sql/take_lease.sql")))
        .bind(json!(chosen).to_string())
        .bind(json!(chosen.get(..request.seats).unwrap_or(&chosen)).to_string())
        .bind(request.holder)
        .bind(until.micros())
        .execute(&mut *tx)
        .await
        .map_err(failed(TAKE))?;
    let rows = sqlx::query(store.sql(include_str!("../sql/take_read.sql")))
        .bind(json!(chosen).to_string())
        .fetch_all(&mut *tx)
        .await
        .map_err(failed(TAKE))?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        match taken(row)? {
            Ok(taken) => all.push(taken),
            Err((ticket, error)) => finish::bury(store, &mut tx, (ticket, CORRUPT), &error, now).await?,
        }
    }
    store.commit(tx).await?;
    Ok(all)
}

pub(super) async fn has_suspects(
    store: &SqliteStore,
    (scope, wants): (&str, &[Want<'_>]),
    now: Option<Timestamp>,
) -> Result<bool> {
    let request =
        TakeRequest { scope, holder: "", lease: Duration::ZERO, limit: 1, seats: 0, wants, suspects: true };
    is_any_due(store, &request, &limits(wants), now).await
}

/// Asked without the write lock: most looks find nothing.
async fn is_any_due(
    store: &SqliteStore,
    request: &TakeRequest<'_>,
    limits: &BTreeMap<&str, usize>,
    now: Option<Timestamp>,
) -> Result<bool> {
    let mut connection = store.pool().acquire().await.map_err(failed(TAKE))?;
    let now = relay::clock(store, &mut connection, now).await?;
    Ok(!due(store, &mut connection, (request, limits), (now, 1)).await?.is_empty())
}

/// What is due, longest first: of each handler at most so many ready and so many expired ones.
async fn due(
    store: &SqliteStore,
    connection: &mut SqliteConnection,
    (request, limits): (&TakeRequest<'_>, &BTreeMap<&str, usize>),
    (now, most): (Timestamp, usize),
) -> Result<Vec<(Number, String)>> {
    let sql = match request.suspects {
        true => include_str!("../sql/take_suspects.sql"),
        false => include_str!("../sql/take_due.sql"),
    };
    let handlers: Vec<&str> = limits.keys().copied().collect();
    sqlx::query_as(store.sql(sql))
        .bind(request.scope)
        .bind(json!(handlers).to_string())
        .bind(now.micros())
        .bind(count(most))
        .fetch_all(connection)
        .await
        .map_err(failed(TAKE))
}

/// How many of each handler.
fn limits<'a>(wants: &'a [Want<'_>]) -> BTreeMap<&'a str, usize> {
    let mut limits = BTreeMap::new();
    for want in wants.iter().filter(|want| want.limit > 0) {
        let limit: &mut usize = limits.entry(want.handler).or_default();
        *limit = limit.saturating_add(want.limit);
    }
    limits
}

/// The first that fit into their handler's limit and into the limit of all.
fn choose(due: Vec<(Number, String)>, mut limits: BTreeMap<&str, usize>, limit: usize) -> Vec<Number> {
    let mut fits = |handler: &str| match limits.get_mut(handler) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    };
    due.into_iter().filter(|(_, handler)| fits(handler)).map(|(number, _)| number).take(limit).collect()
}

/// A delivery, or why its message cannot be read.
fn taken(row: &SqliteRow) -> Result<Result<Taken, (Ticket, Error)>> {
    let ticket =
        || -> sqlx::Result<Ticket> { Ok(Ticket { number: row.try_get(0)?, fence: row.try_get(1)? }) };
    let ticket = ticket().map_err(failed(TAKE))?;
    let texts = || -> sqlx::Result<(String, Vec<u8>)> { Ok((row.try_get(12)?, row.try_get(13)?)) };
    let read = texts().map_err(failed(TAKE));
    let read = read.and_then(|(attributes, payload)| cloudevents::from_attributes(&attributes, payload));
    let envelope = match read {
        Ok(envelope) => envelope,
        Err(error) => return Ok(Err((ticket, error))),
    };
    let taken = || -> sqlx::Result<Taken> {
        let (attempts, started): (u32, bool) = (row.try_get(7)?, row.try_get(10)?);
        Ok(Taken {
            ticket,
            handler: row.try_get(2)?,
            channel: row.try_get(3)?,
            key: MessageKey { source: row.try_get(4)?, id: row.try_get(5)? },
            digest: envelope.digest(),
            lane: row.try_get(6)?,
            attempt: attempts.saturating_add(u32::from(!started)),
            deaths: row.try_get(8)?,
            generation: row.try_get(9)?,
            started,
            received_at: Timestamp::from_micros(row.try_get(11)?),
            envelope,
        })
    };
    taken().map(Ok).map_err(failed(TAKE))
}

pub(super) async fn start(store: &SqliteStore, tickets: &[Ticket]) -> Result<Vec<bool>> {
    if tickets.is_empty() {
        return Ok(Vec::new());
    }
    let mut connection = store.pool().acquire().await.map_err(failed("cannot count attempts"))?;
    start_on(store, &mut connection, tickets).await
}

pub(super) async fn start_on(
    store: &SqliteStore,
    connection: &mut SqliteConnection,
    tickets: &[Ticket],
) -> Result<Vec<bool>> {
    let found = sqlx::query_as(store.sql(include_str!("../sql/start.sql")))
        .bind(text(tickets))
        .fetch_all(connection)
        .await
        .map_err(failed("cannot count attempts"))?;
    Ok(good(tickets, &found))
}

pub(super) async fn give_back(store: &SqliteStore, tickets: &[Ticket], now: Option<Timestamp>) -> Result<()> {
    if tickets.is_empty() {
        return Ok(());
    }
    sqlx::query(store.sql(include_str!("../sql/give_back.sql")))
        .bind(text(tickets))
        .bind(now.map(Timestamp::micros))
        .execute(store.pool())
        .await
        .map_err(failed("cannot give deliveries back"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_longest_due_are_chosen_within_both_limits() {
        let wants = [Want { handler: "a", limit: 2 }, Want { handler: "b", limit: 9 }];
        let due = [(1, "a"), (2, "a"), (3, "b"), (4, "a"), (5, "b"), (6, "b")];
        let due: Vec<_> = due.map(|(number, handler)| (number, handler.to_owned())).into();

        assert_eq!(choose(due.clone(), limits(&wants), 9), [1, 2, 3, 5, 6]);
        assert_eq!(choose(due.clone(), limits(&wants), 3), [1, 2, 3]);
        assert_eq!(choose(due, limits(&[]), 3), Vec::<Number>::new());
    }
}
