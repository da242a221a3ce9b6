//! What nobody can run is parked, and comes back when somebody can.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{Deposit, Fate};
use oncebox_core::{Depot, Letters};

use super::DepotFixture;
use super::steps::{HANDLER, counts, deposit, done, give, put, queue, take_one, taken};
use crate::sample::{at, plain};

const HOUR: Duration = Duration::from_secs(3600);

pub async fn what_nobody_can_run_is_parked_until_somebody_can<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2"], 0).await;

    let early = store.park_orphans(HOUR, 10, at(3600)).await.unwrap();
    let parked = store.park_orphans(HOUR, 10, at(3601)).await.unwrap();
    let (hidden, status) = (taken(&store, 3601).await, counts(&store).await);
    let others = store.announce("", &["g"], at(3700)).await.unwrap()
        + store.announce("scope", &[HANDLER], at(3700)).await.unwrap();
    let back = store.announce("", &["g", HANDLER], at(3701)).await.unwrap();

    assert_eq!((early, parked, others, back), (0, 2, 0, 2));
    assert!(hidden.is_empty());
    assert_eq!((status.parked, status.ready), (2, 0));
    assert_eq!(taken(&store, 3701).await, ["1", "2"]);
}

pub async fn what_is_parked_is_not_replayed<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = take_one(&store, 0).await;
    store.give_back(&[held.ticket], at(0)).await.unwrap();
    assert_eq!(store.park_orphans(HOUR, 10, at(4000)).await.unwrap(), 1);

    assert!(!store.replay_delivery(held.ticket.number, at(4001)).await.unwrap());

    assert_eq!(counts(&store).await.parked, 1);
    assert!(taken(&store, 4001).await.is_empty());
}

pub async fn an_announced_handler_keeps_what_waits_for_it<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    store.announce("", &[HANDLER], at(1000)).await.unwrap();

    let known = store.park_orphans(HOUR, 10, at(4600)).await.unwrap();
    store.announce("", &[HANDLER], at(4600)).await.unwrap();
    let renewed = store.park_orphans(HOUR, 10, at(8000)).await.unwrap();
    let forgotten = store.park_orphans(HOUR, 10, at(8300)).await.unwrap();

    assert_eq!((known, renewed, forgotten), (0, 0, 1));
}

pub async fn only_what_has_been_ready_for_long_is_parked<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["leased"], 0).await;
    take_one(&store, 0).await;
    give(&store, &["later"], 0).await;
    let later = take_one(&store, 0).await;
    let wait = Fate::Retry { after: HOUR, spent: true, code: "c", reason: "r" };
    store.conclude(later.ticket, &wait, None, at(0)).await.unwrap();
    give(&store, &["young"], 5000).await;
    give(&store, &["1", "2", "3"], 0).await;

    let some = store.park_orphans(HOUR, 2, at(7000)).await.unwrap();
    let rest = store.park_orphans(HOUR, 100, at(7000)).await.unwrap();

    assert_eq!((some, rest), (2, 1));
    let status = counts(&store).await;
    assert_eq!((status.parked, status.leased, status.ready), (3, 1, 2));
}

pub async fn a_parked_head_keeps_its_lane_in_order<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b"], 0).await;
    store.park_orphans(HOUR, 10, at(4000)).await.unwrap();
    queue(&store, "k", &["c"], 4000).await;
    let blocked = taken(&store, 4000).await;

    let back = store.announce("", &[HANDLER], at(4001)).await.unwrap();

    assert!(blocked.is_empty());
    assert_eq!(back, 1);
    for id in ["a", "b", "c"] {
        let held = take_one(&store, 4001).await;
        assert_eq!(held.envelope.id, id);
        done(&store, &held, 4001).await;
    }
}

pub async fn what_was_parked_comes_back_behind_an_earlier_one_of_its_lane<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b"], 0).await;
    let a = take_one(&store, 0).await;
    done(&store, &a, 0).await;
    store.park_orphans(HOUR, 10, at(4000)).await.unwrap();
    store.replay_delivery(a.ticket.number, at(4001)).await.unwrap();

    let back = store.announce("", &[HANDLER], at(4002)).await.unwrap();

    let again = take_one(&store, 4002).await;
    assert_eq!((back, again.envelope.id.as_str()), (1, "a"));
    let once_more = oncebox_core::depot::Finish { mark: None, ..super::steps::finishing(&again) };
    super::steps::finish(&store, &once_more, 4003).await.unwrap();
    assert_eq!(taken(&store, 4003).await, ["b"]);
}

pub async fn a_parked_one_keeps_back_only_those_after_it<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b", "c"], 0).await;
    let a = take_one(&store, 0).await;
    done(&store, &a, 0).await;
    assert!(store.replay_delivery(a.ticket.number, at(0)).await.unwrap());
    assert_eq!(counts(&store).await.behind, 2);

    assert_eq!(store.park_orphans(HOUR, 10, at(4000)).await.unwrap(), 1);

    assert_eq!(taken(&store, 4000).await, ["a"]);
}

pub async fn scopes_are_parked_and_announced_apart<F: DepotFixture>(fixture: Arc<F>) {
    let (store, one) = (fixture.store(), plain("1"));
    put(&store, &[deposit(&one, &[HANDLER]), Deposit { scope: "s", ..deposit(&one, &[HANDLER]) }], 0).await;
    store.announce("s", &[HANDLER], at(5000)).await.unwrap();

    let parked = store.park_orphans(HOUR, 10, at(5000)).await.unwrap();
    let back = store.announce("s", &[HANDLER], at(5100)).await.unwrap();

    assert_eq!((parked, back), (1, 0));
    assert_eq!(counts(&store).await.parked, 1);
}
