//! Shares, fences, progress and parked rows.

use super::*;

#[tokio::test]
async fn relays_share_the_shards_and_take_over_what_expires() {
    let database = Database::new();
    let store = database.store().await;
    let shards = |cursors: &[Cursor]| cursors.iter().map(|cursor| cursor.shard).collect::<Vec<_>>();

    let alone = store.claim(&request("a"), at(0)).await.unwrap();
    let late = store.claim(&request("b"), at(10)).await.unwrap();
    let shared = store.claim(&request("a"), at(20)).await.unwrap();
    let joined = store.claim(&request("b"), at(20)).await.unwrap();
    let heir = store.claim(&request("b"), at(81)).await.unwrap();

    assert_eq!(shards(&alone), ALL);
    assert!(late.is_empty());
    assert_eq!(shards(&shared), [0, 1, 2, 3]);
    assert_eq!(shards(&joined), [4, 5, 6, 7]);
    assert_eq!(shards(&heir), ALL);
    assert!(heir.iter().all(|cursor| cursor.fence == 2));
    store.release("main", "b").await.unwrap();
    assert_eq!(shards(&store.claim(&request("c"), at(82)).await.unwrap()), ALL);
}

#[tokio::test]
async fn a_settle_under_a_lost_fence_changes_nothing() {
    let database = Database::new();
    let store = database.store().await;
    put(&store, &[envelope("1", None)], None).await;
    let old = store.claim(&request("a"), at(0)).await.unwrap();
    store.claim(&request("b"), at(1)).await.unwrap();
    store.claim(&request("a"), at(2)).await.unwrap();
    let new = store.claim(&request("b"), at(3)).await.unwrap();
    let park = Park { position: 1, shard: 1, lane: None, parking: Parking::Dead, attempts: 1, reason: None };

    let moved = Settlement { progress: Some((9, vec![4])), ..settlement(&old) };
    let parked = Settlement { park: vec![park], ..settlement(&old) };

    for attempt in [moved, parked] {
        assert_eq!(store.settle(&attempt, at(4)).await.unwrap_err().kind(), Kind::Fenced);
    }
    let kept = store.claim(&request("a"), at(5)).await.unwrap();
    assert!(kept.iter().all(|cursor| cursor.position == 0 && cursor.holes.is_empty()));
    assert!(store.parked(10).await.unwrap().is_empty());
    store.settle(&Settlement { progress: Some((1, vec![])), ..settlement(&new) }, at(6)).await.unwrap();
}

#[tokio::test]
async fn progress_and_holes_come_back_with_the_next_claim() {
    let database = Database::new();
    let store = database.store().await;
    let cursors = store.claim(&request("a"), at(0)).await.unwrap();

    store
        .settle(&Settlement { progress: Some((7, vec![3, 5])), ..settlement(&cursors) }, None)
        .await
        .unwrap();
    let again = store.claim(&request("a"), at(1)).await.unwrap();

    assert!(again.iter().all(|cursor| (cursor.position, cursor.holes.as_slice()) == (7, &[3, 5])));
}

/// Three rows of one key, of which the first was refused, and one row without a key.
async fn parked_lane(store: &SqliteStore) -> (Settlement, LaneKey) {
    let batch =
        [envelope("1", Some("k")), envelope("2", Some("k")), envelope("3", Some("k")), envelope("4", None)];
    put(store, &batch, at(0)).await;
    let cursors = store.claim(&request("a"), at(0)).await.unwrap();
    let rows = store.read(window(&ALL, 0, 10)).await.unwrap().rows;
    let lane = LaneKey { tenant: String::new(), key: "k".into() };
    let park = |position: usize, parking| Park {
        position: position as Position,
        shard: rows[position - 1].shard,
        lane: (position < 4).then(|| lane.clone()),
        parking,
        attempts: 1,
        reason: Some("no".into()),
    };
    let ten = Duration::from_secs(10);
    let first = Settlement {
        progress: Some((4, vec![])),
        park: vec![
            park(1, Parking::Waiting { after: ten }),
            park(2, Parking::Behind),
            park(3, Parking::Behind),
            park(4, Parking::Waiting { after: ten * 2 }),
        ],
        ..settlement(&cursors)
    };
    store.settle(&first, at(0)).await.unwrap();
    (settlement(&cursors), lane)
}

async fn due(store: &SqliteStore, limit: usize, seconds: i64) -> Vec<Position> {
    let rows = store.due("main", &ALL, limit, at(seconds)).await.unwrap();
    assert!(rows.iter().all(|due| due.row.envelope.is_ok() && due.attempts == 1));
    rows.iter().map(|due| due.row.position).collect()
}

#[tokio::test]
async fn parked_rows_come_due_with_those_behind_them() {
    let database = Database::new();
    let store = database.store().await;
    let (ours, lane) = parked_lane(&store).await;

    assert!(due(&store, 10, 9).await.is_empty());
    assert_eq!(due(&store, 10, 10).await, [1, 2, 3]);
    assert_eq!(due(&store, 2, 10).await, [1, 2]);
    assert_eq!(due(&store, 10, 20).await, [1, 2, 3, 4]);
    assert_eq!(due(&store, 2, 20).await, [1, 4]);
    assert_eq!(store.blocked("main", &ALL, false).await.unwrap(), std::slice::from_ref(&lane));
    assert_eq!(store.blocked("other", &ALL, false).await.unwrap(), []);

    let sent = Settlement { unpark: vec![1, 4], free: vec![lane.clone()], ..ours.clone() };
    store.settle(&sent, at(20)).await.unwrap();
    assert_eq!(due(&store, 10, 20).await, [2, 3]);

    let rest = Settlement { unpark: vec![2, 3], free: vec![lane], ..ours };
    store.settle(&rest, at(21)).await.unwrap();
    assert_eq!(store.blocked("main", &ALL, false).await.unwrap(), []);
}

#[tokio::test]
async fn a_dead_letter_blocks_its_key_until_it_is_requeued_discarded_or_skipped() {
    let database = Database::new();
    let store = database.store().await;
    let (ours, lane) = parked_lane(&store).await;
    let shard = store.read(window(&ALL, 0, 1)).await.unwrap().rows[0].shard;
    let dead = Park {
        position: 1,
        shard,
        lane: Some(lane.clone()),
        parking: Parking::Dead,
        attempts: 9,
        reason: Some("bad".into()),
    };
    let bury = Settlement { park: vec![dead], unpark: vec![4], free: vec![lane.clone()], ..ours };

    store.settle(&bury, at(20)).await.unwrap();
    assert!(due(&store, 10, 99).await.is_empty());
    let row = store.parked(10).await.unwrap().remove(0);
    assert_eq!(
        (row.id.as_str(), row.state.as_str(), row.attempts, row.since),
        ("1", "dead", 9, at(0).unwrap())
    );

    assert!(!store.requeue("main", 2, at(30)).await.unwrap());
    assert!(store.requeue("main", 1, at(30)).await.unwrap());
    assert_eq!(store.due("main", &ALL, 10, at(30)).await.unwrap().len(), 3);

    store.settle(&bury, at(40)).await.unwrap();
    assert!(store.discard("main", 1, at(50)).await.unwrap());
    assert!(!store.discard("main", 1, at(50)).await.unwrap());
    assert_eq!(due(&store, 10, 50).await, [2, 3]);
}

#[tokio::test]
async fn with_skip_a_dead_letter_lets_its_key_go_on() {
    let database = Database::new();
    let store = database.store().await;
    let (ours, lane) = parked_lane(&store).await;
    let shard = store.read(window(&ALL, 0, 1)).await.unwrap().rows[0].shard;
    let dead = Park {
        position: 1,
        shard,
        lane: Some(lane.clone()),
        parking: Parking::Dead,
        attempts: 9,
        reason: None,
    };
    let skip =
        Settlement { park: vec![dead], unpark: vec![4], free: vec![lane], skip_dead: true, ..ours.clone() };

    store.settle(&skip, at(20)).await.unwrap();

    assert_eq!(due(&store, 10, 20).await, [2, 3]);
    store.settle(&Settlement { unpark: vec![2, 3], ..ours }, at(21)).await.unwrap();
    assert_eq!(store.blocked("main", &ALL, true).await.unwrap(), []);
    assert_eq!(store.blocked("main", &ALL, false).await.unwrap().len(), 1);
}

#[tokio::test]
async fn status_counts_what_is_there() {
    let database = Database::new();
    let store = database.store().await;
    parked_lane(&store).await;
    put(&store, &[envelope("5", None), Envelope { due: at(9), ..envelope("6", None) }], None).await;

    let status = store.status().await.unwrap();

    assert_eq!((status.logged, status.scheduled, status.markers, status.dead_letters), (5, 1, 0, 0));
    let sink = &status.sinks[0];
    assert_eq!(
        (sink.sink.as_str(), sink.pending, sink.waiting, sink.behind, sink.dead),
        ("main", 1, 2, 2, 0)
    );
    assert_eq!((sink.relays, sink.unowned_shards, sink.moved_at), (0, 8, at(0)));
    assert!(sink.oldest.is_some_and(|age| age < MINUTE));
}
