//! What the server refuses is never taken for stored, and is said by name.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use oncebox_conformance::sample::{DESTINATION, keyed, plain};
use oncebox_conformance::transport::exchange::{finish, join, next};
use oncebox_core::transport::Class;
use oncebox_core::{Acknowledge, Envelope, Feed, Kind, Publisher, Subscriber};
use oncebox_transports::rabbitmq::{RabbitMq, RabbitMqOptions, Topology};

use super::server::{Host, class, messages, publish_all, queue, reason, to};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unroutable_message_is_never_stored_however_many_are_under_way() {
    let Some(host) = Host::fresh("unroutable").await else { return };
    let transport = host.transport();
    let _feed = join(&transport, "group").await;
    // Confirms of several messages at once come in no order, with the returns of others.
    let batch: Vec<Envelope> =
        (0..600).map(|n| to(["nowhere", DESTINATION, DESTINATION][n % 3], plain(n.to_string()))).collect();

    for _ in 0..10 {
        let results = transport.publish(&batch).await;

        for (result, envelope) in results.iter().zip(&batch) {
            let expected = (envelope.destination == "nowhere").then_some(Class::Destination);
            assert_eq!(class(result), expected, "{} {}", envelope.id, reason(result));
        }
        assert!(reason(&results[0]).starts_with("nowhere: unroutable"), "{}", reason(&results[0]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_key_is_stored_behind_an_unroutable_message() {
    let Some(host) = Host::fresh("unroutable key").await else { return };
    let transport = host.transport();
    let mut feed = join(&transport, "group").await;
    let batch = [to("nowhere", keyed("1", "a")), keyed("2", "a"), keyed("3", "b"), keyed("4", "a")];

    let results = transport.publish(&batch).await;

    assert_eq!(results.iter().map(class).collect::<Vec<_>>()[..2], [Some(Class::Destination); 2]);
    assert!(results[2].is_ok() && results[3].is_err());
    assert_eq!(finish(&mut feed, 1).await, ["3"]);
    assert!(oncebox_conformance::transport::exchange::is_quiet(&mut feed).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_that_is_deleted_and_made_again_loses_nothing_and_no_order() {
    let Some(host) = Host::fresh("deleted exchange").await else { return };
    let transport = host.transport();
    let mut feed = join(&transport, "group").await;
    let checking = RabbitMq::new(host.options().topology(Topology::Check)).unwrap();
    publish_all(&checking, &messages(1)).await;

    host.change("DELETE", &format!("exchanges/{DESTINATION}"), "").await;
    let gone = checking.publish(&messages(3)).await;
    let again = checking.publish(&[plain("x")]).await;
    host.change("PUT", &format!("exchanges/{DESTINATION}"), r#"{"type":"topic","durable":true}"#).await;
    let binding = format!("bindings/e/{DESTINATION}/q/{}", queue("group"));
    host.change("POST", &binding, r##"{"routing_key":"#"}"##).await;
    let start = Instant::now();
    // What was refused is not tried again for 3 s.
    publish_all(&checking, &messages(3)[1..]).await;

    assert!(gone.iter().chain(&again).all(|result| result.is_err()), "nothing is stored while it is gone");
    assert_eq!(class(&again[0]), Some(Class::Destination));
    assert!(reason(&again[0]).contains("no exchange 'bookings'"), "{}", reason(&again[0]));
    assert!(start.elapsed() < Duration::from_secs(30), "it took {:?}", start.elapsed());
    assert_eq!(finish(&mut feed, 3).await, ["00000", "00001", "00002"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_that_is_not_there_holds_up_no_other() {
    let Some(host) = Host::fresh("missing exchange").await else { return };
    let mut feed = join(&host.transport(), "group").await;
    let checking = RabbitMq::new(host.options().topology(Topology::Check)).unwrap();

    let results = checking.publish(&[to("nowhere", plain("a")), plain("b")]).await;

    assert_eq!(class(&results[0]), Some(Class::Destination));
    assert!(reason(&results[0]).contains("no exchange 'nowhere'"), "{}", reason(&results[0]));
    assert!(results[1].is_ok());
    assert_eq!(finish(&mut feed, 1).await, ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_and_keeps_the_order_of_keys() {
    let Some(host) = Host::fresh("full queue").await else { return };
    let transport = RabbitMq::new(host.options().queue_limit(5)).unwrap();
    let mut feed = join(&RabbitMq::new(host.options().queue_limit(5).prefetch(1)).unwrap(), "group").await;
    let batch = messages(40);

    let results = transport.publish(&batch).await;
    let stored = results.iter().take_while(|result| result.is_ok()).count();
    let rest = tokio::spawn(async move { publish_all(&transport, &batch[stored..]).await });
    let mut ids = Vec::new();
    while ids.len() < 40 {
        let delivery = next(&mut feed).await;
        ids.push(delivery.envelope.id.clone());
        delivery.ack.ack().await.unwrap();
    }

    assert!((5..40).contains(&stored), "{stored} were taken");
    assert!(results[stored..].iter().all(|result| class(result) == Some(Class::Destination)));
    assert!(reason(&results[stored]).contains("full"));
    ids.dedup();
    assert!(ids.is_sorted(), "{ids:?}");
    rest.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_too_large_for_a_frame_are_refused_for_good_and_the_others_go() {
    let Some(host) = Host::fresh("large headers").await else { return };
    let transport = host.transport();
    let mut feed = join(&transport, "group").await;
    let headers: BTreeMap<String, String> = (0..64).map(|n| (n.to_string(), "v".repeat(4096))).collect();

    let results = transport.publish(&[Envelope { headers, ..plain("a") }, plain("b")]).await;

    let failure = results[0].as_ref().unwrap_err();
    assert!(failure.class == Class::Message && failure.permanent, "{failure}");
    assert!(results[1].is_ok());
    assert_eq!(finish(&mut feed, 1).await, ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_and_a_wrong_virtual_host_are_named_without_the_password() {
    let Some(host) = Host::fresh("wrong credentials").await else { return };
    let good = host.url();
    let user = host.user.split(':').next().unwrap();
    let cases = [
        (good.replace(&host.user, &format!("{user}:hunter2")), "refused"),
        (good.replace(&host.name, "no-such-host"), "no-such-host"),
    ];

    for (url, hint) in cases {
        let options = RabbitMqOptions::from_url(&url).unwrap().call_timeout(Duration::from_secs(60));
        let transport = RabbitMq::new(options).unwrap();
        let start = Instant::now();
        let results = transport.publish(&[plain("a")]).await;
        let refused = transport.subscribe(DESTINATION, "group").await.unwrap_err();

        assert_eq!(class(&results[0]), Some(Class::Destination));
        assert_eq!(refused.kind(), Kind::Config, "{}", refused.chain());
        for text in [reason(&results[0]), refused.chain(), format!("{refused:?} {transport:?}")] {
            assert!(
                !text.contains("hunter2") && !text.contains(host.user.split(':').nth(1).unwrap()),
                "{text}"
            );
        }
        assert!(reason(&results[0]).contains(hint), "{}", reason(&results[0]));
        assert!(start.elapsed() < Duration::from_secs(30), "it took {:?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_credentials_are_used_from_the_next_call_on() {
    let Some(host) = Host::fresh("replaced credentials").await else { return };
    let mut feed = join(&host.transport(), "group").await;
    let stale = host.url().replace(&host.user, "nobody:hunter2");
    let transport = RabbitMq::new(RabbitMqOptions::from_url(&stale).unwrap()).unwrap();
    let refused = transport.publish(&[plain("a")]).await;

    transport.replace_url(&host.url()).unwrap();
    let stored = transport.publish(&[plain("a")]).await;

    assert!(refused[0].is_err());
    assert!(stored[0].is_ok(), "{}", reason(&stored[0]));
    assert!(transport.replace_url("http://nowhere").is_err());
    assert_eq!(finish(&mut feed, 1).await, ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_only_checked_is_not_made() {
    let Some(host) = Host::fresh("checked only").await else { return };
    let transport = RabbitMq::new(host.options().topology(Topology::Check)).unwrap();

    let refused = transport.subscribe(DESTINATION, "group").await.unwrap_err();
    let results = transport.publish(&[plain("a")]).await;

    assert_eq!(refused.kind(), Kind::Config);
    assert!(refused.chain().contains(&queue("group")), "{}", refused.chain());
    assert!(reason(&results[0]).contains("no exchange"));
    assert_eq!(host.change("GET", "queues", "").await, "[]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_only_write_and_read_can_publish_and_consume() {
    let Some(host) = Host::fresh("least privilege").await else { return };
    drop(join(&host.transport(), "group").await);
    let user = format!("{}-user", host.name);
    host.api("PUT", &format!("/api/users/{user}"), r#"{"password":"secret","tags":""}"#).await;
    let rights = r#"{"configure":"","write":"^bookings$","read":"^bookings.group$"}"#;
    host.api("PUT", &format!("/api/permissions/{}/{user}", host.name), rights).await;
    let url = host.url().replace(&host.user, &format!("{user}:secret"));
    let transport =
        RabbitMq::new(RabbitMqOptions::from_url(&url).unwrap().topology(Topology::Check)).unwrap();

    let mut feed = join(&transport, "group").await;
    let results = transport.publish(&[plain("a")]).await;
    let forbidden = transport.publish(&[to("amq.topic", plain("b")), plain("c")]).await;
    let again = transport.publish(&[to("amq.topic", plain("b")), plain("c")]).await;

    assert!(results[0].is_ok(), "{}", reason(&results[0]));
    assert_eq!(class(&forbidden[0]), Some(Class::Destination), "{}", reason(&forbidden[0]));
    assert!(again[0].is_err() && again[1].is_ok(), "{}: the others go on", reason(&again[1]));
    assert_eq!(next(&mut feed).await.envelope.id, "a");
    host.api("DELETE", &format!("/api/users/{user}"), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_interrupts_its_feed_which_then_goes_on() {
    let Some(host) = Host::fresh("deleted queue").await else { return };
    let transport = host.transport();
    let mut feed = join(&transport, "group").await;
    publish_all(&transport, &[plain("a")]).await;
    let held = next(&mut feed).await;

    host.change("DELETE", &format!("queues/{}", queue("group")), "").await;
    let interrupted = tokio::time::timeout(Duration::from_secs(30), feed.next()).await.unwrap();
    let unanswerable = held.ack.ack().await;
    let lost = transport.publish(&[plain("b")]).await;
    let waiting = tokio::spawn(async move { (next(&mut feed).await.envelope.id, feed) });
    publish_all(&transport, &[plain("c")]).await;

    assert_eq!(interrupted.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(unanswerable.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(class(&lost[0]), Some(Class::Destination), "nobody is bound any more");
    assert_eq!(waiting.await.unwrap().0, "c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_exists_in_another_form_is_an_error_that_says_so() {
    let Some(host) = Host::fresh("another form").await else { return };
    host.change("PUT", &format!("queues/{}", queue("group")), r#"{"durable":true}"#).await;

    let refused = host.transport().subscribe(DESTINATION, "group").await.unwrap_err();

    assert_eq!(refused.kind(), Kind::Config);
    assert!(refused.chain().contains("x-queue-type"), "{}", refused.chain());
}
