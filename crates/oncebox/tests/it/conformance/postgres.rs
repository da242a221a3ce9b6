//! PostgreSQL: a schema per case.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use oncebox::{HandlerError, Identifier, Store};
use oncebox_conformance::capabilities::Guarantees;
use oncebox_conformance::fixture::{IMPATIENCE, service_url};
use oncebox_conformance::{Entry, StoreFixture};
use oncebox_stores::postgres::{PostgresStore, migrate, pool_options};
use sqlx::{AssertSqlSafe, PgPool};

pub(crate) struct PostgresFixture {
    pub(crate) store: PostgresStore,
    pub(crate) pool: PgPool,
    pub(crate) schema: String,
}

fn fresh_schema() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    format!("c{}_{nanos}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl PostgresFixture {
    async fn execute(&self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
    }
}

impl StoreFixture for PostgresFixture {
    type Store = PostgresStore;

    const GUARANTEES: Guarantees = Guarantees {
        name: "postgres",
        survives_process: true,
        survives_power_loss: true,
        concurrent_writers: true,
        shared_by_processes: true,
    };

    async fn fresh() -> Option<Self> {
        let test = std::thread::current().name().unwrap_or("postgres").to_owned();
        let url = service_url("ONCEBOX_TEST_POSTGRES_URL", &test)?;
        let schema = fresh_schema();
        let pool = pool_options().max_connections(10);
        // Who holds a lock on purpose may be stalled: only the impatient give up.
        let store = PostgresStore::with_pool(pool, url.parse().unwrap()).lock_wait(Duration::from_secs(30));
        let store = store.schema(Identifier::new(&schema).unwrap());
        let fixture = Self { pool: store.pool().clone(), store, schema };
        migrate::up(&fixture.store).await.unwrap();
        let ledger = format!(
            "CREATE TABLE {}.ledger (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, handler text NOT NULL, \
             id text NOT NULL, account text, sequence bigint NOT NULL, amount bigint NOT NULL)",
            fixture.schema
        );
        fixture.execute(ledger).await;
        Some(fixture)
    }

    fn store(&self) -> PostgresStore {
        self.store.clone()
    }

    fn impatient(&self) -> PostgresStore {
        self.store.clone().lock_wait(IMPATIENCE)
    }

    async fn effect(
        &self,
        tx: &mut <PostgresStore as Store>::Tx,
        effect: &Entry,
    ) -> Result<(), HandlerError> {
        let sql = format!(
            "INSERT INTO {}.ledger (handler, id, account, sequence, amount) VALUES ($1, $2, $3, $4, $5)",
            self.schema
        );
        sqlx::query(AssertSqlSafe(sql))
            .bind(&effect.handler)
            .bind(&effect.id)
            .bind(&effect.key)
            .bind(effect.sequence)
            .bind(effect.amount)
            .execute(tx)
            .await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<Entry> {
        let sql = format!(
            "SELECT handler, id, account, sequence, amount FROM {}.ledger ORDER BY number",
            self.schema
        );
        let rows: Vec<(String, String, Option<String>, i64, i64)> =
            sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&self.pool).await.unwrap();
        rows.into_iter()
            .map(|(handler, id, key, sequence, amount)| Entry { handler, id, key, sequence, amount })
            .collect()
    }

    async fn effect_count(&self) -> usize {
        let sql = format!("SELECT count(*) FROM {}.ledger", self.schema);
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.pool).await.unwrap();
        usize::try_from(count).unwrap()
    }

    async fn clean(&self) {
        self.execute(format!("DROP SCHEMA {} CASCADE", self.schema)).await;
        self.pool.close().await;
    }
}

mod store {
    oncebox_conformance::store_suite!(crate::conformance::postgres::PostgresFixture);
}

mod receipts {
    oncebox_conformance::receipts_suite!(crate::conformance::postgres::PostgresFixture);
}

mod depot {
    oncebox_conformance::depot_suite!(crate::conformance::postgres::PostgresFixture);
}

mod path {
    oncebox_conformance::path_suite!(crate::conformance::postgres::PostgresFixture);
}

mod durable {
    oncebox_conformance::durable_suite!(crate::conformance::postgres::PostgresFixture);
}

#[test]
fn random_operations_are_told_from_the_memory_store_by_nothing() {
    oncebox_conformance::differential::compare::<PostgresFixture>(20, 120);
}

#[test]
fn random_operations_on_the_depot_are_told_from_the_memory_store_by_nothing() {
    oncebox_conformance::differential::depot::compare::<PostgresFixture>(20, 120);
}
