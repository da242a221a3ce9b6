//! Forgetting never takes what somebody still needs.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::handler::MessageKey;
use oncebox_core::log::{ClaimRequest, Parking, Position, Row, Settlement};
use oncebox_core::store::{Mark, Marked, Purge};
use oncebox_core::{Dedup, Digest, Envelope, Mailbox, Once, Retention, Store};

use crate::fixture::StoreFixture;
use crate::sample::{at, plain};
use crate::steps::{claim, log, logged, parked, put, put_at, request, settlement};

const MINUTE: Duration = Duration::from_secs(60);
const OUTBOX: Purge = Purge::Outbox(MINUTE);

/// Eight old messages.
async fn old<S: Mailbox>(store: &S) -> Vec<Row> {
    put(store, &(1..=8).map(|n| plain(n.to_string())).collect::<Vec<Envelope>>()).await;
    log(store).await
}

/// Settles all shards of a sink.
async fn settle<S: Mailbox>(store: &S, sink: &str, position: Position, holes: Vec<Position>) {
    let request = ClaimRequest { sink: sink.into(), ..request("a") };
    let cursors = store.claim(&request, at(0)).await.unwrap();
    let progress = Some((position, holes));
    store.settle(&Settlement { sink: sink.into(), progress, ..settlement(&cursors) }, at(0)).await.unwrap();
}

pub async fn without_a_cursor_nothing_is_purged<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    old(&store).await;

    assert_eq!(store.purge(&OUTBOX, 100, at(1000)).await.unwrap(), 0);

    assert_eq!(logged(&store).await.len(), 8);
}

pub async fn only_rows_every_sink_has_settled_are_purged<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let rows = old(&store).await;
    settle(&store, "one", rows[5].position, vec![]).await;
    settle(&store, "two", rows[2].position, vec![]).await;

    let first = store.purge(&OUTBOX, 100, at(1000)).await.unwrap();
    settle(&store, "two", rows[7].position, vec![]).await;
    let second = store.purge(&OUTBOX, 100, at(1000)).await.unwrap();

    assert_eq!((first, second), (3, 3));
    assert_eq!(logged(&store).await, ["7", "8"]);
}

pub async fn holes_and_parked_rows_are_kept<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let rows = old(&store).await;
    let cursors = claim(&store, "a", 0).await;
    let progress = Some((rows[7].position, vec![rows[5].position]));
    let park = vec![parked(&rows[3], Parking::Dead), parked(&rows[4], Parking::Behind)];
    store.settle(&Settlement { progress, park, ..settlement(&cursors) }, at(0)).await.unwrap();

    let purged = store.purge(&OUTBOX, 100, at(1000)).await.unwrap();

    let kept = logged(&store).await;
    assert_eq!(kept[..3], ["4", "5", "6"]);
    assert_eq!(purged + kept.len(), 8, "above a hole, rows may be kept");
}

pub async fn young_rows_are_kept<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put_at(&store, &[plain("old")], at(0)).await;
    put_at(&store, &[plain("young")], at(10)).await;
    settle(&store, "sink", log(&store).await[1].position, vec![]).await;

    let exactly = store.purge(&OUTBOX, 100, at(60)).await.unwrap();
    let older = store.purge(&OUTBOX, 100, at(65)).await.unwrap();

    assert_eq!((exactly, older), (0, 1));
    assert_eq!(logged(&store).await, ["young"]);
}

pub async fn a_purge_stops_at_its_limit<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let rows = old(&store).await;
    settle(&store, "sink", rows[7].position, vec![rows[7].position]).await;

    let mut purged = Vec::new();
    for _ in 0..4 {
        purged.push(store.purge(&OUTBOX, 3, at(1000)).await.unwrap());
    }

    assert_eq!(purged, [3, 3, 1, 0]);
    assert_eq!(logged(&store).await, ["8"]);
}

pub async fn a_shard_that_lags_keeps_its_rows<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let rows = old(&store).await;
    let cursors = claim(&store, "a", 0).await;
    let ahead = Settlement { progress: Some((rows[7].position, vec![])), ..settlement(&cursors[1..]) };
    let behind = Settlement { progress: Some((rows[1].position, vec![])), ..settlement(&cursors[..1]) };
    store.settle(&ahead, at(0)).await.unwrap();
    store.settle(&behind, at(0)).await.unwrap();

    store.purge(&OUTBOX, 100, at(1000)).await.unwrap();

    let kept = log(&store).await;
    let unsettled =
        rows.iter().filter(|row| row.shard == cursors[0].shard && row.position > rows[1].position);
    for row in unsettled {
        assert!(kept.iter().any(|kept| kept.position == row.position), "row {} is not settled", row.position);
    }
    assert!(kept.len() < rows.len());
}

pub async fn a_purged_id_may_be_put_again<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let rows = old(&store).await;
    settle(&store, "sink", rows[7].position, vec![]).await;
    store.purge(&OUTBOX, 100, at(1000)).await.unwrap();

    assert_eq!(put(&store, &[plain("1")]).await, [Once::First]);

    assert!(log(&store).await[0].position > rows[7].position, "behind every cursor it would be skipped");
}

pub async fn a_position_is_never_given_out_twice<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut highest = 0;
    for round in 0..3 {
        put(&store, &[plain(format!("a{round}")), plain(format!("b{round}"))]).await;
        let rows = log(&store).await;
        assert!(rows.iter().all(|row| row.position > highest));
        highest = rows[1].position;
        settle(&store, "sink", highest, vec![]).await;
        assert_eq!(store.purge(&OUTBOX, 100, at(1000)).await.unwrap(), 2);
    }
}

pub async fn markers_are_purged_by_handler_and_age<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let keys: Vec<MessageKey> = (0..6).map(|n| MessageKey::business(&n.to_string())).collect();
    let of = |n: usize, handler: &'static str| Mark {
        tenant: "",
        handler,
        key: &keys[n],
        digest: Digest::of(b"x"),
        time: None,
        window: None,
    };
    for n in 0..6 {
        let mut tx = store.begin().await.unwrap();
        store.mark(&mut tx, &of(n, "h"), at(n as i64 * 10)).await.unwrap();
        store.mark(&mut tx, &of(n, "other"), at(0)).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let markers = Purge::Markers { handler: "h".into(), older_than: MINUTE };

    let purged = [
        store.purge(&markers, 2, at(95)).await.unwrap(),
        store.purge(&markers, 9, at(95)).await.unwrap(),
        store.purge(&markers, 9, at(95)).await.unwrap(),
    ];

    assert_eq!(purged, [2, 2, 0]);
    let mut tx = store.begin().await.unwrap();
    let duplicate = Marked::Duplicate { result: None };
    assert_eq!(store.mark(&mut tx, &of(3, "h"), at(96)).await.unwrap(), Marked::First);
    assert_eq!(store.mark(&mut tx, &of(4, "h"), at(96)).await.unwrap(), duplicate);
    assert_eq!(store.mark(&mut tx, &of(0, "other"), at(96)).await.unwrap(), duplicate);
}

pub async fn relays_not_seen_for_long_are_forgotten<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    claim(&store, "a", 0).await;
    claim(&store, "b", 50).await;

    let early = store.purge(&Purge::Relays(MINUTE), 100, at(89)).await.unwrap();
    let later = store.purge(&Purge::Relays(MINUTE), 100, at(100)).await.unwrap();

    assert_eq!((early, later), (0, 1));
    assert_eq!(claim(&store, "b", 100).await.len(), 8, "cursors outlive their relays");
}
