//! Deliveries of one lane go one after the other, and none is forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_core::depot::{Deposit, Fate, TakeRequest, Taken};
use oncebox_core::inspect::Inspect;
use oncebox_core::{Depot, Envelope, LetterId, Letters, Requeued, Store};
use tokio::task::JoinSet;

use super::DepotFixture;
use super::steps::{
    DEAD, RETRY, counts, done, finish, finishing, in_lane, patiently, put, queue, request, take, take_one,
    taken, try_put,
};
use crate::sample::{at, plain};

const LEAVE: Fate<'static> = Fate::Dead { spent: true, code: "c", reason: "r", frees_lane: true };

fn letter(taken: &Taken) -> LetterId {
    LetterId::Delivery(taken.ticket.number)
}

pub async fn deliveries_of_a_lane_go_one_after_the_other<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (a, b) = (plain("a"), plain("b"));
    put(&store, &[in_lane(&a, "k"), in_lane(&b, "k")], 0).await;
    queue(&store, "k", &["c"], 1).await;

    for (n, id) in (1..).zip(["a", "b", "c"]) {
        let held = take_one(&store, n).await;
        assert_eq!((held.envelope.id.as_str(), held.lane.as_deref()), (id, Some("k")));
        assert_eq!(counts(&store).await.behind, 3 - n);
        done(&store, &held, n).await;
    }

    queue(&store, "k", &["d"], 5).await;
    assert_eq!(taken(&store, 5).await, ["d"], "what is over keeps nobody back");
}

pub async fn other_lanes_tenants_handlers_and_scopes_do_not_wait<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let of_tenant = Envelope { tenant: "t".into(), ..plain("2") };
    let (one, three, four) = (plain("1"), plain("3"), plain("4"));
    let mut of_handler = in_lane(&four, "k");
    of_handler.assignments[0].handler = "g";
    put(&store, &[in_lane(&one, "k"), in_lane(&of_tenant, "k"), in_lane(&three, "K"), of_handler], 0).await;
    put(&store, &[Deposit { scope: "s", ..in_lane(&four, "k") }], 0).await;

    let handlers = store.status().await.unwrap().handlers;

    assert_eq!(handlers.iter().map(|handler| handler.ready).sum::<i64>(), 5, "{handlers:?}");
    assert_eq!(taken(&store, 0).await, ["1", "2", "3"]);
}

pub async fn a_head_that_failed_keeps_its_lane<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b"], 0).await;
    let a = take_one(&store, 0).await;

    store.conclude(a.ticket, &RETRY, None, at(1)).await.unwrap();

    assert_eq!(taken(&store, 1).await, ["a"]);
}

pub async fn a_finish_that_is_rolled_back_frees_nobody<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b"], 0).await;
    let a = take_one(&store, 0).await;
    let mut tx = store.begin().await.unwrap();
    store.finish(&mut tx, &finishing(&a), at(1)).await.unwrap();

    store.rollback(tx).await.unwrap();

    assert!(taken(&store, 2).await.is_empty());
    done(&store, &a, 2).await;
    assert_eq!(taken(&store, 2).await, ["b"]);
}

pub async fn a_dead_head_blocks_its_lane_until_it_is_requeued_or_discarded<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b", "c"], 0).await;
    let a = take_one(&store, 0).await;
    store.conclude(a.ticket, &DEAD, None, at(1)).await.unwrap();
    queue(&store, "k", &["d"], 2).await;
    let blocked = taken(&store, 100).await;
    let blocks = store.letter(letter(&a)).await.unwrap().unwrap().blocks;

    let requeued = store.requeue_letter(letter(&a), None, at(3)).await.unwrap();
    let again = take_one(&store, 3).await;
    store.conclude(again.ticket, &DEAD, None, at(4)).await.unwrap();
    let discarded = store.discard_letter(letter(&a), at(5)).await.unwrap();

    assert!(blocked.is_empty());
    assert_eq!((blocks, requeued, discarded), (3, Requeued::Ready, true));
    assert_eq!(again.envelope.id, "a", "it goes before those who waited");
    assert_eq!(taken(&store, 5).await, ["b"]);
}

pub async fn a_dead_head_that_frees_its_lane_has_left_it<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b", "c"], 0).await;
    let a = take_one(&store, 0).await;

    store.conclude(a.ticket, &LEAVE, None, at(1)).await.unwrap();

    for (n, id) in (1..).zip(["b", "c"]) {
        let held = take_one(&store, n).await;
        assert_eq!(held.envelope.id, id, "the gap keeps nobody back");
        done(&store, &held, n).await;
    }
    queue(&store, "k", &["d"], 5).await;
    assert_eq!(taken(&store, 5).await, ["d"]);
    assert_eq!(store.letter(letter(&a)).await.unwrap().unwrap().blocks, 0);
    store.requeue_letter(letter(&a), None, at(6)).await.unwrap();
    assert_eq!(taken(&store, 6).await, ["a"], "it runs beside the lane");
}

pub async fn a_duplicate_frees_its_lane<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b"], 0).await;
    let a = take_one(&store, 0).await;

    store.conclude(a.ticket, &Fate::Duplicate, None, at(1)).await.unwrap();

    assert_eq!(taken(&store, 1).await, ["b"]);
}

pub async fn what_is_born_dead_waits_in_its_lane_and_blocks_it<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a"], 0).await;
    let (b, a) = (plain("b"), take_one(&store, 0).await);
    let mut refused = in_lane(&b, "k");
    refused.assignments[0].refused = Some(("forged", "no"));
    put(&store, &[refused], 0).await;
    queue(&store, "k", &["c"], 0).await;
    let dead = store.letters(&Default::default(), 10).await.unwrap()[0].id;

    store.requeue_letter(dead, None, at(1)).await.unwrap();
    let two_heads = taken(&store, 1).await;
    done(&store, &a, 2).await;
    let second = take_one(&store, 2).await;
    done(&store, &second, 3).await;

    assert!(two_heads.is_empty(), "a is still running");
    assert_eq!(second.envelope.id, "b");
    assert_eq!(taken(&store, 3).await, ["c"]);
}

pub async fn what_is_born_dead_may_leave_its_lane<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (a, b, c, d) = (plain("a"), Envelope { time: at(0), ..plain("b") }, plain("c"), plain("d"));
    let deposits = [&a, &b, &c, &d].map(|envelope| {
        let mut deposit = in_lane(envelope, "k");
        deposit.assignments[0].frees_lane = true;
        deposit
    });
    let [mut forged, mut old, third, fourth] = deposits;
    forged.assignments[0].refused = Some(("forged", "no"));
    old.assignments[0].window = Some(Duration::from_secs(60));

    put(&store, &[forged], 100).await;
    put(&store, &[old, third], 100).await;
    put(&store, &[fourth], 100).await;

    assert_eq!(store.letters(&Default::default(), 10).await.unwrap().len(), 2);
    let c = take_one(&store, 100).await;
    assert_eq!(c.envelope.id, "c");
    done(&store, &c, 101).await;
    assert_eq!(taken(&store, 101).await, ["d"]);
}

/// Of a lane of a, b and c, a is done and replayed while b runs.
async fn replayed_beside<F: DepotFixture>(fixture: &F) -> (F::Store, Taken) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b", "c"], 0).await;
    let a = take_one(&store, 0).await;
    done(&store, &a, 0).await;
    let b = take_one(&store, 0).await;
    assert!(store.replay_delivery(a.ticket.number, at(1)).await.unwrap());
    (store, b)
}

pub async fn a_replayed_delivery_does_not_run_beside_its_lane<F: DepotFixture>(fixture: Arc<F>) {
    let (store, b) = replayed_beside(&*fixture).await;

    assert!(taken(&store, 1).await.is_empty(), "b is running");
    done(&store, &b, 2).await;
    let again = take_one(&store, 2).await;
    assert_eq!((again.envelope.id.as_str(), again.generation), ("a", 1));
    finish(&store, &oncebox_core::depot::Finish { mark: None, ..finishing(&again) }, 3).await.unwrap();
    assert_eq!(taken(&store, 3).await, ["c"]);
}

pub async fn one_that_dies_keeps_back_only_those_after_it<F: DepotFixture>(fixture: Arc<F>) {
    let (store, b) = replayed_beside(&*fixture).await;
    let dead = Fate::Dead { spent: true, code: "c", reason: "r", frees_lane: false };

    store.conclude(b.ticket, &dead, None, at(2)).await.unwrap();

    let again = take_one(&store, 2).await;
    assert_eq!((again.envelope.id.as_str(), again.generation), ("a", 1));
    finish(&store, &oncebox_core::depot::Finish { mark: None, ..finishing(&again) }, 3).await.unwrap();
    assert!(taken(&store, 3).await.is_empty(), "c is after the dead one");
}

/// Deposits a message that is born dead, and tells which dead letter it is.
async fn refused<F: DepotFixture>(fixture: &F, id: &str) -> LetterId {
    let (store, envelope) = (fixture.store(), plain(id));
    let mut refused = in_lane(&envelope, "k");
    refused.assignments[0].refused = Some(("forged", "no"));
    put(&store, &[refused], 0).await;
    let letters = store.letters(&Default::default(), 10).await.unwrap();
    letters.into_iter().find(|letter| letter.envelope.id == id).unwrap().id
}

pub async fn a_finished_head_does_not_let_others_past_a_dead_one<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a"], 0).await;
    let dead = refused(&*fixture, "b").await;
    queue(&store, "k", &["c"], 0).await;

    done(&store, &take_one(&store, 0).await, 0).await;
    let past = taken(&store, 1).await;
    store.discard_letter(dead, at(2)).await.unwrap();

    assert!(past.is_empty());
    assert_eq!(taken(&store, 2).await, ["c"]);
}

pub async fn a_discarded_letter_frees_nobody_while_one_of_its_lane_runs<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b"], 0).await;
    let dead = refused(&*fixture, "c").await;
    let a = take_one(&store, 0).await;
    done(&store, &a, 0).await;
    let b = take_one(&store, 0).await;
    store.replay_delivery(a.ticket.number, at(1)).await.unwrap();

    store.discard_letter(dead, at(2)).await.unwrap();

    assert!(taken(&store, 2).await.is_empty(), "b is running");
    done(&store, &b, 3).await;
    assert_eq!(taken(&store, 3).await, ["a"]);
}

/// Producers fill lanes while workers empty them: whatever is in the way of
/// what, every delivery runs, in its order, and no two of a lane at once.
pub async fn deposits_racing_finishes_leave_nobody_stuck_and_no_two_heads<F: DepotFixture>(fixture: Arc<F>) {
    const LANES: usize = 3;
    const EACH: usize = 25;
    let running: Arc<Mutex<HashMap<String, Vec<String>>>> = Arc::default();
    let order: Arc<Mutex<HashMap<String, Vec<String>>>> = Arc::default();
    let mut tasks = JoinSet::new();
    for lane in 0..LANES {
        let store = fixture.store();
        tasks.spawn(async move {
            for n in 0..EACH {
                let (envelope, lane) = (plain(format!("{lane}-{n:02}")), format!("lane {lane}"));
                let deposit = [in_lane(&envelope, &lane)];
                patiently!(try_put(&store, &deposit, at(0))).unwrap();
            }
        });
    }
    for _ in 0..3 {
        let (store, running, order) = (fixture.store(), Arc::clone(&running), Arc::clone(&order));
        tasks.spawn(async move {
            while order.lock().unwrap().values().map(Vec::len).sum::<usize>() < LANES * EACH {
                let few = TakeRequest { limit: 2, ..request("worker") };
                let held = patiently!(store.take(&few, at(0))).unwrap();
                for taken in held {
                    let (lane, id) = (taken.lane.clone().unwrap(), taken.envelope.id.clone());
                    running.lock().unwrap().entry(lane.clone()).or_default().push(id.clone());
                    tokio::task::yield_now().await;
                    let heads = running.lock().unwrap()[&lane].clone();
                    assert!(heads.len() == 1, "two heads of {lane}: {heads:?}");
                    running.lock().unwrap().remove(&lane);
                    // Before the commit: after it the next one may be there already.
                    order.lock().unwrap().entry(lane).or_default().push(id);
                    patiently!(finish(&store, &finishing(&taken), 0)).unwrap();
                }
                tokio::task::yield_now().await;
            }
        });
    }

    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }

    for (lane, ids) in order.lock().unwrap().iter() {
        assert!(ids.is_sorted(), "{lane}: {ids:?}");
    }
    let left = counts(&fixture.store()).await;
    assert_eq!((left.ready, left.behind, left.leased), (0, 0, 0));
}

pub async fn deposits_of_one_lane_at_once_make_one_head<F: DepotFixture>(fixture: Arc<F>) {
    for round in 0..10 {
        let mut tasks = JoinSet::new();
        for n in 0..4 {
            let store = fixture.store();
            tasks.spawn(async move {
                let envelopes = [plain(format!("{round}-{n}-a")), plain(format!("{round}-{n}-b"))];
                let lane = format!("lane {round}");
                let deposits = envelopes.each_ref().map(|envelope| in_lane(envelope, &lane));
                patiently!(try_put(&store, &deposits, at(round))).unwrap();
            });
        }
        tasks.join_all().await;
        let store = fixture.store();
        for left in (0..8).rev() {
            let held = take(&store, round).await;
            assert_eq!(held.len(), 1, "round {round}: {left} are left and none or two are ready");
            done(&store, &held[0], round).await;
        }
        assert_eq!(counts(&store).await.behind, 0);
    }
}
