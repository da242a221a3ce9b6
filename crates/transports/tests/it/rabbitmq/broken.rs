//! Connections and servers that fail under way.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oncebox_conformance::proxy::{Cut, Proxy, Sender};
use oncebox_conformance::sample::{keyed, plain};
use oncebox_conformance::server::free_port;
use oncebox_conformance::transport::exchange::{finish, join, next};
use oncebox_core::transport::Class;
use oncebox_core::{Acknowledge, Delivery, Envelope, Feed, Kind, Publisher};
use oncebox_transports::rabbitmq::{RabbitMq, RabbitMqOptions};

use super::server::{Host, Node, class, messages, publish_all, reason};

/// `basic.ack` as the server sends it: class 60, method 80.
const ACK: [u8; 4] = [0, 60, 0, 80];
const SECOND: Duration = Duration::from_secs(1);

/// A transport to the shared server by way of a proxy.
async fn by_proxy(host: &Host) -> (Proxy, RabbitMqOptions) {
    let proxy = Proxy::before(host.address.clone()).await.unwrap();
    let url = host.url().replace(&host.address, &proxy.address().to_string());
    let options = RabbitMqOptions::from_url(&url).unwrap();
    (proxy, options.confirm_timeout(5 * SECOND).call_timeout(5 * SECOND).heartbeat(3 * SECOND))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_confirm_is_unknown_and_the_message_is_sent_again() {
    let Some(host) = Host::fresh("lost confirm").await else { return };
    let (proxy, options) = by_proxy(&host).await;
    // Whatever fails here fails because of the cut.
    let transport = RabbitMq::new(options.confirm_timeout(30 * SECOND).heartbeat(30 * SECOND)).unwrap();
    let mut feed = join(&host.transport(), "group").await;
    publish_all(&transport, &[plain("before")]).await;

    proxy.cut(Cut { sender: Sender::Server, pattern: ACK.to_vec() });
    let lost = transport.publish(&[keyed("1", "a"), keyed("2", "a")]).await;
    publish_all(&transport, &[keyed("1", "a"), keyed("2", "a")]).await;

    assert_eq!(class(&lost[0]), Some(Class::Unknown), "{}", reason(&lost[0]));
    assert!(lost[1].is_err());
    assert_eq!(proxy.cuts(), 1);
    assert_eq!(finish(&mut feed, 4).await, ["before", "1", "1", "2"], "stored, and stored again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_goes_silent_is_given_up_and_replaced() {
    let Some(host) = Host::fresh("half open").await else { return };
    let (proxy, options) = by_proxy(&host).await;
    let transport = RabbitMq::new(options).unwrap();
    let mut feed = join(&transport, "group").await;
    publish_all(&transport, &[plain("a")]).await;
    assert_eq!(finish(&mut feed, 1).await, ["a"]);

    proxy.silence(true);
    let start = Instant::now();
    let unknown = transport.publish(&[plain("b")]).await;
    let noticed = start.elapsed();
    let down = transport.publish(&[plain("b")]).await;
    let interrupted = tokio::time::timeout(30 * SECOND, feed.next()).await;
    proxy.silence(false);
    let start = Instant::now();
    publish_all(&transport, &[plain("b")]).await;
    let resumed = start.elapsed();

    assert_eq!(class(&unknown[0]), Some(Class::Unknown));
    assert!(noticed < 30 * SECOND, "it took {noticed:?}");
    assert_eq!(class(&down[0]), Some(Class::Destination), "{}", reason(&down[0]));
    assert_eq!(interrupted.unwrap().unwrap_err().kind(), Kind::Unavailable);
    assert!(resumed < 30 * SECOND, "it took {resumed:?}");
    let mut again = Box::pin(async {
        loop {
            match feed.next().await {
                Ok(delivery) => {
                    let Delivery { envelope, ack, .. } = delivery.unwrap();
                    if envelope.id == "b" {
                        break;
                    }
                    // Its answer may have been swallowed by the silence.
                    assert_eq!(envelope.id, "a");
                    ack.ack().await.unwrap();
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    });
    tokio::time::timeout(30 * SECOND, &mut again).await.unwrap();
    drop(again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_says_a_word_costs_one_thread_and_no_more() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("amqp://user:hunter2@{}/%2f", listener.local_addr().unwrap());
    let options = RabbitMqOptions::from_url(&url).unwrap().call_timeout(Duration::from_millis(50));
    let transport = RabbitMq::new(options).unwrap();
    let mute = tokio::spawn(async move {
        let mut callers = Vec::new();
        while let Ok((caller, _)) = listener.accept().await {
            callers.push(caller);
        }
    });

    let start = Instant::now();
    let mut reasons = Vec::new();
    while start.elapsed() < 2 * SECOND || reasons.len() < 20 {
        reasons.push(reason(&transport.publish(&[plain("a")]).await[0]));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    assert!(reasons[0].contains("no answer to the handshake"), "{}", reasons[0]);
    assert!(reasons.iter().rev().take(3).all(|reason| reason.contains("no answer to the protocol's name")));
    mute.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_server_gets_nothing_from_a_client_that_wants_tls() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let first = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut first = [0; 3];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await.unwrap();
        first
    });
    let url = format!("amqps://user:hunter2@localhost:{port}/%2f");
    let options = RabbitMqOptions::from_url(&url).unwrap().call_timeout(30 * SECOND);
    let transport = RabbitMq::new(options).unwrap();

    let results = transport.publish(&[plain("a")]).await;

    assert!(results[0].is_err());
    assert_eq!(first.await.unwrap()[..2], [0x16, 0x03], "a TLS handshake begins");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_name_is_refused() {
    let dir = std::env::temp_dir().join(format!("oncebox-tls-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let make = [
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days",
        "1",
    ];
    let names = ["-subj", "/CN=other.example", "-addext", "subjectAltName=DNS:other.example"];
    let made =
        tokio::process::Command::new("openssl").args(make).args(names).current_dir(&dir).output().await;
    if !made.is_ok_and(|made| made.status.success()) {
        println!("SKIP a certificate of another name: there is no openssl");
        return;
    }
    let port = free_port();
    let _server = tokio::process::Command::new("openssl")
        .args(["s_server", "-quiet", "-key", "key.pem", "-cert", "cert.pem", "-accept", &port.to_string()])
        .current_dir(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let is_up = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(30 * SECOND, is_up).await.unwrap();
    let ca = std::fs::read_to_string(dir.join("cert.pem")).unwrap();
    let options = RabbitMqOptions::from_url(&format!("amqps://user:hunter2@localhost:{port}/%2f")).unwrap();

    let refused = RabbitMq::connect(options.ca(&ca).call_timeout(30 * SECOND)).await.unwrap_err();

    assert_eq!(refused.kind(), Kind::Config, "{}", refused.chain());
    assert!(refused.chain().contains("certificate"), "{}", refused.chain());
    std::fs::remove_dir_all(&dir).ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_confirmed_survives_a_server_that_is_killed_under_way() {
    let Some(mut node) = Node::start("killed server").await else { return };
    let options = node.options().confirm_timeout(5 * SECOND).heartbeat(3 * SECOND);
    let transport = RabbitMq::new(options.clone()).unwrap();
    drop(join(&transport, "group").await);
    let (is_done, confirms) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let publishing = {
        let (transport, is_done, confirms) = (transport.clone(), Arc::clone(&is_done), Arc::clone(&confirms));
        tokio::spawn(async move {
            let (mut stored, mut failed, mut round) = (Vec::new(), 0_usize, 0);
            while !is_done.load(Ordering::SeqCst) {
                let batch: Vec<Envelope> =
                    (0..200).map(|n| keyed(format!("{round}-{n:03}"), &(n % 50).to_string())).collect();
                let results = transport.publish(&batch).await;
                failed += results.iter().filter(|result| result.is_err()).count();
                let confirmed = batch.into_iter().zip(&results).filter(|(_, result)| result.is_ok());
                stored.extend(confirmed.map(|(envelope, _)| envelope.id));
                confirms.store(stored.len(), Ordering::SeqCst);
                round += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (stored, failed)
        })
    };
    // The queue is safe on disk by then, and messages are under way.
    node.settle().await;
    while confirms.load(Ordering::SeqCst) <= 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    node.kill().await;
    let down = transport.publish(&[plain("down")]).await;
    node.resume().await;
    publish_all(&transport, &[plain("last")]).await;
    is_done.store(true, Ordering::SeqCst);
    let (stored, failed) = publishing.await.unwrap();

    let mut feed = join(&RabbitMq::new(options).unwrap(), "group").await;
    let mut missing: std::collections::HashSet<String> = stored.iter().cloned().collect();
    while !missing.is_empty() {
        let delivery = next(&mut feed).await;
        missing.remove(&delivery.envelope.id);
        delivery.ack.ack().await.unwrap();
    }
    assert!(down[0].is_err());
    assert!(stored.len() > 200 && failed > 0, "{} were confirmed, {failed} were not", stored.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_blocks_is_left_alone_and_found_again() {
    let Some(node) = Node::start("memory alarm").await else { return };
    // So long that nothing in here is waited for until it is over.
    let transport = RabbitMq::new(node.options().confirm_timeout(60 * SECOND)).unwrap();
    let mut feed = join(&transport, "group").await;
    publish_all(&transport, &messages(3)).await;
    let held = next(&mut feed).await;

    node.ctl(&["set_vm_memory_high_watermark", "0.0000001"]).await;
    let blocked = async {
        loop {
            let results = transport.publish(&[plain("x")]).await;
            if class(&results[0]) == Some(Class::Destination) {
                return reason(&results[0]);
            }
            assert_ne!(class(&results[0]), None, "nothing is stored by a blocked server");
        }
    };
    let said = tokio::time::timeout(30 * SECOND, blocked).await.expect("it is noticed");
    let batch: Vec<Envelope> = (0..1_000).map(|n| plain(n.to_string())).collect();
    let (mut refused, mut answered) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let start = Instant::now();
        refused.extend(transport.publish(&batch).await);
        answered.push(start.elapsed());
    }
    held.ack.ack().await.unwrap();
    let consumed = finish(&mut feed, 2).await;
    node.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    let start = Instant::now();
    publish_all(&transport, &[plain("y")]).await;

    assert!(said.contains("blocked by the server: low on memory"), "{said}");
    assert!(refused.iter().all(|result| class(result) == Some(Class::Destination)));
    assert!(refused.iter().all(|result| reason(result).contains("blocked by the server")));
    assert!(answered.iter().all(|took| *took < 30 * SECOND), "a blocked server costs {answered:?}");
    // One of them may meet a stall of the machine; not all do.
    let quickest = answered.into_iter().min();
    assert!(quickest < Some(Duration::from_millis(200)), "a blocked server costs {quickest:?}");
    assert_eq!(consumed, ["00001", "00002"], "who only consumes is not blocked");
    assert!(start.elapsed() < 30 * SECOND, "it took {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_the_server_are_told_from_faults_of_the_connection() {
    let Some(node) = Node::start("server limits").await else { return };
    node.ctl(&["eval", "application:set_env(rabbit, max_message_size, 10000)."]).await;
    node.ctl(&["eval", "application:set_env(rabbit, consumer_timeout, 10000)."]).await;
    node.ctl(&["eval", "application:set_env(rabbit, channel_tick_interval, 500)."]).await;
    let transport = RabbitMq::new(node.options()).unwrap();
    let mut feed = join(&transport, "group").await;
    let large = Envelope { payload: vec![0; 10_001], ..plain("large") };

    let results = transport.publish(&[plain("a"), large, plain("b")]).await;
    publish_all(&transport, &[plain("a"), plain("b")]).await;

    let failure = results[1].as_ref().unwrap_err();
    assert!(failure.class == Class::Message && failure.permanent, "{failure}");
    assert!(failure.reason.contains("larger than"), "{failure}");
    assert!([&results[0], &results[2]].iter().all(|r| matches!(class(r), None | Some(Class::Unknown))));

    // A handler that takes longer than the server waits.
    let mut held = Vec::new();
    let interrupted = async {
        loop {
            match feed.next().await {
                Ok(delivery) => held.push(delivery.unwrap()),
                Err(error) => return error,
            }
        }
    };
    let interrupted = tokio::time::timeout(60 * SECOND, interrupted).await.unwrap();
    assert_eq!(interrupted.kind(), Kind::Unavailable, "{}", interrupted.chain());
    assert!(interrupted.chain().contains("timed out"), "{}", interrupted.chain());
    assert!(held.len() >= 2);
    for delivery in held {
        assert_eq!(delivery.ack.ack().await.unwrap_err().kind(), Kind::Unavailable);
    }
    assert!(["a", "b"].contains(&&*next(&mut feed).await.envelope.id), "everything comes again");
}
