//! An attempt is counted before it runs, once.

use std::sync::Arc;

use oncebox_core::depot::{Finish, TakeRequest, Taken, Ticket};
use oncebox_core::{Depot, Store};

use super::DepotFixture;
use super::steps::{LEASE, RETRY, finish, finishing, give, ids, request, suspects};
use crate::sample::at;

/// The first of two is started, the second held.
async fn two<F: DepotFixture>(fixture: &F) -> (Taken, Taken) {
    let store = fixture.store();
    give(&store, &["1", "2"], 0).await;
    let mut taken = store.take(&TakeRequest { seats: 1, ..request("a") }, at(0)).await.unwrap();
    let second = taken.remove(1);
    (taken.remove(0), second)
}

/// What was started when its lease ended: ids, attempts and deaths.
async fn started<F: DepotFixture>(fixture: &F) -> Vec<(String, u32, u32)> {
    let taken = fixture.store().take(&suspects("b"), at(2 * LEASE)).await.unwrap();
    taken.into_iter().map(|taken| (taken.envelope.id, taken.attempt, taken.deaths)).collect()
}

pub async fn a_held_delivery_is_counted_when_it_starts_and_only_once<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (first, second) = two(&*fixture).await;
    let unknown = Ticket { number: 999_999, fence: 1 };
    let stale = Ticket { fence: first.ticket.fence - 1, ..first.ticket };

    let good = store.start(&[unknown, second.ticket, stale, first.ticket]).await.unwrap();
    let again = store.start(&[second.ticket]).await.unwrap();
    let none = store.start(&[]).await.unwrap();

    assert_eq!(good, [false, true, false, true]);
    assert_eq!((again, none), (vec![true], vec![]));
    assert_eq!(started(&*fixture).await, [("1".into(), 2, 1), ("2".into(), 2, 1)]);
}

pub async fn a_finish_starts_the_next_in_the_same_commit<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (first, second) = two(&*fixture).await;
    let mut tx = store.begin().await.unwrap();
    store.finish(&mut tx, &Finish { next: Some(second.ticket), ..finishing(&first) }, at(1)).await.unwrap();
    store.rollback(tx).await.unwrap();
    // Were it started, it would be a suspect.
    let held = store.take(&TakeRequest { seats: 0, ..request("a") }, at(LEASE)).await.unwrap();

    finish(&store, &Finish { next: Some(held[0].ticket), ..finishing(&first) }, LEASE).await.unwrap();

    assert_eq!(ids(&held), ["2"]);
    assert_eq!(started(&*fixture).await, [("2".into(), 2, 1)]);
}

pub async fn a_conclusion_starts_the_next_in_the_same_commit<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (first, second) = two(&*fixture).await;

    store.conclude(first.ticket, &RETRY, Some(second.ticket), at(1)).await.unwrap();

    assert_eq!(started(&*fixture).await, [("2".into(), 2, 1)]);
}

pub async fn a_next_that_was_lost_does_not_spoil_a_finish<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (first, second) = two(&*fixture).await;
    store.give_back(&[second.ticket], at(1)).await.unwrap();

    finish(&store, &Finish { next: Some(second.ticket), ..finishing(&first) }, 1).await.unwrap();

    let freed = store.take(&request("b"), at(1)).await.unwrap();
    assert_eq!((ids(&freed), freed[0].attempt), (vec!["2".to_owned()], 1));
}
