//! The gate's receipts. A replay reads; what is written shares commits, by `clerk.rs`.

use std::collections::HashMap;
use std::time::Duration;

use oncebox_core::gate::receipt::{Receipt, Ruling, Standing, judge};
use oncebox_core::gate::{Admission, AdmitRequest, Fingerprint, Pass, Receipts, Reply};
use oncebox_core::timestamp::micros;
use oncebox_core::{Error, Kind, Result, Store as _, Timestamp};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row as _, SqliteExecutor};

use super::SqliteStore;
use super::clerk::{Done, Errand, WITHDRAW};
use super::error::failed;

const ADMIT: &str = "cannot admit a request";
/// How long a request waits for a place in a commit before it looks whether there is a reply already.
const GLANCE: Duration = Duration::from_millis(5);

/// What is under a key, and what time it is.
struct Found {
    now: i64,
    fingerprint: Option<Vec<u8>>,
    state: Option<String>,
    token: Option<i64>,
    lease_until: Option<i64>,
    expires_at: Option<i64>,
    head: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
}

impl FromRow<'_, SqliteRow> for Found {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self {
            now: row.try_get("now")?,
            fingerprint: row.try_get("fingerprint")?,
            state: row.try_get("state")?,
            token: row.try_get("token")?,
            lease_until: row.try_get("lease_until")?,
            expires_at: row.try_get("expires_at")?,
            head: row.try_get("head")?,
            body: row.try_get("body")?,
        })
    }
}

impl Found {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    fn receipt(&self) -> Option<Receipt> {
        let fingerprint = self.fingerprint.as_ref()?.as_slice().try_into().ok()?;
        let standing = match self.state.as_deref()? {
            "sealed" => Standing::Sealed,
            "in_doubt" => Standing::InDoubt,
            _ => Standing::InFlight { until: Timestamp::from_micros(self.lease_until?) },
        };
        Some(Receipt {
            fingerprint: Fingerprint::from_bytes(fingerprint),
            standing,
            token: self.token?,
            expires_at: Timestamp::from_micros(self.expires_at?),
        })
    }

    /// What is under a key after this admission.
    fn admitted(request: &AdmitRequest, now: Timestamp) -> Self {
        Self {
            now: now.micros(),
            fingerprint: Some(request.fingerprint.as_bytes().to_vec()),
            state: Some("in_flight".to_owned()),
            token: Some(request.token),
            lease_until: Some(now.plus(request.lease).micros()),
            expires_at: Some(now.plus(request.ttl).micros()),
            head: None,
            body: None,
        }
    }

    fn told(self, request: &AdmitRequest) -> Result<Admission> {
        let now = self.now();
        self.told_at(request, now)
    }

    fn told_at(self, request: &AdmitRequest, now: Timestamp) -> Result<Admission> {
        let receipt = self.receipt();
        Ok(match judge(receipt.as_ref(), request, now) {
            Ruling::Admit => Admission::Proceed(request.pass()),
            Ruling::Replay => Admission::Replay {
                reply: Reply::from_stored(&self.head.unwrap_or_default(), self.body)?,
                left: receipt.map_or(Duration::ZERO, |receipt| receipt.expires_at.since(now)),
            },
            Ruling::InFlight { left } => Admission::InFlight { left },
            Ruling::Mismatch => Admission::Mismatch,
            Ruling::InDoubt => Admission::InDoubt,
        })
    }
}

impl SqliteStore {
    async fn find<'e>(
        &self,
        on: impl SqliteExecutor<'e>,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Found> {
        sqlx::query_as(self.sql(include_str!("sql/receipt_find.sql")))
            .bind(request.key.scope.as_slice())
            .bind(request.key.key.as_slice())
            .bind(now.map(Timestamp::micros))
            .fetch_one(on)
            .await
            .map_err(failed("cannot read a receipt"))
    }

    /// What a request that waits to be written can be told already.
    async fn told_meanwhile(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Option<Admission> {
        let found = self.find(self.pool(), request, now).await.ok()?;
        // Its own admission is for whoever wrote it to tell.
        if request.sliding || found.token == Some(request.token) {
            return None;
        }
        found.told(request).ok().filter(|told| !matches!(told, Admission::Proceed(_)))
    }

    /// Admits all of these, as if one came after the other.
    pub(super) async fn admit_all(
        &self,
        tx: &mut SqliteConnection,
        asked: &[(usize, &AdmitRequest, Option<Timestamp>)],
    ) -> Result<Vec<(usize, Done)>> {
        let keys = asked.iter().flat_map(|(_, request, _)| [request.key.scope, request.key.key]);
        let places: Vec<String> = (0..asked.len()).map(|place| place.to_string()).collect();
        let found: Vec<Found> = sqlx::query_as(self.sql(include_str!("sql/receipt_find_all.sql")))
            .bind(keys.flatten().collect::<Vec<u8>>())
            .bind(format!("[{}]", places.join(",")))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed("cannot read receipts"))?;
        let (mut done, mut admitted) = (Vec::with_capacity(asked.len()), HashMap::new());
        for ((place, request, now), found) in asked.iter().zip(found) {
            let now = now.unwrap_or_else(|| found.now());
            // What an earlier one of these has written is not in the table yet.
            let admission = match admitted.get(&request.key) {
                Some((before, at)) => Found::admitted(before, *at).told_at(request, now)?,
                None => found.told_at(request, now)?,
            };
            if matches!(admission, Admission::Proceed(_)) {
                admitted.insert(request.key, (**request, now));
            } else if request.sliding && admission != Admission::Mismatch {
                self.slide(&mut *tx, request, now).await?;
            }
            done.push((*place, Done::Admitted(admission)));
        }
        self.write_admitted(tx, admitted.into_values()).await?;
        Ok(done)
    }

    async fn write_admitted(
        &self,
        tx: &mut SqliteConnection,
        admitted: impl Iterator<Item = (AdmitRequest, Timestamp)>,
    ) -> Result<()> {
        let (mut bytes, mut numbers) = (Vec::new(), Vec::new());
        for (request, now) in admitted {
            bytes.extend_from_slice(&request.key.scope);
            bytes.extend_from_slice(&request.key.key);
            bytes.extend_from_slice(request.fingerprint.as_bytes());
            let ends = [now.plus(request.lease), now, now.plus(request.ttl)].map(Timestamp::micros);
            let [until, now, expires] = ends;
            numbers.push(format!("[{},{until},{now},{expires}]", request.token));
        }
        if numbers.is_empty() {
            return Ok(());
        }
        sqlx::query(self.sql(include_str!("sql/receipt_admit_all.sql")))
            .bind(bytes)
            .bind(format!("[{}]", numbers.join(",")))
            .execute(tx)
            .await
            .map_err(failed(ADMIT))?;
        Ok(())
    }

    async fn slide(&self, tx: &mut SqliteConnection, request: &AdmitRequest, now: Timestamp) -> Result<()> {
        sqlx::query(self.sql(include_str!("sql/receipt_slide.sql")))
            .bind(request.key.scope.as_slice())
            .bind(request.key.key.as_slice())
            .bind(now.plus(request.ttl).micros())
            .execute(tx)
            .await
            .map_err(failed("cannot keep a receipt for longer"))?;
        Ok(())
    }

    pub(super) async fn end_on(
        &self,
        tx: &mut SqliteConnection,
        text: &'static str,
        pass: &Pass,
    ) -> Result<()> {
        sqlx::query(self.sql(text))
            .bind(pass.key.scope.as_slice())
            .bind(pass.key.key.as_slice())
            .bind(pass.token)
            .execute(tx)
            .await
            .map_err(failed("cannot end a receipt"))?;
        Ok(())
    }
}

fn fenced() -> Error {
    Error::new(Kind::Fenced, "the request was admitted once more, or its receipt is gone")
}

impl Receipts for SqliteStore {
    async fn admit(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Result<Admission> {
        let (store, errand) = (self.clone(), Errand::Admit(*request, now));
        let mut written = Box::pin(async move { store.run(errand).await });
        let done = tokio::time::timeout(GLANCE, written.as_mut()).await.ok();
        // Somebody has the write lock for long. A replay only reads, and readers do not queue for it.
        if done.as_ref().is_none_or(|done| done.as_ref().is_err_and(|error| error.kind() == Kind::Busy))
            && let Some(told) = self.told_meanwhile(request, now).await
        {
            // Its turn may have come just now, and then nobody would run what it was let in for.
            if done.is_none() {
                let store = self.clone();
                tokio::spawn(async move {
                    if let Ok(Done::Admitted(Admission::Proceed(pass))) = written.await {
                        store.withdraw(&pass).await.ok();
                    }
                });
            }
            return Ok(told);
        }
        let done = match done {
            Some(done) => done,
            None => written.await,
        };
        match done? {
            Done::Admitted(admission) => Ok(admission),
            Done::Written | Done::Fenced => Err(Error::new(Kind::Invalid, "an admission without an answer")),
        }
    }

    async fn admit_in(
        &self,
        tx: &mut SqliteConnection,
        request: &AdmitRequest,
        now: Option<Timestamp>,
    ) -> Result<Admission> {
        let found = self.find(&mut *tx, request, now).await?;
        let now = found.now();
        let admission = found.told(request)?;
        match admission {
            Admission::Proceed(pass) => {
                sqlx::query(self.sql(include_str!("sql/receipt_admit.sql")))
                    .bind(pass.key.scope.as_slice())
                    .bind(pass.key.key.as_slice())
                    .bind(request.fingerprint.as_bytes().as_slice())
                    .bind(pass.token)
                    .bind(now.plus(request.lease).micros())
                    .bind(now.micros())
                    .bind(now.plus(request.ttl).micros())
                    .execute(tx)
                    .await
                    .map_err(failed(ADMIT))?;
            }
            Admission::Mismatch => {}
            _ if !request.sliding => {}
            _ => self.slide(tx, request, now).await?,
        }
        Ok(admission)
    }

    async fn peek(&self, request: &AdmitRequest, now: Option<Timestamp>) -> Result<Option<Admission>> {
        let told = self.find(self.pool(), request, now).await?.told(request)?;
        Ok(Some(told).filter(|told| !matches!(told, Admission::Proceed(_))))
    }

    async fn prolong(&self, passes: &[Pass], lease: Duration, now: Option<Timestamp>) -> Result<Vec<bool>> {
        let mut tx = self.begin().await?;
        let mut kept = Vec::with_capacity(passes.len());
        for pass in passes {
            let done = sqlx::query(self.sql(include_str!("sql/receipt_prolong.sql")))
                .bind(pass.key.scope.as_slice())
                .bind(pass.key.key.as_slice())
                .bind(pass.token)
                .bind(micros(lease))
                .bind(now.map(Timestamp::micros))
                .execute(&mut *tx)
                .await
                .map_err(failed("cannot keep requests in flight"))?;
            kept.push(done.rows_affected() > 0);
        }
        self.commit(tx).await?;
        Ok(kept)
    }

    async fn seal(&self, pass: &Pass, reply: &Reply) -> Result<()> {
        match self.run(Errand::Seal(*pass, reply.clone())).await? {
            Done::Fenced => Err(fenced()),
            Done::Written | Done::Admitted(_) => Ok(()),
        }
    }

    async fn seal_in(&self, tx: &mut SqliteConnection, pass: &Pass, reply: &Reply) -> Result<()> {
        let sealed = sqlx::query(self.sql(include_str!("sql/receipt_seal.sql")))
            .bind(pass.key.scope.as_slice())
            .bind(pass.key.key.as_slice())
            .bind(pass.token)
            .bind(reply.head())
            .bind(reply.body.as_deref())
            .execute(tx)
            .await
            .map_err(failed("cannot seal a receipt"))?;
        if sealed.rows_affected() == 0 { Err(fenced()) } else { Ok(()) }
    }

    async fn withdraw(&self, pass: &Pass) -> Result<()> {
        self.run(Errand::End(WITHDRAW, *pass)).await.map(drop)
    }

    async fn doubt(&self, pass: &Pass) -> Result<()> {
        self.run(Errand::End(include_str!("sql/receipt_doubt.sql"), *pass)).await.map(drop)
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
            .bind(now.map(Timestamp::micros))
            .execute(self.pool())
            .await
            .map_err(failed("cannot delete receipts"))?;
        Ok(usize::try_from(gone.rows_affected()).unwrap_or(usize::MAX))
    }
}
