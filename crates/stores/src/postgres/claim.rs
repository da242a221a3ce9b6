//! Requests that are claimed in their handler's transaction, in as few round
//! trips as can be: one begins it and asks for the key's lock, one looks, one
//! seals and one commits.
//!
//! No row tells others that the request runs: the lock does, and it ends with
//! the transaction, however that ends. So a request writes one row instead of
//! two versions of it.

use oncebox_core::gate::{
    Admission, AdmitRequest, Claiming, OnDoubt, OnMismatch, ReceiptKey, Receipts as _, Reply,
};
use oncebox_core::{Result, Store as _, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Postgres, Row as _, SqlSafeStr as _, SqlStr};

use super::error::{failed, fenced_or};
use super::receipts::{Found, unseen};
use super::row::{clock, span};
use super::store::{PostgresStore, still_open};

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
                let told = found.told(request)?;
                self.let_go(begun).await;
                self.slide(request, &told, now).await?;
                Ok(Claiming::Told(told))
            }
            // Whoever left it may still wake up, and finds it taken by a row, as if it were taken outside.
            Some(_) if has_key => match self.admit_in(&mut begun, request, now).await? {
                Admission::Proceed(_) => Ok(Claiming::Begun(begun)),
                told => {
                    self.let_go(begun).await;
                    Ok(Claiming::Told(told))
                }
            },
            None | Some(_) => {
                self.let_go(begun).await;
                Ok(Claiming::Told(unseen(request)))
            }
        }
    }

    /// Ends a transaction in which nothing was written, and the key's lock with it: a pool would do that
    /// a moment after the caller has gone on. If the connection is lost, the server does it.
    async fn let_go(&self, begun: Begun) {
        self.rollback(begun).await.ok();
    }

    /// BEGIN with the lock of this key.
    fn begin_and_lock(&self, request: &AdmitRequest) -> SqlStr {
        // In quotes: without, the least of all numbers would be one too large, with a sign before it.
        let number = |number: i64| format!("'{number}'::bigint");
        let lock = include_str!("sql/receipt_lock.sql")
            .replace("$1", &number(place(&request.key)))
            .replace("$2", &number(request.token));
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
        self.keep(&mut begun, request, reply, now).await?;
        // It could keep it, so nothing before had failed.
        self.commit_sound(begun, false).await.map(drop)
    }

    async fn keep(
        &self,
        on: &mut PgConnection,
        request: &AdmitRequest,
        reply: &Reply,
        now: Option<Timestamp>,
    ) -> Result<()> {
        sqlx::query(self.sql(include_str!("sql/receipt_keep.sql")))
            .bind(request.key.scope)
            .bind(request.key.key)
            .bind(request.fingerprint.as_bytes())
            .bind(request.token)
            .bind(clock(now))
            .bind(span(request.ttl))
            .bind(reply.head())
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
