//! What operators see of the deliveries is what was done to them.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::Depot;
use oncebox_core::depot::Deposit;
use oncebox_core::inspect::{HandlerStatus, Inspect};

use super::DepotFixture;
use super::steps::{DEAD, HANDLER, counts, deposit, done, give, put, queue, take, take_one};
use crate::sample::{at, plain};

pub async fn every_delivery_that_is_not_over_is_counted<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["orphan"], -9000).await;
    store.park_orphans(Duration::from_secs(3600), 10, at(0)).await.unwrap();
    give(&store, &["done", "dead"], 0).await;
    let held = take(&store, 0).await;
    done(&store, &held[0], 0).await;
    store.conclude(held[1].ticket, &DEAD, None, at(0)).await.unwrap();
    queue(&store, "k", &["leased", "behind", "behind too"], 0).await;
    take_one(&store, 0).await;
    give(&store, &["ready", "also", "third"], 0).await;

    let status = counts(&store).await;

    assert_eq!((status.ready, status.leased, status.behind), (3, 1, 2));
    assert_eq!((status.parked, status.dead), (1, 1));
    assert!(status.oldest.is_some_and(|age| age > Duration::from_secs(9000)));
    assert_eq!(store.status().await.unwrap().dead_letters, 1);
}

pub async fn handlers_are_listed_by_scope_and_key_while_something_is_open<F: DepotFixture>(fixture: Arc<F>) {
    let (store, one) = (fixture.store(), plain("1"));
    let batch = [Deposit { scope: "s", ..deposit(&one, &[HANDLER, "g"]) }, deposit(&one, &[HANDLER])];
    put(&store, &batch, 0).await;
    let names = |handlers: Vec<HandlerStatus>| {
        handlers.into_iter().map(|status| (status.scope, status.handler)).collect::<Vec<_>>()
    };

    let before = names(store.status().await.unwrap().handlers);
    done(&store, &take_one(&store, 0).await, 0).await;
    let after = names(store.status().await.unwrap().handlers);

    let name = |scope: &str, handler: &str| (scope.to_owned(), handler.to_owned());
    assert_eq!(before, [name("", HANDLER), name("s", "g"), name("s", HANDLER)]);
    assert_eq!(after, [name("s", "g"), name("s", HANDLER)]);
}
