//! Dead letters, and what a person does with them.

use std::time::Duration;

use oncebox_core::cloudevents::{self, Parts};
use oncebox_core::depot::Number;
use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::{BoxFuture, COUNT_CAP};
use oncebox_core::letters::Attempt;
use oncebox_core::{
    DeadLetter, Envelope, Error, Kind, LetterFilter, LetterId, Letters, Requeued, Result, Store, Timestamp,
};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row as _};

use super::depot::deposit::{self, Incoming};
use super::depot::lane::{self, Lane};
use super::error::failed;
use super::row::{Time, clock, limit, span};
use super::store::PostgresStore;

const READ_FAILED: &str = "cannot read dead letters";
const CHANGE_FAILED: &str = "cannot change a dead letter";

impl Letters for PostgresStore {
    fn letters<'s>(
        &'s self,
        filter: &'s LetterFilter,
        limit: usize,
    ) -> BoxFuture<'s, Result<Vec<DeadLetter>>> {
        Box::pin(letters(self, filter, limit))
    }

    fn letter(&self, id: LetterId) -> BoxFuture<'_, Result<Option<DeadLetter>>> {
        Box::pin(async move {
            let mut connection = self.pool().acquire().await.map_err(failed(READ_FAILED))?;
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
        Box::pin(discard(self, id, now))
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
            lane::lock_of(self, &mut tx, &[number]).await?;
            let text = include_str!("sql/letter_replay.sql");
            let is_there = revive(self, &mut tx, (text, number), now).await?;
            self.commit(tx).await?;
            Ok(is_there)
        })
    }
}

async fn letters(store: &PostgresStore, filter: &LetterFilter, rows: usize) -> Result<Vec<DeadLetter>> {
    let mut connection = store.pool().acquire().await.map_err(failed(READ_FAILED))?;
    let mut all = Vec::new();
    for kind in [LetterId::Delivery, LetterId::Received] {
        all.extend(read(store, &mut connection, kind, (None, filter), rows).await?);
    }
    all.sort_by_key(|letter| (letter.died_at, letter.id));
    all.truncate(rows);
    for letter in &mut all {
        letter.history.clear();
    }
    Ok(all)
}

async fn letter(
    store: &PostgresStore,
    connection: &mut PgConnection,
    id: LetterId,
) -> Result<Option<DeadLetter>> {
    let (kind, number) = parts(id);
    let found = read(store, connection, kind, (Some(number), &LetterFilter::default()), 1).await?;
    Ok(found.into_iter().next())
}

/// Which of the two tables, and where.
fn parts(id: LetterId) -> (fn(Number) -> LetterId, Number) {
    match id {
        LetterId::Delivery(number) => (LetterId::Delivery, number),
        LetterId::Received(number) => (LetterId::Received, number),
    }
}

async fn read(
    store: &PostgresStore,
    connection: &mut PgConnection,
    kind: fn(Number) -> LetterId,
    (number, filter): (Option<Number>, &LetterFilter),
    rows: usize,
) -> Result<Vec<DeadLetter>> {
    let (text, is_delivery) = match kind(0) {
        LetterId::Delivery(_) => (include_str!("sql/letters_delivered.sql"), true),
        LetterId::Received(_) => (include_str!("sql/letters_received.sql"), false),
    };
    let mut query = sqlx::query(store.sql(text))
        .bind(number)
        .bind(filter.handler.as_deref())
        .bind(filter.channel.as_deref())
        .bind(filter.code.as_deref())
        .bind(limit(rows));
    if is_delivery {
        query = query.bind(COUNT_CAP);
    }
    let rows = query.fetch_all(connection).await.map_err(failed(READ_FAILED))?;
    rows.iter().map(|row| dead_letter(row, kind)).collect::<Result<_, _>>().map_err(failed(READ_FAILED))
}

fn dead_letter(columns: &PgRow, kind: fn(Number) -> LetterId) -> Result<DeadLetter, sqlx::Error> {
    Ok(DeadLetter {
        id: kind(columns.try_get(0)?),
        scope: columns.try_get(1)?,
        channel: columns.try_get(2)?,
        handler: columns.try_get(3)?,
        code: columns.try_get(4)?,
        reason: columns.try_get(5)?,
        attempts: columns.try_get::<i32, _>(6)?.unsigned_abs(),
        received_at: columns.try_get::<Time, _>(7)?.0,
        died_at: columns.try_get::<Time, _>(8)?.0,
        blocks: columns.try_get(12)?,
        history: history(columns.try_get(11)?),
        envelope: envelope(columns.try_get(9)?, columns.try_get(10)?),
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

/// A dead letter that nobody else can decide about now.
struct Locked {
    too_old: bool,
    scope: String,
    channel: String,
    handler: String,
    tenant: String,
    lane: Option<String>,
}

impl FromRow<'_, PgRow> for Locked {
    fn from_row(columns: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            too_old: columns.try_get(0)?,
            scope: columns.try_get(1)?,
            channel: columns.try_get(2)?,
            handler: columns.try_get(3)?,
            tenant: columns.try_get(4)?,
            lane: columns.try_get(5)?,
        })
    }
}

impl Locked {
    fn lane(&self) -> Option<Lane<'_>> {
        let Self { scope, handler, tenant, lane, .. } = self;
        Some(Lane { scope, handler, tenant, lane: lane.as_deref()? })
    }
}

/// Locks a dead letter, and its lane before it, as everybody does.
async fn lock(
    store: &PostgresStore,
    tx: &mut PgConnection,
    id: LetterId,
    window: Option<Duration>,
    now: Option<Timestamp>,
) -> Result<Option<Locked>> {
    let text = match id {
        LetterId::Delivery(number) => {
            lane::lock_of(store, tx, &[number]).await?;
            include_str!("sql/letter_lock.sql")
        }
        LetterId::Received(_) => include_str!("sql/letter_lock_received.sql"),
    };
    sqlx::query_as(store.sql(text))
        .bind(parts(id).1)
        .bind(window.map(span))
        .bind(clock(now))
        .fetch_optional(tx)
        .await
        .map_err(failed(CHANGE_FAILED))
}

async fn requeue(
    store: &PostgresStore,
    id: LetterId,
    window: Option<Duration>,
    now: Option<Timestamp>,
) -> Result<Requeued> {
    let mut tx = store.begin().await?;
    let refused = match lock(store, &mut tx, id, window, now).await? {
        None => Some(Requeued::Missing),
        Some(locked) if locked.handler.is_empty() => Some(Requeued::NoHandler),
        Some(locked) if locked.too_old => Some(Requeued::TooOld),
        Some(_) => None,
    };
    if let Some(refused) = refused {
        store.rollback(tx).await?;
        return Ok(refused);
    }
    match id {
        LetterId::Delivery(number) => {
            let text = include_str!("sql/letter_revive.sql");
            revive(store, &mut tx, (text, number), now).await?;
        }
        LetterId::Received(number) => {
            adopt(store, &mut tx, id, now).await?;
            remove(store, &mut tx, number).await?;
        }
    }
    store.commit(tx).await?;
    Ok(Requeued::Ready)
}

/// Has a delivery run again, in its place in its lane; says whether it is there.
async fn revive(
    store: &PostgresStore,
    tx: &mut PgConnection,
    (text, number): (&'static str, Number),
    now: Option<Timestamp>,
) -> Result<bool> {
    let query = sqlx::query(store.sql(text)).bind(number);
    let revived = query.execute(&mut *tx).await.map_err(failed(CHANGE_FAILED))?;
    // Nothing else is placed: an orphan is parked as well, and stays so.
    if revived.rows_affected() > 0 {
        lane::place(store, tx, (&[number], None), now).await?;
    }
    Ok(revived.rows_affected() > 0)
}

/// Makes a delivery of a message that came in receiver mode, unless there is one.
async fn adopt(
    store: &PostgresStore,
    tx: &mut PgConnection,
    id: LetterId,
    now: Option<Timestamp>,
) -> Result<()> {
    let Some(letter) = letter(store, tx, id).await? else { return Ok(()) };
    let incoming = Incoming::new(&letter.scope, &letter.channel, &letter.envelope);
    let inserted = deposit::insert(store, tx, std::slice::from_ref(&incoming), now).await?;
    let message = match inserted.into_iter().flatten().next() {
        Some(number) => number,
        None => find(store, tx, &incoming).await?,
    };
    let share = NewShare { message, handler: &letter.handler, incoming: &incoming, lane: None };
    match deliver(store, tx, &share, now).await? {
        Some(number) => lane::place(store, tx, (&[number], None), now).await.map(drop),
        None => compare(store, tx, &share).await,
    }
}

/// The message that is stored under this identity.
async fn find(store: &PostgresStore, tx: &mut PgConnection, incoming: &Incoming<'_>) -> Result<Number> {
    let found: (Number, bool) = sqlx::query_as(store.sql(include_str!("sql/message_find.sql")))
        .bind(incoming.scope)
        .bind(incoming.channel)
        .bind(&incoming.identity.tenant)
        .bind(&incoming.identity.source)
        .bind(&incoming.identity.id)
        .bind(incoming.digest.as_bytes().as_slice())
        .fetch_one(tx)
        .await
        .map_err(failed(CHANGE_FAILED))?;
    match found {
        (number, true) => Ok(number),
        (_, false) => {
            let text = format!("the inbox has another message with the id {:?}", incoming.envelope.id);
            Err(Error::new(Kind::Conflict, text))
        }
    }
}

/// A handler's share that no deposit makes.
struct NewShare<'a> {
    message: Number,
    handler: &'a str,
    incoming: &'a Incoming<'a>,
    lane: Option<&'a str>,
}

impl NewShare<'_> {
    fn key(&self) -> MessageKey {
        let identity = &self.incoming.identity;
        MessageKey { source: identity.source.clone(), id: identity.id.clone() }
    }
}

/// Stores a share as parked; `None` if the handler has one under this key.
async fn deliver(
    store: &PostgresStore,
    tx: &mut PgConnection,
    share: &NewShare<'_>,
    now: Option<Timestamp>,
) -> Result<Option<Number>> {
    let key = share.key();
    sqlx::query_scalar(store.sql(include_str!("sql/letter_deliver.sql")))
        .bind(share.message)
        .bind(share.incoming.scope)
        .bind(share.handler)
        .bind(&share.incoming.identity.tenant)
        .bind(key.source)
        .bind(key.id)
        .bind(share.incoming.digest.as_bytes().as_slice())
        .bind(share.lane)
        .bind(clock(now))
        .fetch_optional(tx)
        .await
        .map_err(failed(CHANGE_FAILED))
}

/// Refuses a share whose handler has another body under its key.
async fn compare(store: &PostgresStore, tx: &mut PgConnection, share: &NewShare<'_>) -> Result<()> {
    let key = share.key();
    let digest: Option<Vec<u8>> = sqlx::query_scalar(store.sql(include_str!("sql/delivery_find.sql")))
        .bind(share.incoming.scope)
        .bind(share.handler)
        .bind(&share.incoming.identity.tenant)
        .bind(key.source)
        .bind(key.id)
        .fetch_optional(tx)
        .await
        .map_err(failed(CHANGE_FAILED))?;
    match digest {
        Some(digest) if digest == share.incoming.digest.as_bytes() => Ok(()),
        _ => Err(taken(share.incoming.envelope)),
    }
}

fn taken(envelope: &Envelope) -> Error {
    Error::new(Kind::Conflict, format!("the inbox has another message with the id {:?}", envelope.id))
}

async fn remove(store: &PostgresStore, tx: &mut PgConnection, number: Number) -> Result<bool> {
    let query = sqlx::query(store.sql(include_str!("sql/letter_remove.sql"))).bind(number);
    let removed = query.execute(tx).await.map_err(failed(CHANGE_FAILED))?;
    Ok(removed.rows_affected() > 0)
}

/// Ends a dead delivery.
async fn bury(
    store: &PostgresStore,
    tx: &mut PgConnection,
    (number, replaced_by): (Number, Option<Number>),
    now: Option<Timestamp>,
) -> Result<()> {
    sqlx::query(store.sql(include_str!("sql/letter_discard.sql")))
        .bind(number)
        .bind(clock(now))
        .bind(replaced_by)
        .execute(tx)
        .await
        .map_err(failed(CHANGE_FAILED))?;
    Ok(())
}

async fn discard(store: &PostgresStore, id: LetterId, now: Option<Timestamp>) -> Result<bool> {
    let mut tx = store.begin().await?;
    let Some(locked) = lock(store, &mut tx, id, None, now).await? else {
        store.rollback(tx).await?;
        return Ok(false);
    };
    match id {
        LetterId::Delivery(number) => bury(store, &mut tx, (number, None), now).await?,
        LetterId::Received(number) => drop(remove(store, &mut tx, number).await?),
    }
    lane::free(store, &mut tx, &Vec::from_iter(locked.lane()), now).await?;
    store.commit(tx).await?;
    Ok(true)
}

async fn amend(
    store: &PostgresStore,
    id: LetterId,
    edited: &Envelope,
    now: Option<Timestamp>,
) -> Result<Option<Number>> {
    let mut tx = store.begin().await?;
    let Some(locked) = lock(store, &mut tx, id, None, now).await? else {
        store.rollback(tx).await?;
        return Ok(None);
    };
    if locked.handler.is_empty() {
        store.rollback(tx).await?;
        return Err(Error::new(Kind::Invalid, "no handler was asked: there is nobody to give it to"));
    }
    let incoming = Incoming::new(&locked.scope, &locked.channel, edited);
    // It may be another's by now, and so be in another lane.
    let lane = locked.lane().map(|lane| Lane { tenant: &incoming.identity.tenant, ..lane });
    lane::lock(store, &mut tx, &Vec::from_iter(lane)).await?;
    let inserted = deposit::insert(store, &mut tx, std::slice::from_ref(&incoming), now).await?;
    let message = inserted.into_iter().flatten().next().ok_or_else(|| taken(edited))?;
    let share =
        NewShare { message, handler: &locked.handler, incoming: &incoming, lane: locked.lane.as_deref() };
    let added = deliver(store, &mut tx, &share, now).await?.ok_or_else(|| taken(edited))?;
    let stands_for = match id {
        LetterId::Delivery(number) => {
            bury(store, &mut tx, (number, Some(added)), now).await?;
            Some(number)
        }
        LetterId::Received(number) => {
            remove(store, &mut tx, number).await?;
            None
        }
    };
    lane::place(store, &mut tx, (&[added], stands_for), now).await?;
    lane::free(store, &mut tx, &Vec::from_iter(locked.lane()), now).await?;
    store.commit(tx).await?;
    Ok(Some(added))
}
