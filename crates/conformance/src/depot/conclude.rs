//! A run that failed is tried again, or waits for a person.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{Fate, HISTORY, MAX_REASON, TakeRequest};
use oncebox_core::{Depot, LetterId, Letters};

use super::DepotFixture;
use super::steps::{DEAD, RETRY, counts, give, ids, request, take_one, taken};
use crate::sample::{at, moment};

pub async fn a_failed_attempt_is_tried_again_after_its_delay<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let first = take_one(&store, 0).await;
    let later = Fate::Retry { after: Duration::from_secs(7), spent: true, code: "failed", reason: "no" };

    store.conclude(first.ticket, &later, None, at(3)).await.unwrap();

    assert!(taken(&store, 9).await.is_empty());
    let second = take_one(&store, 10).await;
    assert_eq!((second.attempt, second.deaths, second.started), (2, 0, true));
    assert!(second.ticket.fence > first.ticket.fence);
}

pub async fn an_attempt_that_is_not_spent_is_taken_back<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let free = Fate::Retry { after: Duration::ZERO, spent: false, code: "busy", reason: "no" };

    for _ in 0..3 {
        let held = take_one(&store, 1).await;
        assert_eq!(held.attempt, 1);
        store.conclude(held.ticket, &free, None, at(1)).await.unwrap();
    }
    let held = store.take(&TakeRequest { seats: 0, ..request("a") }, at(1)).await.unwrap();
    store.conclude(held[0].ticket, &free, None, at(1)).await.unwrap();
    let last = take_one(&store, 1).await;
    store.conclude(last.ticket, &DEAD, None, at(1)).await.unwrap();

    assert_eq!(last.attempt, 1, "what was not counted cannot be taken back");
    let letter = store.letter(LetterId::Delivery(last.ticket.number)).await.unwrap().unwrap();
    assert_eq!((letter.history.len(), letter.attempts), (1, 1), "nor was it remembered");
}

pub async fn the_latest_failures_are_remembered<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    for n in 1..=24 {
        let held = take_one(&store, n).await;
        let reason = format!("failure {n}\0 \"quoted\" \\ {}", "ü".repeat(5_000));
        let retry = Fate::Retry { after: Duration::ZERO, spent: true, code: "failed", reason: &reason };
        store.conclude(held.ticket, &retry, None, at(n)).await.unwrap();
    }
    let held = take_one(&store, 25).await;
    store.conclude(held.ticket, &DEAD, None, at(26)).await.unwrap();

    let letter = store.letter(LetterId::Delivery(held.ticket.number)).await.unwrap().unwrap();

    assert_eq!((letter.attempts, letter.history.len()), (25, HISTORY));
    let attempts: Vec<u32> = letter.history.iter().map(|attempt| attempt.attempt).collect();
    assert_eq!(attempts, (6..=25).collect::<Vec<u32>>());
    let (oldest, latest) = (&letter.history[0], &letter.history[HISTORY - 1]);
    assert!(oldest.reason.starts_with("failure 6\u{fffd} \"quoted\" \\ ü"), "{}", oldest.reason);
    assert_eq!(oldest.reason.chars().count(), MAX_REASON);
    assert_eq!((oldest.code.as_str(), oldest.at), ("failed", moment(6)));
    assert_eq!((latest.code.as_str(), latest.reason.as_str(), latest.at), ("hopeless", "no use", moment(26)));
}

pub async fn a_dead_delivery_is_nobodys<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2"], 0).await;
    let held = super::steps::take(&store, 0).await;
    let unspent = Fate::Dead { spent: false, code: "unknown", reason: "no", frees_lane: false };

    store.conclude(held[0].ticket, &DEAD, None, at(1)).await.unwrap();
    store.conclude(held[1].ticket, &unspent, None, at(2)).await.unwrap();

    assert!(taken(&store, 100_000).await.is_empty());
    let status = counts(&store).await;
    assert_eq!((status.dead, status.ready, status.leased), (2, 0, 0));
    let letters = [
        store.letter(LetterId::Delivery(held[0].ticket.number)).await.unwrap().unwrap(),
        store.letter(LetterId::Delivery(held[1].ticket.number)).await.unwrap().unwrap(),
    ];
    assert_eq!(letters.each_ref().map(|letter| letter.attempts), [1, 0]);
    assert_eq!(letters.each_ref().map(|letter| letter.died_at), [moment(1), moment(2)]);
    assert_eq!((letters[0].code.as_str(), letters[0].reason.as_str()), ("hopeless", "no use"));
}

pub async fn what_is_given_back_is_free_at_once_and_not_counted<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["started", "held"], 0).await;
    let held = store.take(&TakeRequest { seats: 1, ..request("a") }, at(0)).await.unwrap();
    let tickets: Vec<_> = held.iter().map(|taken| taken.ticket).collect();

    store.give_back(&tickets, at(5)).await.unwrap();

    assert!(taken(&store, 4).await.is_empty());
    let mut again = store.take(&request("b"), at(5)).await.unwrap();
    again.sort_by_key(|taken| taken.ticket.number);
    assert_eq!(ids(&again), ["started", "held"]);
    assert_eq!((again[0].attempt, again[1].attempt, again[0].deaths), (1, 1, 0));
}

pub async fn a_conclusion_leaves_other_deliveries_alone<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2", "3"], 0).await;
    let held = super::steps::take(&store, 0).await;

    store.conclude(held[0].ticket, &RETRY, None, at(1)).await.unwrap();
    store.conclude(held[1].ticket, &DEAD, None, at(1)).await.unwrap();

    let status = counts(&store).await;
    assert_eq!((status.ready, status.dead, status.leased, status.behind), (1, 1, 1, 0));
}
