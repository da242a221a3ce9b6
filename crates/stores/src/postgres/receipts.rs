//! The gate's receipts: one round trip to admit, one to seal.

use std::time::Duration;

use oncebox_core::gate::{
    Admission, AdmitRequest, Claiming, Durability, OnDoubt, OnMismatch, Pass, Receipts, Reply,
};
use oncebox_core::{Error, Kind, Result, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row as _};

use super::claim::place;
use super::error::failed;
use super::hotline::Question;
use super::row::{clock, span};
use super::store::PostgresStore;

/// How often somebody else may be quicker before the request is told to wait.
const RACES: usize = 3;

/// What a statement has found under a key.
pub(super) struct Found {
    taken: bool,
    same: Option<bool>,
    state: Option<String>,
    left_over: Option<i64>,
    kept_for: Option<i64>,
    head: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
    /// It was not in the way when this statement began.
    pub(super) free: bool,
}

impl FromRow<'_, PgRow> for Found {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            taken: row.try_get("taken")?,
            same: row.try_get("same")?,
            state: row.try_get("state")?,
            left_over: row.try_get("left_over")?,
            kept_for: row.try_get("kept_for")?,
            // Bytes, or digits of bytes where a message of several statements asked.
            head: row.try_get_unchecked("head")?,
            body: row.try_get_unchecked("body")?,
            free: row.try_get("free")?,
        })
    }
}

impl Found {
    pub(super) fn told(self, request: &AdmitRequest) -> Result<Admission> {
        if self.taken {
            return Ok(Admission::Proceed(request.pass()));
        }
        if self.same != Some(true) {
            return Ok(Admission::Mismatch);
        }
        match self.state.as_deref() {
            Some("sealed") => {
                let left = u64::try_from(self.kept_for.unwrap_or_default()).unwrap_or_default();
                let reply = Reply::from_stored(&self.head.unwrap_or_default(), self.body)?;
                Ok(Admission::Replay { reply, left: Duration::from_micros(left) })
            }
            Some("in_doubt") => Ok(Admission::InDoubt),
            _ => Ok(match u64::try_from(self.left_over.unwrap_or_default()) {
                Ok(left @ 1..) => Admission::InFlight { left: Duration::from_micros(left) },
                // Whoever ran it is gone, and that is not to be tried again.
                _ => Admission::InDoubt,
            }),
        }
    }
}

/// May this request run?
#[derive(Clone, Copy)]
struct Admitting<'a> {
    store: &'a PostgresStore,
    request: &'a AdmitRequest,
    now: Option<Timestamp>,
    /// In the caller's transaction, whose commit is the caller's.
    is_inside: bool,
}

impl Question for Admitting<'_> {
    type Answer = Option<Found>;

    async fn ask(&self, on: &mut PgConnection) -> Result<Option<Found>> {
        let request = self.request;
        sqlx::query_as(self.store.sql(include_str!("sql/receipt_admit.sql")))
            .bind(request.key.scope)
            .bind(request.key.key)
            .bind(request.fingerprint.as_bytes())
            .bind(request.token)
            .bind(clock(self.now))
            .bind(span(request.lease))
            .bind(span(request.ttl))
            .bind(request.on_doubt == OnDoubt::Retry)
            .bind(request.on_mismatch == OnMismatch::Replace)
            .bind(place(&request.key))
            .bind(request.durability == Durability::Relaxed && !self.is_inside)
            .fetch_optional(on)
            .await
            .map_err(failed("cannot admit a request"))
    }
}

/// What is known of this request?
struct Peeking<'a>(Admitting<'a>);

impl Question for Peeking<'_> {
    type Answer = Option<Found>;

    async fn ask(&self, on: &mut PgConnection) -> Result<Option<Found>> {
        let Admitting { store, request, now, .. } = self.0;
        sqlx::query_as(store.sql(include_str!("sql/receipt_peek.sql")))
            .bind(request.key.scope)
            .bind(request.key.key)
            .bind(request.fingerprint.as_bytes())
            .bind(clock(now))
            .bind(request.on_doubt == OnDoubt::Retry)
            .bind(request.on_mismatch == OnMismatch::Replace)
            .fetch_optional(on)
            .await
            .map_err(failed("cannot read a receipt"))
    }
}

/// A copy keeps the receipt for longer.
struct Sliding<'a>(Admitting<'a>);

impl Question for Sliding<'_> {
    type Answer = ();

    async fn ask(&self, on: &mut PgConnection) -> Result<()> {
        let Admitting { store, request, now, .. } = self.0;
        sqlx::query(store.sql(include_str!("sql/receipt_slide.sql")))
            .bind(request.key.scope)
            .bind(request.key.key)
            .bind(clock(now))
            .bind(span(request.ttl))
            .execute(on)
            .await
            .map(drop)
            .map_err(failed("cannot keep a receipt for longer"))
    }
}

/// The request was answered with this.
struct Sealing<'a> {
    store: &'a PostgresStore,
    pass: &'a Pass,
    reply: &'a Reply,
}

impl Question for Sealing<'_> {
    type Answer = ();

    async fn ask(&self, on: &mut PgConnection) -> Result<()> {
        let Self { store, pass, reply } = self;
        let sealed = sqlx::query(store.sql(include_str!("sql/receipt_seal.sql")))
            .bind(pass.key.scope)
            .bind(pass.key.key)
            .bind(pass.token)
            .bind(reply.head())
            .bind(reply.body.as_deref())
            .execute(on)
            .await
            .map_err(failed("cannot seal a receipt"))?;
        if sealed.rows_affected() == 0 {
            return Err(Error::new(
                Kind::Fenced,
                "the request was admitted once more, or its receipt is gone",
            ));
        }
        Ok(())
    }
}

/// Whether somebody has the lock of a key.
struct Having<'a> {
    store: &'a PostgresStore,
    place: i64,
}

impl Question for Having<'_> {
    type Answer = bool;

    async fn ask(&self, on: &mut PgConnection) -> Result<bool> {
        sqlx::query_scalar(self.store.sql(include_str!("sql/receipt_had.sql")))
            .bind(self.place)
            .fetch_one(on)
            .await
            .map_err(failed("cannot look at a key"))
    }
}

/// The request is over, without a reply.
struct Ending<'a> {
    store: &'a PostgresStore,
    text: &'static str,
    pass: &'a Pass,
}

impl Question for Ending<'_> {
    type Answer = ();

    async fn ask(&self, on: &mut PgConnection) -> Result<()> {
        sqlx::query(self.store.sql(self.text))
            .bind(self.pass.key.scope)
            .bind(self.pass.key.key)
            .bind(self.pass.token)
            .execute(on)
            .await
            .map(drop)
            .map_err(failed("cannot end a receipt"))
    }
}

/// Whether a copy that was told this keeps the receipt.
const fn slides(request: &AdmitRequest, told: &Admission) -> bool {
    request.sliding && !matches!(told, Admission::Proceed(_) | Admission::Mismatch)
}

/// The leases of requests.
struct Prolonging<'a> {
    store: &'a PostgresStore,
    passes: &'a [Pass],
    lease: Duration,
    now: Option<Timestamp>,
}

impl Question for Prolonging<'_> {
    type Answer = Vec<i64>;

    async fn ask(&self, on: &mut PgConnection) -> Result<Vec<i64>> {
        let column = |of: fn(&Pass) -> [u8; 32]| self.passes.iter().map(|pass| of(pass).to_vec()).collect();
        let (scopes, keys): (Vec<_>, Vec<_>) = (column(|pass| pass.key.scope), column(|pass| pass.key.key));
        sqlx::query_scalar(self.store.sql(include_str!("sql/receipt_prolong.sql")))
            .bind(scopes)
            .bind(keys)
            .bind(self.passes.iter().map(|pass| pass.token).collect::<Vec<_>>())
            .bind(span(self.lease))
            .bind(clock(self.now))
            .fetch_all(on)
            .await
            .map_err(failed("cannot keep requests in flight"))
    }
}

/// Somebody is being let in by a transaction that has not committed: nobody
/// can tell for how long.
pub(super) const fn unseen(request: &AdmitRequest) -> Admission {
    Admission::InFlight { left: request.lease }
}

impl PostgresStore {
    /// A copy keeps the receipt, where that is wanted.
    pub(super) async fn slide(
        &self,
        request: &AdmitRequest,
        told: &Admission,
        now: Option<Timestamp>,
    ) -> Result<()> {
        if slides(request, told) {
            self.on_receipts(&Sliding(Admitting { store: self, request, now, is_inside: false })).await?;
        }
        Ok(())
    }
}

impl Receipts for PostgresStore {
    async fn admit(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Result<Admission> {
        let admitting = Admitting { store: self, request, now, is_inside: false };
        for _ in 0..RACES {
            let Some(found) = self.on_receipts(&admitting).await? else { continue };
            if !found.free {
                let told = found.told(request)?;
                self.slide(request, &told, now).await?;
                return Ok(told);
            }
        }
        Ok(unseen(request))
    }

    async fn admit_in(
        &self,
        tx: &mut PgConnection,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Admission> {
        let admitting = Admitting { store: self, request, now, is_inside: true };
        for _ in 0..RACES {
            let Some(found) = admitting.ask(tx).await? else { continue };
            if !found.free {
                let told = found.told(request)?;
                if slides(request, &told) {
                    Sliding(admitting).ask(tx).await?;
                }
                return Ok(told);
            }
        }
        Ok(unseen(request))
    }

    async fn begin_claim(
        &self,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Claiming<Self::Begun>> {
        self.claim_key(request, now).await
    }

    async fn seal_claim(
        &self,
        begun: Self::Begun,
        request: &AdmitRequest,
        reply: &Reply,
        now: Option<Timestamp>,
    ) -> Result<()> {
        self.keep_and_commit(begun, request, reply, now).await
    }

    async fn is_claimed(&self, request: &AdmitRequest) -> Result<bool> {
        self.on_receipts(&Having { store: self, place: place(&request.key) }).await
    }

    async fn peek(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Result<Option<Admission>> {
        let found =
            self.on_receipts(&Peeking(Admitting { store: self, request, now, is_inside: false })).await?;
        found.filter(|found| !found.free).map(|found| found.told(request)).transpose()
    }

    async fn prolong(&self, passes: &[Pass], lease: Duration, now: Option<Timestamp>) -> Result<Vec<bool>> {
        if passes.is_empty() {
            return Ok(Vec::new());
        }
        // Handlers may use up the pool, and just then their leases matter most.
        let kept = self.renewals.ask(self, &Prolonging { store: self, passes, lease, now }).await?;
        Ok(passes.iter().map(|pass| kept.contains(&pass.token)).collect())
    }

    async fn seal(&self, pass: &Pass, reply: &Reply) -> Result<()> {
        self.on_receipts(&Sealing { store: self, pass, reply }).await
    }

    async fn seal_in(&self, tx: &mut PgConnection, pass: &Pass, reply: &Reply) -> Result<()> {
        Sealing { store: self, pass, reply }.ask(tx).await
    }

    async fn withdraw(&self, pass: &Pass) -> Result<()> {
        let text = include_str!("sql/receipt_withdraw.sql");
        self.on_receipts(&Ending { store: self, text, pass }).await
    }

    async fn doubt(&self, pass: &Pass) -> Result<()> {
        let text = include_str!("sql/receipt_doubt.sql");
        self.on_receipts(&Ending { store: self, text, pass }).await
    }

    async fn count(&self, scope: &[u8; 32], limit: usize) -> Result<usize> {
        let count: i64 = sqlx::query_scalar(self.sql(include_str!("sql/receipt_count.sql")))
            .bind(scope.as_slice())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_one(self.pool())
            .await
            .map_err(failed("cannot count receipts"))?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    async fn forget(&self, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        let gone = sqlx::query(self.sql(include_str!("sql/purge_receipts.sql")))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(clock(now))
            .execute(self.pool())
            .await
            .map_err(failed("cannot delete receipts"))?;
        Ok(usize::try_from(gone.rows_affected()).unwrap_or(usize::MAX))
    }
}
