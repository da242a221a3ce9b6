//! The log and the schedule: what is put and what is read.

use super::*;

#[tokio::test]
async fn an_envelope_comes_back_as_it_was_put() {
    let database = Database::new();
    let store = database.store().await;
    let full = Envelope {
        tenant: "acme".into(),
        subject: Some("17".into()),
        aggregate_type: Some("order".into()),
        data_schema: Some("urn:s".into()),
        correlation_id: Some("c".into()),
        causation_id: Some("d".into()),
        idempotency_key: Some("i".into()),
        traceparent: Some("00-1-2-01".into()),
        tracestate: Some("a=b".into()),
        baggage: Some("k=v".into()),
        headers: BTreeMap::from([("x".into(), "\"quoted\" ü".into())]),
        payload: vec![0, 255, 1],
        ..envelope("full", Some("k"))
    };

    put(&store, std::slice::from_ref(&full), at(5)).await;
    let span = store.read(window(&ALL, 0, 10)).await.unwrap();

    assert_eq!(span.rows[0].envelope, Ok(Envelope { time: at(5), ..full }));
    assert_eq!((span.through, span.full, span.rows.len()), (1, false, 1));
}

#[tokio::test]
async fn an_id_is_stored_once_in_the_log_or_in_the_schedule() {
    let database = Database::new();
    let store = database.store().await;
    let later = |id: &str| Envelope { due: at(100), ..envelope(id, None) };

    let first = put(&store, &[envelope("1", None), envelope("1", None), later("2"), later("2")], at(1)).await;
    let second = put(&store, &[later("1"), envelope("2", None)], at(1)).await;

    assert_eq!(first, [Once::First, Once::Duplicate, Once::First, Once::Duplicate]);
    assert_eq!(second, [Once::Duplicate, Once::Duplicate]);
    for (id, held) in [("1", true), ("2", true), ("3", false)] {
        assert_eq!(store.holds(&envelope(id, None)).await.unwrap(), held, "{id}");
    }
}

#[tokio::test]
async fn scheduled_messages_enter_the_log_when_due_in_order_of_their_time() {
    let database = Database::new();
    let store = database.store().await;
    let due = |id: &str, seconds| Envelope { due: at(seconds), ..envelope(id, None) };
    put(&store, &[due("c", 30), due("a", 10), due("b", 20)], at(1)).await;

    assert_eq!(store.promote(10, at(9)).await.unwrap(), 0);
    assert_eq!(store.promote(1, at(25)).await.unwrap(), 1);
    assert_eq!(store.promote(10, at(25)).await.unwrap(), 1);
    assert_eq!(store.promote(10, None).await.unwrap(), 1);

    let rows = store.read(window(&ALL, 0, 10)).await.unwrap().rows;
    let ids: Vec<_> = rows.iter().map(|row| row.envelope.as_ref().unwrap().id.clone()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    assert_eq!(rows[0].envelope.as_ref().unwrap().time, at(25));
}

#[tokio::test]
async fn a_reader_of_few_shards_sees_its_rows_and_passes_the_others() {
    let database = Database::new();
    let store = database.store().await;
    let batch: Vec<_> = (0..80).map(|n| envelope(&n.to_string(), Some(&format!("key-{n}")))).collect();
    put(&store, &batch, None).await;

    let mut seen = Vec::new();
    for shard in 0..SHARDS {
        let span = store.read(window(&[shard], 0, 100)).await.unwrap();
        assert_eq!((span.through, span.full), (80, false));
        assert!(span.rows.iter().all(|row| row.shard == shard));
        seen.extend(span.rows.iter().map(|row| row.position));
    }
    let part = store.read(window(&[0, 1, 2, 3], 0, 5)).await.unwrap();

    seen.sort_unstable();
    assert_eq!(seen, (1..=80).collect::<Vec<_>>());
    assert!(part.full && part.rows.len() == 5);
    assert_eq!(part.through, part.rows[4].position);
}

#[tokio::test]
async fn holes_are_looked_up_and_too_many_of_them_stop_the_reader() {
    let database = Database::new();
    let store = database.store().await;
    put(&store, &[envelope("1", None), envelope("2", None), envelope("3", None)], None).await;
    let many: Vec<Position> = (1..=MAX_HOLES as Position + 1).collect();

    let some = store.read(Window { holes: &[1, 7], ..window(&ALL, 2, 10) }).await.unwrap();
    let stopped = store.read(Window { holes: &many, ..window(&ALL, 2, 10) }).await.unwrap();

    assert_eq!(some.rows.iter().map(|row| row.position).collect::<Vec<_>>(), [1, 3]);
    assert_eq!((some.through, some.holes), (3, vec![]));
    assert_eq!(stopped.rows.len(), 3);
    assert_eq!(stopped.through, 2);
}

#[tokio::test]
async fn a_row_nobody_can_read_spoils_no_other() {
    let database = Database::new();
    let store = database.store().await;
    sqlx::raw_sql(
        "INSERT INTO oncebox_outbox (type, destination, payload) VALUES ('t', 'd', 'text is fine');
         INSERT INTO oncebox_outbox (type, destination, payload) VALUES ('t', CAST(x'ff' AS TEXT), x'00');
         INSERT INTO oncebox_outbox (type, destination, payload, schema_version) VALUES ('t', 'd', x'00', 'x');
         INSERT INTO oncebox_outbox (type, destination, payload, headers)
             VALUES ('t', 'd', x'00', '{\"n\": 1}');
         INSERT INTO oncebox_outbox (type, destination, payload, subject) VALUES ('t', 'd', x'00', x'ff');
         INSERT INTO oncebox_outbox (type, destination, payload, baggage)
             VALUES ('t', 'd', x'00', 'a' || char(0) || '\"');",
    )
    .execute(store.pool())
    .await
    .unwrap();

    let rows = store.read(window(&ALL, 0, 10)).await.unwrap().rows;

    let readable: Vec<bool> = rows.iter().map(|row| row.envelope.is_ok()).collect();
    assert_eq!(readable, [true, false, false, true, false, true]);
    assert_eq!(rows[0].envelope.as_ref().unwrap().payload, b"text is fine");
    assert_eq!(rows[3].envelope.as_ref().unwrap().headers["n"], "1");
    assert_eq!(rows[5].envelope.as_ref().unwrap().baggage.as_deref(), Some("a\0\""));
}
