//! What relays do with the cursors and the rows beside the log, and what retention leaves.

use super::*;

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
