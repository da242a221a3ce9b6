//! Storing, and what the two modes have to do with each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use oncebox_core::depot::Depot;
use oncebox_core::inspect::Inspect as _;
use oncebox_core::letters::Letters;
use oncebox_core::{Envelope, Store as _, Verdict};
use oncebox_flow::Relay;
use oncebox_flow::memory::MemoryTransport;

use super::scene::{Bench, is_done};
use crate::fixture::StoreFixture;
use crate::path::scene::{HANDLER, arrived};
use crate::sample::{DESTINATION, Posted};

pub async fn a_message_is_stored_before_it_is_answered_and_handled_later<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let inbox = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();

    bench.deliver(&inbox, 1..=3).await;

    assert_eq!(bench.counts(HANDLER).await.ready, 3);
    assert_eq!(bench.effects().await, [0_i64; 0]);
    let worked = bench.worker(&inbox).run_until_idle().await.unwrap();
    assert!(worked.len() == 3 && worked.iter().all(is_done), "{worked:?}");
    assert_eq!(bench.effects().await, [1, 2, 3]);
    assert_eq!(bench.counts(HANDLER).await.ready, 0);
}

pub async fn copies_of_a_message_are_stored_once<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker = bench.booker(HANDLER);
    let runs = booker.runs();
    let inbox = bench.inbox().handler(booker).build().unwrap();

    for _ in 0..2 {
        let copies = (0..8).map(|_| inbox.deliver(arrived("1", &Posted::on("red", 1)), 1));
        for verdict in join_all(copies).await {
            assert_eq!(verdict, Verdict::Done);
        }
        bench.worker(&inbox).run_until_idle().await.unwrap();
    }

    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(bench.effects().await, [1]);
}

pub async fn another_body_under_the_same_id_is_buried_and_the_first_one_runs<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let inbox = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();

    bench.deliver_one(&inbox, "1", &Posted::on("red", 1)).await;
    bench.deliver_one(&inbox, "1", &Posted::on("red", 2)).await;
    bench.worker(&inbox).run_until_idle().await.unwrap();

    assert_eq!(bench.effects().await, [1]);
    let letters = bench.letters().await;
    assert_eq!(letters.iter().map(|letter| letter.code.as_str()).collect::<Vec<_>>(), ["id_conflict"]);
}

pub async fn one_channel_serves_both_modes<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let inbox = bench.inbox().handler(bench.booker("later"));
    let inbox = inbox.handler_with(bench.booker("now"), |options| options.receiver()).build().unwrap();

    bench.deliver(&inbox, [1]).await;

    assert_eq!((bench.effects_of("now").await, bench.effects_of("later").await), (vec![1], vec![]));
    bench.worker(&inbox).run_until_idle().await.unwrap();
    assert_eq!(bench.effects_of("later").await, [1]);
}

pub async fn what_was_handled_in_receiver_mode_is_not_stored_for_a_worker<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let before = bench.receiver().handler(bench.booker(HANDLER)).build().unwrap();
    let after = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();

    bench.deliver(&before, [1]).await;
    bench.deliver(&after, [1, 2]).await;
    bench.worker(&after).run_until_idle().await.unwrap();
    bench.deliver(&before, [1, 2]).await;

    assert_eq!(bench.effects().await, [1, 2]);
}

pub async fn what_a_durable_handler_puts_leaves_with_its_writes<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let mut booker = bench.booker(HANDLER).acting(|attempt, _| match attempt {
        1 => Err(oncebox_core::HandlerError::retry("once")),
        _ => Ok(()),
    });
    booker.echoes = true;
    let inbox = bench.inbox().handler(booker).build().unwrap();
    bench.deliver(&inbox, [1]).await;
    let worker = bench.worker(&inbox);

    worker.run_until_idle().await.unwrap();
    let before = bench.store.status().await.unwrap().logged;
    bench.exhaust(&worker).await;

    assert_eq!((before, bench.store.status().await.unwrap().logged), (0, 1));
}

pub async fn a_local_route_stores_in_the_producers_transaction<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let inbox = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();
    let outbox = bench.outbox.clone().local(&inbox).unwrap();

    let mut dropped = bench.store.begin().await.unwrap();
    outbox.put(&mut dropped, &Posted::on("red", 1)).await.unwrap();
    bench.store.rollback(dropped).await.unwrap();
    let mut kept = bench.store.begin().await.unwrap();
    outbox.put(&mut kept, &Posted::on("red", 2)).await.unwrap();
    bench.store.commit(kept).await.unwrap();
    bench.worker(&inbox).run_until_idle().await.unwrap();

    assert_eq!(bench.effects().await, [2]);
    assert_eq!(bench.store.status().await.unwrap().logged, 0, "nothing for a relay");
    // Nothing for a relay even if one looks.
    let transport = MemoryTransport::new();
    let mut relay = Relay::builder(bench.store.clone(), transport).build().unwrap();
    relay.step().await.unwrap();
    let receiver = bench.receiver().handler(bench.booker(HANDLER)).build().unwrap();
    assert!(bench.outbox.clone().local(&receiver).is_err(), "nobody would wait for it");
}

pub async fn an_undecodable_message_is_a_dead_letter_of_its_handler<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let inbox = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();
    let garbled = Envelope { payload: b"{".to_vec(), ..arrived("1", &Posted::on("red", 1)) };

    assert_eq!(inbox.deliver(garbled.clone(), 1).await, Verdict::Done);

    let letters = bench.letters().await;
    assert_eq!((letters[0].handler.as_str(), letters[0].code.as_str()), (HANDLER, "undecodable"));
    assert_eq!((&letters[0].envelope.payload, letters[0].channel.as_str()), (&garbled.payload, DESTINATION));
}

pub async fn a_handler_added_later_gets_old_messages_by_a_backfill<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let before = bench.inbox().handler(bench.booker("first")).build().unwrap();
    bench.deliver(&before, 1..=3).await;
    bench.clock.advance(std::time::Duration::from_secs(10));
    let since = crate::sample::moment(5);
    bench.deliver(&before, 4..=6).await;
    let after = bench.inbox().handler(bench.booker("first")).handler(bench.booker("second")).build().unwrap();

    let added = after.backfill("second", since).await.unwrap();
    let again = after.backfill("second", since).await.unwrap();
    bench.worker(&after).run_until_idle().await.unwrap();

    assert_eq!((added, again), (3, 0));
    assert_eq!(bench.effects_of("second").await, [4, 5, 6]);
    assert_eq!(bench.effects_of("first").await, [1, 2, 3, 4, 5, 6]);
}
