//! A destination that fails is left alone, and taken up again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use axum::body::Body;
use oncebox_core::transport::Class;

use super::server::{Server, reply};
use super::{class, http, post, post_all, stop_the_clock, to};

async fn switchable() -> (Server, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(500));
    let current = Arc::clone(&status);
    let server = Server::start(move |_| {
        let status = current.load(Ordering::SeqCst);
        Box::pin(async move { reply(status, Body::empty()) })
    })
    .await;
    (server, status)
}

#[tokio::test]
async fn after_five_failures_nothing_is_sent_until_one_message_finds_out() {
    let _stopped = stop_the_clock();
    let (server, status) = switchable().await;
    let http = http(&server.url);
    let message = |id: &str| to(&server.url, id);

    for n in 0..5 {
        assert_eq!(class(&post(&http, message(&n.to_string())).await), Some(Class::Destination));
    }
    let refused = post(&http, message("5")).await.unwrap_err();
    assert_eq!(server.seen().len(), 5, "it was not asked again");
    assert_eq!(refused.class, Class::Destination);
    assert_eq!(refused.retry_after, Some(Duration::from_secs(1)));
    assert!(refused.reason.contains("500"), "{}", refused.reason);

    // Half-open: of many, one is sent while the destination still fails.
    tokio::time::advance(Duration::from_secs(1)).await;
    let batch: Vec<_> = (6..12).map(|n| message(&n.to_string())).collect();
    let results = post_all(&http, &batch).await;
    assert!(results.iter().all(Result::is_err));
    assert_eq!(server.seen().len(), 6);

    status.store(200, Ordering::SeqCst);
    let refused = post(&http, message("12")).await.unwrap_err();
    assert_eq!(refused.retry_after, Some(Duration::from_secs(2)), "the pause grows");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(post(&http, message("13")).await, Ok(()));
    assert!(post_all(&http, &batch).await.iter().all(Result::is_ok), "closed for everybody");
}

#[tokio::test]
async fn another_destination_flows_meanwhile() {
    let (server, _) = switchable().await;
    let other = Server::answering(204, &[]).await;
    let http = oncebox_transports::http::Http::new(super::options(&server.url).allow(&other.url)).unwrap();

    let batch: Vec<_> =
        (0..40).map(|n| to(if n % 2 == 0 { &server.url } else { &other.url }, &n.to_string())).collect();
    let results = post_all(&http, &batch).await;

    assert!(results.iter().enumerate().all(|(n, result)| result.is_ok() == (n % 2 == 1)));
    assert_eq!(other.seen().len(), 20);
    assert!(server.seen().len() < 20, "the breaker has stopped it within the call");
}

#[tokio::test]
async fn a_message_that_is_refused_says_nothing_about_the_destination() {
    let (server, status) = switchable().await;
    status.store(422, Ordering::SeqCst);
    let http = http(&server.url);

    for n in 0..10 {
        assert_eq!(class(&post(&http, to(&server.url, &n.to_string())).await), Some(Class::Message));
    }

    assert_eq!(server.seen().len(), 10);
}

#[tokio::test]
async fn a_busy_destination_is_left_alone_as_long_as_it_asks() {
    let server = Server::answering(429, &[("retry-after", "30")]).await;
    let http = http(&server.url);

    post(&http, to(&server.url, "a")).await.unwrap_err();
    let refused = post(&http, to(&server.url, "b")).await.unwrap_err();

    assert_eq!(server.seen().len(), 1);
    assert!(refused.retry_after.unwrap() > Duration::from_secs(25));
}
