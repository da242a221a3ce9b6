//! Tables that are missing, older, newer or changed, and names that are no names.

use oncebox::inspect::Inspect;
use oncebox::{Dedup, Identifier, Inbox, Kind, Mailbox, Outcome, Relay, Result};
use oncebox_stores::{postgres, sqlite};

use super::ground::{self, Caught, Reader, assert_works, drain, drop_schema, note, put, run, run_on};

fn assert_config(found: Result<()>, texts: &[&str]) {
    let error = found.unwrap_err();
    assert_eq!(error.kind(), Kind::Config, "{}", error.chain());
    for text in texts {
        assert!(error.chain().contains(text), "{text:?} is missing in {:?}", error.chain());
    }
}

/// Every station says that the tables are missing, spends nothing, and works
/// as soon as they are there.
async fn works_after<S, Fut>(store: &S, migrate: impl FnOnce() -> Fut)
where
    S: Mailbox + Dedup + Inspect,
    Fut: Future<Output = ()>,
{
    let caught = Caught::default();
    let mut relay = Relay::builder(store.clone(), caught.clone()).build().unwrap();
    let inbox = Inbox::builder(store.clone(), "notes").handler(Reader).build().unwrap();
    let envelope =
        oncebox::Envelope { source: "s".into(), ..oncebox::Envelope::of("1", &note("x")).unwrap() };

    assert_config(put(store, "too early").await.map(drop), &["the outbox"]);
    assert_config(relay.step().await.map(drop), &[]);
    assert_config(store.status().await.map(drop), &[]);
    let outcome = inbox.receive(envelope.clone(), 1).await.single().unwrap();
    assert!(matches!(&outcome, Outcome::Unavailable { reason } if reason.contains("marker")), "{outcome:?}");

    migrate().await;
    let id = put(store, "in time").await.unwrap();
    drain(&mut relay).await;
    assert_eq!(caught.ids(), [id]);
    let outcome = inbox.receive(envelope, 1).await.single().unwrap();
    assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
}

#[tokio::test]
async fn missing_tables_are_named_with_the_command_and_cost_nothing() {
    let (lite, _folder) = ground::sqlite().await;
    assert_config(lite.verify().await, &["tables are missing", "oncebox migrate up --db sqlite:"]);
    works_after(&lite, || async { drop(sqlite::migrate::up(&lite).await.unwrap()) }).await;
    lite.verify().await.unwrap();

    let Some((store, schema)) = ground::postgres("missing_tables_are_named_with_the_command").await else {
        return;
    };
    assert_config(store.verify().await, &["tables are missing", "oncebox migrate up --db"]);
    works_after(&store, || async { drop(postgres::migrate::up(&store).await.unwrap()) }).await;
    store.verify().await.unwrap();
    drop_schema(&store, &schema).await;
}

/// The bookkeeping says 99, or nothing; the tables are never touched.
#[tokio::test]
async fn a_newer_or_older_sqlite_schema_is_refused_and_left_alone() {
    let (store, _folder) = ground::sqlite().await;
    sqlite::migrate::up(&store).await.unwrap();
    put(&store, "kept").await.unwrap();

    run(store.pool(), "INSERT INTO oncebox_migration VALUES (99, 'later', 'x', 0)").await;
    assert_config(store.verify().await, &["is at migration 99, this build knows", "upgrade oncebox"]);
    assert_config(sqlite::migrate::up(&store).await.map(drop), &["99", "upgrade oncebox"]);
    run(store.pool(), "DELETE FROM oncebox_migration WHERE version = 99").await;
    store.verify().await.unwrap();

    run(store.pool(), "CREATE TABLE aside AS SELECT * FROM oncebox_migration").await;
    run(store.pool(), "DELETE FROM oncebox_migration").await;
    assert_config(store.verify().await, &["oncebox migrate up --db"]);
    // Nothing says that these tables are ours, so they are not touched.
    sqlite::migrate::up(&store).await.unwrap_err();
    run(store.pool(), "INSERT INTO oncebox_migration SELECT * FROM aside; DROP TABLE aside").await;
    store.verify().await.unwrap();

    run(store.pool(), "UPDATE oncebox_migration SET checksum = 'y'").await;
    assert_config(store.verify().await, &["is not the one of this build"]);
    assert_eq!(store.status().await.unwrap().logged, 1, "nothing is lost");
}

#[tokio::test]
async fn a_newer_or_older_postgres_schema_is_refused_and_left_alone() {
    let Some((store, schema)) = ground::postgres("a_newer_or_older_postgres_schema_is_refused").await else {
        return;
    };
    postgres::migrate::up(&store).await.unwrap();
    put(&store, "kept").await.unwrap();
    let sql = |text: &str| text.replace("{t}", &schema);

    run(store.pool(), &sql("INSERT INTO {t}.migration (version, name, checksum) VALUES (99, 'later', 'x')"))
        .await;
    assert_config(store.verify().await, &["99, this build knows", "upgrade oncebox"]);
    assert_config(postgres::migrate::up(&store).await.map(drop), &["99", "upgrade oncebox"]);
    run(store.pool(), &sql("DELETE FROM {t}.migration WHERE version = 99")).await;
    store.verify().await.unwrap();

    run(store.pool(), &sql("ALTER TABLE {t}.migration RENAME TO aside")).await;
    assert_config(store.verify().await, &["oncebox migrate up --db"]);
    postgres::migrate::up(&store).await.unwrap_err();
    run(store.pool(), &sql("ALTER TABLE {t}.aside RENAME TO migration")).await;
    store.verify().await.unwrap();

    run(store.pool(), &sql("UPDATE {t}.migration SET checksum = 'y'")).await;
    assert_config(store.verify().await, &["from another text than this build has"]);
    assert_eq!(store.status().await.unwrap().logged, 1, "nothing is lost");
    drop_schema(&store, &schema).await;
}

#[tokio::test]
async fn tables_changed_by_hand_are_refused_by_the_line_that_differs() {
    let (lite, _folder) = ground::sqlite().await;
    sqlite::migrate::up(&lite).await.unwrap();
    // One connection for both: another one of the pool may still remember the index, and SQLite does not
    // look again before it says that it exists.
    let mut hand = lite.pool().acquire().await.unwrap();
    run_on(&mut *hand, "DROP INDEX oncebox_marker_age").await;
    assert_config(lite.verify().await, &["changed by hand", "oncebox_marker_age"]);
    run_on(&mut *hand, "CREATE INDEX oncebox_marker_age ON oncebox_marker (handler, processed_at)").await;
    lite.verify().await.unwrap();

    let Some((store, schema)) = ground::postgres("tables_changed_by_hand_are_refused").await else { return };
    postgres::migrate::up(&store).await.unwrap();
    run(store.pool(), &format!("ALTER TABLE {schema}.marker DROP CONSTRAINT marker_identity")).await;
    assert_config(store.verify().await, &["changed by hand", "marker_identity"]);
    let mend = "ADD CONSTRAINT marker_identity PRIMARY KEY (id, source, handler, tenant)";
    run(store.pool(), &format!("ALTER TABLE {schema}.marker {mend}")).await;
    store.verify().await.unwrap();
    drop_schema(&store, &schema).await;
}

#[test]
fn names_that_try_to_inject_are_no_identifiers() {
    let long = "x".repeat(64);
    let hostile = [
        "",
        "1",
        "A",
        "ä",
        "a b",
        "a.b",
        "a-b",
        "a;",
        "a'",
        "a\"",
        "a\0",
        "a\n",
        "a--",
        "a/*",
        "a)",
        "$a",
        "a%",
        "x; DROP SCHEMA public CASCADE; --",
        "x\"; DROP TABLE t; --",
        "x' OR '1'='1",
        "\u{ff41}",
        &long,
    ];
    for name in hostile {
        let error = Identifier::new(name).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.to_string().contains("is not a name oncebox accepts"), "{error}");
    }
}

/// Plain names that mean something to SQL are still only names.
#[tokio::test]
async fn reserved_words_are_names_like_any_other() {
    for word in ["select", "user", "table", "order"] {
        let (lite, _folder) = ground::sqlite().await;
        let lite = lite.prefix(Identifier::new(word).unwrap());
        sqlite::migrate::up(&lite).await.unwrap();
        lite.verify().await.unwrap();
        assert_works(&lite).await;
    }
    let Some((store, _)) = ground::postgres("reserved_words_are_names_like_any_other").await else { return };
    // `analyse` is as reserved as the others, and no schema anybody would have.
    let store = store.schema(Identifier::new("analyse").unwrap());
    drop_schema(&store, "analyse").await;
    postgres::migrate::up(&store).await.unwrap();
    store.verify().await.unwrap();
    assert_works(&store).await;
    drop_schema(&store, "analyse").await;
}
