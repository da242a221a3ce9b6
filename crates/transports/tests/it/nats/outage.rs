//! Servers that die, fall silent or let nobody in.

use std::time::{Duration, Instant};

use oncebox_conformance::proxy::{Cut, Proxy, Sender};
use oncebox_conformance::sample::{DESTINATION, keyed, plain};
use oncebox_core::transport::Class;
use oncebox_core::{Acknowledge, Envelope, Kind, Order, Publisher, Subscriber};
use oncebox_transports::nats::{Nats, NatsOptions};

use super::scene::{PATIENCE, Scene, client, finish, next, until};
use super::server::Server;

/// A confirm that is waited for this long is one that nobody knew to be lost.
const LONG: Duration = Duration::from_secs(60);
/// On a slow machine, and still not waited for to the end.
const NOTICED: Duration = Duration::from_secs(30);

/// A scene whose transport reaches the server through a proxy.
async fn behind(server: &Server) -> (Scene, Proxy, Nats) {
    let mut scene = Scene::on(server.url()).await;
    let proxy = Proxy::before(server.address()).await.unwrap();
    scene.url = format!("nats://{}", proxy.address());
    let transport = Nats::new(scene.options());
    (scene, proxy, transport)
}

#[tokio::test]
async fn a_server_killed_between_write_and_confirm_loses_and_doubles_nothing() {
    let Some(mut server) = Server::start("a server killed", &[]) else { return };
    let scene = Scene::on(server.url()).await;
    let transport = Nats::new(scene.options().confirm_timeout(Duration::from_secs(3)));
    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();
    let batch: Vec<Envelope> = (0..3_000).map(|n| plain(n.to_string())).collect();

    let (publishing, publisher) = (batch.clone(), transport.clone());
    let published = tokio::spawn(async move { publisher.publish(&publishing).await });
    until("some are stored", || async { scene.stored().await > 50 }).await;
    server.kill();
    let first = published.await.unwrap();
    let confirmed = first.iter().filter(|result| result.is_ok()).count();
    server.restart();
    // As a relay does: whatever was not confirmed is sent again.
    let mut missing: Vec<Envelope> =
        batch.iter().zip(&first).filter(|(_, result)| result.is_err()).map(|(e, _)| e.clone()).collect();
    let deadline = Instant::now() + PATIENCE;
    while !missing.is_empty() {
        assert!(Instant::now() < deadline, "{} are still not confirmed", missing.len());
        let results = transport.publish(&missing).await;
        let mut results = results.iter();
        missing.retain(|_| results.next().unwrap().is_err());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    println!("{confirmed} of 3000 were confirmed before the server died");
    let mut ids = std::collections::BTreeSet::new();
    while ids.len() < batch.len() {
        let delivery = next(&mut feed).await;
        ids.insert(delivery.envelope.id.clone());
        delivery.ack.ack().await.unwrap();
    }
    assert_eq!(scene.stored().await, 3_000, "the server recognised what was sent again");
}

#[tokio::test]
async fn a_confirm_that_is_cut_off_is_unknown_and_sending_again_is_harmless() {
    let Some(server) = Server::start("a confirm cut off", &[]) else { return };
    let (scene, proxy, _) = behind(&server).await;
    let transport = Nats::new(scene.options().confirm_timeout(LONG));
    assert!(transport.publish(&[plain("before")]).await[0].is_ok());

    proxy.cut(Cut { sender: Sender::Server, pattern: b"\"seq\":".to_vec() });
    let since = Instant::now();
    let cut = transport.publish(&[keyed("a", "k"), keyed("b", "k")]).await;
    let waited = since.elapsed();
    until("it is connected again", || async {
        transport.publish(&[keyed("a", "k"), keyed("b", "k")]).await.iter().all(Result::is_ok)
    })
    .await;

    assert_eq!(proxy.cuts(), 1);
    assert_eq!(cut[0].as_ref().unwrap_err().class, Class::Unknown, "{cut:?}");
    assert!(cut[1].is_err(), "{cut:?}");
    assert!(waited < NOTICED, "a lost connection is noticed, not waited for: {waited:?}");
    assert_eq!(scene.stored().await, 3);
}

#[tokio::test]
async fn a_connection_that_breaks_within_a_batch_leaves_no_gap_in_a_key() {
    let Some(server) = Server::start("a batch cut off", &[]) else { return };
    let (scene, proxy, transport) = behind(&server).await;
    let batch: Vec<Envelope> =
        (0..200).map(|n| keyed(format!("{n:03}"), ["a", "b", "c", "d"][n % 4])).collect();

    for cut_at in [0, 57, 130, 199] {
        scene.clean().await;
        scene.context.create_stream(scene.config()).await.unwrap();
        until("it is connected", || async {
            let probe = Envelope { destination: "elsewhere".into(), ..plain("probe") };
            transport.publish(&[probe]).await[0].is_ok()
        })
        .await;
        let pattern = format!("body of {cut_at:03}").into_bytes();
        proxy.cut(Cut { sender: Sender::Client, pattern });
        let results = transport.publish(&batch).await;

        assert!(!proxy.spare(), "it was cut");
        let stored = stored_ids(&scene).await;
        for key in 0..4 {
            let of_key: Vec<usize> = stored.iter().copied().filter(|n| n % 4 == key).collect();
            let without_gap: Vec<usize> = (0..of_key.len()).map(|n| n * 4 + key).collect();
            assert_eq!(of_key, without_gap, "cut at {cut_at}");
        }
        for (n, result) in results.iter().enumerate() {
            assert!(result.is_err() || stored.contains(&n), "{n} was confirmed and is not there");
        }
    }
}

/// The numbers of the stored messages, as the stream has them.
async fn stored_ids(scene: &Scene) -> Vec<usize> {
    let stream = scene.context.get_stream(&scene.stream).await.unwrap();
    let last = stream.cached_info().state.last_sequence;
    let mut ids = Vec::new();
    for sequence in 1..=last {
        let message = stream.get_raw_message(sequence).await.unwrap();
        ids.extend(message.headers.get("ce-id").and_then(|id| id.as_str().parse::<usize>().ok()));
    }
    ids
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_outage_at_once_and_nothing_piles_up() {
    let Some(mut server) = Server::start("a server that is gone", &[]) else { return };
    let scene = Scene::on(server.url()).await;
    let transport = Nats::new(scene.options().confirm_timeout(LONG));
    assert!(transport.publish(&[plain("a")]).await[0].is_ok());
    server.kill();
    until("the loss is noticed", || async { transport.publish(&[plain("b")]).await[0].is_err() }).await;

    let since = Instant::now();
    let results = transport.publish(&[plain("b"), plain("c")]).await;
    let waited = since.elapsed();
    server.restart();
    until("it is connected again", || async { transport.publish(&[plain("d")]).await[0].is_ok() }).await;

    for result in &results {
        assert_eq!(result.as_ref().unwrap_err().class, Class::Destination, "{results:?}");
    }
    assert!(waited < NOTICED, "{waited:?}");
    // Neither b nor c waited in the client for the server to come back, except
    // what was sent in the moment of its death.
    assert!(scene.stored().await <= 3);
}

#[tokio::test]
async fn a_half_open_connection_is_noticed_and_replaced() {
    let Some(server) = Server::start("a half-open connection", &[]) else { return };
    let (scene, proxy, _) = behind(&server).await;
    // What was delivered into the silence comes again when the server's patience ends.
    let (patience, ack_wait) = (Duration::from_secs(5), Duration::from_secs(6));
    let options = scene.options().confirm_timeout(patience).ack_wait(ack_wait).confirm_acks(true);
    let transport = Nats::new(options);
    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();
    assert!(transport.publish(&[plain("a")]).await[0].is_ok());
    assert_eq!(finish(&mut feed, 1).await, ["a"]);

    proxy.silence(true);
    let since = Instant::now();
    let silent = transport.publish(&[plain("b")]).await;
    let waited = since.elapsed();
    proxy.silence(false);
    until("another connection is used", || async { transport.publish(&[plain("b")]).await[0].is_ok() }).await;

    assert_eq!(silent[0].as_ref().unwrap_err().class, Class::Unknown, "{silent:?}");
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    assert_eq!(finish(&mut feed, 1).await, ["b"], "the feed has found its way back");
    let stored = scene.stored().await;
    assert_eq!(stored, 2);
}

#[tokio::test]
async fn deliveries_survive_a_server_that_is_killed_while_they_are_worked_on() {
    let Some(mut server) = Server::start("a server killed under a consumer", &[]) else { return };
    let scene = Scene::on(server.url()).await;
    let transport = Nats::new(scene.options().order(Order::SingleActive).ack_wait(Duration::from_secs(5)));
    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();
    let batch: Vec<Envelope> = (0..40).map(|n| keyed(format!("{n:02}"), ["a", "b"][n % 2])).collect();
    assert!(transport.publish(&batch).await.iter().all(Result::is_ok));

    let mut seen: Vec<String> = finish(&mut feed, 5).await;
    server.kill();
    server.restart();
    while seen.len() < 40 {
        let delivery = next(&mut feed).await;
        // What was acknowledged into the void comes again; an inbox knows it.
        if !seen.contains(&delivery.envelope.id) {
            seen.push(delivery.envelope.id.clone());
        }
        delivery.ack.ack().await.ok();
    }

    for parity in 0..2 {
        let of_key: Vec<usize> =
            seen.iter().map(|id| id.parse().unwrap()).filter(|n: &usize| n % 2 == parity).collect();
        assert!(of_key.is_sorted(), "{seen:?}");
    }
}

#[tokio::test]
async fn wrong_credentials_are_a_clear_error_without_the_password() {
    let arguments = ["--user", "me", "--pass", "right"];
    let Some(server) = Server::start("wrong credentials", &arguments) else { return };
    let with = |login: &str| format!("nats://{login}@{}", server.address());
    let scene = Scene::on(with("me:right")).await;
    let wrong = NatsOptions::from_url(&with("me:hunter2")).unwrap().prefix(&scene.prefix);

    let refused = Nats::connect(wrong.clone()).await.err().unwrap();
    let transport = Nats::new(wrong);
    let results = transport.publish(&[plain("a")]).await;
    let subscribed = transport.subscribe(DESTINATION, "group").await.err().unwrap();
    transport.replace_url(&with("me:right")).await.unwrap();
    let after = transport.publish(&[plain("a")]).await;

    let failure = results[0].as_ref().unwrap_err();
    assert_eq!((refused.kind(), subscribed.kind()), (Kind::Config, Kind::Config));
    assert_eq!(failure.class, Class::Destination);
    for text in [refused.chain(), subscribed.chain(), failure.reason.clone(), format!("{transport:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains(&server.address()), "{text}");
    }
    assert!(after[0].is_ok(), "{after:?}");
}

#[tokio::test]
async fn a_subject_that_is_not_permitted_is_named_by_the_server() {
    let folder = std::env::temp_dir().join(super::scene::unique());
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("nats.conf");
    let users = r#"authorization { users = [
        { user: admin, password: admin },
        { user: relay, password: relay, permissions: { publish: ["$JS.API.>", "*.elsewhere"], subscribe: ["_INBOX.>"] } },
    ] }"#;
    std::fs::write(&file, users).unwrap();
    let Some(server) = Server::start("a subject not permitted", &["-c", file.to_str().unwrap()]) else {
        return;
    };
    let mut scene = Scene::on(format!("nats://admin:admin@{}", server.address())).await;
    scene.url = format!("nats://relay:relay@{}", server.address());
    let elsewhere = Envelope { destination: "elsewhere".into(), ..plain("b") };

    let transport = Nats::new(scene.options().confirm_timeout(LONG));
    let since = Instant::now();
    let results = transport.publish(&[plain("a"), elsewhere]).await;

    let failure = results[0].as_ref().unwrap_err();
    assert_eq!(failure.class, Class::Destination, "{failure}");
    assert!(failure.reason.contains(&scene.subject(DESTINATION)), "{failure}");
    assert!(results[1].is_ok(), "{results:?}");
    assert!(since.elapsed() < NOTICED);
    std::fs::remove_dir_all(&folder).ok();
    drop(client(&format!("nats://admin:admin@{}", server.address())).await);
}
