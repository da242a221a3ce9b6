//! How messages and their deliveries get into the durable inbox.

use oncebox_core::cloudevents;
use oncebox_core::depot::{
    Assigned, Assignment, Deposit, Deposited, Number, Stored, StoredPage, reason_text,
};
use oncebox_core::handler::MessageKey;
use oncebox_core::{Digest, Envelope, Error, Kind, Result, Timestamp};
use sqlx::sqlite::SqliteConnection;

use super::super::error::failed;
use super::super::identity::Identity;
use super::super::row::count;
use super::super::{SqliteStore, relay};

const DEPOSIT: &str = "cannot store a message";
const DELIVERY: &str = "cannot store a delivery";
const READ: &str = "cannot read a stored message";
const TOO_OLD: (&str, &str) = ("too_old", "the message is older than what the markers can prove");

/// A delivery to be added.
pub(in super::super) struct Share<'a> {
    pub(in super::super) message: Number,
    pub(in super::super) scope: &'a str,
    pub(in super::super) tenant: &'a str,
    pub(in super::super) handler: &'a str,
    /// The handler's name in markers, if one of them would make this a duplicate.
    pub(in super::super) marker: Option<&'a str>,
    pub(in super::super) key: &'a MessageKey,
    pub(in super::super) digest: Digest,
    pub(in super::super) lane: Option<&'a str>,
    /// Code and reason if it is born dead.
    pub(in super::super) dead: Option<(&'a str, &'a str)>,
}

pub(super) async fn deposit(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    deposits: &[Deposit<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<Deposited>> {
    let now = relay::clock(store, tx, now).await?;
    let mut answers = Vec::with_capacity(deposits.len());
    for deposit in deposits {
        answers.push(deposit_one(store, tx, deposit, now).await?);
    }
    Ok(answers)
}

async fn deposit_one(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    deposit: &Deposit<'_>,
    now: Timestamp,
) -> Result<Deposited> {
    let envelope = deposit.envelope;
    let digest = envelope.digest();
    let identity = Identity::of(deposit.scope, deposit.channel, envelope, digest);
    let Some(number) = add_message(store, tx, (&identity, envelope, digest), now).await? else {
        let found = find_message(store, tx, &identity).await?;
        let is_same = found.is_some_and(|(_, known)| known == digest.as_bytes());
        return Ok(if is_same { Deposited::Duplicate } else { Deposited::Conflict });
    };
    let mut assigned = Vec::with_capacity(deposit.assignments.len());
    for assignment in &deposit.assignments {
        let share = share((deposit.scope, number, envelope), digest, assignment, now);
        assigned.push(add_share(store, tx, &share, now).await?);
    }
    Ok(Deposited::Stored { number, assigned })
}

pub(super) async fn assign(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    message: Number,
    assignment: &Assignment<'_>,
    now: Option<Timestamp>,
) -> Result<Assigned> {
    let now = relay::clock(store, tx, now).await?;
    let found: Option<(String, String, Vec<u8>)> =
        sqlx::query_as(store.sql(include_str!("../sql/message_read.sql")))
            .bind(message)
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed(READ))?;
    let Some((scope, attributes, payload)) = found else {
        return Err(Error::new(Kind::Invalid, format!("there is no stored message {message}")));
    };
    let envelope = cloudevents::from_attributes(&attributes, payload)?;
    let digest = envelope.digest();
    let share = share((&scope, message, &envelope), digest, assignment, now);
    add_share(store, tx, &share, now).await
}

pub(super) async fn stored(store: &SqliteStore, page: &StoredPage<'_>) -> Result<Vec<Stored>> {
    let rows: Vec<(Number, String, Vec<u8>)> =
        sqlx::query_as(store.sql(include_str!("../sql/message_page.sql")))
            .bind(page.scope)
            .bind(page.channel)
            .bind(page.kind)
            .bind(page.since.micros())
            .bind(page.after)
            .bind(count(page.limit))
            .fetch_all(store.pool())
            .await
            .map_err(failed(READ))?;
    rows.into_iter()
        .map(|(number, attributes, payload)| {
            Ok(Stored { number, envelope: cloudevents::from_attributes(&attributes, payload)? })
        })
        .collect()
}

fn share<'a>(
    (scope, message, envelope): (&'a str, Number, &'a Envelope),
    digest: Digest,
    assignment: &'a Assignment<'_>,
    now: Timestamp,
) -> Share<'a> {
    let is_too_old = |window| envelope.time.is_some_and(|time| time < now.minus(window));
    let too_old = assignment.window.filter(|window| is_too_old(*window)).map(|_| TOO_OLD);
    let dead = assignment.refused.or(too_old);
    Share {
        message,
        scope,
        tenant: &envelope.tenant,
        handler: assignment.handler,
        marker: Some(assignment.marker),
        key: &assignment.key,
        digest,
        lane: assignment.lane.filter(|_| dead.is_none() || !assignment.frees_lane),
        dead,
    }
}

/// Adds a delivery, or tells what the handler knows of the message.
pub(in super::super) async fn add_share(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    share: &Share<'_>,
    now: Timestamp,
) -> Result<Assigned> {
    if add_delivery(store, tx, share, now).await?.is_some() {
        return Ok(Assigned::New);
    }
    let known: Vec<u8> = sqlx::query_scalar(store.sql(include_str!("../sql/delivery_find.sql")))
        .bind(share.scope)
        .bind(share.handler)
        .bind(share.tenant)
        .bind(share.key.source.as_str())
        .bind(share.key.id.as_str())
        .bind(share.marker)
        .fetch_one(tx)
        .await
        .map_err(failed(DELIVERY))?;
    Ok(if known == share.digest.as_bytes() { Assigned::Duplicate } else { Assigned::Conflict })
}

/// The number of the new delivery; none if the handler knows the message.
pub(in super::super) async fn add_delivery(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    share: &Share<'_>,
    now: Timestamp,
) -> Result<Option<Number>> {
    sqlx::query_scalar(store.sql(include_str!("../sql/delivery_add.sql")))
        .bind(share.message)
        .bind(share.scope)
        .bind(share.handler)
        .bind(share.tenant)
        .bind(share.key.source.as_str())
        .bind(share.key.id.as_str())
        .bind(share.digest.as_bytes().as_slice())
        .bind(share.lane)
        .bind(share.dead.map(|(code, _)| code))
        .bind(share.dead.map(|(_, reason)| reason_text(reason)))
        .bind(now.micros())
        .bind(share.marker)
        .fetch_optional(tx)
        .await
        .map_err(failed(DELIVERY))
}

/// The number of the new message; none if its identity is taken.
pub(in super::super) async fn add_message(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    (identity, envelope, digest): (&Identity<'_>, &Envelope, Digest),
    now: Timestamp,
) -> Result<Option<Number>> {
    sqlx::query_scalar(store.sql(include_str!("../sql/message_add.sql")))
        .bind(identity.scope)
        .bind(identity.channel)
        .bind(identity.tenant)
        .bind(identity.key.source.as_str())
        .bind(identity.key.id.as_str())
        .bind(envelope.kind.as_str())
        .bind(digest.as_bytes().as_slice())
        .bind(now.micros())
        .bind(cloudevents::to_attributes(envelope).to_string())
        .bind(envelope.payload.as_slice())
        .fetch_optional(tx)
        .await
        .map_err(failed(DEPOSIT))
}

/// The message of this identity, with the digest of its body.
pub(in super::super) async fn find_message(
    store: &SqliteStore,
    tx: &mut SqliteConnection,
    identity: &Identity<'_>,
) -> Result<Option<(Number, Vec<u8>)>> {
    sqlx::query_as(store.sql(include_str!("../sql/message_find.sql")))
        .bind(identity.scope)
        .bind(identity.channel)
        .bind(identity.tenant)
        .bind(identity.key.source.as_str())
        .bind(identity.key.id.as_str())
        .fetch_optional(tx)
        .await
        .map_err(failed(DEPOSIT))
}
