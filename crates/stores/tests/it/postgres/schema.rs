//! Migrations, the committed snapshot, and what `verify` finds wrong.

use oncebox_core::depot::{Standing, TakeRequest, Ticket, Want};
use oncebox_core::{Depot as _, Letters as _};

use super::*;

#[tokio::test]
async fn the_tables_are_what_the_committed_snapshot_says() {
    on_tables("the_tables_are_what_the_committed_snapshot_says", |store, _| async move {
        let live = migrate::snapshot(&store).await.unwrap();

        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/postgres/schema.snapshot");
        if std::env::var_os("ONCEBOX_BLESS").is_some() {
            std::fs::write(path, &live).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), live, "ONCEBOX_BLESS=1 accepts the change");
    })
    .await;
}

#[tokio::test]
async fn migrating_twice_applies_once() {
    on_empty("migrating_twice_applies_once", |store, _| async move {
        let before = migrate::status(&store).await.unwrap();
        let first = migrate::up(&store).await.unwrap();
        let second = migrate::up(&store).await.unwrap();
        let after = migrate::status(&store).await.unwrap();

        assert_eq!(before.first().unwrap().state, migrate::MigrationState::Pending);
        assert_eq!(first.iter().map(|applied| applied.version).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert!(second.is_empty());
        assert_eq!(after.first().unwrap().state, migrate::MigrationState::Applied);
        store.verify().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn several_migrators_at_once_apply_each_migration_once() {
    on_empty("several_migrators_at_once_apply_each_migration_once", |store, _| async move {
        let migrator = |store: PostgresStore| async move { migrate::up(&store).await.unwrap().len() };
        let tasks: Vec<_> = (0..6).map(|_| tokio::spawn(migrator(store.clone()))).collect();

        let mut applied = 0;
        for task in tasks {
            applied += task.await.unwrap();
        }

        assert_eq!(applied, 6);
    })
    .await;
}

#[tokio::test]
async fn a_database_of_version_one_with_relays_at_work_is_moved_forward() {
    on_tables("a_database_of_version_one_is_moved_forward", |store, schema| async move {
        execute(&store, &format!("ALTER TABLE {schema}.relay_member DROP COLUMN outage")).await;
        execute(&store, &format!("DELETE FROM {schema}.migration WHERE version = 2")).await;
        let relay =
            format!("INSERT INTO {schema}.relay_member VALUES ('s', 'old', now() + interval '1 hour')");
        execute(&store, &relay).await;
        assert_eq!(kind(store.verify().await), Kind::Config);

        let applied = migrate::up(&store).await.unwrap();
        store.verify().await.unwrap();
        store.claim(&request("new"), None).await.unwrap();

        assert_eq!(applied.iter().map(|applied| applied.version).collect::<Vec<_>>(), [2]);
        let status = store.status().await.unwrap();
        assert_eq!((status.sinks[0].relays, &status.sinks[0].outage), (2, &None));
    })
    .await;
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_tables() {
    on_empty("the_printed_sql_makes_the_same_tables", |store, _| async move {
        execute(&store, &migrate::sql(&store, 0)).await;

        assert!(migrate::up(&store).await.unwrap().is_empty());
        store.verify().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn verify_says_what_is_wrong_and_what_to_do() {
    on_empty("verify_says_what_is_wrong_and_what_to_do", |store, schema| async move {
        let error = async || store.verify().await.unwrap_err();

        let missing = error().await;
        assert_eq!(missing.kind(), Kind::Config);
        assert!(missing.to_string().contains("tables are missing; run `oncebox migrate up --db <url>`"));

        migrate::up(&store).await.unwrap();
        execute(&store, &format!("ALTER TABLE {schema}.outbox ADD COLUMN extra text")).await;
        assert!(error().await.to_string().contains("it has `column outbox.extra text`"));
        execute(&store, &format!("ALTER TABLE {schema}.outbox DROP COLUMN extra")).await;
        execute(&store, &format!("DROP INDEX {schema}.marker_age")).await;
        assert!(error().await.to_string().contains("it lacks `index CREATE INDEX marker_age"));
        execute(&store, &format!("CREATE INDEX marker_age ON {schema}.marker (handler, processed_at)")).await;
        store.verify().await.unwrap();

        execute(&store, &format!("INSERT INTO {schema}.migration VALUES (99, 'later', 'x')")).await;
        let newer = error().await.to_string();
        assert_eq!(newer, "the database is at schema version 99, this build knows 6; upgrade oncebox");
        assert_eq!(kind(migrate::up(&store).await), Kind::Config);
        let unknown = migrate::status(&store).await.unwrap();
        assert_eq!(unknown.last().unwrap().state, migrate::MigrationState::Unknown);

        execute(&store, &format!("DELETE FROM {schema}.migration WHERE version = 99")).await;
        execute(&store, &format!("UPDATE {schema}.migration SET checksum = 'x'")).await;
        assert!(error().await.to_string().contains("another text"));
    })
    .await;
}

#[test]
fn a_name_that_is_not_an_identifier_never_reaches_sql() {
    for name in ["a; DROP TABLE x", "a\"", "a.b", "A", ""] {
        assert_eq!(kind(Identifier::new(name)), Kind::Config, "{name}");
    }
}

/// Tables as they were before migration 5.
async fn at_version_4(store: &PostgresStore, schema: &str) {
    let record = format!("SELECT version, name, checksum FROM {schema}.migration WHERE version < 5");
    let record: Vec<(i32, String, String)> =
        sqlx::query_as(AssertSqlSafe(record)).fetch_all(store.pool()).await.unwrap();
    execute(store, &format!("DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}")).await;
    for text in [
        include_str!("../../../src/postgres/sql/migration_create.sql"),
        include_str!("../../../src/postgres/migrations/0001_once.sql"),
        include_str!("../../../src/postgres/migrations/0002_outage.sql"),
        include_str!("../../../src/postgres/migrations/0003_depot.sql"),
        include_str!("../../../src/postgres/migrations/0004_gate.sql"),
    ] {
        execute(store, &text.replace("oncebox.", &format!("{schema}."))).await;
    }
    for (version, name, checksum) in record {
        let add = format!(
            "INSERT INTO {schema}.migration (version, name, checksum) VALUES ({version}, '{name}', '{checksum}')"
        );
        execute(store, &add).await;
    }
}

#[tokio::test]
async fn deliveries_of_an_older_version_go_on_where_they_were() {
    on_tables("deliveries_of_an_older_version_go_on_where_they_were", |store, schema| async move {
        at_version_4(&store, &schema).await;
        let fill = format!(
            r#"INSERT INTO {schema}.message (scope, channel, tenant, source, id, type, digest, received_at, attributes,
                payload)
            SELECT '', 'c', '', 's', n::text, 't', '', now(),
                format('{{"specversion":"1.0","id":"%s","source":"s","type":"t"}}', n), ''
            FROM generate_series(1, 5) AS n;
            INSERT INTO {schema}.delivery (message, scope, handler, tenant, key_source, key_id, digest, state, due_at,
                fence, started, attempts, ended_at)
            SELECT number, '', 'h', '', 's', id, '', state, now() + delay, fence, started, fence, ended_at
            FROM {schema}.message
            JOIN (VALUES
                ('1', 'done', interval '0', 1, false, now()), ('2', 'leased', interval '-1 s', 3, false, NULL),
                ('3', 'leased', interval '1 h', 1, true, NULL), ('4', 'ready', interval '0', 0, false, NULL),
                ('5', 'discarded', interval '0', 1, false, now())
            ) AS old (id, state, delay, fence, started, ended_at) USING (id)"#
        );
        execute(&store, &fill).await;

        let applied = migrate::up(&store).await.unwrap();

        assert_eq!(applied.iter().map(|applied| applied.version).collect::<Vec<_>>(), [5, 6]);
        store.verify().await.unwrap();
        let wants = [Want { handler: "h", limit: 10 }];
        let request = TakeRequest {
            scope: "",
            holder: "w",
            lease: Duration::from_secs(60),
            limit: 10,
            seats: 10,
            wants: &wants,
            suspects: false,
        };
        let taken = store.take(&request, None).await.unwrap();
        let mut told: Vec<_> = taken.iter().map(|it| (it.key.id.as_str(), it.ticket.fence)).collect();
        told.sort_unstable();
        assert_eq!(told, [("2", 4), ("4", 1)], "what was leased before is held, or was given up");
        let held = store.standing(Ticket { number: 3, fence: 1 }).await.unwrap();
        let done = store.standing(Ticket { number: 1, fence: 1 }).await.unwrap();
        assert_eq!((held, done), (Standing::Held, Standing::Done));
        assert!(store.replay_delivery(1, None).await.unwrap());
        let replayed = store.take(&request, None).await.unwrap();
        assert_eq!((replayed[0].ticket, replayed[0].generation), (Ticket { number: 1, fence: 2 }, 1));
    })
    .await;
}
