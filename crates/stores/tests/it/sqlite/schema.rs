//! Migrations, the start-up check, and names of tables.

use std::time::Duration;

use oncebox_core::gate::{
    Admission, AdmitRequest, Durability, Fingerprint, OnDoubt, OnMismatch, Pass, ReceiptKey, Receipts as _,
    Reply,
};

use super::*;

#[tokio::test]
async fn the_schema_is_the_committed_snapshot() {
    let database = Database::new();
    let store = database.store().await;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sqlite/schema.snapshot");

    let live = migrate::snapshot(&store).await.unwrap();

    if std::env::var_os("ONCEBOX_BLESS").is_some() {
        std::fs::write(path, &live).unwrap();
        return;
    }
    assert_eq!(live, std::fs::read_to_string(path).unwrap(), "run with ONCEBOX_BLESS=1 to accept");
    store.verify().await.unwrap();
}

#[tokio::test]
async fn migrating_twice_or_at_the_same_time_applies_everything_once() {
    let database = Database::new();
    let stores = [
        SqliteStore::create(&database.url()).await.unwrap(),
        SqliteStore::create(&database.url()).await.unwrap(),
    ];

    let (left, right) = tokio::join!(migrate::up(&stores[0]), migrate::up(&stores[1]));

    assert_eq!(left.unwrap().len() + right.unwrap().len(), 6);
    assert!(migrate::up(&stores[0]).await.unwrap().is_empty());
    let status = migrate::status(&stores[0]).await.unwrap();
    assert!(status.iter().all(|s| s.state == MigrationState::Applied && s.applied_at.is_some()));
    stores[1].verify().await.unwrap();
}

#[tokio::test]
async fn a_database_of_version_one_with_relays_at_work_is_moved_forward() {
    let database = Database::new();
    let store = database.store().await;
    let back = "ALTER TABLE oncebox_relay_member DROP COLUMN outage; \
                DROP TABLE oncebox_receipt; DROP TABLE oncebox_effect; DROP TABLE oncebox_delivery; DROP TABLE oncebox_message; \
                DROP TABLE oncebox_handler; DROP TABLE oncebox_broom; \
                DELETE FROM oncebox_migration WHERE version > 1; \
                INSERT INTO oncebox_relay_member VALUES ('main', 'old', 9000000000000000);";
    sqlx::raw_sql(back).execute(store.pool()).await.unwrap();
    assert!(config_text(store.verify().await.unwrap_err()).contains("lacks migration 0002_outage"));

    let applied = migrate::up(&store).await.unwrap();
    store.verify().await.unwrap();
    store.claim(&request("new"), None).await.unwrap();

    assert_eq!(applied.iter().map(|applied| applied.version).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
    let status = store.status().await.unwrap();
    assert_eq!((status.sinks[0].relays, &status.sinks[0].outage), (2, &None));
}

#[tokio::test]
async fn receipts_from_before_migration_six_are_kept() {
    let database = Database::new();
    let store = database.store().await;
    let request = AdmitRequest {
        key: ReceiptKey { scope: [1; 32], key: [2; 32] },
        token: 7,
        fingerprint: Fingerprint::from_bytes([3; 32]),
        lease: Duration::from_secs(30),
        ttl: Duration::from_secs(3600),
        sliding: false,
        on_doubt: OnDoubt::Retry,
        on_mismatch: OnMismatch::Refuse,
        durability: Durability::Full,
    };
    let reply = Reply { status: 201, body: Some(b"done".to_vec()), ..Reply::default() };
    let pass = Pass { key: request.key, token: request.token };
    assert_eq!(store.admit(&request, None).await.unwrap(), Admission::Proceed(pass));
    store.seal(&pass, &reply).await.unwrap();
    let back = format!(
        "ALTER TABLE oncebox_receipt RENAME TO new; DROP INDEX oncebox_receipt_age; {} \
         INSERT INTO oncebox_receipt SELECT scope, key, fingerprint, state, token, lease_until, admitted_at, \
         expires_at, head, body FROM new; DROP TABLE new; DELETE FROM oncebox_migration WHERE version > 5;",
        include_str!("../../../src/sqlite/migrations/0004_gate.sql"),
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(back)).execute(store.pool()).await.unwrap();
    assert!(config_text(store.verify().await.unwrap_err()).contains("lacks migration 0006_receipt"));

    migrate::up(&store).await.unwrap();

    store.verify().await.unwrap();
    let told = store.admit(&request, None).await.unwrap();
    assert!(matches!(&told, Admission::Replay { reply: kept, .. } if *kept == reply), "{told:?}");
}

#[tokio::test]
async fn the_printed_sql_makes_a_database_that_verifies() {
    let database = Database::new();
    let store = SqliteStore::create(&database.url()).await.unwrap();

    let script = migrate::sql(&store, 0);
    sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(store.pool()).await.unwrap();

    store.verify().await.unwrap();
    assert!(!migrate::sql(&store, 1).contains("oncebox_outbox"));
}

#[tokio::test]
async fn verify_says_what_is_wrong_and_what_to_do() {
    let database = Database::new();
    let store = SqliteStore::create(&database.url()).await.unwrap();
    let command = format!("oncebox migrate up --db {}", database.url());

    let missing = config_text(store.verify().await.unwrap_err());
    assert!(missing.contains("tables are missing") && missing.contains(&command), "{missing}");
    assert_eq!(migrate::status(&store).await.unwrap()[0].state, MigrationState::Pending);

    migrate::up(&store).await.unwrap();
    sqlx::query("INSERT INTO oncebox_migration VALUES (99, 'later', '', 0)")
        .execute(store.pool())
        .await
        .unwrap();
    let newer = config_text(store.verify().await.unwrap_err());
    assert!(newer.contains("at migration 99") && newer.contains("upgrade oncebox"), "{newer}");
    assert_eq!(config_text(migrate::up(&store).await.unwrap_err()), newer);
    assert_eq!(migrate::status(&store).await.unwrap().last().unwrap().state, MigrationState::Unknown);

    sqlx::query("DELETE FROM oncebox_migration WHERE version = 99").execute(store.pool()).await.unwrap();
    sqlx::query("ALTER TABLE oncebox_marker ADD COLUMN extra TEXT").execute(store.pool()).await.unwrap();
    let drift = config_text(store.verify().await.unwrap_err());
    assert!(drift.contains("oncebox_marker: extra TEXT"), "{drift}");

    sqlx::query("UPDATE oncebox_migration SET version = 0 WHERE version = 1")
        .execute(store.pool())
        .await
        .unwrap();
    let older = config_text(store.verify().await.unwrap_err());
    assert!(older.contains("lacks migration 0001_once") && older.contains(&command), "{older}");

    sqlx::query("UPDATE oncebox_migration SET version = 1, checksum = 'x' WHERE version = 0")
        .execute(store.pool())
        .await
        .unwrap();
    let changed = config_text(store.verify().await.unwrap_err());
    assert!(changed.contains("0001_once"), "{changed}");
}

#[tokio::test]
async fn a_database_that_could_forget_or_cannot_be_written_is_refused() {
    let database = Database::new();
    drop(database.store().await);
    let lax = pool_options()
        .connect_with(database.options().synchronous(SqliteSynchronous::Normal))
        .await
        .map(SqliteStore::new)
        .unwrap();
    let rollback_journal = Database::new();
    let old = pool_options()
        .connect_with(
            rollback_journal.options().journal_mode(SqliteJournalMode::Delete).create_if_missing(true),
        )
        .await
        .map(SqliteStore::new)
        .unwrap();
    migrate::up(&old).await.unwrap();
    let read_only =
        pool_options().connect_with(database.options().read_only(true)).await.map(SqliteStore::new).unwrap();

    let lax_text = config_text(lax.verify().await.unwrap_err());
    let old_text = config_text(old.verify().await.unwrap_err());
    let read_only_text = config_text(read_only.verify().await.unwrap_err());

    assert!(lax_text.contains("PRAGMA synchronous = FULL"), "{lax_text}");
    assert!(old_text.contains("PRAGMA journal_mode = WAL"), "{old_text}");
    assert!(read_only_text.contains("read-only"), "{read_only_text}");
    lax.allow_unsafe_durability().verify().await.unwrap();
}

#[tokio::test]
async fn connect_does_not_make_files_and_does_not_quote_passwords() {
    let database = Database::new();

    let absent = config_text(SqliteStore::connect(&database.url()).await.unwrap_err());
    let foreign = config_text(SqliteStore::connect("postgres://me:secret@host/db").await.unwrap_err());

    assert!(absent.contains("does not exist; run `oncebox migrate up --db "), "{absent}");
    assert!(!database.file.exists());
    assert!(!foreign.contains("secret"), "{foreign}");
    drop(database.store().await);
    for url in
        [database.url(), format!("sqlite://{}", database.file.display()), database.file.display().to_string()]
    {
        SqliteStore::connect(&url).await.unwrap().verify().await.unwrap();
    }
}

#[tokio::test]
async fn another_prefix_has_tables_of_its_own() {
    let database = Database::new();
    let plain = database.store().await;
    // Prefixes that are part of other names must not confuse the renaming.
    for prefix in ["outbox", "a", "_x9"] {
        let store = plain.clone().prefix(Identifier::new(prefix).unwrap());
        migrate::up(&store).await.unwrap();

        store.verify().await.unwrap();
        put(&store, &[envelope("1", None)], None).await;

        assert_eq!(store.read(window(&ALL, 0, 10)).await.unwrap().rows.len(), 1);
        assert!(plain.read(window(&ALL, 0, 10)).await.unwrap().rows.is_empty());
    }
    for name in ["x; DROP TABLE oncebox_outbox", "x\"", "X", ""] {
        assert_eq!(Identifier::new(name).unwrap_err().kind(), Kind::Config);
    }
}
