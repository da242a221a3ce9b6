//! Markers, dead letters, and forgetting.

use super::*;

fn mark<'a>(key: &'a MessageKey, body: &[u8]) -> Mark<'a> {
    Mark { tenant: "", handler: "ship", key, digest: Digest::of(body), time: at(100), window: Some(MINUTE) }
}

#[tokio::test]
async fn a_marker_tells_first_duplicate_conflict_and_too_old_apart() {
    let database = Database::new();
    let store = database.store().await;
    let (key, unseen) = (MessageKey::business("1"), MessageKey::business("2"));
    let mut tx = store.begin().await.unwrap();

    let first = store.mark(&mut tx, &mark(&key, b"x"), at(160)).await.unwrap();
    store.reply(&mut tx, &mark(&key, b"x"), b"done").await.unwrap();
    let again = store.mark(&mut tx, &mark(&key, b"x"), at(999)).await.unwrap();
    let other = store.mark(&mut tx, &mark(&key, b"y"), at(160)).await.unwrap();
    let old = store.mark(&mut tx, &mark(&unseen, b"x"), at(161)).await.unwrap();
    let ageless = store.mark(&mut tx, &Mark { time: None, ..mark(&unseen, b"x") }, None).await.unwrap();
    store.commit(tx).await.unwrap();

    assert_eq!(first, Marked::First);
    assert_eq!(again, Marked::Duplicate { result: Some(b"done".to_vec()) });
    assert_eq!(other, Marked::Conflict);
    assert_eq!(old, Marked::TooOld);
    assert_eq!(ageless, Marked::First);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_waits_for_the_first_and_learns_its_outcome() {
    let database = Database::new();
    let store = database.store().await;
    let key = MessageKey::business("1");

    for (commits, expected) in [(false, Marked::First), (true, Marked::Duplicate { result: None })] {
        let mut first = store.begin().await.unwrap();
        assert_eq!(store.mark(&mut first, &mark(&key, b"x"), at(100)).await.unwrap(), Marked::First);
        let impatient = store.clone().lock_wait(Duration::from_millis(20));
        assert_eq!(impatient.begin().await.unwrap_err().kind(), Kind::Busy);
        assert_eq!(impatient.holds(&envelope("1", None)).await.unwrap_err().kind(), Kind::Busy);
        let second = tokio::spawn({
            let (store, key) = (store.clone().lock_wait(Duration::from_secs(5)), key.clone());
            async move {
                let mut tx = store.begin().await.unwrap();
                let marked = store.mark(&mut tx, &mark(&key, b"x"), at(100)).await.unwrap();
                store.rollback(tx).await.unwrap();
                marked
            }
        });
        if commits {
            store.commit(first).await.unwrap();
        } else {
            store.rollback(first).await.unwrap();
        }
        assert_eq!(second.await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_message_is_buried_whole_and_once() {
    let database = Database::new();
    let store = database.store().await;
    let envelope = Envelope { payload: vec![0, 255], ..envelope("nul\0", None) };
    let burial = Burial {
        channel: "c",
        handler: "h",
        code: "bad",
        reason: "it\0broke",
        attempts: 3,
        envelope: &envelope,
    };

    store.bury(&burial, at(1)).await.unwrap();
    store.bury(&burial, at(2)).await.unwrap();

    let rows: Vec<(String, Vec<u8>, i64)> =
        sqlx::query_as("SELECT envelope, payload, died_at FROM oncebox_dead_letter")
            .fetch_all(store.pool())
            .await
            .unwrap();
    assert_eq!(rows.len(), 1);
    assert!(rows[0].0.contains("\"type\":\"order.placed\"") && !rows[0].0.contains("data_base64"));
    assert_eq!((rows[0].1.as_slice(), rows[0].2), ([0, 255].as_slice(), 1_000_000));
}

#[tokio::test]
async fn purge_keeps_what_is_young_unsettled_open_or_parked() {
    let database = Database::new();
    let store = database.store().await;
    for n in 0..6 {
        put(&store, &[envelope(&n.to_string(), None)], at(n)).await;
    }
    let purge = |limit, seconds| {
        let store = store.clone();
        async move { store.purge(&Purge::Outbox(MINUTE), limit, at(seconds)).await.unwrap() }
    };
    assert_eq!(purge(10, 999).await, 0);
    let cursors = store.claim(&request("a"), at(0)).await.unwrap();
    assert_eq!(purge(10, 999).await, 0);
    let park = Park { position: 2, shard: 2, lane: None, parking: Parking::Dead, attempts: 1, reason: None };
    let progress = Settlement { progress: Some((5, vec![5])), park: vec![park], ..settlement(&cursors) };
    store.settle(&progress, at(10)).await.unwrap();

    assert_eq!(purge(10, 60).await, 0);
    assert_eq!(purge(10, 61).await, 1);
    assert_eq!(purge(1, 999).await, 1);
    assert_eq!(purge(10, 999).await, 1);

    let left: Vec<_> =
        store.read(window(&ALL, 0, 10)).await.unwrap().rows.iter().map(|row| row.position).collect();
    assert_eq!(left, [2, 5, 6]);
}

#[tokio::test]
async fn markers_and_relays_are_purged_by_age() {
    let database = Database::new();
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();
    for n in 0..4 {
        let key = MessageKey::business(&n.to_string());
        store.mark(&mut tx, &Mark { window: None, ..mark(&key, b"x") }, at(n)).await.unwrap();
    }
    store.commit(tx).await.unwrap();
    store.claim(&request("a"), at(0)).await.unwrap();
    let markers = |handler: &str| Purge::Markers { handler: handler.into(), older_than: MINUTE };

    assert_eq!(store.purge(&markers("other"), 10, at(999)).await.unwrap(), 0);
    assert_eq!(store.purge(&markers("ship"), 10, at(61)).await.unwrap(), 1);
    assert_eq!(store.purge(&markers("ship"), 2, at(999)).await.unwrap(), 2);
    assert_eq!(store.purge(&Purge::Relays(MINUTE), 10, at(120)).await.unwrap(), 0);
    assert_eq!(store.purge(&Purge::Relays(MINUTE), 10, at(121)).await.unwrap(), 1);
}
