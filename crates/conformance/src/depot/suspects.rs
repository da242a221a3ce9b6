//! A delivery whose run ended with its lease is run alone, until it is cleared.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::Depot;
use oncebox_core::depot::{Fate, TakeRequest, Taken};

use super::DepotFixture;
use super::steps::{LEASE, RETRY, WANTS, give, ids, request, suspects, take, take_one, taken};
use crate::sample::at;

/// Takes the suspects.
async fn caught<F: DepotFixture>(fixture: &F, seconds: i64) -> Vec<Taken> {
    fixture.store().take(&suspects("careful"), at(seconds)).await.unwrap()
}

pub async fn a_run_that_ends_with_its_lease_makes_a_suspect<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let first = take_one(&store, 0).await;
    give(&store, &["2"], LEASE).await;
    let (before, after) = (
        store.has_suspects("", &WANTS, at(LEASE - 1)).await.unwrap(),
        store.has_suspects("", &WANTS, at(LEASE)).await.unwrap(),
    );
    let elsewhere = store.has_suspects("scope", &WANTS, at(LEASE)).await.unwrap();

    let early = caught(&*fixture, LEASE - 1).await;
    let others = taken(&store, LEASE).await;
    let caught = caught(&*fixture, LEASE).await;

    assert_eq!((before, after, elsewhere), (false, true, false));
    assert!(early.is_empty());
    assert_eq!((others, ids(&caught)), (vec!["2".into()], vec!["1".to_owned()]));
    assert_eq!((caught[0].attempt, caught[0].deaths), (2, 1), "the run that died is counted");
    assert!(caught[0].ticket.fence > first.ticket.fence);
}

pub async fn a_lease_that_ends_before_the_run_is_no_death<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    store.take(&TakeRequest { seats: 0, ..request("a") }, at(0)).await.unwrap();

    let suspects = caught(&*fixture, LEASE).await;
    let again = take_one(&store, LEASE).await;

    assert!(suspects.is_empty());
    assert_eq!((again.attempt, again.deaths), (1, 0));
}

pub async fn deaths_are_counted_until_a_run_is_concluded<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    take_one(&store, 0).await;
    let mut told = Vec::new();
    for n in 1..=3 {
        let held = caught(&*fixture, n * LEASE).await.remove(0);
        told.push((held.attempt, held.deaths));
    }
    // A lease that ended before its run started adds nothing, and clears nothing.
    let held = TakeRequest { seats: 0, ..suspects("careful") };
    let fourth = store.take(&held, at(4 * LEASE)).await.unwrap().remove(0);
    let fifth = store.take(&suspects("careful"), at(5 * LEASE)).await.unwrap().remove(0);
    let none = taken(&store, 9 * LEASE).await;
    store.conclude(fifth.ticket, &RETRY, None, at(5 * LEASE)).await.unwrap();
    let cleared = take_one(&store, 5 * LEASE).await;

    assert_eq!(told, [(2, 1), (3, 2), (4, 3)]);
    assert_eq!((fourth.deaths, fourth.started, fifth.deaths), (4, false, 4));
    assert!(none.is_empty());
    assert_eq!((cleared.deaths, cleared.attempt), (0, 6));
}

pub async fn a_suspect_that_is_given_back_stays_one<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    take_one(&store, 0).await;
    let held = caught(&*fixture, LEASE).await;

    store.give_back(&[held[0].ticket], at(LEASE)).await.unwrap();

    let others = store.take(&request("b"), at(LEASE)).await.unwrap();
    let again = store.take(&suspects("b"), at(LEASE)).await.unwrap();
    assert!(others.is_empty());
    assert_eq!((again[0].deaths, again[0].attempt), (1, 2));
}

pub async fn a_conclusion_that_costs_nothing_clears_a_suspect_too<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    take_one(&store, 0).await;
    let held = caught(&*fixture, LEASE).await;
    let free = Fate::Retry { after: Duration::ZERO, spent: false, code: "busy", reason: "no" };

    store.conclude(held[0].ticket, &free, None, at(LEASE)).await.unwrap();

    let again = take(&store, LEASE).await;
    assert_eq!((again[0].deaths, again[0].attempt), (0, 2));
}
