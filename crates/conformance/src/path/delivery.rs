//! What is committed takes effect once, whatever happens on the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncebox_core::{Failure, HandlerError, Outcome, Store};
use oncebox_flow::{Inbox, Janitor};

use super::carrier::Carrier;
use super::scene::{EchoBooker, HANDLER, Scene, arrived, entry};
use crate::dice::Dice;
use crate::fixture::StoreFixture;
use crate::sample::{Posted, moment};

/// Bookings on several accounts and on none, mixed.
fn mixed(count: i64) -> Vec<Posted> {
    let account = |n: i64| ["red", "green", "blue"][usize::try_from(n % 4).unwrap()];
    (0..count).map(|n| if n % 4 == 3 { Posted::unkeyed(n) } else { Posted::on(account(n), n) }).collect()
}

pub async fn a_committed_message_takes_effect_and_a_rolled_back_one_does_not<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    scene.commit(&mixed(10)).await;
    let mut tx = scene.store.begin().await.unwrap();
    scene.outbox.put(&mut tx, &Posted::on("red", 99)).await.unwrap();
    scene.store.rollback(tx).await.unwrap();

    scene.settle(&mut [scene.relay()]).await;

    scene.check().await;
}

pub async fn duplicates_take_effect_once<F: StoreFixture>(scene: Scene<F>) {
    let booker = scene.booker(HANDLER);
    let runs = booker.runs();
    let inbox = scene.inbox().handler(booker).build().unwrap();
    let consumer = scene.consume(inbox, 4).await;
    scene.transport.duplicate_next(20);
    scene.commit(&mixed(20)).await;

    scene.settle(&mut [scene.relay()]).await;
    consumer.stop().await;

    scene.check().await;
    assert_eq!(runs.load(Ordering::SeqCst), 20, "a duplicate does not even run");
}

pub async fn lost_confirms_double_nothing<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume_plainly().await;
    scene.picky.lose_confirms(12);
    scene.commit(&mixed(20)).await;
    let mut relay = scene.relay();

    let lost = relay.step().await.unwrap();
    scene.settle(&mut [relay]).await;

    assert!(lost.outage.is_some() && lost.published < 20, "{lost:?}");
    scene.check().await;
}

pub async fn an_outage_costs_time_and_no_message<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume_plainly().await;
    scene.commit(&mixed(8)).await;
    scene.picky.refuse(|_| Some(Failure::destination("the transport is down")));
    let mut relay = scene.relay();

    for _ in 0..5 {
        let progress = relay.step().await.unwrap();
        assert_eq!((progress.published, progress.parked), (0, 0));
        assert!(progress.outage.is_some());
    }
    let status = scene.status().await;
    scene.picky.accept_all();
    scene.settle(&mut [relay]).await;

    assert_eq!(status.sinks[0].pending, 8);
    scene.check().await;
}

pub async fn reordered_deliveries_keep_the_order_of_keys<F: StoreFixture>(scene: Scene<F>) {
    scene.transport.reorder(Some(Dice::seed("reordered")));
    let inbox = scene.inbox().handler(scene.booker(HANDLER)).build().unwrap();
    let _consumer = scene.consume(inbox, 4).await;
    scene.commit(&mixed(40)).await;

    scene.settle(&mut [scene.relay()]).await;

    scene.check().await;
}

pub async fn several_relays_keep_the_order_of_keys<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume_plainly().await;
    let mut relays = [scene.relay(), scene.relay(), scene.relay()];
    // Each announces itself, then they share.
    for relay in &mut relays {
        relay.step().await.unwrap();
    }
    for relay in &mut relays {
        relay.release().await.unwrap();
        relay.step().await.unwrap();
    }
    let mut held = Vec::new();
    for relay in &mut relays {
        held.push(relay.step().await.unwrap().shards);
    }

    for round in 0..5 {
        let batch: Vec<Posted> = (0..12).map(|n| Posted::on(&format!("account {n}"), round)).collect();
        scene.commit(&batch).await;
        for relay in &mut relays {
            relay.step().await.unwrap();
        }
    }
    scene.settle(&mut relays).await;

    assert_eq!(held, [3, 3, 2], "they share");
    scene.check().await;
}

pub async fn every_handler_takes_effect_on_its_own<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let steady = scene.booker(HANDLER);
    let (steady_runs, shaky) = (steady.runs(), scene.booker("shaky"));
    let shaky =
        shaky.acting(|attempt, _| if attempt < 3 { Err(HandlerError::retry("not yet")) } else { Ok(()) });
    let shaky_runs = shaky.runs();
    let inbox = scene.inbox().handler(steady).handler(shaky).build().unwrap();
    let _consumer = scene.consume(inbox, 1).await;
    let messages = mixed(4);
    let ids = scene.commit(&messages).await;
    let also = messages.iter().zip(&ids).map(|(message, id)| entry("shaky", id, message));
    scene.committed.lock().unwrap().extend(also.collect::<Vec<_>>());

    scene.settle(&mut [scene.relay()]).await;

    scene.check().await;
    assert_eq!(steady_runs.load(Ordering::SeqCst), 4, "one handler's retry is none of the other's");
    assert_eq!(shaky_runs.load(Ordering::SeqCst), 12);
}

pub async fn what_a_handler_puts_goes_on<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let mut booker = scene.booker(HANDLER);
    booker.echoes = true;
    let inbox = scene.inbox().handler(booker).build().unwrap();
    let _first = scene.consume(inbox, 1).await;
    let echoes = Inbox::builder(scene.store.clone(), "echoes").clock(scene.clock.clone());
    let echoes = echoes.handler(EchoBooker { fixture: Arc::clone(&scene.fixture) }).build().unwrap();
    let _second = scene.consume_from("echoes", echoes, 1).await;
    scene.picky.lose_confirms(10);
    let messages = mixed(6);
    let ids = scene.commit(&messages).await;
    let also = messages.iter().zip(&ids).map(|(message, id)| entry("echo", id, message));
    scene.committed.lock().unwrap().extend(also.collect::<Vec<_>>());

    scene.settle(&mut [scene.relay()]).await;

    scene.check().await;
}

pub async fn what_a_failing_handler_puts_does_not_leave<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let mut booker = scene.booker(HANDLER).acting(|_, _| Err(HandlerError::permanent("no")));
    booker.echoes = true;
    let inbox = scene.inbox().handler(booker).build().unwrap();

    let outcome = inbox.receive(arrived("1", &Posted::unkeyed(1)), 1).await.single().unwrap();

    assert!(matches!(outcome, Outcome::Refused { code: "permanent", .. }), "{outcome:?}");
    assert_eq!(scene.status().await.logged, 0);
    assert!(scene.fixture.effects().await.is_empty());
}

pub async fn a_scheduled_message_takes_effect_after_its_time<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    let message = Posted::on("red", 1);
    let mut tx = scene.store.begin().await.unwrap();
    let draft = scene.outbox.message(&message).unwrap().due(moment(3600));
    let id = draft.put(&mut tx).await.unwrap();
    scene.store.commit(tx).await.unwrap();
    let mut relay = scene.relay();

    let early = relay.step().await.unwrap();
    scene.clock.advance(Duration::from_secs(3600));
    let due = relay.step().await.unwrap();
    scene.quiet().await;

    assert_eq!((early.promoted, early.published), (0, 0));
    assert_eq!((due.promoted, due.published), (1, 1));
    assert_eq!(scene.fixture.effects().await, [entry(HANDLER, &id, &message)]);
}

pub async fn the_janitor_forgets_and_the_gate_remembers<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let inbox = scene.inbox().handler(scene.booker(HANDLER)).build().unwrap();
    let _consumer = scene.consume(inbox.clone(), 1).await;
    let message = Posted::on("red", 1);
    let id = scene.commit(std::slice::from_ref(&message)).await.remove(0);
    scene.settle(&mut [scene.relay()]).await;
    let janitor = Janitor::new(scene.store.clone()).clock(scene.clock.clone()).markers(inbox.retentions());
    let again = || oncebox_core::Envelope { time: Some(moment(0)), ..arrived(&id, &message) };

    let early = janitor.sweep().await.unwrap();
    let duplicate = inbox.receive(again(), 2).await.single().unwrap();
    scene.clock.advance(8 * DAY);
    let swept = janitor.sweep().await.unwrap();
    let late = inbox.receive(again(), 3).await.single().unwrap();

    assert_eq!((early.outbox, early.markers), (0, 0));
    assert!(matches!(duplicate, Outcome::Duplicate { .. }), "{duplicate:?}");
    assert_eq!((swept.outbox, swept.markers), (1, 1));
    assert!(matches!(late, Outcome::Refused { code: "too_old", .. }), "{late:?}");
    scene.check().await;
}

pub async fn a_storm_of_faults_loses_and_doubles_nothing<F: StoreFixture>(scene: Scene<F>) {
    let mut dice = Dice::new(Dice::seed("storm"));
    let unlucky = dice.roll();
    let booker = scene.booker(HANDLER).acting(move |attempt, message| {
        let fails = (unlucky ^ message.sequence.unsigned_abs()).count_ones() % 3;
        if attempt <= fails { Err(HandlerError::retry("bad luck")) } else { Ok(()) }
    });
    let inbox = scene.inbox().handler(booker).build().unwrap();
    let first = scene.consume(inbox.clone(), 3).await;
    let second = scene.consume(inbox, 2).await;
    let mut relays = [scene.relay_builder().batch(7).build().unwrap(), scene.relay()];

    for round in 0..12 {
        let batch: Vec<Posted> =
            mixed(8).into_iter().map(|m| Posted { sequence: m.sequence + round * 8, ..m }).collect();
        scene.commit(&batch).await;
        match dice.below(5) {
            0 => scene.transport.duplicate_next(dice.below(6)),
            1 => scene.transport.lose_confirms(dice.below(6)),
            2 => scene.transport.set_down(dice.once_in(2)),
            3 => scene.transport.reorder(Some(dice.roll())),
            _ => scene.clock.advance(Duration::from_secs(40)),
        }
        let relay = &mut relays[dice.below(2)];
        if dice.once_in(4) {
            relay.release().await.unwrap();
        }
        relay.step().await.ok();
    }
    scene.transport.set_down(false);
    scene.settle(&mut relays).await;
    first.stop().await;
    second.stop().await;

    scene.check().await;
}
