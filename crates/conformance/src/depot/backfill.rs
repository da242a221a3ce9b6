//! A handler that comes later can have what was accepted before.

use std::sync::Arc;

use oncebox_core::depot::{Assigned, Assignment, Deposit, Number, StoredPage, TakeRequest, Want};
use oncebox_core::{Depot, Envelope, Store};

use super::DepotFixture;
use super::steps::{CHANNEL, HANDLER, deposit, done, give, ids, put, queue, request, share, take_one, taken};
use crate::sample::{at, full, moment, plain};

fn page(kind: &str) -> StoredPage<'_> {
    StoredPage { scope: "", channel: CHANNEL, kind, since: moment(0), after: 0, limit: 100 }
}

/// Gives a message to a handler and commits.
async fn assign<F: DepotFixture>(fixture: &F, message: Number, assignment: &Assignment<'_>) -> Assigned {
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();
    let assigned = store.assign(&mut tx, message, assignment, at(10)).await.unwrap();
    store.commit(tx).await.unwrap();
    assigned
}

pub async fn stored_messages_are_paged_by_number<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (full, other) = (full("full"), Envelope { kind: "other".into(), ..plain("other") });
    give(&store, &["old"], -1).await;
    give(&store, &["1", "2", "3"], 0).await;
    let elsewhere = plain("elsewhere");
    let apart = [
        deposit(&other, &[HANDLER]),
        Deposit { channel: "b", ..deposit(&elsewhere, &[]) },
        Deposit { scope: "s", ..deposit(&elsewhere, &[]) },
        deposit(&full, &[]),
    ];
    put(&store, &apart, 1).await;

    let kind = plain("").kind;
    let first = store.stored(&StoredPage { limit: 2, ..page(&kind) }).await.unwrap();
    let rest = store.stored(&StoredPage { after: first[1].number, ..page(&kind) }).await.unwrap();

    assert_eq!(first.iter().map(|stored| stored.envelope.id.as_str()).collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(rest.iter().map(|stored| stored.envelope.id.as_str()).collect::<Vec<_>>(), ["3", "full"]);
    assert_eq!(rest[1].envelope, full);
    assert!(first[0].number < first[1].number);
    assert_eq!(store.stored(&page("other")).await.unwrap().len(), 1);
}

pub async fn a_stored_message_is_given_to_one_more_handler_once<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let stored = store.stored(&page(&plain("").kind)).await.unwrap().remove(0);
    let to_g = share("g", &stored.envelope);
    let mut tx = store.begin().await.unwrap();
    store.assign(&mut tx, stored.number, &to_g, at(9)).await.unwrap();
    store.rollback(tx).await.unwrap();

    let assigned = [
        assign(&*fixture, stored.number, &to_g).await,
        assign(&*fixture, stored.number, &to_g).await,
        assign(&*fixture, stored.number, &share(HANDLER, &stored.envelope)).await,
    ];
    let wants = [Want { handler: "g", limit: 10 }];
    let held = store.take(&TakeRequest { wants: &wants, ..request("w") }, at(10)).await.unwrap();

    assert_eq!(assigned, [Assigned::New, Assigned::Duplicate, Assigned::Duplicate]);
    assert_eq!((ids(&held), held[0].received_at), (vec!["1".to_owned()], moment(0)));
    assert_eq!(held[0].digest, stored.envelope.digest());
}

pub async fn what_was_handled_another_way_is_not_given_again<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    done(&store, &take_one(&store, 0).await, 0).await;
    let stored = store.stored(&page(&plain("").kind)).await.unwrap().remove(0);
    // The handler has another name by now, and its old markers.
    let renamed = Assignment { marker: HANDLER, ..share("renamed", &stored.envelope) };

    assert_eq!(assign(&*fixture, stored.number, &renamed).await, Assigned::Duplicate);
}

pub async fn a_given_message_takes_its_place_in_its_lane<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (a, b) = (plain("a"), plain("b"));
    put(&store, &[deposit(&a, &[]), deposit(&b, &[])], 0).await;
    queue(&store, "k", &["c"], 1).await;

    for stored in store.stored(&page(&plain("").kind)).await.unwrap().iter().take(2) {
        let laned = Assignment { lane: Some("k"), ..share(HANDLER, &stored.envelope) };
        assert_eq!(assign(&*fixture, stored.number, &laned).await, Assigned::New);
    }

    for id in ["c", "a", "b"] {
        let held = take_one(&store, 10).await;
        assert_eq!(held.envelope.id, id);
        done(&store, &held, 10).await;
    }
    assert!(taken(&store, 10).await.is_empty());
}
