//! Requests that are claimed in their handler's transaction, in as few round
//! trips as can be. On a connection that stands ready (`rank.rs`) one begins it,
//! asks for the key's lock and looks, and one seals and commits; on another
//! one of the pool's these are two each.
//!
//! No row tells others that the request runs: the lock does, and another one
//! what it is about. They end with the transaction, however that ends. So a
//! request writes one row instead of two versions of it.

use std::time::Duration;

use oncebox_core::gate::{
    Admission, AdmitRequest, Claiming, Fingerprint, OnDoubt, OnMismatch, ReceiptKey, Receipts as _, Reply,
};
use oncebox_core::{Error, Kind, Result, Store as _, Timestamp};
use oncebox_flow::Shield;
use sqlx::postgres::PgRow;
use sqlx::{
    AssertSqlSafe, Executor as _, FromRow, PgConnection, Postgres, Row as _, SqlSafeStr as _, SqlStr,
};
use tokio::time::timeout;

use super::call::Call;
use super::error::{commit_failed, failed, fenced_or, lacks_statement};
use super::rank::{Came, Statements};
use super::receipts::{Found, unseen};
use super::row::{clock, span};
use super::store::{PostgresStore, still_open};

/// What prepared statements take.
const LOOK_TYPES: &str = "(bytea, bytea, bytea, timestamptz, boolean, boolean, bigint)";
const KEEP_TYPES: &str = "(bytea, bytea, bytea, bigint, timestamptz, bigint, bytea, bytea)";
/// What is looked at, with its bytes as digits.
const DIGITS: &str = "SELECT has_key, taken, same, state, left_over, kept_for, free, \
    E'\\\\x' || encode(head, 'hex') AS head, E'\\\\x' || encode(body, 'hex') AS body";
/// How long a connection that stood ready may take for its first answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A reply of more bytes than that is not sent as digits.
const LARGE: usize = 64 << 10;

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
        let (mut begun, came, Looked { has_key, found }) = self.begin_and_look(request, now).await?;
        let is_copy = found.as_ref().is_some_and(|found| !found.free);
        let told = match found {
            None if has_key => Admission::Proceed(request.pass()),
            // Whoever left it may still wake up, and finds it taken by a row, as if it were taken outside.
            Some(found) if found.free && has_key => self.admit_in(&mut begun, request, now).await?,
            Some(found) if is_copy => found.told(request)?,
            None | Some(_) if self.is_rivals(&mut begun, request).await? => Admission::Mismatch,
            None | Some(_) => unseen(request),
        };
        if let Admission::Proceed(_) = told {
            match came {
                Some(came) => self.rank.remember(request.token, came),
                // The same request may have been claimed before, on one that stood ready.
                None => drop(self.rank.recall(request.token)),
            }
            return Ok(Claiming::Begun(begun));
        }
        self.let_go(begun, came).await;
        if is_copy {
            self.slide(request, &told, now).await?;
        }
        Ok(Claiming::Told(told))
    }

    /// In one round trip on a connection that stands ready for it, in two on one of the pool's.
    async fn begin_and_look(
        &self,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<(Begun, Option<Came>, Looked)> {
        while let Some((mut begun, came)) = self.rank.take() {
            let late = |_elapsed| Err(Error::new(Kind::Unavailable, "the database did not answer in time"));
            let looked = timeout(PATIENCE, self.look_at_once(&mut begun, request, now)).await;
            match looked.unwrap_or_else(late) {
                Ok(looked) => return Ok((begun, Some(came), looked)),
                // It died while it stood there.
                Err(error) if error.kind() == Kind::Unavailable => self.rank.distrust(),
                // Not the connection that its statements were prepared on: somebody in between shares them out.
                Err(error) if lacks_statement(&error) => self.rank.close(),
                Err(error) => return Err(error),
            }
        }
        let mut begun = self.begin_with(self.begin_and_lock(request)).await?;
        let looked = self.look(&mut begun, request, now).await?;
        Ok((begun, None, looked))
    }

    /// Whether the key is claimed for another request. Its transaction shows others nothing but its locks, so one of them tells.
    async fn is_rivals(&self, on: &mut PgConnection, request: &AdmitRequest) -> Result<bool> {
        sqlx::query_scalar(self.sql(include_str!("sql/receipt_rival.sql")))
            .bind(tag(&request.key))
            .bind(print(&request.fingerprint))
            .fetch_one(on)
            .await
            .map_err(failed("cannot look whose a key is"))
    }

    /// Ends a transaction in which nothing was written, and the key's lock with it: a pool would do that
    /// a moment after the caller has gone on. If the connection is lost, the server does it.
    async fn let_go(&self, mut begun: Begun, came: Option<Came>) {
        let Some(came) = came else {
            self.rollback(begun).await.ok();
            return;
        };
        if begun.execute(sqlx::raw_sql("ROLLBACK")).await.is_ok() {
            self.rank.put(self.pool(), begun, came);
        }
    }

    /// BEGIN with the lock of this key.
    fn begin_and_lock(&self, request: &AdmitRequest) -> SqlStr {
        // In quotes: without, the least of all numbers would be one too large, with a sign before it.
        let number = |number: i64| format!("'{number}'::bigint");
        let lock = include_str!("sql/receipt_lock.sql")
            .replace("$1", &number(place(&request.key)))
            .replace("$2", &number(request.token))
            .replace("$3", &number(tag(&request.key)))
            .replace("$4", &format!("'{}'::integer", print(&request.fingerprint)));
        let text = format!("{}; {}", self.begin_text(), self.adapted(&lock));
        // Numbers are all that is not written here.
        AssertSqlSafe(text).into_sql_str()
    }

    /// Everything in one message, which tells what is there in its last row.
    async fn look_at_once(
        &self,
        on: &mut PgConnection,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Looked> {
        let [lock, look, _] = self.names();
        let lock = Call::new(lock)
            .number(place(&request.key))
            .number(request.token)
            .number(tag(&request.key))
            .number(print(&request.fingerprint).into());
        let look = Call::new(look)
            .bytes(&request.key.scope)
            .bytes(&request.key.key)
            .bytes(request.fingerprint.as_bytes())
            .time(now)
            .truth(request.on_doubt == OnDoubt::Retry)
            .truth(request.on_mismatch == OnMismatch::Replace)
            .number(request.token);
        let text = format!("{}; {}; {}", self.begin_text(), lock.text(), look.text());
        // Numbers and hexadecimal digits are all that is not written here.
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(on).await;
        let rows = rows.map_err(failed("cannot claim a key"))?;
        let told = rows.last().ok_or(sqlx::Error::RowNotFound).and_then(Looked::from_row);
        told.map_err(failed("cannot claim a key"))
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
        let came = self.rank.recall(request.token);
        let is_large = reply.body.as_ref().is_some_and(|body| body.len() > LARGE);
        let stays = self.owns_pool() && self.rank.has_room(self.pool());
        if let Some(came) = came.filter(|_| stays && !is_large) {
            let begun = commit_by(begun, self.keep_and_commit_text(request, reply, now)).await?;
            self.rank.put(self.pool(), begun, came);
            return Ok(());
        }
        self.keep(&mut begun, request, reply, now).await?;
        // It could keep it, so nothing before had failed.
        if !stays {
            return self.commit_sound(begun, false).await.map(drop);
        }
        let begun = commit_by(begun, "COMMIT".to_owned()).await?;
        match came {
            Some(came) => self.rank.put(self.pool(), begun, came),
            None => self.rank.welcome(self.pool(), begun, self.statements()),
        }
        Ok(())
    }

    /// Seal and COMMIT in one message.
    fn keep_and_commit_text(&self, request: &AdmitRequest, reply: &Reply, now: Option<Timestamp>) -> String {
        let [.., keep] = self.names();
        let keep = Call::new(keep)
            .bytes(&request.key.scope)
            .bytes(&request.key.key)
            .bytes(request.fingerprint.as_bytes())
            .number(request.token)
            .time(now)
            .number(span(request.ttl))
            .bytes(&reply.head());
        let keep = match &reply.body {
            Some(body) => keep.bytes(body),
            None => keep.null(),
        };
        format!("{}; COMMIT", keep.text())
    }

    /// What is prepared on a connection that stands ready for claims: lock, look and keep.
    fn statements(&self) -> Statements {
        let (lock, keep) = (include_str!("sql/receipt_lock.sql"), include_str!("sql/receipt_keep.sql"));
        let look = self.adapted(include_str!("sql/receipt_claim.sql"));
        [
            ("lock", format!("(bigint, bigint, bigint, integer) AS {}", self.adapted(lock))),
            // Told as text, and the server may be set to another form for bytes than the driver reads.
            ("look", format!("{LOOK_TYPES} AS {DIGITS} FROM ({look}) AS looked")),
            ("keep", format!("{KEEP_TYPES} AS {}", self.adapted(keep))),
        ]
    }

    fn names(&self) -> &[String; 3] {
        self.rank.names(|| self.statements())
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

/// Ends a transaction by a message that ends with COMMIT. It comes to its end, whoever stops waiting for it.
async fn commit_by(mut begun: Begun, text: String) -> Result<Begun> {
    Shield::new(async move {
        // Numbers and hexadecimal digits are all that is not written here.
        let committed = begun.execute(sqlx::raw_sql(AssertSqlSafe(text))).await;
        committed.map_err(fenced_or(commit_failed))?;
        Ok(begun)
    })
    .await
}

/// The place of a key among the server's locks.
pub(super) const fn place(key: &ReceiptKey) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = key.key;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// What the lock is found by that shows what a key is claimed for; another part of the key, so that it does not follow from the place.
const fn tag(key: &ReceiptKey) -> i64 {
    let [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h, ..] = key.key;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// So much of a fingerprint has room in a lock. Those of two requests may be equal there: then the second is taken for a copy until
/// the first has ended, and told the truth by its receipt.
const fn print(fingerprint: &Fingerprint) -> i32 {
    let [a, b, c, d, ..] = *fingerprint.as_bytes();
    i32::from_be_bytes([a, b, c, d])
}
