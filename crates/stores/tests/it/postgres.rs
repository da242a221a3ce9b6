//! PostgreSQL beyond the common suite: migrations, cancellation, late commits, what errors mean.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::Inspect;
use oncebox_core::log::{
    ClaimRequest, Cursor, LaneKey, MAX_HOLES, Park, Parking, Position, Settlement, Shard, Span, Window,
};
use oncebox_core::store::{Burial, Mark, Marked, Purge};
use oncebox_core::{
    Dedup, Digest, Envelope, Error, Identifier, Kind, Mailbox, Once, Retention, Store, Timestamp,
};
use oncebox_stores::postgres::{PostgresStore, migrate, pool_options};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Executor, Row as _};

const ALL: [Shard; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

fn url(test: &str) -> Option<String> {
    let url = std::env::var("ONCEBOX_TEST_POSTGRES_URL").ok().filter(|url| !url.is_empty());
    if url.is_none() {
        assert!(std::env::var_os("ONCEBOX_NO_SKIP").is_none(), "ONCEBOX_TEST_POSTGRES_URL is not set");
        eprintln!("SKIP {test}: ONCEBOX_TEST_POSTGRES_URL is not set");
    }
    url
}

fn random_schema() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    format!("t{}_{nanos}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs `body` on a schema of its own that is dropped afterwards, come what may.
async fn on_empty<F: Future<Output = ()> + Send + 'static>(
    test: &str,
    body: impl FnOnce(PostgresStore, String) -> F,
) {
    let Some(url) = url(test) else { return };
    let schema = random_schema();
    let store = PostgresStore::connect(&url).await.unwrap();
    let store = store.schema(Identifier::new(&schema).unwrap()).allow_unsafe_durability();
    let outcome = tokio::spawn(body(store.clone(), schema.clone())).await;
    execute(&store, &format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await;
    outcome.unwrap();
}

/// The same with tables in it.
async fn on_tables<F: Future<Output = ()> + Send + 'static>(
    test: &str,
    body: impl FnOnce(PostgresStore, String) -> F + Send + 'static,
) {
    on_empty(test, |store, schema| async move {
        migrate::up(&store).await.unwrap();
        body(store, schema).await;
    })
    .await;
}

async fn execute(store: &PostgresStore, text: &str) {
    store.pool().execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.unwrap();
}

fn envelope(id: &str) -> Envelope {
    Envelope {
        id: id.into(),
        source: "test".into(),
        kind: "thing.done.v1".into(),
        schema_version: 1,
        destination: "things".into(),
        content_type: "application/json".into(),
        payload: b"{}".to_vec(),
        ..Envelope::default()
    }
}

fn keyed(id: &str, key: &str) -> Envelope {
    Envelope { key: Some(key.into()), ..envelope(id) }
}

async fn put(store: &PostgresStore, batch: &[Envelope]) -> Vec<Once> {
    let mut tx = store.begin().await.unwrap();
    let once = store.put(&mut tx, batch, None).await.unwrap();
    store.commit(tx).await.unwrap();
    once
}

async fn read(store: &PostgresStore, after: Position, holes: &[Position]) -> Span {
    store.read(Window { shards: &ALL, after, holes, limit: 100 }).await.unwrap()
}

fn ids(span: &Span) -> Vec<&str> {
    span.rows.iter().map(|row| row.envelope.as_ref().unwrap().id.as_str()).collect()
}

/// Reads on until no hole is left; tells what appeared meanwhile.
async fn read_until_closed(store: &PostgresStore, mut span: Span) -> Vec<String> {
    let mut late = Vec::new();
    let end = Instant::now() + Duration::from_secs(20);
    while !span.holes.is_empty() {
        assert!(Instant::now() < end, "still open: {:?}", span.holes);
        span = read(store, span.through, &span.holes).await;
        late.extend(ids(&span).into_iter().map(str::to_owned));
    }
    late
}

fn request(holder: &str) -> ClaimRequest {
    ClaimRequest { sink: "s".into(), holder: holder.into(), lease: Duration::from_secs(30) }
}

fn settlement(cursors: &[Cursor]) -> Settlement {
    let fences = cursors.iter().map(|cursor| (cursor.shard, cursor.fence)).collect();
    Settlement { sink: "s".into(), fences, ..Settlement::default() }
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> Kind {
    result.unwrap_err().kind()
}

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
        assert_eq!(first.iter().map(|applied| applied.version).collect::<Vec<_>>(), [1]);
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

        assert_eq!(applied, 1);
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
        assert_eq!(newer, "the database is at schema version 99, this build knows 1; upgrade oncebox");
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

/// Polls as often as the runtime lets it, and drops the future when `span` is over.
async fn dropped_after<F: Future>(future: F, span: Duration) {
    let begun = Instant::now();
    let mut future = pin!(future);
    loop {
        let ready = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if ready || begun.elapsed() >= span {
            return;
        }
        tokio::task::yield_now().await;
    }
}

const ROUNDS: u32 = 300;

/// Of inserts that each follow a begin dropped at another instant: how many
/// survive, and how many found the connection inside a transaction.
async fn survivors<F: Future>(pool: &sqlx::PgPool, schema: &str, begin: impl Fn() -> F) -> (i64, u32) {
    pool.execute(AssertSqlSafe(format!("CREATE TABLE {schema}.kept (n int)"))).await.unwrap();
    let mut inside = 0;
    for round in 0..ROUNDS {
        dropped_after(begin(), Duration::from_micros(u64::from(round * 37 % 1500))).await;
        pool.execute(AssertSqlSafe(format!("INSERT INTO {schema}.kept VALUES (1)"))).await.unwrap();
        // One message, or the two differ outside a transaction as well.
        let asked = pool.fetch_one(sqlx::raw_sql("SELECT now() = statement_timestamp()")).await.unwrap();
        let outside: bool = asked.get(0);
        inside += u32::from(!outside);
    }
    // Whatever the one connection left open ends with it.
    pool.close().await;
    let other = sqlx::PgPool::connect_with((*pool.connect_options()).clone()).await.unwrap();
    let count = format!("SELECT count(*) FROM {schema}.kept");
    (sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&other).await.unwrap(), inside)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_dropped_at_any_instant_leaves_no_transaction_behind() {
    on_tables("a_begin_dropped_at_any_instant_leaves_no_transaction_behind", |store, schema| async move {
        let options = (*store.pool().connect_options()).clone();
        let plain = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let on_plain = PostgresStore::new(plain.clone());

        let outcome = survivors(&plain, &schema, || on_plain.begin()).await;

        assert_eq!(outcome, (ROUNDS.into(), 0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_offered_pool_options_repair_a_bare_begin_that_was_dropped() {
    on_tables("the_offered_pool_options_repair_a_bare_begin_that_was_dropped", |store, schema| async move {
        let options = (*store.pool().connect_options()).clone();
        let pool = pool_options().max_connections(1).connect_with(options).await.unwrap();

        let outcome = survivors(&pool, &schema, || pool.begin()).await;

        assert_eq!(outcome, (ROUNDS.into(), 0));
    })
    .await;
}

#[tokio::test]
async fn a_commit_after_a_swallowed_error_is_refused() {
    on_tables("a_commit_after_a_swallowed_error_is_refused", |store, _| async move {
        let mut tx = store.begin().await.unwrap();
        store.put(&mut tx, &[envelope("1")], None).await.unwrap();
        tx.execute("SELECT 1 / 0").await.unwrap_err();

        let error = store.commit(tx).await.unwrap_err();

        assert_eq!(error.kind(), Kind::Rejected);
        assert_eq!(error.to_string(), "an earlier statement had failed; nothing was committed");
        assert!(read(&store, 0, &[]).await.rows.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_connection_killed_before_the_commit_commits_nothing() {
    on_tables("a_connection_killed_before_the_commit_commits_nothing", |store, _| async move {
        let mut tx = store.begin().await.unwrap();
        store.put(&mut tx, &[envelope("1")], None).await.unwrap();
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
        sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(store.pool()).await.unwrap();

        let error = store.commit(tx).await.unwrap_err();

        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(!store.holds(&envelope("1")).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn an_idle_transaction_is_ended_by_the_server() {
    on_tables("an_idle_transaction_is_ended_by_the_server", |store, _| async move {
        let short = store.clone().idle_timeout(Duration::from_millis(50));
        let mut tx = short.begin().await.unwrap();
        short.put(&mut tx, &[envelope("1")], None).await.unwrap();

        // Waits in the index until the server has ended the idle owner.
        let once = put(&store, &[envelope("1")]).await;

        assert_eq!(once, [Once::First]);
        drop(tx);
    })
    .await;
}

#[tokio::test]
async fn errors_of_a_real_server_have_their_kind() {
    on_tables("errors_of_a_real_server_have_their_kind", |store, schema| async move {
        let mut tx = store.begin().await.unwrap();
        let spoiled = [
            Envelope { id: "a\0b".into(), ..envelope("1") },
            Envelope { id: "x".repeat(256), ..envelope("1") },
            keyed("1", ""),
        ];
        for bad in spoiled {
            tx.execute("SAVEPOINT s").await.unwrap();
            assert_eq!(kind(store.put(&mut tx, std::slice::from_ref(&bad), None).await), Kind::Invalid);
            tx.execute("ROLLBACK TO s").await.unwrap();
        }
        drop(tx);
        let foreign = store.pool().execute("SELECT * FROM no_such_table").await.unwrap_err();
        assert_eq!(store.classify(&foreign), Some(Kind::Config));
        assert_eq!(store.classify(&std::io::Error::other("disk")), None);

        execute(&store, &format!("DROP TABLE {schema}.marker")).await;
        let mut tx = store.begin().await.unwrap();
        let key = MessageKey::business("k");
        assert_eq!(kind(store.mark(&mut tx, &mark(&key), None).await), Kind::Config);
    })
    .await;
}

#[tokio::test]
async fn a_failed_connect_tells_where_but_not_the_password() {
    let Some(url) = url("a_failed_connect_tells_where_but_not_the_password") else { return };
    let (scheme, rest) = url.split_once("://").unwrap();
    let server = rest.rsplit_once('@').map_or(rest, |(_, server)| server);
    let server = server.split(['/', '?']).next().unwrap();

    let nowhere = PostgresStore::connect("postgres://joe:hunter2@127.0.0.1:1/db").await.unwrap_err();
    let malformed = PostgresStore::connect("postgres://joe:hunter2@[::1/db").await.unwrap_err();
    let stranger = format!("{scheme}://no_such_role:hunter2@{server}/no_such_database");
    let refused = PostgresStore::connect(&stranger).await.unwrap_err();

    assert_eq!(nowhere.kind(), Kind::Unavailable);
    assert!(nowhere.to_string().contains("database db at 127.0.0.1:1"), "{nowhere}");
    assert_eq!((malformed.kind(), refused.kind()), (Kind::Config, Kind::Config));
    for error in [&nowhere, &malformed, &refused] {
        assert!(!error.chain().contains("hunter2") && !format!("{error:?}").contains("hunter2"));
    }
}

fn mark(key: &MessageKey) -> Mark<'_> {
    Mark { tenant: "", handler: "h", key, digest: Digest::of(b"body"), time: None, window: None }
}

/// Marks from a transaction of its own, which is then rolled back.
async fn mark_beside(store: PostgresStore, key: MessageKey) -> Marked {
    let mut tx = store.begin().await.unwrap();
    store.mark(&mut tx, &mark(&key), None).await.unwrap()
}

/// Until some transaction waits for another one with a statement on this schema.
async fn wait_for_waiter(store: &PostgresStore, schema: &str) {
    let end = Instant::now() + Duration::from_secs(10);
    let text =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, $1) > 0";
    while 0 == sqlx::query_scalar::<_, i64>(text).bind(schema).fetch_one(store.pool()).await.unwrap() {
        assert!(Instant::now() < end, "nobody waits");
    }
}

#[tokio::test]
async fn a_copy_waits_for_the_owner_and_then_is_a_duplicate() {
    on_tables("a_copy_waits_for_the_owner_and_then_is_a_duplicate", |store, schema| async move {
        let key = MessageKey::business("k");
        let mut owner = store.begin().await.unwrap();
        assert_eq!(store.mark(&mut owner, &mark(&key), None).await.unwrap(), Marked::First);
        let copy = tokio::spawn(mark_beside(store.clone(), key.clone()));
        wait_for_waiter(&store, &schema).await;
        store.reply(&mut owner, &mark(&key), b"done").await.unwrap();
        store.commit(owner).await.unwrap();

        assert_eq!(copy.await.unwrap(), Marked::Duplicate { result: Some(b"done".to_vec()) });
        let mut tx = store.begin().await.unwrap();
        let other = Mark { digest: Digest::of(b"other"), ..mark(&key) };
        assert_eq!(store.mark(&mut tx, &other, None).await.unwrap(), Marked::Conflict);
    })
    .await;
}

#[tokio::test]
async fn a_copy_takes_over_when_the_owner_rolls_back() {
    on_tables("a_copy_takes_over_when_the_owner_rolls_back", |store, schema| async move {
        let key = MessageKey::business("k");
        let mut owner = store.begin().await.unwrap();
        store.mark(&mut owner, &mark(&key), None).await.unwrap();
        let copy = tokio::spawn(mark_beside(store.clone(), key));
        wait_for_waiter(&store, &schema).await;
        store.rollback(owner).await.unwrap();

        assert_eq!(copy.await.unwrap(), Marked::First);
    })
    .await;
}

#[tokio::test]
async fn a_wait_in_vain_is_busy() {
    on_tables("a_wait_in_vain_is_busy", |store, _| async move {
        let store = store.lock_wait(Duration::from_millis(30));
        let key = MessageKey::business("k");
        let mut owner = store.begin().await.unwrap();
        store.mark(&mut owner, &mark(&key), None).await.unwrap();
        store.put(&mut owner, &[envelope("1")], None).await.unwrap();

        let mut copy = store.begin().await.unwrap();

        assert_eq!(kind(store.mark(&mut copy, &mark(&key), None).await), Kind::Busy);
        assert_eq!(kind(store.holds(&envelope("1")).await), Kind::Busy);
    })
    .await;
}

#[tokio::test]
async fn a_message_older_than_the_markers_can_prove_is_refused() {
    on_tables("a_message_older_than_the_markers_can_prove_is_refused", |store, _| async move {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let key = MessageKey::business("k");
        let window = Duration::from_secs(60);
        let of = |age| Mark { time: Some(now.minus(age)), window: Some(window), ..mark(&key) };
        let mut tx = store.begin().await.unwrap();

        let old = store.mark(&mut tx, &of(window + Duration::from_micros(1)), Some(now)).await.unwrap();
        let young = store.mark(&mut tx, &of(window), Some(now)).await.unwrap();
        let known = store.mark(&mut tx, &of(Duration::from_secs(99)), Some(now)).await.unwrap();

        assert_eq!((old, young, known), (Marked::TooOld, Marked::First, Marked::Duplicate { result: None }));
    })
    .await;
}

#[tokio::test]
async fn a_letter_buried_twice_is_kept_once_whatever_it_carries() {
    on_tables("a_letter_buried_twice_is_kept_once_whatever_it_carries", |store, _| async move {
        let mut letter = envelope("i\0d");
        letter.tenant = "t".repeat(100_000) + "\0";
        letter.headers.insert("h\0".into(), "\0".into());
        letter.payload = vec![0, 255];
        let (channel, handler, code, reason) = ("c", "h", "permanent", "bro\0ken");
        let burial = Burial { channel, handler, code, reason, attempts: u32::MAX, envelope: &letter };

        store.bury(&burial, None).await.unwrap();
        store.bury(&burial, None).await.unwrap();

        assert_eq!(store.status().await.unwrap().dead_letters, 1);
    })
    .await;
}

#[tokio::test]
async fn a_batch_tells_which_messages_were_there_already() {
    on_tables("a_batch_tells_which_messages_were_there_already", |store, _| async move {
        let due = |id| Envelope { due: Some(Timestamp::from_micros(1)), ..envelope(id) };
        let mut full = keyed("2", "k");
        full.tenant = "t".into();
        full.headers.insert("a".into(), "\"ä\"".into());
        full.payload = vec![0, 1, 255];
        put(&store, &[envelope("1")]).await;

        let batch = [due("9"), envelope("1"), full.clone(), due("1"), envelope("3"), full.clone(), due("9")];
        let once = put(&store, &batch).await;

        use Once::{Duplicate, First};
        assert_eq!(once, [First, Duplicate, First, Duplicate, First, Duplicate, Duplicate]);
        let rows = read(&store, 0, &[]).await.rows;
        let stored = rows.iter().find(|row| row.envelope.as_ref().unwrap().id == "2").unwrap();
        let stored = stored.envelope.clone().unwrap();
        assert!(stored.time.is_some());
        assert_eq!(Envelope { time: None, ..stored }, full);
        assert!(store.holds(&due("9")).await.unwrap() && !store.holds(&envelope("7")).await.unwrap());
        assert_eq!(store.promote(10, None).await.unwrap(), 1);
        assert_eq!(store.promote(10, None).await.unwrap(), 0);
        assert!(store.holds(&due("9")).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_late_commit_is_a_hole_until_its_row_appears() {
    on_tables("a_late_commit_is_a_hole_until_its_row_appears", |store, _| async move {
        let mut late = store.begin().await.unwrap();
        store.put(&mut late, &[envelope("late")], None).await.unwrap();
        put(&store, &[envelope("early")]).await;

        let mut span = read(&store, 0, &[]).await;
        assert_eq!((ids(&span), span.holes.as_slice()), (vec!["early"], [1].as_slice()));
        let checked = Instant::now();
        while checked.elapsed() < Duration::from_millis(100) {
            span = read(&store, span.through, &span.holes).await;
            assert_eq!((span.rows.len(), span.holes.as_slice()), (0, [1].as_slice()));
        }
        store.commit(late).await.unwrap();
        let found = read(&store, span.through, &span.holes).await;

        assert_eq!((ids(&found), found.holes.len()), (vec!["late"], 0));
    })
    .await;
}

#[tokio::test]
async fn a_rolled_back_position_closes_while_an_unrelated_writer_stays_open() {
    let test = "a_rolled_back_position_closes_while_an_unrelated_writer_stays_open";
    on_tables(test, |store, _| async move {
        let mut gone = store.begin().await.unwrap();
        store.put(&mut gone, &[envelope("gone")], None).await.unwrap();
        put(&store, &[envelope("a")]).await;
        let span = read(&store, 0, &[]).await;
        assert_eq!(span.holes, [1]);
        let mut unrelated = store.begin().await.unwrap();
        store.put(&mut unrelated, &[envelope("open")], None).await.unwrap();
        store.rollback(gone).await.unwrap();

        let late = read_until_closed(&store, span).await;

        assert!(late.is_empty());
        store.rollback(unrelated).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_prepared_transaction_keeps_its_hole_open() {
    on_tables("a_prepared_transaction_keeps_its_hole_open", |store, schema| async move {
        let allowed: String =
            sqlx::query_scalar("SHOW max_prepared_transactions").fetch_one(store.pool()).await.unwrap();
        if allowed == "0" {
            eprintln!("SKIP a_prepared_transaction_keeps_its_hole_open: max_prepared_transactions is 0");
            return;
        }
        let mut late = store.begin().await.unwrap();
        store.put(&mut late, &[envelope("late")], None).await.unwrap();
        put(&store, &[envelope("early")]).await;
        let mut span = read(&store, 0, &[]).await;
        late.execute(AssertSqlSafe(format!("PREPARE TRANSACTION '{schema}'"))).await.unwrap();
        drop(late);

        let checked = Instant::now();
        while checked.elapsed() < Duration::from_millis(200) {
            span = read(&store, span.through, &span.holes).await;
            assert_eq!(span.holes, [1]);
        }
        execute(&store, &format!("COMMIT PREPARED '{schema}'")).await;

        assert_eq!(read_until_closed(&store, span).await, ["late"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_few_shards_see_every_row_once_among_busy_writers() {
    let test = "readers_of_a_few_shards_see_every_row_once_among_busy_writers";
    on_tables(test, |store, _| async move {
        let writer = |store: PostgresStore, name: usize| async move {
            for n in 0..60 {
                let mut tx = store.begin().await.unwrap();
                let batch: Vec<_> =
                    (0..3).map(|m| keyed(&format!("{name}-{n}-{m}"), &m.to_string())).collect();
                store.put(&mut tx, &batch, None).await.unwrap();
                if n % 5 == 0 { store.rollback(tx).await } else { store.commit(tx).await }.unwrap();
            }
        };
        let reader = |store: PostgresStore, shards: &'static [Shard]| async move {
            let (mut seen, mut after, mut holes) = (Vec::new(), 0, Vec::new());
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                let span = store.read(Window { shards, after, holes: &holes, limit: 7 }).await.unwrap();
                seen.extend(ids(&span).into_iter().map(str::to_owned));
                (after, holes) = (span.through, span.holes);
                // The last position, whoever's shard it is in.
                if after >= 722 && holes.is_empty() && !span.full {
                    return seen;
                }
                assert!(Instant::now() < end, "at {after} with {holes:?}");
            }
        };
        let readers =
            [&ALL[..3], &ALL[3..4], &ALL[4..]].map(|shards| tokio::spawn(reader(store.clone(), shards)));
        let writers: Vec<_> = (0..4).map(|name| tokio::spawn(writer(store.clone(), name))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
        put(&store, &[envelope("more"), envelope("last")]).await;

        let mut seen = Vec::new();
        for reader in readers {
            seen.extend(reader.await.unwrap());
        }

        seen.sort_unstable();
        let total = seen.len();
        seen.dedup();
        assert_eq!((total, seen.len()), (4 * 48 * 3 + 2, 4 * 48 * 3 + 2));
    })
    .await;
}

#[tokio::test]
async fn a_jump_of_the_sequence_is_passed_in_bounded_steps() {
    on_tables("a_jump_of_the_sequence_is_passed_in_bounded_steps", |store, schema| async move {
        let jump = 3 * Position::try_from(MAX_HOLES).unwrap();
        execute(&store, &format!("ALTER TABLE {schema}.outbox ALTER position RESTART {jump}")).await;
        put(&store, &[envelope("far")]).await;

        let (mut span, mut seen, end) = (Span::default(), 0, Instant::now() + Duration::from_secs(60));
        while span.through < jump || !span.holes.is_empty() {
            span = read(&store, span.through, &span.holes).await;
            seen += span.rows.len();
            assert!(span.holes.len() <= 2 * MAX_HOLES && Instant::now() < end);
        }

        assert_eq!(seen, 1);
    })
    .await;
}

#[tokio::test]
async fn an_old_owner_settles_nothing() {
    on_tables("an_old_owner_settles_nothing", |store, _| async move {
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        let later = start.plus(Duration::from_secs(40));
        let old = store.claim(&request("old"), Some(start)).await.unwrap();
        assert_eq!(old.len(), 8);
        let new = store.claim(&request("new"), Some(later)).await.unwrap();
        assert_eq!(new.len(), 8, "the lease of the old owner is over");

        let progress = Settlement { progress: Some((9, vec![4])), ..settlement(&old) };
        let mixed = Settlement { fences: vec![(0, new[0].fence), (1, old[1].fence)], ..progress.clone() };
        let unpark = Settlement { unpark: vec![1], ..settlement(&old) };

        for refused in [&progress, &mixed, &unpark] {
            assert_eq!(kind(store.settle(refused, Some(later)).await), Kind::Fenced);
        }
        let unmoved = store.claim(&request("new"), Some(later)).await.unwrap();
        assert!(unmoved.iter().all(|cursor| cursor.position == 0));
        store.settle(&Settlement { progress: Some((9, vec![4])), ..settlement(&new) }, None).await.unwrap();
        let moved = store.claim(&request("new"), Some(later)).await.unwrap();
        assert!(moved.iter().all(|cursor| cursor.position == 9 && cursor.holes == [4]));
    })
    .await;
}

#[tokio::test]
async fn relays_share_the_shards_fairly_and_give_them_back() {
    on_tables("relays_share_the_shards_fairly_and_give_them_back", |store, _| async move {
        let claim = async |holder: &str| store.claim(&request(holder), None).await.unwrap().len();

        assert_eq!(claim("a").await, 8);
        assert_eq!(claim("b").await, 0);
        assert_eq!(claim("a").await, 4);
        assert_eq!(claim("b").await, 4);
        store.release("s", "a").await.unwrap();
        assert_eq!(claim("b").await, 8);
        assert_eq!(store.status().await.unwrap().sinks[0].relays, 1);
    })
    .await;
}

#[tokio::test]
async fn a_parked_lane_comes_back_in_order() {
    on_tables("a_parked_lane_comes_back_in_order", |store, _| async move {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        put(&store, &[keyed("1", "k"), keyed("2", "k"), keyed("3", "k"), keyed("4", "l")]).await;
        let cursors = store.claim(&request("r"), Some(now)).await.unwrap();
        let rows = read(&store, 0, &[]).await.rows;
        let lane = |key: &str| LaneKey { tenant: String::new(), key: key.into() };
        let park = |n: usize, parking| Park {
            position: rows[n].position,
            shard: rows[n].shard,
            lane: rows[n].envelope.as_ref().ok().and_then(LaneKey::of),
            parking,
            attempts: 1,
            reason: Some("no\0".into()),
        };
        let wait = Parking::Waiting { after: Duration::from_secs(5) };
        let parked =
            vec![park(0, wait), park(1, Parking::Behind), park(2, Parking::Behind), park(3, Parking::Dead)];
        let settled = Settlement { progress: Some((4, vec![])), park: parked, ..settlement(&cursors) };
        store.settle(&settled, Some(now)).await.unwrap();
        let due = async |at| {
            let due = store.due("s", &ALL, 2, Some(at)).await.unwrap();
            due.iter().map(|due| (due.row.position, due.attempts)).collect::<Vec<_>>()
        };

        assert!(due(now).await.is_empty());
        assert_eq!(due(now.plus(Duration::from_secs(5))).await, [(1, 1), (2, 1)]);
        let mut blocked = store.blocked("s", &ALL, false).await.unwrap();
        blocked.sort();
        assert_eq!(blocked, [lane("k"), lane("l")]);
        assert_eq!(store.blocked("s", &ALL, true).await.unwrap(), [lane("k")]);

        let sent = Settlement { unpark: vec![1], free: vec![lane("k")], ..settlement(&cursors) };
        store.settle(&sent, Some(now)).await.unwrap();
        assert_eq!(due(now).await, [(2, 1), (3, 1)]);
        assert!(store.requeue("s", 4, Some(now)).await.unwrap());
        assert!(!store.requeue("s", 4, Some(now)).await.unwrap());
        assert!(!store.discard("s", 4, Some(now)).await.unwrap());
        let dead = Settlement { park: vec![park(1, Parking::Dead)], ..settlement(&cursors) };
        store.settle(&dead, Some(now)).await.unwrap();
        assert!(store.discard("s", 2, Some(now)).await.unwrap());
        assert_eq!(due(now).await, [(3, 1), (4, 0)]);
        let status = store.status().await.unwrap();
        assert_eq!((status.sinks[0].waiting, status.sinks[0].pending), (2, 0));
        assert_eq!(store.parked(10).await.unwrap().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn retention_removes_only_what_every_sink_has_settled() {
    on_tables("retention_removes_only_what_every_sink_has_settled", |store, _| async move {
        let batch: Vec<_> = (1..=10).map(|n| envelope(&n.to_string())).collect();
        put(&store, &batch).await;
        let purge = async || store.purge(&Purge::Outbox(Duration::ZERO), 100, None).await.unwrap();
        assert_eq!(purge().await, 0, "no sink has settled anything");

        let cursors = store.claim(&request("r"), None).await.unwrap();
        let rows = read(&store, 0, &[]).await.rows;
        let dead = Park {
            position: 2,
            shard: rows[1].shard,
            lane: None,
            parking: Parking::Dead,
            attempts: 1,
            reason: None,
        };
        let moved = Settlement { progress: Some((8, vec![6])), park: vec![dead], ..settlement(&cursors) };
        store.settle(&moved, None).await.unwrap();

        assert_eq!(store.purge(&Purge::Outbox(Duration::from_secs(60)), 100, None).await.unwrap(), 0);
        assert_eq!(store.purge(&Purge::Outbox(Duration::ZERO), 1, None).await.unwrap(), 1);
        assert_eq!(purge().await, 3);
        let left: Vec<_> = read(&store, 0, &[]).await.rows.iter().map(|row| row.position).collect();
        assert_eq!(left, [2, 6, 7, 8, 9, 10]);

        assert!(store.discard("s", 2, None).await.unwrap());
        purge().await;
        let late = ClaimRequest { sink: "late".into(), ..request("r") };
        let cursors = store.claim(&late, None).await.unwrap();
        assert!(cursors.iter().all(|cursor| cursor.position == 5), "nothing below is left to read");
        assert_eq!(store.purge(&Purge::Relays(Duration::ZERO), 10, None).await.unwrap(), 0);

        let key = MessageKey::business("k");
        let mut tx = store.begin().await.unwrap();
        store.mark(&mut tx, &mark(&key), None).await.unwrap();
        store.commit(tx).await.unwrap();
        let markers = |handler: &str| Purge::Markers { handler: handler.into(), older_than: Duration::ZERO };
        assert_eq!(store.purge(&markers("other"), 10, None).await.unwrap(), 0);
        assert_eq!(store.purge(&markers("h"), 10, None).await.unwrap(), 1);
    })
    .await;
}
