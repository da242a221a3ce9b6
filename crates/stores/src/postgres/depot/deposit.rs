//! Storing messages and their handlers' shares of them, in few statements
//! however many there are.

use std::collections::HashSet;

use oncebox_core::cloudevents;
use oncebox_core::depot::{Assigned, Assignment, Deposit, Deposited, Number, Stored, StoredPage};
use oncebox_core::digest::bounded_key;
use oncebox_core::{Digest, Envelope, Error, Kind, Result, Timestamp};
use sqlx::PgConnection;

use super::super::error::failed;
use super::super::identity::Identity;
use super::super::row::{Time, clock, limit, span, storable};
use super::super::store::PostgresStore;
use super::lane::{self, Lane};

const MESSAGE_FAILED: &str = "cannot store a message";
const SHARE_FAILED: &str = "cannot store a delivery";
const READ_FAILED: &str = "cannot read stored messages";

/// A message to be stored.
pub(in super::super) struct Incoming<'a> {
    pub(in super::super) scope: &'a str,
    pub(in super::super) channel: &'a str,
    pub(in super::super) envelope: &'a Envelope,
    pub(in super::super) identity: Identity,
    pub(in super::super) digest: Digest,
}

impl<'a> Incoming<'a> {
    pub(in super::super) fn new(scope: &'a str, channel: &'a str, envelope: &'a Envelope) -> Self {
        let digest = envelope.digest();
        Self { scope, channel, envelope, identity: Identity::of(envelope, digest), digest }
    }
}

/// One handler's share of a stored message.
struct Share<'a> {
    message: Number,
    scope: &'a str,
    tenant: &'a str,
    digest: Digest,
    time: Option<Timestamp>,
    lane: Option<String>,
    assignment: &'a Assignment<'a>,
}

impl Share<'_> {
    fn lane(&self) -> Option<Lane<'_>> {
        let lane = self.lane.as_deref()?;
        Some(Lane { scope: self.scope, handler: self.assignment.handler, tenant: self.tenant, lane })
    }

    /// Whether it may be born dead and then keep nobody back.
    fn may_leave_its_lane(&self) -> bool {
        let Assignment { refused, window, frees_lane, .. } = self.assignment;
        let may_be_dead = refused.is_some() || (window.is_some() && self.time.is_some());
        self.lane.is_some() && *frees_lane && may_be_dead
    }
}

pub(super) async fn deposit(
    store: &PostgresStore,
    tx: &mut PgConnection,
    deposits: &[Deposit<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<Deposited>> {
    if deposits.is_empty() {
        return Ok(Vec::new());
    }
    let incoming: Vec<Incoming<'_>> =
        deposits.iter().map(|it| Incoming::new(it.scope, it.channel, it.envelope)).collect();
    // Nobody knows yet which messages are new, so the lanes of all of them are locked.
    let of_message = |message: Number, (it, deposit)| shares(message, it, deposit);
    let pairs = || incoming.iter().zip(deposits);
    let all: Vec<Share<'_>> = pairs().flat_map(|pair| of_message(0, pair)).collect();
    lane::lock(store, tx, &lanes(&all)).await?;

    let numbers = insert(store, tx, &incoming, now).await?;
    let stored = pairs().zip(&numbers).filter_map(|(pair, number)| Some((pair, (*number)?)));
    let new: Vec<Share<'_>> = stored.flat_map(|(pair, number)| of_message(number, pair)).collect();
    let mut assigned = give(store, tx, &new, now).await?.into_iter();
    let old: Vec<&Incoming<'_>> =
        incoming.iter().zip(&numbers).filter_map(|(it, number)| number.is_none().then_some(it)).collect();
    let mut known = known(store, tx, &old).await?.into_iter();

    let answer = |(deposit, number): (&Deposit<'_>, Option<Number>)| match number {
        Some(number) => {
            let assigned = assigned.by_ref().take(deposit.assignments.len()).collect();
            Deposited::Stored { number, assigned }
        }
        None if known.next() == Some(true) => Deposited::Duplicate,
        None => Deposited::Conflict,
    };
    Ok(deposits.iter().zip(numbers).map(answer).collect())
}

fn shares<'a>(
    message: Number,
    incoming: &'a Incoming<'a>,
    deposit: &'a Deposit<'a>,
) -> impl Iterator<Item = Share<'a>> {
    deposit.assignments.iter().map(move |assignment| Share {
        message,
        scope: deposit.scope,
        tenant: &incoming.identity.tenant,
        digest: incoming.digest,
        time: deposit.envelope.time,
        lane: assignment.lane.map(bounded_key),
        assignment,
    })
}

fn lanes<'a>(shares: &'a [Share<'_>]) -> Vec<Lane<'a>> {
    shares.iter().filter_map(Share::lane).collect()
}

/// Stores the messages that are new; answers with their numbers.
pub(in super::super) async fn insert(
    store: &PostgresStore,
    tx: &mut PgConnection,
    incoming: &[Incoming<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<Option<Number>>> {
    fn each<'a, T>(incoming: &'a [Incoming<'_>], column: impl Fn(&'a Incoming<'_>) -> T) -> Vec<T> {
        incoming.iter().map(column).collect()
    }
    let given: Vec<Number> = sqlx::query_scalar(store.sql(include_str!("../sql/deposit_messages.sql")))
        .bind(each(incoming, |it| it.scope))
        .bind(each(incoming, |it| it.channel))
        .bind(each(incoming, |it| it.identity.tenant.as_str()))
        .bind(each(incoming, |it| it.identity.source.as_str()))
        .bind(each(incoming, |it| it.identity.id.as_str()))
        .bind(each(incoming, |it| storable(&it.envelope.kind)))
        .bind(each(incoming, |it| it.digest.as_bytes().as_slice()))
        .bind(each(incoming, |it| cloudevents::to_attributes(it.envelope).to_string()))
        .bind(each(incoming, |it| it.envelope.payload.as_slice()))
        .bind(clock(now))
        .fetch_all(&mut *tx)
        .await
        .map_err(failed(MESSAGE_FAILED))?;
    if given.len() == incoming.len() {
        // They come back in the order of the batch.
        return Ok(given.into_iter().map(Some).collect());
    }
    let numbers: Vec<Option<Number>> =
        sqlx::query_scalar(store.sql(include_str!("../sql/deposit_numbers.sql")))
            .bind(each(incoming, |it| it.scope))
            .bind(each(incoming, |it| it.channel))
            .bind(each(incoming, |it| it.identity.tenant.as_str()))
            .bind(each(incoming, |it| it.identity.source.as_str()))
            .bind(each(incoming, |it| it.identity.id.as_str()))
            .bind(given)
            .fetch_all(tx)
            .await
            .map_err(failed(MESSAGE_FAILED))?;
    Ok(first_of_each(numbers))
}

/// Of two equal ones in a batch, the first is new.
fn first_of_each(mut numbers: Vec<Option<Number>>) -> Vec<Option<Number>> {
    let mut seen = HashSet::new();
    for number in &mut numbers {
        *number = number.filter(|number| seen.insert(*number));
    }
    numbers
}

/// Whether each message was stored before with the same body.
async fn known(store: &PostgresStore, tx: &mut PgConnection, old: &[&Incoming<'_>]) -> Result<Vec<bool>> {
    if old.is_empty() {
        return Ok(Vec::new());
    }
    let each = |column: fn(&Incoming<'_>) -> String| old.iter().map(|it| column(it)).collect::<Vec<_>>();
    let digests: Vec<Option<Vec<u8>>> =
        sqlx::query_scalar(store.sql(include_str!("../sql/deposit_known.sql")))
            .bind(each(|it| it.scope.to_owned()))
            .bind(each(|it| it.channel.to_owned()))
            .bind(each(|it| it.identity.tenant.clone()))
            .bind(each(|it| it.identity.source.clone()))
            .bind(each(|it| it.identity.id.clone()))
            .fetch_all(tx)
            .await
            .map_err(failed(MESSAGE_FAILED))?;
    old.iter().zip(digests).map(|(it, digest)| is_same(it.digest, digest)).collect()
}

fn is_same(digest: Digest, found: Option<Vec<u8>>) -> Result<bool> {
    match found {
        Some(found) => Ok(found == digest.as_bytes()),
        // Purged between the two statements.
        None => Err(Error::new(Kind::Contention, "a message vanished while it was compared")),
    }
}

/// Stores the shares that are new. Their lanes are locked.
async fn give(
    store: &PostgresStore,
    tx: &mut PgConnection,
    shares: &[Share<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<Assigned>> {
    if shares.is_empty() {
        return Ok(Vec::new());
    }
    let given = insert_shares(store, tx, shares, now).await?;
    let are_all_new = given.len() == shares.len();
    if !are_all_new || shares.iter().any(Share::may_leave_its_lane) {
        // One that was counted on to go first may have been among those left out.
        lane::free(store, tx, &lanes(shares), now).await?;
    }
    if are_all_new {
        return Ok(vec![Assigned::New; shares.len()]);
    }
    let is_new = are_given(store, tx, shares, given).await?;
    let left_out: Vec<&Share<'_>> =
        shares.iter().zip(&is_new).filter_map(|(share, is_new)| (!is_new).then_some(share)).collect();
    let mut rivals = rivals(store, tx, &left_out).await?.into_iter();
    let answer = |is_new| match is_new {
        true => Assigned::New,
        false if rivals.next() == Some(true) => Assigned::Duplicate,
        false => Assigned::Conflict,
    };
    Ok(is_new.into_iter().map(answer).collect())
}

async fn insert_shares(
    store: &PostgresStore,
    tx: &mut PgConnection,
    shares: &[Share<'_>],
    now: Option<Timestamp>,
) -> Result<Vec<Number>> {
    fn each<'a, T>(shares: &'a [Share<'_>], column: impl Fn(&'a Share<'_>) -> T) -> Vec<T> {
        shares.iter().map(column).collect()
    }
    let mut lanes = HashSet::new();
    let follows: Vec<bool> =
        shares.iter().map(|share| share.lane().is_some_and(|lane| !lanes.insert(lane))).collect();
    sqlx::query_scalar(store.sql(include_str!("../sql/deposit_deliveries.sql")))
        .bind(each(shares, |share| share.message))
        .bind(each(shares, |share| share.scope))
        .bind(each(shares, |share| share.assignment.handler))
        .bind(each(shares, |share| share.assignment.marker))
        .bind(each(shares, |share| share.tenant))
        .bind(each(shares, |share| share.assignment.key.source.as_str()))
        .bind(each(shares, |share| share.assignment.key.id.as_str()))
        .bind(each(shares, |share| share.digest.as_bytes().as_slice()))
        .bind(each(shares, |share| share.lane.as_deref()))
        .bind(each(shares, |share| share.time.map(Time)))
        .bind(each(shares, |share| share.assignment.window.map(span)))
        .bind(each(shares, |share| share.assignment.refused.map(|(code, _)| storable(code))))
        .bind(each(shares, |share| {
            share.assignment.refused.map(|(_, reason)| oncebox_core::depot::reason_text(reason))
        }))
        .bind(clock(now))
        .bind(follows)
        .bind(each(shares, |share| share.assignment.frees_lane))
        .fetch_all(tx)
        .await
        .map_err(failed(SHARE_FAILED))
}

/// Which shares got one of the numbers that were just given out.
async fn are_given(
    store: &PostgresStore,
    tx: &mut PgConnection,
    shares: &[Share<'_>],
    given: Vec<Number>,
) -> Result<Vec<bool>> {
    fn each<'a, T>(shares: &'a [Share<'_>], column: impl Fn(&'a Share<'_>) -> T) -> Vec<T> {
        shares.iter().map(column).collect()
    }
    let numbers: Vec<Option<Number>> =
        sqlx::query_scalar(store.sql(include_str!("../sql/deposit_given.sql")))
            .bind(each(shares, |share| share.message))
            .bind(each(shares, |share| share.scope))
            .bind(each(shares, |share| share.assignment.handler))
            .bind(each(shares, |share| share.tenant))
            .bind(each(shares, |share| share.assignment.key.source.as_str()))
            .bind(each(shares, |share| share.assignment.key.id.as_str()))
            .bind(given)
            .fetch_all(tx)
            .await
            .map_err(failed(SHARE_FAILED))?;
    Ok(first_of_each(numbers).into_iter().map(|number| number.is_some()).collect())
}

/// Whether what stands in each share's way has the same body.
async fn rivals(store: &PostgresStore, tx: &mut PgConnection, shares: &[&Share<'_>]) -> Result<Vec<bool>> {
    fn each<'a>(shares: &[&'a Share<'_>], column: impl Fn(&'a Share<'_>) -> &'a str) -> Vec<&'a str> {
        shares.iter().map(|share| column(share)).collect()
    }
    let digests: Vec<Option<Vec<u8>>> =
        sqlx::query_scalar(store.sql(include_str!("../sql/deposit_rivals.sql")))
            .bind(each(shares, |share| share.scope))
            .bind(each(shares, |share| share.assignment.handler))
            .bind(each(shares, |share| share.assignment.marker))
            .bind(each(shares, |share| share.tenant))
            .bind(each(shares, |share| share.assignment.key.source.as_str()))
            .bind(each(shares, |share| share.assignment.key.id.as_str()))
            .fetch_all(tx)
            .await
            .map_err(failed(SHARE_FAILED))?;
    shares.iter().zip(digests).map(|(share, digest)| is_same(share.digest, digest)).collect()
}

pub(super) async fn stored(store: &PostgresStore, page: &StoredPage<'_>) -> Result<Vec<Stored>> {
    let rows: Vec<(Number, String, Vec<u8>)> =
        sqlx::query_as(store.sql(include_str!("../sql/message_page.sql")))
            .bind(page.scope)
            .bind(page.channel)
            .bind(storable(page.kind))
            .bind(Time(page.since))
            .bind(page.after)
            .bind(limit(page.limit))
            .fetch_all(store.pool())
            .await
            .map_err(failed(READ_FAILED))?;
    let stored = |(number, attributes, payload): (Number, String, Vec<u8>)| {
        Ok(Stored { number, envelope: cloudevents::from_attributes(&attributes, payload)? })
    };
    rows.into_iter().map(stored).collect()
}

pub(super) async fn assign(
    store: &PostgresStore,
    tx: &mut PgConnection,
    message: Number,
    assignment: &Assignment<'_>,
    now: Option<Timestamp>,
) -> Result<Assigned> {
    let row: Option<(String, String, Vec<u8>, String)> =
        sqlx::query_as(store.sql(include_str!("../sql/message_read.sql")))
            .bind(message)
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed(READ_FAILED))?;
    let Some((scope, tenant, payload, attributes)) = row else {
        return Err(Error::new(Kind::Invalid, format!("there is no message {message}")));
    };
    let share = Share {
        message,
        scope: &scope,
        tenant: &tenant,
        digest: Digest::of(&payload),
        time: cloudevents::from_attributes(&attributes, Vec::new())?.time,
        lane: assignment.lane.map(bounded_key),
        assignment,
    };
    let share = std::slice::from_ref(&share);
    lane::lock(store, tx, &lanes(share)).await?;
    let assigned = give(store, tx, share, now).await?;
    Ok(assigned.first().copied().unwrap_or(Assigned::Duplicate))
}
