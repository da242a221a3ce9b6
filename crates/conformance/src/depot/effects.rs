//! What a run has caused outside is known to the next run.

use std::sync::Arc;

use oncebox_core::depot::Finish;
use oncebox_core::{Depot, Kind, Letters};

use super::DepotFixture;
use super::steps::{RETRY, done, finish, finishing, give, take, take_one};
use crate::fixture::kind;
use crate::sample::at;

pub async fn a_result_is_remembered_for_the_next_run<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2"], 0).await;
    let held = take(&store, 0).await;
    let ticket = held[0].ticket;

    let first = store.intend(ticket, "charge", at(0)).await.unwrap();
    let intended = store.intend(ticket, "charge", at(0)).await.unwrap();
    store.record(ticket, "charge", &[0, 255]).await.unwrap();
    let recorded = store.intend(ticket, "charge", at(0)).await.unwrap();
    let other = store.intend(ticket, "Charge", at(0)).await.unwrap();
    let of_other = store.intend(held[1].ticket, "charge", at(0)).await.unwrap();
    store.record(ticket, "Charge", b"").await.unwrap();
    store.conclude(ticket, &RETRY, None, at(1)).await.unwrap();
    let next = take_one(&store, 1).await.ticket;

    assert_eq!((first, intended, other, of_other), (None, None, None, None));
    assert_eq!(recorded, Some(vec![0, 255]));
    assert_eq!(store.intend(next, "charge", at(1)).await.unwrap(), Some(vec![0, 255]));
    assert_eq!(store.intend(next, "Charge", at(1)).await.unwrap(), Some(vec![]), "empty is a result");
}

pub async fn without_a_lease_nothing_is_intended_or_recorded<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let lost = take_one(&store, 0).await;
    store.intend(lost.ticket, "charge", at(0)).await.unwrap();
    store.conclude(lost.ticket, &RETRY, None, at(0)).await.unwrap();
    let held = take_one(&store, 1).await;

    let late = [
        kind(store.intend(lost.ticket, "charge", at(1)).await),
        kind(store.record(lost.ticket, "charge", b"late").await),
    ];

    assert_eq!(late, [Some(Kind::Fenced); 2]);
    assert_eq!(store.intend(held.ticket, "charge", at(1)).await.unwrap(), None);
}

pub async fn a_replay_causes_its_effects_again<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = take_one(&store, 0).await;
    store.intend(held.ticket, "charge", at(0)).await.unwrap();
    store.record(held.ticket, "charge", b"paid").await.unwrap();
    done(&store, &held, 0).await;

    store.replay_delivery(held.ticket.number, at(1)).await.unwrap();
    let again = take_one(&store, 1).await;

    assert_eq!(again.generation, 1);
    assert_eq!(store.intend(again.ticket, "charge", at(1)).await.unwrap(), None);
    finish(&store, &Finish { mark: None, ..finishing(&again) }, 1).await.unwrap();
}
