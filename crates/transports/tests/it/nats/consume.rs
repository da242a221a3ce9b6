//! Deliveries: kept while they are worked on, counted, and never given up by the server alone.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use futures_util::StreamExt;
use oncebox_conformance::sample::{DESTINATION, plain};
use oncebox_core::{Acknowledge, Envelope, Feed, Kind, Order, Publisher, Subscriber};
use oncebox_transports::nats::{Nats, Topology};

use super::scene::{PATIENCE, Scene, finish, next};

const SECOND: Duration = Duration::from_secs(1);

/// What the consumer of a group is called: the only one of the stream.
async fn consumer_name(scene: &Scene) -> String {
    let stream = scene.context.get_stream(&scene.stream).await.unwrap();
    stream.consumer_names().next().await.unwrap().unwrap()
}

async fn keeps_its_message(order: Order) {
    let Some(scene) = Scene::fresh("a slow handler").await else { return };
    // Told often enough to outlast a stall of the machine.
    let transport = Nats::new(scene.options().order(order).ack_wait(6 * SECOND));
    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();
    assert!(transport.publish(&[plain("slow"), plain("waiting")]).await.iter().all(Result::is_ok));

    let slow = next(&mut feed).await;
    // As long as a handler takes that is more than twice as slow as the server is patient.
    tokio::time::sleep(13 * SECOND).await;
    slow.ack.ack().await.unwrap();
    let second = next(&mut feed).await;

    assert_eq!((slow.envelope.id.as_str(), slow.attempt), ("slow", 1));
    assert_eq!((second.envelope.id.as_str(), second.attempt), ("waiting", 1), "{order:?}");
    second.ack.ack().await.unwrap();
    let quiet = tokio::time::timeout(7 * SECOND, feed.next()).await;
    assert!(quiet.is_err(), "nothing comes twice");
    scene.clean().await;
}

#[tokio::test]
async fn a_handler_slower_than_the_server_s_patience_keeps_its_message() {
    tokio::join!(keeps_its_message(Order::None), keeps_its_message(Order::SingleActive));
}

#[tokio::test]
async fn a_long_delay_is_left_to_the_server_and_the_attempt_is_counted() {
    let Some(scene) = Scene::fresh("a long delay").await else { return };
    let transport = scene.transport();
    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();
    assert!(transport.publish(&[plain("a")]).await[0].is_ok());

    let mut attempts = Vec::new();
    for spent in [true, false, true] {
        let delivery = next(&mut feed).await;
        attempts.push(delivery.attempt);
        delivery.ack.nack(Duration::from_millis(1_200), spent).await.unwrap();
    }
    let last = next(&mut feed).await;
    attempts.push(last.attempt);
    last.ack.ack().await.unwrap();

    assert_eq!(attempts, [1, 2, 2, 3]);
    scene.clean().await;
}

#[tokio::test]
async fn a_foreign_message_is_delivered_bare() {
    let Some(scene) = Scene::fresh("a foreign message").await else { return };
    let mut feed = scene.transport().subscribe(DESTINATION, "group").await.unwrap();
    let sent = scene.context.publish(scene.subject("bookings.new"), "{\"a\":1}".into()).await.unwrap();
    sent.await.unwrap();

    let delivery = next(&mut feed).await;

    assert_eq!(delivery.envelope.payload, b"{\"a\":1}");
    assert_eq!(delivery.envelope.destination, "bookings.new");
    assert!(delivery.envelope.id.is_empty());
    delivery.ack.ack().await.unwrap();
    scene.clean().await;
}

/// The consumer a group would have, made by somebody else with a limit of its own.
async fn limit_deliveries(scene: &Scene, ack_wait: Duration) {
    drop(scene.transport().subscribe(DESTINATION, "group").await.unwrap());
    let name = consumer_name(scene).await;
    let stream = scene.context.get_stream(&scene.stream).await.unwrap();
    stream.delete_consumer(&name).await.unwrap();
    let limited = pull::Config {
        durable_name: Some(name),
        ack_policy: AckPolicy::Explicit,
        ack_wait,
        max_deliver: 2,
        filter_subject: scene.subject(DESTINATION),
        ..pull::Config::default()
    };
    stream.create_consumer(limited).await.unwrap();
}

#[tokio::test]
async fn the_server_s_last_delivery_is_not_given_back() {
    let Some(scene) = Scene::fresh("the last delivery").await else { return };
    limit_deliveries(&scene, 6 * SECOND).await;
    let transport = Nats::new(scene.options().topology(Topology::Check));
    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();
    assert!(transport.publish(&[plain("a")]).await[0].is_ok());

    let mut attempts = Vec::new();
    for _ in 0..4 {
        let delivery = next(&mut feed).await;
        attempts.push(delivery.attempt);
        // Long enough to be the server's business, as long as it takes part.
        drop(delivery.ack.nack(Duration::from_millis(1_100), true).await);
    }

    assert_eq!(attempts, [1, 2, 3, 4], "until the inbox gives up");
    assert_eq!(finish(&mut feed, 1).await, ["a"]);
    scene.clean().await;
}

#[tokio::test]
async fn what_the_server_gives_up_on_is_handed_to_the_inbox() {
    let Some(scene) = Scene::fresh("given up by the server").await else { return };
    limit_deliveries(&scene, SECOND).await;
    let transport = Nats::new(scene.options().topology(Topology::Check));
    let name = consumer_name(&scene).await;
    let stream = scene.context.get_stream(&scene.stream).await.unwrap();
    let consumer: PullConsumer = stream.get_consumer(&name).await.unwrap();
    assert!(transport.publish(&[plain("a")]).await[0].is_ok());
    // Somebody else takes it twice and dies each time.
    for _ in 0..2 {
        let mut taken = consumer.batch().max_messages(1).expires(5 * SECOND).messages().await.unwrap();
        let message = tokio::time::timeout(PATIENCE, taken.next()).await.unwrap();
        assert!(message.unwrap().is_ok());
    }

    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();
    let rescued = next(&mut feed).await;

    assert_eq!((rescued.envelope.id.as_str(), rescued.attempt), ("a", 2));
    drop(rescued.ack.nack(Duration::ZERO, true).await);
    let again = next(&mut feed).await;
    assert_eq!(again.attempt, 3, "tried until the inbox gives up");
    again.ack.ack().await.unwrap();
    scene.clean().await;
}

#[tokio::test]
async fn a_consumer_that_keeps_no_order_is_refused_where_order_is_wanted() {
    let Some(scene) = Scene::fresh("a consumer without order").await else { return };
    drop(scene.transport().subscribe(DESTINATION, "group").await.unwrap());
    let ordered = Nats::new(scene.options().order(Order::SingleActive));

    let refused = ordered.subscribe(DESTINATION, "group").await.err().unwrap();

    assert_eq!(refused.kind(), Kind::Config);
    assert!(refused.chain().contains("keeps no order"), "{}", refused.chain());
    scene.clean().await;
}

#[tokio::test]
async fn an_old_server_s_way_of_order_serves_one_message_at_a_time() {
    let Some(scene) = Scene::fresh("order without pins").await else { return };
    drop(scene.transport().subscribe(DESTINATION, "group").await.unwrap());
    let name = consumer_name(&scene).await;
    let stream = scene.context.get_stream(&scene.stream).await.unwrap();
    stream.delete_consumer(&name).await.unwrap();
    let one_at_a_time = pull::Config {
        durable_name: Some(name),
        ack_policy: AckPolicy::Explicit,
        ack_wait: 30 * SECOND,
        max_ack_pending: 1,
        filter_subject: scene.subject(DESTINATION),
        ..pull::Config::default()
    };
    stream.create_consumer(one_at_a_time).await.unwrap();
    let transport = Nats::new(scene.options().order(Order::SingleActive));
    let mut one = transport.subscribe(DESTINATION, "group").await.unwrap();
    let mut two = transport.subscribe(DESTINATION, "group").await.unwrap();
    let batch: Vec<Envelope> =
        (0..6).map(|n| oncebox_conformance::sample::keyed(n.to_string(), "k")).collect();
    assert!(transport.publish(&batch).await.iter().all(Result::is_ok));

    let mut seen = Vec::new();
    for _ in 0..6 {
        let delivery = tokio::select! {
            delivery = next(&mut one) => delivery,
            delivery = next(&mut two) => delivery,
        };
        let others = tokio::time::timeout(SECOND / 10, async {
            tokio::select! { _ = one.next() => {}, _ = two.next() => {} }
        });
        assert!(others.await.is_err(), "one is out");
        seen.push(delivery.envelope.id);
        delivery.ack.ack().await.unwrap();
    }

    assert_eq!(seen, ["0", "1", "2", "3", "4", "5"]);
    scene.clean().await;
}

#[tokio::test]
async fn a_drain_has_given_everything_back_when_it_returns() {
    let Some(scene) = Scene::fresh("a drain").await else { return };
    let transport = Nats::new(scene.options().ack_wait(60 * SECOND).prefetch(8));
    let batch: Vec<Envelope> = (0..8).map(|n| plain(n.to_string())).collect();
    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();
    assert!(transport.publish(&batch).await.iter().all(Result::is_ok));
    let first = next(&mut feed).await;
    first.ack.ack().await.unwrap();
    drop(feed);

    transport.drain().await;

    let heir = Nats::new(scene.options().ack_wait(60 * SECOND));
    let mut feed_of_heir = heir.subscribe(DESTINATION, "group").await.unwrap();
    let mut ids = tokio::time::timeout(30 * SECOND, finish(&mut feed_of_heir, 7)).await.expect("at once");
    ids.sort_unstable();
    assert_eq!(ids, (1..8).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(transport.subscribe(DESTINATION, "group").await.err().unwrap().kind(), Kind::Unavailable);
    assert!(transport.publish(&batch).await.iter().all(Result::is_err), "it is closed");
    tokio::time::timeout(30 * SECOND, transport.drain()).await.expect("there is nothing left to wait for");
    scene.clean().await;
}
