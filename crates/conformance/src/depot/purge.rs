//! What is over is forgotten, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{Assigned, Deposited, StoredPage};
use oncebox_core::store::Purge;
use oncebox_core::{Depot, LetterId, Letters, Retention};
use tokio::task::JoinSet;

use super::DepotFixture;
use super::steps::{
    CHANNEL, DEAD, HANDLER, RETRY, counts, deposit, done, give, patiently, put, take, take_one, taken,
    try_put,
};
use crate::sample::{at, moment, plain};

const MINUTE: Duration = Duration::from_secs(60);
const MESSAGES: Purge = Purge::Messages(MINUTE);

fn deliveries(scope: &str, handler: &str) -> Purge {
    Purge::Deliveries { scope: scope.into(), handler: handler.into(), older_than: MINUTE }
}

/// The ids of the stored messages.
async fn stored<F: DepotFixture>(fixture: &F) -> Vec<String> {
    let kind = &plain("").kind;
    let page = StoredPage { scope: "", channel: CHANNEL, kind, since: moment(-999), after: 0, limit: 1000 };
    fixture.store().stored(&page).await.unwrap().into_iter().map(|stored| stored.envelope.id).collect()
}

pub async fn deliveries_are_purged_by_handler_and_age<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for (id, seconds) in [("0", 0), ("1", 10), ("2", 20), ("3", 30)] {
        give(&store, &[id], seconds).await;
        done(&store, &take_one(&store, seconds).await, seconds).await;
    }

    let purged = [
        store.purge(&deliveries("", "g"), 100, at(1000)).await.unwrap(),
        store.purge(&deliveries("scope", HANDLER), 100, at(1000)).await.unwrap(),
        store.purge(&deliveries("", HANDLER), 100, at(60)).await.unwrap(),
        store.purge(&deliveries("", HANDLER), 1, at(81)).await.unwrap(),
        store.purge(&deliveries("", HANDLER), 100, at(81)).await.unwrap(),
        store.purge(&deliveries("", HANDLER), 100, at(81)).await.unwrap(),
    ];

    assert_eq!(purged, [0, 0, 0, 1, 2, 0]);
    let messages = store.purge(&MESSAGES, 100, at(1000)).await.unwrap();
    assert_eq!((messages, stored(&*fixture).await), (3, vec!["3".to_owned()]), "oldest first");
}

pub async fn what_is_not_over_is_kept_however_old<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["dead", "leased", "retried", "discarded"], 0).await;
    let held = take(&store, 0).await;
    store.conclude(held[0].ticket, &DEAD, None, at(0)).await.unwrap();
    store.conclude(held[2].ticket, &RETRY, None, at(0)).await.unwrap();
    store.conclude(held[3].ticket, &DEAD, None, at(0)).await.unwrap();
    store.discard_letter(LetterId::Delivery(held[3].ticket.number), at(0)).await.unwrap();

    let purged = store.purge(&deliveries("", HANDLER), 100, at(100_000)).await.unwrap();
    let messages = store.purge(&MESSAGES, 100, at(100_000)).await.unwrap();

    assert_eq!((purged, messages), (1, 1), "the discarded one");
    let status = counts(&store).await;
    assert_eq!((status.dead, status.leased, status.ready), (1, 1, 1));
    assert_eq!(stored(&*fixture).await, ["dead", "leased", "retried"]);
}

pub async fn a_message_is_kept_while_a_delivery_needs_it<F: DepotFixture>(fixture: Arc<F>) {
    let (store, one) = (fixture.store(), plain("1"));
    put(&store, &[deposit(&one, &[HANDLER, "g"])], 0).await;
    done(&store, &take_one(&store, 0).await, 0).await;
    give(&store, &["2"], 0).await;
    done(&store, &take_one(&store, 0).await, 0).await;
    store.purge(&deliveries("", HANDLER), 100, at(100)).await.unwrap();

    let young = store.purge(&MESSAGES, 100, at(60)).await.unwrap();
    let none = store.purge(&MESSAGES, 0, at(100)).await.unwrap();
    let purged = store.purge(&MESSAGES, 100, at(100)).await.unwrap();

    assert_eq!((young, none, purged), (0, 0, 1));
    assert_eq!(stored(&*fixture).await, ["1"]);
}

pub async fn a_marker_outlives_what_it_proves<F: DepotFixture>(fixture: Arc<F>) {
    let (store, one) = (fixture.store(), plain("1"));
    give(&store, &["1"], 0).await;
    let held = take_one(&store, 0).await;
    store.intend(held.ticket, "effect", at(0)).await.unwrap();
    done(&store, &held, 0).await;
    store.purge(&deliveries("", HANDLER), 100, at(100)).await.unwrap();
    store.purge(&MESSAGES, 100, at(100)).await.unwrap();

    let again = put(&store, &[deposit(&one, &[HANDLER])], 100).await;

    assert!(matches!(&again[0], Deposited::Stored { assigned, .. } if *assigned == [Assigned::Duplicate]));
    assert!(taken(&store, 1000).await.is_empty());
}

pub async fn a_purge_racing_a_duplicate_lets_nothing_run_twice<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for round in 0..20 {
        let id = format!("{round}");
        give(&store, &[&id], 0).await;
        done(&store, &take_one(&store, 0).await, 0).await;
        let mut tasks = JoinSet::new();
        for _ in 0..2 {
            let (store, id) = (fixture.store(), id.clone());
            tasks.spawn(async move {
                let envelope = plain(id);
                let deposit = [deposit(&envelope, &[HANDLER])];
                patiently!(try_put(&store, &deposit, at(100))).unwrap();
            });
            let store = fixture.store();
            tasks.spawn(async move {
                for purge in [deliveries("", HANDLER), MESSAGES] {
                    patiently!(store.purge(&purge, 100, at(100))).unwrap();
                }
            });
        }

        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }

        assert_eq!(taken(&store, 1000).await, Vec::<String>::new(), "round {round}");
        assert!(stored(&*fixture).await.iter().filter(|stored| **stored == id).count() <= 1);
    }
}

pub async fn one_sweeps_at_a_time<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    let held = [
        store.hold_broom("a", MINUTE, at(0)).await.unwrap(),
        store.hold_broom("b", MINUTE, at(1)).await.unwrap(),
        store.hold_broom("a", MINUTE, at(30)).await.unwrap(),
        store.hold_broom("b", MINUTE, at(89)).await.unwrap(),
        store.hold_broom("b", MINUTE, at(91)).await.unwrap(),
        store.hold_broom("a", MINUTE, at(92)).await.unwrap(),
    ];

    assert_eq!(held, [true, false, true, false, true, false]);
}
