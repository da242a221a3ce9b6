//! SQLite: a database file per case.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::{HandlerError, Store};
use oncebox_conformance::capabilities::Guarantees;
use oncebox_conformance::fixture::IMPATIENCE;
use oncebox_conformance::{Entry, StoreFixture};
use oncebox_stores::sqlite::{SqliteStore, migrate};

pub(crate) struct SqliteFixture {
    pub(crate) store: SqliteStore,
    pub(crate) folder: PathBuf,
}

fn fresh_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("oncebox-conformance-{}-{number}", std::process::id()));
    // Left by a process of this number that was killed.
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

impl StoreFixture for SqliteFixture {
    type Store = SqliteStore;

    const GUARANTEES: Guarantees = Guarantees {
        name: "sqlite",
        survives_process: true,
        survives_power_loss: true,
        concurrent_writers: false,
        shared_by_processes: false,
    };

    async fn fresh() -> Option<Self> {
        let folder = fresh_folder();
        let file = folder.join("store.db");
        let store = SqliteStore::create(file.to_str().unwrap()).await.unwrap();
        migrate::up(&store).await.unwrap();
        sqlx::query(
            "CREATE TABLE ledger (number INTEGER PRIMARY KEY AUTOINCREMENT, handler TEXT NOT NULL, \
             id TEXT NOT NULL, account TEXT, sequence INTEGER NOT NULL, amount INTEGER NOT NULL)",
        )
        .execute(store.pool())
        .await
        .unwrap();
        Some(Self { store, folder })
    }

    fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    fn impatient(&self) -> SqliteStore {
        self.store.clone().lock_wait(IMPATIENCE)
    }

    async fn effect(&self, tx: &mut <SqliteStore as Store>::Tx, effect: &Entry) -> Result<(), HandlerError> {
        sqlx::query(
            "INSERT INTO ledger (handler, id, account, sequence, amount) VALUES (?1, ?2, ?3, ?4, ?5)",
        )
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
        let rows: Vec<(String, String, Option<String>, i64, i64)> =
            sqlx::query_as("SELECT handler, id, account, sequence, amount FROM ledger ORDER BY number")
                .fetch_all(self.store.pool())
                .await
                .unwrap();
        rows.into_iter()
            .map(|(handler, id, key, sequence, amount)| Entry { handler, id, key, sequence, amount })
            .collect()
    }

    async fn effect_count(&self) -> usize {
        let count = sqlx::query_scalar("SELECT count(*) FROM ledger").fetch_one(self.store.pool());
        usize::try_from(count.await.map(|count: i64| count).unwrap()).unwrap()
    }

    async fn clean(&self) {
        self.store.pool().close().await;
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

mod store {
    oncebox_conformance::store_suite!(crate::conformance::sqlite::SqliteFixture);
}

mod receipts {
    oncebox_conformance::receipts_suite!(crate::conformance::sqlite::SqliteFixture);
}

mod depot {
    oncebox_conformance::depot_suite!(crate::conformance::sqlite::SqliteFixture);
}

mod path {
    oncebox_conformance::path_suite!(crate::conformance::sqlite::SqliteFixture);
}

mod durable {
    oncebox_conformance::durable_suite!(crate::conformance::sqlite::SqliteFixture);
}

#[test]
fn random_operations_are_told_from_the_memory_store_by_nothing() {
    oncebox_conformance::differential::compare::<SqliteFixture>(40, 60);
}

#[test]
fn random_operations_on_the_depot_are_told_from_the_memory_store_by_nothing() {
    oncebox_conformance::differential::depot::compare::<SqliteFixture>(40, 120);
}
