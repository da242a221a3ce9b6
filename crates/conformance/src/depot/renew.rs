//! A lease lasts as long as it is renewed.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::Depot;
use oncebox_core::depot::{TakeRequest, Ticket};

use super::DepotFixture;
use super::steps::{LEASE, done, give, request, take, taken};
use crate::sample::at;

pub async fn a_renewed_lease_is_not_taken_over<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2"], 0).await;
    let held = store.take(&TakeRequest { seats: 0, ..request("a") }, at(0)).await.unwrap();

    store.renew(&[held[0].ticket], Duration::from_secs(100), at(10)).await.unwrap();

    assert_eq!(taken(&store, LEASE).await, ["2"]);
    assert_eq!(taken(&store, 109).await, Vec::<String>::new(), "2 was started, so it is a suspect");
    assert_eq!(taken(&store, 110).await, ["1"]);
}

pub async fn a_renewal_tells_which_tickets_are_good<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["held", "done", "returned"], 0).await;
    let held = take(&store, 0).await;
    done(&store, &held[1], 1).await;
    store.give_back(&[held[2].ticket], at(1)).await.unwrap();
    let unknown = Ticket { number: 999_999, fence: 1 };
    let tickets = [held[1].ticket, held[0].ticket, unknown, held[2].ticket, held[0].ticket];

    let good = store.renew(&tickets, Duration::from_secs(60), at(1)).await.unwrap();
    let none = store.renew(&[], Duration::from_secs(60), at(1)).await.unwrap();

    assert_eq!(good, [false, true, false, false, true]);
    assert!(none.is_empty());
}

pub async fn a_lease_that_ran_out_can_be_renewed_while_nobody_took_it<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = take(&store, 0).await;

    let late = store.renew(&[held[0].ticket], Duration::from_secs(60), at(500)).await.unwrap();

    assert_eq!(late, [true]);
    assert!(!store.has_suspects("", &super::steps::WANTS, at(559)).await.unwrap());
    assert!(store.has_suspects("", &super::steps::WANTS, at(560)).await.unwrap());
}
