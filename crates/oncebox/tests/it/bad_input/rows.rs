//! Rows made by hand that cannot be read, or that the database itself refuses.

use std::time::Duration;

use oncebox::inspect::Inspect;
use oncebox::log::ClaimRequest;
use oncebox::{Mailbox, Relay};
use oncebox_stores::{postgres, sqlite};
use sqlx::AssertSqlSafe;

use super::ground::{self, Caught, assert_works, drain, drop_schema, put, run};

fn claim(sink: &str) -> ClaimRequest {
    ClaimRequest { sink: sink.into(), holder: "looker".into(), lease: Duration::from_secs(30), outage: None }
}

/// Relays past `unreadable` rows, which end up dead, whatever is done to them
/// short of discarding them.
async fn passes_by<S: Mailbox + oncebox::Dedup + Inspect>(store: &S, unreadable: i64, reason: &str) {
    let caught = Caught::default();
    let mut relay = Relay::builder(store.clone(), caught.clone()).sink("main").build().unwrap();
    let last = put(store, "behind them").await.unwrap();
    store.claim(&claim("main"), None).await.unwrap();
    assert!(store.status().await.unwrap().sinks[0].pending > unreadable, "they can be counted");
    store.release("main", "looker").await.unwrap();

    drain(&mut relay).await;

    assert!(caught.ids().contains(&last), "the others flow: {:?}", caught.ids());
    let parked = store.parked(100).await.unwrap();
    assert_eq!(parked.len() as i64, unreadable);
    for row in &parked {
        assert_eq!(row.state, "dead");
        assert!(row.reason.as_deref().unwrap_or_default().contains(reason), "{row:?}");
    }
    let seen = caught.ids().len();
    for row in &parked {
        assert!(store.requeue("main", row.position, None).await.unwrap());
    }
    drain(&mut relay).await;
    let status = store.status().await.unwrap();
    let sink = status.sinks.iter().find(|sink| sink.sink == "main").unwrap();
    assert_eq!(
        (sink.dead, sink.waiting, sink.pending),
        (unreadable, 0, 0),
        "requeued as they are, they die again"
    );
    for row in &parked {
        assert!(store.discard("main", row.position, None).await.unwrap());
    }
    drain(&mut relay).await;
    assert_eq!(store.parked(100).await.unwrap(), []);
    assert_eq!(caught.ids().len(), seen, "and nothing was sent twice");
    relay.release().await.unwrap();
    assert_works(store).await;
}

#[tokio::test]
async fn sqlite_rows_with_invalid_utf8_are_dead_with_a_reason_and_stop_nobody() {
    let (store, _folder) = ground::sqlite().await;
    sqlite::migrate::up(&store).await.unwrap();
    put(&store, "before them").await.unwrap();
    for column in ["id", "source", "type", "tenant", "destination", "ordering_key", "subject", "content_type"]
    {
        let mut values = vec![("type", "'t'"), ("destination", "'d'"), ("payload", "'1'")];
        values.retain(|(name, _)| *name != column);
        values.push((column, "CAST(x'61ff62' AS TEXT)"));
        let (names, texts): (Vec<_>, Vec<_>) = values.into_iter().unzip();
        let sql = format!("INSERT INTO oncebox_outbox ({}) VALUES ({})", names.join(", "), texts.join(", "));
        run(store.pool(), &sql).await;
    }

    passes_by(&store, 8, "cannot be read").await;
}

#[tokio::test]
async fn sqlite_rows_of_other_types_are_dead_with_a_reason_and_stop_nobody() {
    let (store, _folder) = ground::sqlite().await;
    sqlite::migrate::up(&store).await.unwrap();
    for (column, value) in
        [("schema_version", "-7"), ("schema_version", "'seven'"), ("created_at", "'today'")]
    {
        let sql = format!(
            "INSERT INTO oncebox_outbox (type, destination, payload, {column}) VALUES ('t', 'd', '1', {value})"
        );
        run(store.pool(), &sql).await;
    }

    passes_by(&store, 3, "cannot be read").await;
}

#[tokio::test]
async fn postgres_rows_that_cannot_be_read_are_dead_with_a_reason_and_stop_nobody() {
    let Some((store, schema)) = ground::postgres("postgres_rows_that_cannot_be_read").await else { return };
    postgres::migrate::up(&store).await.unwrap();
    let sql = format!(
        "INSERT INTO {schema}.outbox (type, destination, payload, schema_version) VALUES ('t', 'd', '1', -7)"
    );
    run(store.pool(), &sql).await;

    passes_by(&store, 1, "").await;

    drop_schema(&store, &schema).await;
}

/// The columns themselves keep out what the limits keep out.
#[tokio::test]
async fn both_databases_refuse_rows_that_break_a_limit() {
    let (lite, _folder) = ground::sqlite().await;
    sqlite::migrate::up(&lite).await.unwrap();
    let cases = [
        ("id", "''".to_owned()),
        ("id", format!("'{}'", "x".repeat(256))),
        ("ordering_key", format!("'{}'", "é".repeat(128))),
        ("headers", "'[]'".to_owned()),
        ("type", "NULL".to_owned()),
        ("payload", "NULL".to_owned()),
    ];
    let insert = |table: &str, column: &str, value: &str| {
        let mut columns = vec![("type", "'t'"), ("destination", "'d'"), ("payload", "'1'")];
        columns.retain(|(name, _)| *name != column);
        columns.push((column, value));
        let (names, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        AssertSqlSafe(format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), values.join(", ")))
    };
    for (column, value) in &cases {
        let done = sqlx::raw_sql(insert("oncebox_outbox", column, value)).execute(lite.pool()).await;
        assert!(done.is_err(), "SQLite took {column} = {value:.20}");
    }
    assert_works(&lite).await;
    let Some((store, schema)) = ground::postgres("both_databases_refuse_rows_that_break_a_limit").await
    else {
        return;
    };
    postgres::migrate::up(&store).await.unwrap();
    let only_here = [("id", r"E'a\xff'"), ("headers", r#"'{"a": "\u0000"}'"#)];
    let cases = cases.iter().map(|(column, value)| (*column, value.as_str())).chain(only_here);
    for (column, value) in cases {
        let done =
            sqlx::raw_sql(insert(&format!("{schema}.outbox"), column, value)).execute(store.pool()).await;
        assert!(done.is_err(), "PostgreSQL took {column} = {value:.20}");
    }
    assert_works(&store).await;
    drop_schema(&store, &schema).await;
}
