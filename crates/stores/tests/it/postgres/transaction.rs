//! Transactions that are dropped, refused or killed, and what errors mean.

use oncebox_core::gate::{
    Admission, AdmitRequest, Claiming, Durability, Fingerprint, OnDoubt, OnMismatch, ReceiptKey,
    Receipts as _, Reply, Request,
};

use super::*;

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

/// The driver then rolls all of it back, and forgets that there was a transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_after_a_dropped_nested_begin_never_claims_what_was_rolled_back() {
    on_tables("a_commit_after_a_dropped_nested_begin", |store, _| async move {
        let (mut kept, mut lost) = (0, 0);
        for round in 0..200_u32 {
            let message = envelope(&round.to_string());
            let mut tx = store.begin().await.unwrap();
            store.put(&mut tx, std::slice::from_ref(&message), None).await.unwrap();
            dropped_after((*tx).begin(), Duration::from_micros(u64::from(round * 7 % 400))).await;

            let answer = store.commit(tx).await;

            assert_eq!(store.holds(&message).await.unwrap(), answer.is_ok(), "{round}: {answer:?}");
            *(if answer.is_ok() { &mut kept } else { &mut lost }) += 1;
        }
        println!("{kept} kept, {lost} lost");
        assert!(lost > 0, "a begin was dropped under way");
    })
    .await;
}

#[tokio::test]
async fn a_commit_that_is_refused_begins_nothing_and_the_connection_serves_on() {
    on_tables("a_commit_that_is_refused_begins_nothing", |store, schema| async move {
        let table = format!("CREATE TABLE {schema}.late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)");
        execute(&store, &table).await;
        let options = (*store.pool().connect_options()).clone();
        let pool = pool_options().max_connections(1).connect_with(options).await.unwrap();
        let alone = PostgresStore::new(pool).schema(Identifier::new(schema.as_str()).unwrap());
        let mut tx = alone.begin().await.unwrap();
        let twice = format!("INSERT INTO {schema}.late VALUES (1), (1)");
        tx.execute(AssertSqlSafe(twice)).await.unwrap();
        alone.put(&mut tx, &[envelope("1")], None).await.unwrap();

        assert_eq!(kind(alone.commit_sound(tx, true).await.map(drop)), Kind::Rejected);

        put(&alone, &[envelope("2")]).await;
        let rows = read(&alone, 0, &[]).await.rows;
        assert_eq!(
            rows.iter().map(|row| row.envelope.as_ref().unwrap().id.as_str()).collect::<Vec<_>>(),
            ["2"]
        );
    })
    .await;
}

#[tokio::test]
async fn the_transaction_after_a_commit_is_as_bounded_as_the_first() {
    on_tables("the_transaction_after_a_commit_is_as_bounded", |store, _| async move {
        let short =
            store.clone().idle_timeout(Duration::from_millis(1234)).lock_wait(Duration::from_millis(567));
        let tx = short.begin().await.unwrap();

        let mut next = short.commit_sound(tx, true).await.unwrap().expect("it goes on");

        let bounds = "SELECT current_setting('idle_in_transaction_session_timeout'), \
                      current_setting('lock_timeout'), current_setting('transaction_isolation')";
        let found: (String, String, String) = sqlx::query_as(bounds).fetch_one(&mut *next).await.unwrap();
        assert_eq!(found, ("1234ms".into(), "567ms".into(), "read committed".into()));
    })
    .await;
}

/// A transaction with a message, whose connection the server has ended.
async fn killed(store: &PostgresStore) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut tx = store.begin().await.unwrap();
    store.put(&mut tx, &[envelope("1")], None).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
    sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(store.pool()).await.unwrap();
    tx
}

#[tokio::test]
async fn a_connection_killed_before_the_commit_that_goes_on_is_looked_up() {
    on_tables("a_connection_killed_before_the_commit_that_goes_on", |store, _| async move {
        let tx = killed(&store).await;

        assert_eq!(kind(store.commit_sound(tx, true).await.map(drop)), Kind::CommitUnknown);

        assert!(!store.holds(&envelope("1")).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_connection_killed_before_the_commit_commits_nothing() {
    on_tables("a_connection_killed_before_the_commit_commits_nothing", |store, _| async move {
        let tx = killed(&store).await;

        let error = store.commit(tx).await.unwrap_err();

        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(!store.holds(&envelope("1")).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn an_idle_transaction_is_ended_by_the_server() {
    on_tables("an_idle_transaction_is_ended_by_the_server", |store, _| async move {
        let short = store.clone().idle_timeout(Duration::from_secs(3));
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

/// The same request, by this token.
fn order(token: i64) -> AdmitRequest {
    let print = Request { method: "POST", path: "/", query: None, content_type: None, body: b"" };
    AdmitRequest {
        key: ReceiptKey { scope: [1; 32], key: [2; 32] },
        token,
        fingerprint: Fingerprint::raw(&print),
        lease: Duration::from_secs(60),
        ttl: Duration::from_secs(600),
        sliding: false,
        on_doubt: OnDoubt::Retry,
        on_mismatch: OnMismatch::Refuse,
        durability: Durability::Full,
    }
}

fn created() -> Reply {
    Reply { status: 201, body: Some(b"{}".to_vec()), ..Reply::default() }
}

#[tokio::test]
async fn only_a_relaxed_admission_does_not_wait_for_the_disk() {
    on_tables("only_a_relaxed_admission_does_not_wait_for_the_disk", |store, schema| async move {
        let note = format!(
            "CREATE TABLE {schema}.seen (number serial, setting text);
             CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN
                 INSERT INTO {schema}.seen (setting) VALUES (current_setting('synchronous_commit'));
                 RETURN NEW;
             END$$;
             CREATE TRIGGER note BEFORE INSERT OR UPDATE ON {schema}.receipt
             FOR EACH ROW EXECUTE FUNCTION {schema}.note()"
        );
        execute(&store, &note).await;
        let of = |number: u8, durability| {
            let key = ReceiptKey { scope: [1; 32], key: [number; 32] };
            AdmitRequest { key, durability, ..order(number.into()) }
        };

        let relaxed = of(1, Durability::Relaxed);
        store.admit(&relaxed, None).await.unwrap();
        store.seal(&relaxed.pass(), &created()).await.unwrap();
        store.admit(&of(2, Durability::Full), None).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        store.admit_in(&mut tx, &of(3, Durability::Relaxed), None).await.unwrap();
        store.commit(tx).await.unwrap();

        let text = AssertSqlSafe(format!("SELECT setting FROM {schema}.seen ORDER BY number"));
        let seen: Vec<String> = sqlx::query_scalar(text).fetch_all(store.pool()).await.unwrap();
        let setting = sqlx::query_scalar("SHOW synchronous_commit").fetch_one(store.pool()).await;
        let usual: String = setting.unwrap();
        assert_eq!(seen, ["off", &usual, &usual, &usual], "admitted, sealed; admitted; in a transaction");
    })
    .await;
}

#[tokio::test]
async fn a_key_that_is_being_claimed_in_one_schema_is_free_in_another() {
    on_tables("a_key_that_is_being_claimed_in_one_schema_is_free_in_another", |store, _| async move {
        let name = random_schema();
        let neighbour = PostgresStore::new(store.pool().clone()).schema(Identifier::new(&name).unwrap());
        migrate::up(&neighbour).await.unwrap();
        let admit = order(1);

        let mut tx = store.begin().await.unwrap();
        let claimed = store.admit_in(&mut tx, &admit, None).await.unwrap();
        let elsewhere = neighbour.admit(&admit, None).await;
        store.rollback(tx).await.unwrap();
        execute(&store, &format!("DROP SCHEMA {name} CASCADE")).await;

        assert!(matches!(claimed, Admission::Proceed(_)));
        assert!(matches!(elsewhere.unwrap(), Admission::Proceed(_)));
    })
    .await;
}

#[tokio::test]
async fn a_copy_of_a_claimed_request_does_not_wait_for_it() {
    on_tables("a_copy_of_a_claimed_request_does_not_wait_for_it", |store, _| async move {
        let name = random_schema();
        let neighbour = PostgresStore::new(store.pool().clone()).schema(Identifier::new(&name).unwrap());
        migrate::up(&neighbour).await.unwrap();
        let Claiming::Begun(tx) = store.begin_claim(&order(i64::MIN), None).await.unwrap() else { panic!() };

        // A wait for the lock would end as an error, soon.
        let impatient = store.clone().lock_wait(Duration::from_millis(1));
        let outside = impatient.admit(&order(2), None).await.unwrap();
        let inside = impatient.begin_claim(&order(3), None).await.unwrap();
        let elsewhere = neighbour.begin_claim(&order(4), None).await.unwrap();
        store.seal_claim(tx, &order(i64::MIN), &created(), None).await.unwrap();
        let afterwards = store.begin_claim(&order(5), None).await.unwrap();

        assert!(matches!(outside, Admission::InFlight { .. }), "{outside:?}");
        assert!(matches!(inside, Claiming::Told(Admission::InFlight { .. })), "{inside:?}");
        assert!(matches!(&elsewhere, Claiming::Begun(_)), "the key of another schema");
        assert!(matches!(afterwards, Claiming::Told(Admission::Replay { .. })), "{afterwards:?}");
        drop(elsewhere);
        execute(&store, &format!("DROP SCHEMA {name} CASCADE")).await;
    })
    .await;
}

#[tokio::test]
async fn a_claim_whose_key_is_anothers_commits_nothing() {
    on_tables("a_claim_whose_key_is_anothers_commits_nothing", |store, schema| async move {
        execute(&store, &format!("CREATE TABLE {schema}.booked (n int)")).await;
        for body in [b"{}".to_vec(), vec![b'x'; 100_000]] {
            let Claiming::Begun(mut tx) = store.begin_claim(&order(1), None).await.unwrap() else { panic!() };
            tx.execute(AssertSqlSafe(format!("INSERT INTO {schema}.booked VALUES (1)"))).await.unwrap();
            // Somebody who does not ask for the lock.
            execute(
                &store,
                &format!(
                    "INSERT INTO {schema}.receipt VALUES ('\\x{}', '\\x{}', '\\x00', 'in_flight', 7, now(), now(), now())",
                    "01".repeat(32),
                    "02".repeat(32)
                ),
            )
            .await;

            let sealed = store.seal_claim(tx, &order(1), &Reply { body: Some(body), ..created() }, None).await;

            assert_eq!(sealed.unwrap_err().kind(), Kind::Fenced);
            let left: (i64, i64) = sqlx::query_as(AssertSqlSafe(format!(
                "SELECT (SELECT count(*) FROM {schema}.booked), (SELECT token FROM {schema}.receipt)"
            )))
            .fetch_one(store.pool())
            .await
            .unwrap();
            assert_eq!(left, (0, 7));
            execute(&store, &format!("DELETE FROM {schema}.receipt")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_was_doomed_or_ended_inside_is_not_sealed() {
    on_tables("a_claim_that_was_doomed_or_ended_inside_is_not_sealed", |store, schema| async move {
        let spoilers =
            [("SELECT 1 / 0", Kind::Rejected), ("ROLLBACK", Kind::Fenced), ("ROLLBACK; BEGIN", Kind::Fenced)];
        for (spoiled_by, kind) in spoilers {
            let Claiming::Begun(mut tx) = store.begin_claim(&order(1), None).await.unwrap() else { panic!() };
            tx.execute(sqlx::raw_sql(spoiled_by)).await.ok();

            let sealed = store.seal_claim(tx, &order(1), &created(), None).await;

            assert_eq!(sealed.unwrap_err().kind(), kind, "{spoiled_by}");
        }
        let count = format!("SELECT count(*) FROM {schema}.receipt");
        let receipts: i64 = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(store.pool()).await.unwrap();
        assert_eq!(receipts, 0);
    })
    .await;
}

#[tokio::test]
async fn a_claim_is_sealed_byte_for_byte_whatever_a_backslash_means() {
    on_tables("a_claim_is_sealed_byte_for_byte_whatever_a_backslash_means", |store, schema| async move {
        let server = (*store.pool().connect_options()).clone();
        let lax = server.options([("standard_conforming_strings", "off")]);
        let pool = pool_options().connect_with(lax).await.unwrap();
        let lax = PostgresStore::new(pool).schema(Identifier::new(&schema).unwrap());
        let reply = Reply { body: Some(b"'\\x27 \\ \0".to_vec()), ..created() };
        let Claiming::Begun(tx) = lax.begin_claim(&order(1), None).await.unwrap() else { panic!() };

        lax.seal_claim(tx, &order(1), &reply, None).await.unwrap();

        let told = store.begin_claim(&order(2), None).await.unwrap();
        let Claiming::Told(Admission::Replay { reply: replayed, .. }) = told else { panic!("{told:?}") };
        assert_eq!(replayed, reply);
        lax.pool().close().await;
    })
    .await;
}
