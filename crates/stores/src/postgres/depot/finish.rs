//! What becomes of a delivery: done, tried again, or dead.

use std::collections::HashSet;
use std::time::Duration;

use oncebox_core::depot::{Fate, Finish, HISTORY, Standing, Ticket, reason_text};
use oncebox_core::digest::bounded_key;
use oncebox_core::store::{Mark, Marked};
use oncebox_core::{Error, Kind, Result, Store, Timestamp};
use serde_json::{Value, json};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row as _};
use tokio::time::timeout;

use super::super::error::failed;
use super::super::row::{Time, clock, span, storable};
use super::super::store::{PostgresStore, still_open};
use super::lane::{self, Lane};
use super::{columns, fenced};

/// How long a batch waits for its turn.
const TURN: Duration = Duration::from_millis(100);
const FINISH_FAILED: &str = "cannot finish a delivery";
const CONCLUDE_FAILED: &str = "cannot conclude a delivery";
const STANDING_FAILED: &str = "cannot see where a delivery stands";

pub(super) async fn finish(
    store: &PostgresStore,
    tx: &mut PgConnection,
    finish: &Finish<'_>,
    now: Option<Timestamp>,
) -> Result<Marked> {
    still_open(tx)?;
    let Finish { ticket, mark, result, frees_lane, next } = finish;
    let text = match frees_lane {
        true => {
            lane::lock_of(store, tx, &[ticket.number]).await?;
            include_str!("../sql/finish_lane.sql")
        }
        false => include_str!("../sql/finish.sql"),
    };
    let mark = mark.as_ref();
    let (is_mine, is_marked): (bool, bool) = sqlx::query_as(store.sql(text))
        .bind(ticket.number)
        .bind(ticket.fence)
        .bind(clock(now))
        .bind(mark.map(|mark| bounded_key(mark.tenant)))
        .bind(mark.map(|mark| mark.handler))
        .bind(mark.map(|mark| mark.key.source.as_str()))
        .bind(mark.map(|mark| mark.key.id.as_str()))
        .bind(mark.map(|mark| mark.digest.as_bytes().as_slice()))
        .bind(*result)
        .bind(next.map(|next| next.number))
        .bind(next.map(|next| next.fence))
        .fetch_one(&mut *tx)
        .await
        .map_err(failed(FINISH_FAILED))?;
    match mark {
        _ if !is_mine => Err(fenced(*ticket)),
        Some(mark) if !is_marked => marked_before(store, tx, mark).await,
        _ => Ok(Marked::First),
    }
}

pub(super) async fn finish_all(
    store: &PostgresStore,
    tx: &mut PgConnection,
    finishes: &[Finish<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<Marked>> {
    fn each<'a, T>(finishes: &[&'a Finish<'_>], column: impl Fn(&'a Mark<'_>) -> T) -> Vec<Option<T>> {
        finishes.iter().map(|finish| finish.mark.as_ref().map(&column)).collect()
    }
    still_open(tx)?;
    // Locked in order, as everywhere that several are.
    let mut sorted: Vec<&Finish<'_>> = finishes.iter().collect();
    sorted.sort_unstable_by_key(|finish| finish.ticket.number);
    let tickets: Vec<Ticket> = sorted.iter().map(|finish| finish.ticket).collect();
    let (numbers, fences) = columns(&tickets);
    let wanted =
        i64::try_from(finishes.iter().filter(|finish| finish.mark.is_some()).count()).unwrap_or(i64::MAX);
    // For the statement alone: whoever has written, commits without another turn. And not for long: a transaction is open.
    let turn = timeout(TURN, store.finishing.acquire()).await;
    let rows: Vec<Finished> = sqlx::query_as(store.sql(include_str!("../sql/finish_all.sql")))
        .bind(numbers)
        .bind(fences)
        .bind(clock(now))
        .bind(each(&sorted, |mark| bounded_key(mark.tenant)))
        .bind(each(&sorted, |mark| mark.handler))
        .bind(each(&sorted, |mark| mark.key.source.as_str()))
        .bind(each(&sorted, |mark| mark.key.id.as_str()))
        .bind(each(&sorted, |mark| mark.digest.as_bytes().as_slice()))
        .bind(sorted.iter().map(|finish| finish.result).collect::<Vec<_>>())
        .bind(wanted)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed(FINISH_FAILED))?;
    drop(turn);
    let (mine, marked) = rows.first().map_or((0, 0), |row| (row.0, row.1));
    if usize::try_from(mine) != Ok(finishes.len()) {
        return Err(Error::new(Kind::Fenced, "the lease of one of several deliveries was lost"));
    }
    if marked == wanted {
        return Ok(vec![Marked::First; finishes.len()]);
    }
    let mut new: HashSet<[String; 4]> = rows
        .into_iter()
        .filter_map(|(_, _, tenant, handler, source, id)| Some([tenant?, handler?, source?, id?]))
        .collect();
    let mut answers = Vec::with_capacity(finishes.len());
    for finish in finishes {
        answers.push(match &finish.mark {
            // Of two that share a marker, one wrote it.
            Some(mark) if !new.remove(&name(mark)) => marked_before(store, tx, mark).await?,
            _ => Marked::First,
        });
    }
    Ok(answers)
}

/// How many deliveries were finished, how many markers are new, and one of these.
type Finished = (i64, i64, Option<String>, Option<String>, Option<String>, Option<String>);

/// A marker's name as the table has it.
fn name(mark: &Mark<'_>) -> [String; 4] {
    [bounded_key(mark.tenant), mark.handler.to_owned(), mark.key.source.clone(), mark.key.id.clone()]
}

/// What the marker says that was there before.
async fn marked_before(store: &PostgresStore, tx: &mut PgConnection, mark: &Mark<'_>) -> Result<Marked> {
    let marker: Option<(Vec<u8>, Option<Vec<u8>>)> =
        sqlx::query_as(store.sql(include_str!("../sql/marked.sql")))
            .bind(bounded_key(mark.tenant))
            .bind(mark.handler)
            .bind(&mark.key.source)
            .bind(&mark.key.id)
            .fetch_optional(tx)
            .await
            .map_err(failed("cannot read the marker"))?;
    match marker {
        Some((digest, result)) if digest == mark.digest.as_bytes() => Ok(Marked::Duplicate { result }),
        Some(_) => Ok(Marked::Conflict),
        // Purged between the two statements.
        None => Err(Error::new(Kind::Contention, "the marker vanished while it was read")),
    }
}

/// What a conclusion changes of a row, as it was and as it will be.
struct Row {
    scope: String,
    handler: String,
    tenant: String,
    lane: Option<String>,
    started: bool,
    attempts: i32,
    code: Option<String>,
    reason: Option<String>,
    history: String,
    /// When it was locked.
    now: Timestamp,
}

impl FromRow<'_, PgRow> for Row {
    fn from_row(columns: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            scope: columns.try_get(0)?,
            handler: columns.try_get(1)?,
            tenant: columns.try_get(2)?,
            lane: columns.try_get(3)?,
            started: columns.try_get(4)?,
            attempts: columns.try_get(5)?,
            code: columns.try_get(6)?,
            reason: columns.try_get(7)?,
            history: columns.try_get(8)?,
            now: columns.try_get::<Time, _>(9)?.0,
        })
    }
}

impl Row {
    fn lane(&self) -> Option<Lane<'_>> {
        let Self { scope, handler, tenant, lane, .. } = self;
        Some(Lane { scope, handler, tenant, lane: lane.as_deref()? })
    }

    /// Takes a counted attempt back.
    fn uncount(&mut self) {
        self.attempts -= i32::from(self.started);
    }

    /// Adds a failed attempt to the latest ones.
    fn remember(&mut self, code: &str, reason: &str) {
        let (code, reason) = (storable(code).into_owned(), reason_text(reason));
        let mut history: Vec<Value> = serde_json::from_str(&self.history).unwrap_or_default();
        history.push(
            json!({ "attempt": self.attempts, "at": self.now.micros(), "code": code, "reason": reason }),
        );
        history.drain(..history.len().saturating_sub(HISTORY));
        self.history = Value::Array(history).to_string();
        (self.code, self.reason) = (Some(code), Some(reason));
    }
}

pub(super) async fn conclude(
    store: &PostgresStore,
    ticket: Ticket,
    fate: &Fate<'_>,
    next: Option<Ticket>,
    now: Option<Timestamp>,
) -> Result<()> {
    let is_over = !matches!(fate, Fate::Retry { .. });
    let mut tx = store.begin().await?;
    if is_over {
        lane::lock_of(store, &mut tx, &[ticket.number]).await?;
    }
    let row: Option<Row> = sqlx::query_as(store.sql(include_str!("../sql/conclude_read.sql")))
        .bind(ticket.number)
        .bind(ticket.fence)
        .bind(clock(now))
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed(CONCLUDE_FAILED))?;
    let Some(mut row) = row else {
        store.rollback(tx).await?;
        return Err(fenced(ticket));
    };
    write(store, &mut tx, (ticket, fate), &mut row).await?;
    // One that is dead may keep its lane, but only those after it.
    if is_over && let Some(lane) = row.lane() {
        lane::free(store, &mut tx, &[lane], Some(row.now)).await?;
    }
    if let Some(next) = next {
        sqlx::query(store.sql(include_str!("../sql/start_next.sql")))
            .bind(next.number)
            .bind(next.fence)
            .execute(&mut *tx)
            .await
            .map_err(failed(CONCLUDE_FAILED))?;
    }
    store.commit(tx).await
}

/// Writes the fate into the locked row.
async fn write(
    store: &PostgresStore,
    tx: &mut PgConnection,
    (ticket, fate): (Ticket, &Fate<'_>),
    row: &mut Row,
) -> Result<()> {
    let text = match *fate {
        Fate::Retry { spent, code, reason, .. } => {
            if spent {
                row.remember(code, reason);
            } else {
                row.uncount();
            }
            include_str!("../sql/conclude_retry.sql")
        }
        Fate::Dead { spent, code, reason, .. } => {
            row.remember(code, reason);
            if !spent {
                row.uncount();
            }
            include_str!("../sql/conclude_end.sql")
        }
        Fate::Duplicate => {
            sqlx::query(store.sql(include_str!("../sql/conclude_done.sql")))
                .bind(ticket.number)
                .bind(Time(row.now))
                .execute(tx)
                .await
                .map_err(failed(CONCLUDE_FAILED))?;
            return Ok(());
        }
    };
    let query = sqlx::query(store.sql(text))
        .bind(ticket.number)
        .bind(row.attempts)
        .bind(row.code.as_deref())
        .bind(row.reason.as_deref())
        .bind(row.history.as_str())
        .bind(Time(row.now));
    let query = match *fate {
        Fate::Retry { after, .. } => query.bind(span(after)),
        Fate::Dead { frees_lane, .. } => query.bind(frees_lane),
        Fate::Duplicate => query,
    };
    query.execute(tx).await.map_err(failed(CONCLUDE_FAILED))?;
    Ok(())
}

pub(super) async fn standing(store: &PostgresStore, ticket: Ticket) -> Result<Standing> {
    // The lock waits for a commit that is under way.
    let mut tx = store.begin().await?;
    let held: Option<(i64, bool)> = sqlx::query_as(store.sql(include_str!("../sql/standing.sql")))
        .bind(ticket.number)
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed(STANDING_FAILED))?;
    // A statement of its own, so that it sees that commit.
    let is_done = sqlx::query_scalar(store.sql(include_str!("../sql/standing_done.sql")))
        .bind(ticket.number)
        .bind(ticket.fence)
        .fetch_one(&mut *tx)
        .await
        .map_err(failed(STANDING_FAILED))?;
    store.rollback(tx).await?;
    Ok(match held {
        _ if is_done => Standing::Done,
        Some((fence, true)) if fence == ticket.fence => Standing::Held,
        _ => Standing::Lost,
    })
}
