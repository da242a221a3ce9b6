//! A delivery is in one worker's hands at a time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{Deposit, Fate, TakeRequest, Want};
use oncebox_core::{Depot, Envelope};
use tokio::task::JoinSet;

use super::DepotFixture;
use super::steps::{HANDLER, LEASE, deposit, give, ids, patiently, put, request, take, take_one, taken};
use crate::sample::{at, plain};

pub async fn the_longest_due_come_first<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["a", "b"], 5).await;
    give(&store, &["c"], 2).await;
    let c = store.take(&request("worker"), at(2)).await.unwrap().remove(0);
    let later = Fate::Retry { after: Duration::from_secs(8), spent: true, code: "c", reason: "r" };
    store.conclude(c.ticket, &later, None, at(2)).await.unwrap();
    give(&store, &["d"], 1).await;

    assert_eq!(taken(&store, 9).await, ["d", "a", "b"], "c is not due");
    assert_eq!(taken(&store, 10).await, ["c"]);
}

pub async fn a_take_stops_at_the_limits_of_the_request_and_of_each_handler<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let envelopes: Vec<Envelope> = (0..20).map(|n| plain(n.to_string())).collect();
    let crowd: Vec<Deposit<'_>> = envelopes[..15].iter().map(|e| deposit(e, &[HANDLER])).collect();
    let few: Vec<Deposit<'_>> = envelopes[15..].iter().map(|e| deposit(e, &["g"])).collect();
    put(&store, &crowd, 0).await;
    put(&store, &few, 1).await;
    let wants = [Want { handler: HANDLER, limit: 4 }, Want { handler: "g", limit: 100 }];

    let first = store.take(&TakeRequest { limit: 6, wants: &wants, ..request("w") }, at(1)).await.unwrap();
    let second = store.take(&TakeRequest { wants: &wants, ..request("w") }, at(1)).await.unwrap();
    let none = store.take(&TakeRequest { limit: 0, ..request("w") }, at(1)).await.unwrap();

    assert_eq!(ids(&first), ["0", "1", "2", "3", "15", "16"]);
    assert_eq!(ids(&second), ["4", "5", "6", "7", "17", "18", "19"]);
    assert!(none.is_empty());
}

pub async fn only_wanted_handlers_of_the_own_scope_are_taken<F: DepotFixture>(fixture: Arc<F>) {
    let (store, one) = (fixture.store(), plain("1"));
    put(&store, &[deposit(&one, &["g", "H"]), Deposit { scope: "s", ..deposit(&one, &[HANDLER]) }], 0).await;

    let nothing = taken(&store, 0).await;
    let scoped = store.take(&TakeRequest { scope: "s", ..request("w") }, at(0)).await.unwrap();
    let unwanted = store.take(&TakeRequest { wants: &[], ..request("w") }, at(0)).await.unwrap();

    assert!(nothing.is_empty());
    assert_eq!(ids(&scoped), ["1"]);
    assert!(unwanted.is_empty());
}

pub async fn a_leased_delivery_is_nobody_elses_until_its_lease_is_over<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = TakeRequest { seats: 0, ..request("a") };

    let first = store.take(&held, at(10)).await.unwrap();
    let early = take(&store, 9 + LEASE).await;
    let second = take_one(&store, 10 + LEASE).await;

    assert_eq!(ids(&first), ["1"]);
    assert!(early.is_empty());
    assert!(second.ticket.fence > first[0].ticket.fence);
    assert_eq!(second.ticket.number, first[0].ticket.number);
}

pub async fn one_whose_lease_is_over_is_taken_in_the_place_it_had<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["old"], 0).await;
    let held = TakeRequest { seats: 0, ..request("a") };
    store.take(&held, at(1)).await.unwrap();
    give(&store, &["young"], 2).await;
    let one = TakeRequest { limit: 1, ..held.clone() };

    let first = store.take(&one, at(1 + LEASE)).await.unwrap();
    let second = store.take(&one, at(1 + LEASE)).await.unwrap();
    let again = store.take(&held, at(1 + 2 * LEASE)).await.unwrap();

    assert_eq!(ids(&first), ["old"], "although the other one was due when its lease still ran");
    assert_eq!(ids(&second), ["young"]);
    assert_eq!(ids(&again), ["old", "young"], "after a second lease, too");
}

pub async fn what_has_no_seat_is_held_and_not_counted<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2", "3"], 0).await;

    let first = store.take(&TakeRequest { seats: 2, ..request("a") }, at(0)).await.unwrap();
    // The third was not started, so it is no suspect and its attempt is still its first.
    let third = take_one(&store, LEASE).await;

    let told: Vec<_> = first.iter().map(|taken| (taken.started, taken.attempt)).collect();
    assert_eq!(told, [(true, 1), (true, 1), (false, 1)]);
    assert_eq!((third.envelope.id.as_str(), third.attempt, third.deaths), ("3", 1, 0));
}

pub async fn workers_taking_at_once_never_get_the_same_delivery<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let envelopes: Vec<Envelope> = (0..240).map(|n| plain(n.to_string())).collect();
    let batch: Vec<Deposit<'_>> = envelopes.iter().map(|e| deposit(e, &[HANDLER])).collect();
    put(&store, &batch, 0).await;
    let mut workers = JoinSet::new();
    for n in 0..8 {
        let store = fixture.store();
        workers.spawn(async move {
            let holder = format!("worker {n}");
            let few = TakeRequest { limit: 7, ..request(&holder) };
            let mut mine = Vec::new();
            // A take may pass over what another is looking at; nothing is left when all are through.
            let mut empty = 0;
            while empty < 3 {
                let taken = patiently!(store.take(&few, at(0))).unwrap();
                empty = if taken.is_empty() { empty + 1 } else { 0 };
                mine.extend(ids(&taken));
            }
            mine
        });
    }

    let all: Vec<String> = workers.join_all().await.into_iter().flatten().collect();

    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "two had the same");
    assert_eq!(all.len() + take(&store, 0).await.len(), 240);
}
