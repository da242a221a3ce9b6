//! Requests that are claimed in their handler's transaction, in as few round
//! trips as can be: one begins it and asks for the key's lock, one looks, and
//! one seals and commits.
//!
//! No row tells others that the request runs: the lock does, and it ends with
//! the transaction, however that ends. So a request writes one row instead of
//! two versions of it.

use std::fmt::Write as _;

use oncebox_core::gate::{
    Admission, AdmitRequest, Claiming, OnDoubt, OnMismatch, ReceiptKey, Receipts as _, Reply,
};
use oncebox_core::{Result, Store as _, Timestamp};
use oncebox_flow::Shield;
use sqlx::postgres::PgRow;
use sqlx::{
    AssertSqlSafe, Executor as _, FromRow, PgConnection, Postgres, Row as _, SqlSafeStr as _, SqlStr,
};

use super::error::{commit_and_begin_failed, failed, fenced_or};
use super::receipts::{Found, unseen};
use super::row::{clock, span};
use super::store::{PostgresStore, still_open};

/// The most bytes of a reply that are sent as text along with COMMIT. Text is
/// twice as long as the bytes, and the server reads it before it does anything.
const INLINE: usize = 8 << 10;
const KEEP: &str = include_str!("sql/receipt_keep.sql");

type Begun = sqlx::Transaction<'static, Postgres>;

/// What is under a key, and whether it is ours.
struct Looked {
    has_key: bool,
    found: Option<Found>,
}

impl FromRow<'_, PgRow> for Looked {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let state: Option<&str> = row.try_get("state")?;
        let found = state.is_some().then(|| Found::from_row(row)).transpose()?;
        Ok(Self { has_key: row.try_get("has_key")?, found })
    }
}

impl PostgresStore {
    pub(super) async fn claim_key(
        &self,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Claiming<Begun>> {
        let mut begun = self.begin_with(self.begin_and_lock(request)).await?;
        let Looked { has_key, found } = self.look(&mut begun, request, now).await?;
        match found {
            None if has_key => Ok(Claiming::Begun(begun)),
            Some(found) if !found.free => {
                // What it is told was committed before; the connection rolls back on its way to the pool.
                drop(begun);
                let told = found.told(request)?;
                self.slide(self.pool(), request, &told, now).await?;
                Ok(Claiming::Told(told))
            }
            // Whoever left it may still wake up, and finds it taken by a row, as if it were taken outside.
            Some(_) if has_key => Ok(match self.admit_in(&mut begun, request, now).await? {
                Admission::Proceed(_) => Claiming::Begun(begun),
                told => Claiming::Told(told),
            }),
            None | Some(_) => Ok(Claiming::Told(unseen(request))),
        }
    }

    /// BEGIN with the lock of this key.
    fn begin_and_lock(&self, request: &AdmitRequest) -> SqlStr {
        let values = [number(place(&request.key)), number(request.token)];
        let lock = written(include_str!("sql/receipt_lock.sql"), &values);
        let text = format!("{}; {}", self.begin_text(), self.adapted(&lock));
        // Two numbers are all that is not written here.
        AssertSqlSafe(text).into_sql_str()
    }

    async fn look(
        &self,
        on: &mut PgConnection,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Looked> {
        sqlx::query_as(self.sql(include_str!("sql/receipt_claim.sql")))
            .bind(request.key.scope)
            .bind(request.key.key)
            .bind(request.fingerprint.as_bytes())
            .bind(clock(now))
            .bind(request.on_doubt == OnDoubt::Retry)
            .bind(request.on_mismatch == OnMismatch::Replace)
            .bind(request.token)
            .fetch_one(on)
            .await
            .map_err(failed("cannot claim a key"))
    }

    pub(super) async fn keep_and_commit(
        &self,
        mut begun: Begun,
        request: &AdmitRequest,
        reply: &Reply,
        now: Option<Timestamp>,
    ) -> Result<()> {
        still_open(&begun)?;
        let head = reply.head();
        if head.len() + reply.body.as_ref().map_or(0, Vec::len) > INLINE {
            self.keep(&mut begun, request, (&head, reply), now).await?;
            return self.commit_sound(begun, false).await.map(drop);
        }
        let null = || "NULL".to_owned();
        let values = [
            bytes(&request.key.scope),
            bytes(&request.key.key),
            bytes(request.fingerprint.as_bytes()),
            number(request.token),
            now.map_or_else(null, |now| {
                format!("('epoch'::timestamptz + {} * interval '1 microsecond')", number(now.micros()))
            }),
            number(span(request.ttl)),
            bytes(&head),
            reply.body.as_deref().map_or_else(null, bytes),
        ];
        // The driver would send COMMIT by itself. That a transaction is open, which it rolls back on its way
        // to the pool, is what it expects.
        let text = format!("{}; COMMIT; BEGIN", self.adapted(&written(KEEP, &values)));
        Shield::new(async move {
            // Numbers and digits of ours are all that is not written here.
            begun
                .execute(sqlx::raw_sql(AssertSqlSafe(text)))
                .await
                .map(drop)
                .map_err(fenced_or(commit_and_begin_failed))
        })
        .await
    }

    async fn keep(
        &self,
        on: &mut PgConnection,
        request: &AdmitRequest,
        (head, reply): (&[u8], &Reply),
        now: Option<Timestamp>,
    ) -> Result<()> {
        sqlx::query(self.sql(KEEP))
            .bind(request.key.scope)
            .bind(request.key.key)
            .bind(request.fingerprint.as_bytes())
            .bind(request.token)
            .bind(clock(now))
            .bind(span(request.ttl))
            .bind(head)
            .bind(reply.body.as_deref())
            .execute(on)
            .await
            .map(drop)
            .map_err(fenced_or(failed("cannot seal a claim")))
    }
}

/// The place of a key among the server's locks.
pub(super) const fn place(key: &ReceiptKey) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = key.key;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A number as text of SQL. In quotes: without, the least of all would be one too large, with a sign before it.
fn number(number: i64) -> String {
    format!("'{number}'::bigint")
}

/// Bytes as text of SQL, nothing but digits between the quotes: a backslash would mean one thing or another, as
/// `standard_conforming_strings` has it.
fn bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 16);
    text.push_str("decode('");
    for byte in bytes {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").ok();
    }
    text.push_str("', 'hex')");
    text
}

/// A statement with values in the places of its parameters, of which there are at most nine.
fn written(statement: &str, values: &[String]) -> String {
    let mut pieces = statement.split('$');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (number, rest) = piece.split_at_checked(1).unwrap_or_default();
        let place: usize = number.parse().unwrap_or_default();
        text.push_str(
            place.checked_sub(1).and_then(|place| values.get(place)).map_or("NULL", String::as_str),
        );
        text.push_str(rest);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_written_into_a_statement_ends_its_text() {
        let text = written("SELECT $2, $1 || $1", &[bytes(b"'; DROP \\"), number(i64::MIN)]);

        let hex = "decode('273b2044524f50205c', 'hex')";
        assert_eq!(text, format!("SELECT '-9223372036854775808'::bigint, {hex} || {hex}"));
    }

    #[test]
    fn every_parameter_of_a_statement_has_a_place_of_one_digit() {
        for (statement, count) in [(KEEP, 8), (include_str!("sql/receipt_lock.sql"), 2)] {
            let values: Vec<String> = (1..=count).map(|n| format!("<{n}>")).collect();
            let text = written(statement, &values);

            assert!(values.iter().all(|value| text.contains(value.as_str())), "{text}");
            assert!(!text.contains("NULL") && !text.contains('$'), "{text}");
        }
    }
}
