//! Messages that wait for their time.

use std::sync::Arc;

use oncebox_core::{Envelope, Mailbox, Once, Store};

use crate::fixture::StoreFixture;
use crate::sample::{at, due, full, plain};
use crate::steps::{log, logged, put, put_at};

pub async fn a_scheduled_message_is_not_in_the_log_before_it_is_due<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[due("a", 60)]).await;

    let promoted = store.promote(10, at(59)).await.unwrap();

    assert_eq!(promoted, 0);
    assert!(logged(&store).await.is_empty());
    assert!(store.holds(&due("a", 60)).await.unwrap());
}

pub async fn a_message_enters_the_log_at_the_time_of_its_promotion<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[due("a", 60), due("past", -60)]).await;

    let early = store.promote(10, at(1)).await.unwrap();
    let later = store.promote(10, at(75)).await.unwrap();

    assert_eq!((early, later), (1, 1));
    let rows = log(&store).await;
    let times: Vec<_> = rows.iter().map(|row| row.envelope.as_ref().unwrap().time).collect();
    assert_eq!(logged(&store).await, ["past", "a"]);
    assert_eq!(times, [at(1), at(75)]);
}

pub async fn promotion_goes_by_due_time_and_stops_at_its_limit<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[due("c", 30), due("a", 10), due("d", 40), due("b", 20)]).await;

    let first = store.promote(2, at(35)).await.unwrap();
    let between = logged(&store).await;
    let second = store.promote(2, at(35)).await.unwrap();

    assert_eq!((first, second), (2, 1));
    assert_eq!(between, ["a", "b"]);
    assert_eq!(logged(&store).await, ["a", "b", "c"]);
}

pub async fn a_message_is_scheduled_once_and_promoted_once<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    let once = put(&store, &[due("a", 10), due("a", 20)]).await;
    let again = put(&store, &[due("a", 30)]).await;
    let promoted = [store.promote(10, at(99)).await.unwrap(), store.promote(10, at(99)).await.unwrap()];

    assert_eq!(once, [Once::First, Once::Duplicate]);
    assert_eq!(again, [Once::Duplicate]);
    assert_eq!(promoted, [1, 0]);
    assert_eq!(logged(&store).await, ["a"]);
}

pub async fn an_id_that_waits_in_the_schedule_is_taken<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[due("a", 10)]).await;

    let one = put(&store, &[plain("a")]).await;
    let many = put(&store, &[plain("a"), plain("b")]).await;

    assert_eq!(one, [Once::Duplicate]);
    assert_eq!(many, [Once::Duplicate, Once::First]);
    assert_eq!(logged(&store).await, ["b"]);
}

pub async fn a_rolled_back_schedule_leaves_nothing<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();

    store.put(&mut tx, &[due("a", 10)], at(0)).await.unwrap();
    store.rollback(tx).await.unwrap();

    assert_eq!(store.promote(10, at(99)).await.unwrap(), 0);
    assert!(!store.holds(&due("a", 10)).await.unwrap());
}

pub async fn every_field_survives_the_schedule<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let scheduled = Envelope { due: at(10), ..full("a") };
    put_at(&store, std::slice::from_ref(&scheduled), at(0)).await;

    store.promote(10, at(20)).await.unwrap();

    let rows = log(&store).await;
    let found = rows[0].envelope.as_ref().unwrap();
    let expected = Envelope { due: None, time: at(20), ..scheduled };
    assert_eq!(found.headers, expected.headers);
    assert_eq!((found.due, found.time), (expected.due, expected.time));
    assert!(*found == expected, "another field differs");
}

pub async fn concurrent_promotions_move_each_message_once<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let batch: Vec<Envelope> = (0..40).map(|n| due(format!("{n:02}"), n)).collect();
    put(&store, &batch).await;

    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = store.clone();
        tasks.spawn(async move {
            let mut moved = 0;
            for _ in 0..10 {
                moved += store.promote(7, at(99)).await.unwrap();
            }
            moved
        });
    }
    let moved: usize = tasks.join_all().await.into_iter().sum();

    assert_eq!(moved, 40);
    let mut ids = logged(&store).await;
    ids.sort();
    assert_eq!(ids, batch.iter().map(|envelope| envelope.id.clone()).collect::<Vec<_>>());
}
