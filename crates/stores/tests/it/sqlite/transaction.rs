//! Transactions that are dropped, refused or ended by SQLite itself.

use oncebox_core::gate::{
    Admission, AdmitRequest, Durability, Fingerprint, OnDoubt, OnMismatch, ReceiptKey, Receipts as _, Request,
};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_begin_dropped_at_any_moment_leaves_no_open_transaction() {
    let database = Database::new();
    drop(database.store().await);
    let pool = pool_options().max_connections(1).connect_with(database.options()).await.unwrap();
    let store = SqliteStore::new(pool);
    sqlx::query("CREATE TABLE effect (n INTEGER)").execute(store.pool()).await.unwrap();

    for round in 0..300_u64 {
        // Spread over the time a begin takes, with a fixed pseudo-random sequence.
        let delay = Duration::from_micros(round.wrapping_mul(2_654_435_761) % 400);
        let _ = tokio::time::timeout(delay, store.begin()).await;
        let mut connection = store.pool().acquire().await.unwrap();
        sqlx::query("INSERT INTO effect VALUES (1)").execute(&mut *connection).await.unwrap();
        assert!(!connection.is_in_transaction(), "round {round}");
    }

    let mut other = sqlx::SqliteConnection::connect_with(&database.options()).await.unwrap();
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM effect").fetch_one(&mut other).await.unwrap();
    assert_eq!(seen, 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_nobody_waits_for_still_happens() {
    let database = Database::new();
    let store = database.store().await;

    for round in 0..50_u64 {
        let mut tx = store.begin().await.unwrap();
        store.put(tx.connection(), &[envelope(&round.to_string(), None)], None).await.unwrap();
        let _ = tokio::time::timeout(Duration::from_micros(round * 7 % 300), store.commit(tx)).await;
    }

    // The next one to get the write lock comes after the last commit.
    store.rollback(store.begin().await.unwrap()).await.unwrap();
    assert_eq!(store.read(window(&ALL, 0, 100)).await.unwrap().rows.len(), 50);
}

#[tokio::test]
async fn errors_of_the_driver_get_their_kind() {
    let database = Database::new();
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();

    let long = envelope(&"x".repeat(256), None);
    let invalid = store.put(&mut tx, &[long], None).await.unwrap_err();
    let table = sqlx::query("SELECT * FROM nowhere").execute(&mut *tx).await.unwrap_err();
    store.rollback(tx).await.unwrap();
    let mut stale = store.pool().begin().await.unwrap();
    sqlx::query("SELECT * FROM oncebox_outbox").fetch_all(&mut *stale).await.unwrap();
    put(&store, &[envelope("1", None)], None).await;
    let contention = store.put(&mut stale, &[envelope("2", None)], None).await.unwrap_err();

    assert_eq!(invalid.kind(), Kind::Invalid, "{}", invalid.chain());
    assert_eq!(store.classify(&table), Some(Kind::Config));
    assert_eq!(contention.kind(), Kind::Contention, "{}", contention.chain());
    assert_eq!(store.classify(&contention), Some(Kind::Contention));
}

#[tokio::test]
async fn a_constraint_checked_at_commit_rejects_and_leaves_the_pool_usable() {
    let database = Database::new();
    drop(database.store().await);
    let pool = pool_options().max_connections(1).connect_with(database.options()).await.unwrap();
    let store = SqliteStore::new(pool);
    sqlx::raw_sql(
        "CREATE TABLE parent (n INTEGER PRIMARY KEY);
         CREATE TABLE child (n INTEGER REFERENCES parent (n) DEFERRABLE INITIALLY DEFERRED);",
    )
    .execute(store.pool())
    .await
    .unwrap();

    let mut tx = store.begin().await.unwrap();
    sqlx::query("INSERT INTO child VALUES (1)").execute(&mut *tx).await.unwrap();
    let error = store.commit(tx).await.unwrap_err();

    assert_eq!(error.kind(), Kind::Rejected, "{}", error.chain());
    put(&store, &[envelope("1", None)], None).await;
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM child").fetch_one(store.pool()).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_transaction_that_sqlite_ended_itself_does_not_poison_the_pool() {
    let database = Database::new();
    drop(database.store().await);
    let pool = pool_options().max_connections(1).connect_with(database.options()).await.unwrap();
    let store = SqliteStore::new(pool);

    let mut tx = store.begin().await.unwrap();
    // What SQLite does to the transaction when the disk is full.
    sqlx::raw_sql("ROLLBACK").execute(&mut *tx).await.unwrap();
    assert!(store.commit(tx).await.is_err());

    put(&store, &[envelope("1", None)], None).await;
    assert_eq!(store.read(window(&ALL, 0, 10)).await.unwrap().rows.len(), 1);
}

#[tokio::test]
async fn a_store_that_waits_briefly_leaves_the_patience_of_its_pool_alone() {
    let database = Database::new();
    drop(database.store().await);
    let patient = database.options().busy_timeout(Duration::from_secs(60));
    let pool = pool_options().max_connections(1).connect_with(patient).await.unwrap();
    let store = SqliteStore::new(pool.clone()).lock_wait(Duration::from_millis(30));
    let patience =
        async || sqlx::query_scalar::<_, i64>("PRAGMA busy_timeout").fetch_one(&pool).await.unwrap();
    let own = patience().await;
    let mut other = sqlx::SqliteConnection::connect_with(&database.options()).await.unwrap();

    put(&store, &[envelope("1", None)], None).await;
    let after_commit = patience().await;
    store.rollback(store.begin().await.unwrap()).await.unwrap();
    let after_rollback = patience().await;
    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let begun = std::time::Instant::now();
    let busy = store.begin().await.unwrap_err();
    let waited = begun.elapsed();
    let after_failure = patience().await;
    drop(lock);

    assert_eq!(own, 60_000);
    assert_eq!((after_commit, after_rollback, after_failure), (own, own, own));
    assert_eq!(busy.kind(), Kind::Busy);
    assert!(waited < Duration::from_secs(30), "{waited:?}");
    other.ping().await.unwrap();
    put(&store, &[envelope("2", None)], None).await;
    assert_eq!(store.read(window(&ALL, 0, 10)).await.unwrap().rows.len(), 2);
}

/// The same request, by this token.
fn order(token: i64) -> AdmitRequest {
    let print = Request { method: "POST", path: "/", query: None, content_type: None, body: b"" };
    AdmitRequest {
        key: ReceiptKey { scope: [1; 32], key: [2; 32] },
        token,
        fingerprint: Fingerprint::raw(&print),
        lease: Duration::from_secs(3600),
        ttl: Duration::from_secs(3600),
        sliding: false,
        on_doubt: OnDoubt::Retry,
        on_mismatch: OnMismatch::Refuse,
        durability: Durability::Full,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admission_that_nobody_waits_for_is_withdrawn() {
    let database = Database::new();
    let store = database.store().await;

    let lock = store.begin().await.unwrap();
    tokio::time::timeout(Duration::from_millis(20), store.admit(&order(1), None)).await.unwrap_err();
    store.rollback(lock).await.unwrap();

    let admitted = async {
        while !matches!(store.admit(&order(2), None).await.unwrap(), Admission::Proceed(_)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), admitted).await.expect("long before the lease is over");
}
