//! Messages the transport refuses.

use std::time::Duration;

use oncebox_core::inspect::Inspect;
use oncebox_core::plan::OnDead;
use oncebox_core::{Envelope, Failure, Mailbox, Message};

use super::carrier::Carrier;
use super::scene::Scene;
use crate::fixture::StoreFixture;
use crate::sample::{Posted, keyed};
use crate::steps::put_at;

const SINK: &str = "default";

/// Red 1 to 3 and blue 1 to 3, mixed.
fn messages() -> Vec<Posted> {
    (1..=3).flat_map(|n| [Posted::on("red", n), Posted::on("blue", n)]).collect()
}

/// Refuses the second red message.
fn red_two(failure: Failure) -> impl Fn(&Envelope) -> Option<Failure> + Send + Sync {
    move |envelope| {
        let is_red_two = Posted::decode(&envelope.payload).is_ok_and(|posted| posted == Posted::on("red", 2));
        is_red_two.then(|| failure.clone())
    }
}

/// The sequences of one account, in the order of their effects.
async fn booked<F: StoreFixture, T: Carrier>(scene: &Scene<F, T>, account: &str) -> Vec<i64> {
    scene.quiet().await;
    let effects = scene.fixture.effects().await;
    effects.iter().filter(|e| e.key.as_deref() == Some(account)).map(|e| e.sequence).collect()
}

pub async fn a_refused_message_holds_back_its_key_and_no_other<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    scene.picky.refuse(red_two(Failure::message("too large")));
    scene.commit(&messages()).await;
    let mut relay = scene.relay();

    relay.step().await.unwrap();
    scene.commit(&[Posted::on("red", 4), Posted::on("blue", 4)]).await;
    relay.step().await.unwrap();
    let (red, blue) = (booked(&scene, "red").await, booked(&scene, "blue").await);
    let status = scene.status().await.sinks.remove(0);
    scene.picky.accept_all();
    scene.settle(&mut [relay]).await;

    assert_eq!((red, blue), (vec![1], vec![1, 2, 3, 4]));
    assert_eq!((status.waiting, status.behind, status.dead, status.pending), (1, 2, 0, 0));
    scene.check().await;
}

pub async fn a_message_refused_for_good_is_dead_and_blocks_its_key<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    scene.picky.refuse(red_two(Failure::message("bad subject").permanently()));
    scene.commit(&messages()).await;
    let mut relay = scene.relay();

    relay.step().await.unwrap();
    scene.picky.accept_all();
    scene.clock.advance(Duration::from_secs(3600));
    // A relay that takes over knows no more than the store does.
    scene.commit(&[Posted::on("red", 4)]).await;
    let mut heir = scene.relay();
    heir.step().await.unwrap();
    relay.step().await.ok();

    assert_eq!(booked(&scene, "red").await, [1]);
    assert_eq!(booked(&scene, "blue").await, [1, 2, 3]);
    let status = scene.status().await.sinks.remove(0);
    assert_eq!((status.waiting, status.behind, status.dead), (0, 2, 1));
}

/// The position of the only dead row.
async fn dead_position<F: StoreFixture, T: Carrier>(scene: &Scene<F, T>) -> i64 {
    let parked = scene.store.parked(100).await.unwrap();
    let dead: Vec<_> = parked.iter().filter(|row| row.state == "dead").collect();
    assert_eq!(dead.len(), 1);
    dead[0].position
}

pub async fn a_discarded_dead_letter_lets_its_key_go_on<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume_plainly().await;
    scene.picky.refuse(red_two(Failure::message("bad subject").permanently()));
    scene.commit(&messages()).await;
    let mut relay = scene.relay();
    relay.step().await.unwrap();

    let position = dead_position(&scene).await;
    assert!(scene.store.discard(SINK, position, scene.clock.now()).await.unwrap());
    scene.settle(&mut [relay]).await;

    assert_eq!(booked(&scene, "red").await, [1, 3]);
    let status = scene.status().await.sinks.remove(0);
    assert_eq!((status.behind, status.dead), (0, 0));
}

pub async fn a_requeued_dead_letter_takes_effect_before_its_followers<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    scene.picky.refuse(red_two(Failure::message("bad subject").permanently()));
    scene.commit(&messages()).await;
    let mut relay = scene.relay();
    relay.step().await.unwrap();

    scene.picky.accept_all();
    let position = dead_position(&scene).await;
    assert!(scene.store.requeue(SINK, position, scene.clock.now()).await.unwrap());
    scene.settle(&mut [relay]).await;

    scene.check().await;
}

pub async fn a_key_may_go_on_past_its_dead<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume_plainly().await;
    scene.picky.refuse(red_two(Failure::message("refused")));
    let mut relay = scene.relay_builder().on_dead(OnDead::SkipKey).build().unwrap();
    scene.commit(&messages()).await;

    // Refused until it is dead, with followers behind it.
    for _ in 0..20 {
        relay.step().await.unwrap();
        scene.clock.advance(Duration::from_secs(1));
    }
    scene.commit(&[Posted::on("red", 4)]).await;
    relay.step().await.unwrap();

    assert_eq!(booked(&scene, "red").await, [1, 3, 4]);
    let status = scene.status().await.sinks.remove(0);
    assert_eq!((status.waiting, status.behind, status.dead), (0, 0, 1));
}

pub async fn attempts_of_a_refused_message_are_counted_exactly<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    scene.commit(&messages()).await;
    let mut relay = scene.relay();

    let mut seen = Vec::new();
    for round in 0..12 {
        // What speaks about the destination must not count.
        if round % 3 == 1 {
            scene.picky.refuse(|_| Some(Failure::destination("the transport is down")));
        } else {
            scene.picky.refuse(red_two(Failure::message("refused")));
        }
        relay.step().await.ok();
        scene.clock.advance(Duration::from_secs(1));
        let parked = scene.store.parked(100).await.unwrap();
        let refused = parked.iter().find(|row| row.state != "behind").unwrap();
        seen.push((refused.attempts, refused.state.clone()));
    }

    seen.dedup();
    assert_eq!(seen, [(1, "waiting".into()), (2, "waiting".into()), (3, "dead".to_owned())]);
}

pub async fn a_key_goes_on_although_a_relay_still_takes_it_for_blocked<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    scene.picky.refuse(red_two(Failure::message("bad subject").permanently()));
    scene.commit(&[Posted::on("red", 1), Posted::on("red", 2)]).await;
    let mut relay = scene.relay();
    relay.step().await.unwrap();
    let store = scene.store.clone();
    let dead = store.parked(10).await.unwrap().remove(0).position;

    // The relay learns of it at its next renewal; the message is put before that.
    assert!(store.discard(SINK, dead, scene.clock.now()).await.unwrap());
    scene.commit(&[Posted::on("red", 3)]).await;
    relay.step().await.unwrap();
    relay.step().await.unwrap();

    assert_eq!(booked(&scene, "red").await, [1, 3]);
    assert_eq!(scene.status().await.sinks.remove(0).behind, 0);
}

pub async fn a_destination_that_is_down_holds_up_no_other<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume_plainly().await;
    let store = scene.store.clone();
    let nowhere = |id: &str| Envelope { destination: "nobody-subscribes".into(), ..keyed(id, "green") };
    put_at(&store, &[nowhere("1"), nowhere("2")], scene.clock.now()).await;
    scene.commit(&messages()).await;
    let mut relay = scene.relay();

    let first = relay.step().await.unwrap();
    scene.commit(&[Posted::on("blue", 4)]).await;
    relay.step().await.unwrap();

    assert_eq!(first.outage, None);
    assert_eq!(booked(&scene, "blue").await, [1, 2, 3, 4]);
    let parked = store.parked(10).await.unwrap();
    let parked: Vec<_> =
        parked.iter().map(|row| (row.id.as_str(), row.state.as_str(), row.attempts)).collect();
    assert_eq!(parked, [("1", "waiting", 0), ("2", "behind", 0)], "nobody is blamed for the destination");
}

pub async fn a_long_backlog_of_a_destination_that_is_down_holds_up_no_other<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    let nowhere = |n: usize| Envelope {
        destination: "nobody-subscribes".into(),
        ..keyed(format!("{n}"), if n.is_multiple_of(5) { "red" } else { "green" })
    };
    let backlog: Vec<Envelope> = (0..35).map(nowhere).collect();
    put_at(&scene.store, &backlog, scene.clock.now()).await;
    scene.commit(&messages()).await;
    let mut relay = scene.relay_builder().batch(10).build().unwrap();

    for _ in 0..3 {
        relay.step().await.unwrap();
    }

    assert_eq!(booked(&scene, "blue").await, [1, 2, 3]);
    assert!(booked(&scene, "red").await.is_empty(), "a key keeps its order from one destination to another");
    let status = scene.status().await.sinks.remove(0);
    assert_eq!((status.waiting, status.behind, status.dead, status.pending), (2, 36, 0, 0));
}

pub async fn a_kind_of_message_nobody_takes_holds_up_no_other<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    scene
        .picky
        .refuse(|envelope| (envelope.kind != Posted::NAME).then(|| Failure::destination("no binding")));
    let backlog: Vec<Envelope> = (0..35).map(|n| keyed(format!("{n}"), "green")).collect();
    put_at(&scene.fixture.store(), &backlog, scene.clock.now()).await;
    scene.commit(&messages()).await;
    let mut relay = scene.relay_builder().batch(10).build().unwrap();

    for _ in 0..3 {
        relay.step().await.unwrap();
    }

    assert_eq!(booked(&scene, "blue").await, [1, 2, 3]);
    assert_eq!(booked(&scene, "red").await, [1, 2, 3]);
    let status = scene.status().await.sinks.remove(0);
    assert_eq!((status.waiting, status.behind, status.dead, status.pending), (1, 34, 0, 0));
}

pub async fn an_outage_of_every_destination_puts_nothing_aside<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    scene.picky.refuse(|_| Some(Failure::destination("unplugged")));
    let elsewhere = |n: usize| Envelope { destination: "elsewhere".into(), ..keyed(format!("{n}"), "green") };
    let backlog: Vec<Envelope> = (0..15).map(elsewhere).collect();
    put_at(&scene.store, &backlog, scene.clock.now()).await;
    scene.commit(&messages()).await;
    let mut relay = scene.relay_builder().batch(10).build().unwrap();

    let progress = relay.step().await.unwrap();

    assert_eq!(progress.outage.as_deref(), Some("unplugged"));
    let status = scene.status().await.sinks.remove(0);
    assert_eq!((status.waiting, status.behind, status.pending), (0, 0, 21));
}

pub async fn a_key_blocked_by_its_dead_goes_on_once_dead_ones_are_skipped<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    scene.picky.refuse(red_two(Failure::message("bad subject").permanently()));
    scene.commit(&messages()).await;
    let mut strict = scene.relay();
    strict.step().await.unwrap();
    let before = booked(&scene, "red").await;
    strict.release().await.unwrap();

    // Started again with the other choice; no new message of the key comes to set it going.
    let mut lenient = scene.relay_builder().on_dead(OnDead::SkipKey).build().unwrap();
    lenient.step().await.unwrap();
    lenient.step().await.unwrap();

    assert_eq!((before, booked(&scene, "red").await), (vec![1], vec![1, 3]));
    let status = scene.status().await.sinks.remove(0);
    assert_eq!((status.waiting, status.behind, status.dead), (0, 0, 1));
}
