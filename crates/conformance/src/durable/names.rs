//! Handlers are renamed, removed and added, and services share a database.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::Depot;
use oncebox_core::letters::Letters;
use oncebox_flow::inbox::InboxBuilder;
use oncebox_flow::{Inbox, WorkOptions, Worker};

use super::scene::{Bench, options};
use crate::fixture::StoreFixture;
use crate::sample::moment;

/// A handler before and after it was renamed.
fn renamed<F: StoreFixture>(
    bench: &Bench<F>,
    inbox: fn(&Bench<F>) -> InboxBuilder<F::Store>,
) -> (Inbox<F::Store>, Inbox<F::Store>)
where
    F::Store: Depot + Letters,
{
    let old = inbox(bench).handler(bench.booker("old"));
    let new = inbox(bench).handler_with(bench.booker("new"), |options| options.legacy("old"));
    (old.build().unwrap(), new.build().unwrap())
}

pub async fn a_renamed_handler_takes_up_what_was_stored_for_its_former_key<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let (old, new) = renamed(&bench, Bench::inbox);
    bench.deliver(&old, 1..=2).await;
    bench.deliver(&new, 3..=4).await;

    let worked = bench.worker(&new).run_until_idle().await.unwrap();

    assert!(worked.iter().all(|worked| worked.handler.as_str() == "new"), "{worked:?}");
    assert_eq!(bench.effects_of("new").await, [1, 2, 3, 4]);
    assert_eq!(bench.counts("old").await.ready, 0);
}

pub async fn a_renamed_handler_does_not_repeat_what_its_former_key_has_done<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let (old, new) = renamed(&bench, Bench::receiver);

    bench.deliver(&old, [1]).await;
    bench.deliver(&new, [1, 2]).await;
    // The old version is still running somewhere.
    bench.deliver(&old, [1, 2]).await;

    assert_eq!((bench.effects_of("old").await, bench.effects_of("new").await), (vec![1], vec![2]));
}

pub async fn a_worker_does_not_repeat_what_a_former_key_has_done<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let (old, new) = renamed(&bench, Bench::inbox);
    bench.deliver(&old, [1]).await;
    bench.worker(&old).run_until_idle().await.unwrap();
    bench.deliver(&old, [2]).await;

    // The first was handled under the former key, the second waits under it.
    assert_eq!(new.backfill("new", moment(0)).await.unwrap(), 2);
    let options = WorkOptions { batch: 10, ..options() };
    bench.run_until(vec![Worker::new(&new, options).unwrap()], "new", 1).await;
    bench.worker(&new).run_until_idle().await.unwrap();

    assert_eq!((bench.effects_of("old").await, bench.effects_of("new").await), (vec![1], vec![2]));
    assert_eq!((bench.counts("old").await.ready, bench.counts("new").await.ready), (0, 0));
}

pub async fn an_unknown_handlers_deliveries_wait_and_are_parked_not_buried<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let newer = bench.inbox().handler(bench.booker("first")).handler(bench.booker("second")).build().unwrap();
    let older = bench.inbox().handler(bench.booker("first")).build().unwrap();
    bench.deliver(&newer, [1]).await;
    let hour = Duration::from_secs(3600);
    let old_worker = Worker::new(&older, WorkOptions { orphan_after: hour, ..options() }).unwrap();

    old_worker.run_until_idle().await.unwrap();
    let waiting = bench.counts("second").await;
    bench.clock.advance(hour + Duration::from_secs(60));
    old_worker.run_until_idle().await.unwrap();
    let parked = bench.counts("second").await;
    // The rest of the deployment comes after all.
    bench.worker(&newer).run_until_idle().await.unwrap();

    assert_eq!((waiting.ready, waiting.parked), (1, 0));
    assert_eq!((parked.ready, parked.parked, parked.dead), (0, 1, 0));
    assert_eq!((bench.effects_of("first").await, bench.effects_of("second").await), (vec![1], vec![1]));
}

pub async fn two_services_in_one_database_do_not_meet<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let service = |scope: &str| bench.inbox().scope(scope).handler(bench.booker("same")).build().unwrap();
    let (sales, stock) = (service("sales"), service("stock"));
    bench.deliver(&sales, [1]).await;
    bench.deliver(&stock, [1, 2]).await;

    let by_sales = bench.worker(&sales).run_until_idle().await.unwrap();
    let by_stock = bench.worker(&stock).run_until_idle().await.unwrap();

    assert_eq!((by_sales.len(), by_stock.len()), (1, 2));
    assert_eq!(bench.effects().await, [1, 1, 2]);
    let receiver = bench.receiver().scope("third").handler(bench.booker("same")).build().unwrap();
    bench.deliver(&receiver, [1]).await;
    assert_eq!(bench.effects().await, [1, 1, 1, 2], "markers are scoped, too");
}
