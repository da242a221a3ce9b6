//! Retries that wait on the server, and what a feed makes of others' messages.

use std::time::{Duration, Instant};

use oncebox_conformance::sample::{DESTINATION, keyed, plain};
use oncebox_conformance::transport::exchange::{finish, is_quiet, join, next, take};
use oncebox_core::{Acknowledge, Feed, Order};
use oncebox_transports::rabbitmq::RabbitMq;

use super::server::{Host, messages, publish_all, queue};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_delay_waits_on_the_server_and_outlives_the_process() {
    let Some(host) = Host::fresh("long delay").await else { return };
    let options = || host.options().hold(Duration::from_secs(1));
    let transport = RabbitMq::new(options()).unwrap();
    let mut feed = join(&transport, "group").await;
    publish_all(&transport, &[plain("a"), plain("b")]).await;
    let delay = Duration::from_secs(4);

    let refused = Instant::now();
    for (delivery, spent) in take(&mut feed, 2).await.into_iter().zip([true, false]) {
        delivery.ack.nack(delay, spent).await.unwrap();
    }
    drop((feed, transport));
    let mut feed = join(&RabbitMq::new(options()).unwrap(), "group").await;
    let mut again = take(&mut feed, 2).await;
    let waited = refused.elapsed();

    again.sort_by_key(|delivery| delivery.envelope.id.clone());
    let seen: Vec<_> = again.iter().map(|d| (d.envelope.clone(), d.attempt)).collect();
    assert!(seen == [(plain("a"), 2), (plain("b"), 1)], "{seen:?}");
    assert!(waited >= delay, "they came after {waited:?}");
    for delivery in again {
        delivery.ack.ack().await.unwrap();
    }
    assert!(is_quiet(&mut feed).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_keeps_its_order_waits_here_for_any_delay() {
    let Some(host) = Host::fresh("ordered delay").await else { return };
    let options = host.options().order(Order::SingleActive).hold(Duration::from_millis(10));
    let transport = RabbitMq::new(options).unwrap();
    let mut feed = join(&transport, "group").await;
    publish_all(&transport, &[keyed("1", "a"), keyed("2", "a"), keyed("3", "b")]).await;

    // Longer than a slow machine takes to deliver what passes it.
    next(&mut feed).await.ack.nack(Duration::from_secs(3), true).await.unwrap();

    assert_eq!(finish(&mut feed, 3).await, ["3", "1", "2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_active_consumer_gets_what_the_last_one_left_in_order() {
    let Some(host) = Host::fresh("next active").await else { return };
    let transport = || RabbitMq::new(host.options().order(Order::SingleActive).prefetch(10)).unwrap();
    let mut first = join(&transport(), "group").await;
    let mut second = join(&transport(), "group").await;
    publish_all(&transport(), &messages(30)).await;

    let head = finish(&mut first, 5).await;
    assert!(is_quiet(&mut second).await, "only one is active");
    let unanswered = next(&mut first).await;
    drop(first);
    let rest = finish(&mut second, 25).await;

    assert_eq!(unanswered.envelope.id, "00005");
    assert_eq!([head, rest].concat(), messages(30).into_iter().map(|m| m.id).collect::<Vec<_>>());
    drop(unanswered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_consumer_is_given_no_more_than_it_prefetches_and_keeps_its_connection() {
    let Some(host) = Host::fresh("slow consumer").await else { return };
    let options = host.options().prefetch(3).heartbeat(Duration::from_secs(3));
    let transport = RabbitMq::new(options).unwrap();
    let mut feed = join(&transport, "group").await;
    publish_all(&transport, &(0..10).map(|n| plain(n.to_string())).collect::<Vec<_>>()).await;

    let held = take(&mut feed, 3).await;
    let more = tokio::time::timeout(Duration::from_secs(12), feed.next()).await;

    assert!(more.is_err(), "four heartbeats later nothing came, not even an error");
    for delivery in held {
        delivery.ack.ack().await.unwrap();
    }
    assert_eq!(finish(&mut feed, 7).await.len(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_json_of_somebody_elses_is_delivered_by_its_properties() {
    let Some(host) = Host::fresh("foreign").await else { return };
    let mut feed = join(&host.transport(), "group").await;
    let path = format!("exchanges/{DESTINATION}/publish");
    let with_id = r#"{"routing_key":"k","payload":"{\"n\":1}","payload_encoding":"string",
        "properties":{"message_id":"42","type":"order.placed","app_id":"legacy","content_type":"application/json","headers":{"tries":3}}}"#;
    let bare = r#"{"routing_key":"k","payload":"{}","payload_encoding":"string","properties":{}}"#;

    host.change("POST", &path, with_id).await;
    host.change("POST", &path, bare).await;
    let (first, second) = (next(&mut feed).await.envelope, next(&mut feed).await.envelope);

    assert_eq!((&*first.id, &*first.kind, &*first.source), ("42", "order.placed", "legacy"));
    assert_eq!(
        (&first.payload[..], first.headers.get("tries").map(String::as_str)),
        (&b"{\"n\":1}"[..], Some("3"))
    );
    assert_eq!((&*second.id, &*second.content_type), ("", "application/json"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_takes_out_of_a_queue_is_kept_where_it_was_told() {
    let Some(host) = Host::fresh("dead letters").await else { return };
    let transport =
        RabbitMq::new(host.options().delivery_limit(1).dead_letter_exchange("graveyard")).unwrap();
    let mut feed = join(&transport, "group").await;
    let mut graves = oncebox_core::Subscriber::subscribe(&transport, "/graveyard", "").await;
    // Made with other arguments than a group's queue: looked at only.
    if graves.is_err() {
        let checking = host.options().topology(oncebox_transports::rabbitmq::Topology::Check);
        graves =
            oncebox_core::Subscriber::subscribe(&RabbitMq::new(checking).unwrap(), "/graveyard", "").await;
    }
    let mut graves = graves.unwrap();
    publish_all(&transport, &[plain("a")]).await;

    // Each feed that goes without an answer is a delivery for the server, and
    // another one if it is quick to deliver to a feed that is going.
    let buried = async {
        loop {
            tokio::select! {
                unanswered = feed.next() => {
                    drop((feed, unanswered));
                    feed = join(&transport, "group").await;
                }
                buried = graves.next() => return buried,
            }
        }
    };
    let buried = tokio::time::timeout(Duration::from_secs(30), buried).await.expect("it is buried");
    let buried = buried.unwrap().unwrap();

    assert_eq!(buried.envelope.id, "a");
    buried.ack.ack().await.unwrap();
    assert!(host.change("GET", &format!("queues/{}", queue("group")), "").await.contains("graveyard"));
}
