//! What operators see is what was done.

use std::sync::Arc;

use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::{Inspect, SinkStatus, Status};
use oncebox_core::log::{ClaimRequest, MAX_OUTAGE, Parking, Settlement};
use oncebox_core::store::{Burial, Mark};
use oncebox_core::{Dedup, Digest, Envelope, Mailbox, Store};

use crate::fixture::StoreFixture;
use crate::sample::{at, due, keyed, moment, plain};
use crate::steps::{claim, log, parked, put, request, settlement, waiting};

pub async fn a_fresh_store_counts_nothing<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    assert_eq!(store.status().await.unwrap(), Status::default());
    assert!(store.parked(10).await.unwrap().is_empty());
}

pub async fn counts_equal_what_was_done<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let batch: Vec<Envelope> = (0..10).map(|n| keyed(n.to_string(), &format!("k{n}"))).collect();
    put(&store, &batch).await;
    put(&store, &[due("later", 60), due("much later", 600)]).await;
    let rows = log(&store).await;
    let cursors = claim(&store, "a", 0).await;
    let park = vec![
        parked(&rows[0], waiting(5)),
        parked(&rows[1], Parking::Behind),
        parked(&rows[2], Parking::Dead),
        parked(&rows[3], Parking::Dead),
    ];
    let progress = Some((rows[6].position, vec![rows[5].position]));
    store.settle(&Settlement { progress, park, ..settlement(&cursors) }, at(1)).await.unwrap();
    let key = MessageKey::business("1");
    let mark =
        Mark { tenant: "", handler: "h", key: &key, digest: Digest::of(b"x"), time: None, window: None };
    let mut tx = store.begin().await.unwrap();
    store.mark(&mut tx, &mark, at(0)).await.unwrap();
    store.commit(tx).await.unwrap();
    let letter = plain("dead");
    let burial =
        Burial { channel: "c", handler: "h", code: "bad", reason: "bad", attempts: 1, envelope: &letter };
    store.bury(&burial, at(0)).await.unwrap();

    let status = store.status().await.unwrap();

    assert_eq!((status.logged, status.scheduled, status.markers, status.dead_letters), (10, 2, 1, 1));
    let sink = only_sink(&status);
    assert_eq!(sink.sink, "sink");
    assert_eq!(sink.pending, 4, "three above the cursor and one hole");
    assert_eq!((sink.waiting, sink.behind, sink.dead), (1, 1, 2));
    assert_eq!(sink.moved_at, Some(moment(1)));
    assert!(sink.oldest.is_some());
}

pub async fn a_settled_sink_has_nothing_pending<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &["a", "b"].map(plain)).await;
    let cursors = claim(&store, "a", 0).await;

    let before = store.status().await.unwrap();
    let progress = Some((log(&store).await[1].position, vec![]));
    store.settle(&Settlement { progress, ..settlement(&cursors) }, at(1)).await.unwrap();
    let after = store.status().await.unwrap();

    assert_eq!(only_sink(&before).pending, 2);
    assert_eq!(only_sink(&before).moved_at, None);
    assert_eq!((only_sink(&after).pending, only_sink(&after).oldest), (0, None));
}

pub async fn parked_rows_are_listed_with_what_is_known<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[keyed("1", "k"), keyed("2", "k"), plain("3")]).await;
    let rows = log(&store).await;
    let cursors = claim(&store, "a", 0).await;
    let at_once = vec![parked(&rows[2], Parking::Dead)];
    let later = vec![parked(&rows[0], waiting(5)), parked(&rows[1], Parking::Behind)];
    store.settle(&Settlement { park: at_once, ..settlement(&cursors) }, at(1)).await.unwrap();
    store.settle(&Settlement { park: later, ..settlement(&cursors) }, at(2)).await.unwrap();

    let listed = store.parked(10).await.unwrap();

    let brief: Vec<_> = listed.iter().map(|row| (row.id.as_str(), row.state.as_str(), row.since)).collect();
    assert_eq!(brief, [("3", "dead", moment(1)), ("1", "waiting", moment(2)), ("2", "behind", moment(2))]);
    assert_eq!((listed[0].position, listed[0].attempts), (rows[2].position, 1));
    assert_eq!(listed[0].kind, plain("3").kind);
    assert_eq!((listed[0].sink.as_str(), listed[0].reason.as_deref()), ("sink", Some("refused")));
    assert_eq!(store.parked(2).await.unwrap(), listed[..2]);
    assert_eq!(store.dead(None, 10).await.unwrap(), listed[..1]);
    assert_eq!(store.dead(Some("sink"), 10).await.unwrap(), listed[..1]);
    assert_eq!(store.dead(Some("other"), 10).await.unwrap(), []);
}

pub async fn relays_and_free_shards_are_counted<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    // By the database's clock, as the counts are.
    store.claim(&request("a"), None).await.unwrap();
    store.claim(&request("b"), None).await.unwrap();
    let two = store.status().await.unwrap();
    store.claim(&request("a"), None).await.unwrap();
    let half = store.status().await.unwrap();
    store.release("sink", "a").await.unwrap();
    let one = store.status().await.unwrap();
    // A lease that is over by now.
    store.claim(&ClaimRequest { sink: "past".into(), ..request("c") }, at(0)).await.unwrap();
    let past = store.status().await.unwrap();

    assert_eq!((only_sink(&two).relays, only_sink(&two).unowned_shards), (2, 0));
    assert_eq!((only_sink(&half).relays, only_sink(&half).unowned_shards), (2, 4));
    assert_eq!((only_sink(&one).relays, only_sink(&one).unowned_shards), (1, 8));
    let past = past.sinks.iter().find(|sink| sink.sink == "past").unwrap();
    assert_eq!((past.relays, past.unowned_shards), (0, 8));
}

pub async fn an_outage_is_shown_until_it_is_over<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let because =
        |holder: &str, reason: &str| ClaimRequest { outage: Some(reason.into()), ..request(holder) };
    let shown = async || only_sink(&store.status().await.unwrap()).outage.clone();
    // One whose lease is over knows nothing of now.
    store.claim(&because("gone", "long ago"), at(0)).await.unwrap();
    let before = shown().await;
    store.claim(&because("a", "no route to host"), None).await.unwrap();
    store.claim(&request("b"), None).await.unwrap();
    let first = shown().await;
    store.claim(&because("a", "login refused"), None).await.unwrap();
    let changed = shown().await;
    store.claim(&request("a"), None).await.unwrap();
    let over = shown().await;
    store.claim(&because("b", "no route to host"), None).await.unwrap();
    store.release("sink", "b").await.unwrap();
    let released = shown().await;

    assert_eq!(before, None);
    assert_eq!(first.as_deref(), Some("no route to host"), "though another relay met nothing");
    assert_eq!(changed.as_deref(), Some("login refused"));
    assert_eq!((over, released), (None, None));
}

pub async fn the_reason_of_an_outage_is_kept_short_and_on_one_line<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let reason = format!("a\0b\r\nc\u{1b}[2J {}", "ü".repeat(10_000));

    store.claim(&ClaimRequest { outage: Some(reason), ..request("a") }, None).await.unwrap();
    let status = store.status().await.unwrap();

    let shown = only_sink(&status).outage.clone().unwrap();
    assert!(shown.starts_with("a\u{fffd}b\u{fffd}\u{fffd}c\u{fffd}[2J ü"), "{shown}");
    assert_eq!(shown.chars().count(), MAX_OUTAGE);
}

fn only_sink(status: &Status) -> &SinkStatus {
    assert_eq!(status.sinks.len(), 1);
    &status.sinks[0]
}
