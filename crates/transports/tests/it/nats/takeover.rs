//! One member at a time, and nothing overtakes when another takes its place.

use std::time::Duration;

use oncebox_conformance::sample::{DESTINATION, keyed};
use oncebox_core::{Acknowledge, Envelope, Feed, Order, Publisher, Subscriber};
use oncebox_transports::nats::Nats;

use super::scene::{Scene, finish, next};

fn batch(numbers: std::ops::Range<usize>) -> Vec<Envelope> {
    numbers.map(|n| keyed(format!("{n:03}"), ["a", "b", "c"][n % 3])).collect()
}

#[tokio::test]
async fn the_next_member_waits_for_what_the_former_one_still_works_on() {
    let Some(scene) = Scene::fresh("a takeover").await else { return };
    let options = scene.options().order(Order::SingleActive).ack_wait(Duration::from_secs(6));
    let (first, second) = (Nats::new(options.clone()), Nats::new(options));
    let mut former = first.subscribe(DESTINATION, "group").await.unwrap();
    assert!(first.publish(&batch(0..12)).await.iter().all(Result::is_ok));
    let working = next(&mut former).await;
    let mut heir = second.subscribe(DESTINATION, "group").await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(300), heir.next()).await.is_err(), "one at a time");

    drop(former);
    let waiting = tokio::time::timeout(Duration::from_secs(1), heir.next()).await;
    assert!(waiting.is_err(), "its first message is still being worked on");
    working.ack.ack().await.unwrap();
    let rest = finish(&mut heir, 11).await;

    assert_eq!(working.envelope.id, "000");
    for key in 0..3 {
        let of_key: Vec<usize> =
            rest.iter().map(|id| id.parse().unwrap()).filter(|n: &usize| n % 3 == key).collect();
        assert!(of_key.is_sorted(), "{rest:?}");
    }
    scene.clean().await;
}

#[tokio::test]
async fn a_member_that_holds_all_it_can_stays_the_one_that_is_served() {
    let Some(scene) = Scene::fresh("a busy member").await else { return };
    let options = scene.options().order(Order::SingleActive).prefetch(2);
    let (first, second) = (Nats::new(options.clone()), Nats::new(options));
    let mut busy = first.subscribe(DESTINATION, "group").await.unwrap();
    assert!(first.publish(&batch(0..6)).await.iter().all(Result::is_ok));
    let held = [next(&mut busy).await, next(&mut busy).await];
    let mut other = second.subscribe(DESTINATION, "group").await.unwrap();

    // Longer than a member that asks for nothing keeps its place.
    let overtaken = tokio::time::timeout(Duration::from_secs(18), other.next()).await;
    for delivery in held {
        delivery.ack.ack().await.unwrap();
    }

    assert!(overtaken.is_err());
    assert_eq!(finish(&mut busy, 4).await, ["002", "003", "004", "005"]);
    scene.clean().await;
}
