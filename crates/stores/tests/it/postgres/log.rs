//! Late commits: a position is passed only when nobody can fill it any more.

use super::*;

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

/// A reader of some shards asks for the others in a second statement, which may see more than the first.
#[tokio::test]
async fn one_writer_alone_leaves_no_holes_to_a_reader_of_some_shards() {
    let test = "one_writer_alone_leaves_no_holes_to_a_reader_of_some_shards";
    on_tables(test, |store, _| async move {
        const COMMITS: usize = 300;
        const ROWS: usize = 16;
        let writer = tokio::spawn({
            let store = store.clone();
            async move {
                for commit in 0..COMMITS {
                    let batch: Vec<_> = (0..ROWS).map(|row| envelope(&format!("{commit}-{row}"))).collect();
                    put(&store, &batch).await;
                }
            }
        });

        let (mut after, mut rows) = (0, Vec::new());
        let end = Instant::now() + Duration::from_secs(60);
        while after < (COMMITS * ROWS) as Position {
            assert!(Instant::now() < end, "came to {after}");
            let window = Window { shards: &ALL[..4], after, holes: &[], limit: 100 };
            let span = store.read(window).await.unwrap();
            assert!(span.holes.is_empty(), "after {after}: {:?}", span.holes);
            rows.extend(span.rows.iter().map(|row| row.position));
            after = span.through;
        }
        writer.await.unwrap();

        // Rows without a key are dealt out by their position.
        let own = (1..=after).filter(|position| position % 8 < 4);
        assert!(own.eq(rows), "every row of these shards once and in order");
    })
    .await;
}

#[tokio::test]
async fn no_plan_of_a_read_outlives_the_log_it_was_made_for() {
    let Some(url) = url("no_plan_of_a_read_outlives_the_log_it_was_made_for") else { return };
    let pool = pool_options().max_connections(1).connect(&url).await.unwrap();
    let session = PostgresStore::new(pool);
    on_tables("no_plan_of_a_read_outlives_the_log_it_was_made_for", |_, schema| async move {
        let store = session.schema(Identifier::new(&schema).unwrap());

        for holes in [&[][..], &[1]] {
            let window = Window { shards: &ALL[..4], after: 0, holes, limit: 100 };
            store.read(window).await.unwrap();
        }

        let kept: Vec<String> = sqlx::query_scalar(
            "SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%' || $1 || '.outbox%'",
        )
        .bind(&schema)
        .fetch_all(store.pool())
        .await
        .unwrap();
        assert_eq!(kept, [""; 0]);
    })
    .await;
}
