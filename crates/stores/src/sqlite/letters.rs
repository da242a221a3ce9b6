//! Dead letters: deliveries of the durable inbox that died, and messages that
//! an inbox in receiver mode buried.

use std::time::Duration;

use oncebox_core::cloudevents::{self, Parts};
use oncebox_core::depot::{Assigned, Number};
use oncebox_core::inspect::{BoxFuture, COUNT_CAP};
use oncebox_core::letters::{Attempt, DeadLetter, LetterFilter, LetterId, Letters, Requeued};
use oncebox_core::{Envelope, Error, Kind, Result, Store, Timestamp};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::depot::deposit::{Share, add_delivery, add_message, add_share, find_message};
use super::depot::lane::{self, Left};
use super::error::failed;
use super::identity::Identity;
use super::row::count;
use super::{SqliteStore, relay};

const READ: &str = "cannot read dead letters";
const CHANGE: &str = "cannot change a dead letter";

impl Letters for SqliteStore {
    fn letters<'s>(
        &'s self,
        filter: &'s LetterFilter,
        limit: usize,
    ) -> BoxFuture<'s, Result<Vec<DeadLetter>>> {
        Box::pin(letters(self, filter, limit))
    }

    fn letter(&self, id: LetterId) -> BoxFuture<'_, Result<Option<DeadLetter>>> {
        Box::pin(async move {
            let mut connection = self.pool().acquire().await.map_err(failed(READ))?;
            letter(self, &mut connection, id).await
        })
    }

    fn requeue_letter(
        &self,
        id: LetterId,
        window: Option<Duration>,
        now: Option<Timestamp>,
    ) -> BoxFuture<'_, Result<Requeued>> {
        Box::pin(requeue(self, id, window, now))
    }

    fn discard_letter(&self, id: LetterId, now: Option<Timestamp>) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let mut tx = self.begin().await?;
            let now = relay::clock(self, &mut tx, now).await?;
            let is_gone = match id {
                LetterId::Received(number) => remove(self, &mut tx, number).await?,
                LetterId::Delivery(number) => match discard(self, &mut tx, number, now).await? {
                    Some(left) => {
                        lane::free(self, &mut tx, &left, now).await?;
                        true
                    }
                    None => false,
                },
            };
            self.commit(tx).await?;
            Ok(is_gone)
        })
    }

    fn amend_letter<'s>(
        &'s self,
        id: LetterId,
        edited: &'s Envelope,
        now: Option<Timestamp>,
    ) -> BoxFuture<'s, Result<Option<Number>>> {
        Box::pin(amend(self, id, edited, now))
    }

    fn replay_delivery(&self, number: Number, now: Option<Timestamp>) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let mut tx = self.begin().await?;
            let now = relay::clock(self, &mut tx, now).await?;
            let done = sqlx::query(self.sql(include_str!("sql/letter_replay.sql")))
                .bind(number)
                .execute(&mut *tx)
                .await
                .map_err(failed("cannot replay a delivery"))?;
            if done.rows_affected() > 0 {
                lane::place(self, &mut tx, (number, number), now).await?;
            }
            self.commit(tx).await?;
            Ok(done.rows_affected() > 0)
        })
    }
}

async fn letters(store: &SqliteStore, filter: &LetterFilter, limit: usize) -> Result<Vec<DeadLetter>> {
    // One read transaction, so that no letter is seen on both sides, or on none.
    let mut tx = store.pool().begin().await.map_err(failed(READ))?;
    let mut all: Vec<DeadLetter> = Vec::new();
    for kind in [LetterId::Delivery, LetterId::Received] {
        let sql = match kind(0) {
            LetterId::Delivery(_) => include_str!("sql/letters_delivered.sql"),
            LetterId::Received(_) => include_str!("sql/letters_received.sql"),
        };
        let rows = sqlx::query(store.sql(sql))
            .bind(filter.handler.as_deref())
            .bind(filter.channel.as_deref())
            .bind(filter.code.as_deref())
            .bind(count(limit))
            .bind(COUNT_CAP)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed(READ))?;
        for row in &rows {
            all.push(dead_letter(row, kind).map_err(failed(READ))?);
        }
    }
    all.sort_by_key(|letter| (letter.died_at, letter.id));
    all.truncate(limit);
    Ok(all)
}

async fn letter(
    store: &SqliteStore,
    connection: &mut SqliteConnection,
    id: LetterId,
) -> Result<Option<DeadLetter>> {
    let (sql, number, kind): (_, _, fn(Number) -> LetterId) = match id {
        LetterId::Delivery(number) => (include_str!("sql/letter_delivered.sql"), number, LetterId::Delivery),
        LetterId::Received(number) => (include_str!("sql/letter_received.sql"), number, LetterId::Received),
    };
    let row = sqlx::query(store.sql(sql))
        .bind(number)
        .bind(COUNT_CAP)
        .fetch_optional(connection)
        .await
        .map_err(failed(READ))?;
    row.map(|row| dead_letter(&row, kind)).transpose().map_err(failed(READ))
}

fn dead_letter(row: &SqliteRow, kind: fn(Number) -> LetterId) -> sqlx::Result<DeadLetter> {
    Ok(DeadLetter {
        id: kind(row.try_get(0)?),
        scope: row.try_get(1)?,
        channel: row.try_get(2)?,
        handler: row.try_get(3)?,
        code: row.try_get(4)?,
        reason: row.try_get(5)?,
        attempts: row.try_get(6)?,
        received_at: Timestamp::from_micros(row.try_get(7)?),
        died_at: Timestamp::from_micros(row.try_get(8)?),
        blocks: row.try_get(9)?,
        history: history(row.try_get(10)?),
        envelope: envelope(row.try_get(11)?, row.try_get(12)?),
    })
}

/// A message that cannot be read is shown as far as it goes: that may be why it is dead.
fn envelope(attributes: &str, payload: Vec<u8>) -> Envelope {
    cloudevents::from_attributes(attributes, payload.clone())
        .unwrap_or_else(|_| cloudevents::bare(Parts { body: payload, ..Parts::default() }))
}

fn history(text: &str) -> Vec<Attempt> {
    let list: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    let attempt = |entry: &Value| {
        let text = |name| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = |name| entry.get(name).and_then(Value::as_i64).unwrap_or_default();
        Attempt {
            attempt: u32::try_from(number("attempt")).unwrap_or_default(),
            at: Timestamp::from_micros(number("at")),
            code: text("code"),
            reason: text("reason"),
        }
    };
    list.iter().map(attempt).collect()
}

async fn requeue(
    store: &SqliteStore,
    id: LetterId,
    window: Option<Duration>,
    now: Option<Timestamp>,
) -> Result<Requeued> {
    let mut tx = store.begin().await?;
    let now = relay::clock(store, &mut tx, now).await?;
    let Some(letter) = letter(store, &mut tx, id).await? else { return Ok(Requeued::Missing) };
    if letter.handler.is_empty() {
        return Ok(Requeued::NoHandler);
    }
    if window.is_some_and(|window| letter.received_at < now.minus(window)) {
        return Ok(Requeued::TooOld);
    }
    match id {
        LetterId::Delivery(number) => {
            sqlx::query(store.sql(include_str!("sql/letter_revive.sql")))
                .bind(number)
                .execute(&mut *tx)
                .await
                .map_err(failed(CHANGE))?;
            lane::place(store, &mut tx, (number, number), now).await?;
        }
        LetterId::Received(number) => {
            adopt(store, &mut tx, &letter, now).await?;
            remove(store, &mut tx, number).await?;
        }
    }
    store.commit(tx).await?;
    Ok(Requeued::Ready)
}

/// Makes a delivery of a message that came in receiver mode.
async fn adopt(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    letter: &DeadLetter,
    now: Timestamp,
) -> Result<()> {
    let (envelope, digest) = (&letter.envelope, letter.envelope.digest());
    let identity = Identity::of(&letter.scope, &letter.channel, envelope, digest);
    let message = match find_message(store, tx, &identity).await? {
        Some((number, known)) if known == digest.as_bytes() => Some(number),
        // Another body has the id.
        Some(_) => None,
        None => add_message(store, tx, (&identity, envelope, digest), now).await?,
    };
    let share = Share {
        message: message.ok_or_else(|| taken(envelope))?,
        scope: &letter.scope,
        tenant: &envelope.tenant,
        handler: &letter.handler,
        marker: None,
        key: &identity.key,
        digest,
        lane: None,
        dead: None,
    };
    match add_share(store, tx, &share, now).await? {
        Assigned::New | Assigned::Duplicate => Ok(()),
        Assigned::Conflict => Err(taken(envelope)),
    }
}

async fn amend(
    store: &SqliteStore,
    id: LetterId,
    edited: &Envelope,
    now: Option<Timestamp>,
) -> Result<Option<Number>> {
    let mut tx = store.begin().await?;
    let now = relay::clock(store, &mut tx, now).await?;
    let Some(old) = letter(store, &mut tx, id).await? else { return Ok(None) };
    if old.handler.is_empty() {
        return Err(Error::new(Kind::Invalid, "no handler was asked: there is nobody to give it to"));
    }
    let left = match id {
        LetterId::Delivery(number) => discard(store, &mut tx, number, now).await?,
        LetterId::Received(number) => {
            remove(store, &mut tx, number).await?;
            None
        }
    };
    let digest = edited.digest();
    let identity = Identity::of(&old.scope, &old.channel, edited, digest);
    let message = add_message(store, &mut tx, (&identity, edited, digest), now).await?;
    let share = Share {
        message: message.ok_or_else(|| taken(edited))?,
        scope: &old.scope,
        tenant: &edited.tenant,
        handler: &old.handler,
        marker: None,
        key: &identity.key,
        digest,
        lane: left.as_ref().and_then(|left| left.lane.as_deref()),
        dead: None,
    };
    let added = add_delivery(store, &mut tx, &share, now).await?.ok_or_else(|| taken(edited))?;
    if let (LetterId::Delivery(number), Some(left)) = (id, &left) {
        replace(store, &mut tx, (number, added), now).await?;
        // Frees what waits only if the edited one has gone to another lane.
        lane::free(store, &mut tx, left, now).await?;
    }
    store.commit(tx).await?;
    Ok(Some(added))
}

/// Lets the new one run in the place of the old: those behind it wait on.
async fn replace(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    (old, new): (Number, Number),
    now: Timestamp,
) -> Result<()> {
    lane::place(store, tx, (new, old), now).await?;
    sqlx::query(store.sql(include_str!("sql/letter_replace.sql")))
        .bind(old)
        .bind(new)
        .execute(tx)
        .await
        .map_err(failed(CHANGE))?;
    Ok(())
}

async fn discard(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    number: Number,
    now: Timestamp,
) -> Result<Option<Left>> {
    sqlx::query_as(store.sql(include_str!("sql/letter_discard.sql")))
        .bind(number)
        .bind(now.micros())
        .fetch_optional(tx)
        .await
        .map_err(failed(CHANGE))
}

async fn remove(store: &SqliteStore, tx: &mut SqliteConnection, number: Number) -> Result<bool> {
    let done = sqlx::query(store.sql(include_str!("sql/letter_remove.sql")))
        .bind(number)
        .execute(tx)
        .await
        .map_err(failed(CHANGE))?;
    Ok(done.rows_affected() > 0)
}

fn taken(envelope: &Envelope) -> Error {
    Error::new(Kind::Conflict, format!("the inbox has another message with the id {:?}", envelope.id))
}
