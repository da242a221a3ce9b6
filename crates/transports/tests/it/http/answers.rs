//! What an answer makes of a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use futures_util::stream;
use oncebox_core::transport::Class;

use super::server::{Server, reply};
use super::{class, http, post, to};

const CHUNK: usize = 16 << 10;

#[tokio::test]
async fn every_status_means_what_the_table_says() {
    let server = Server::start(|seen| {
        let status = seen.path.trim_start_matches('/').parse().unwrap();
        Box::pin(async move { reply(status, "because") })
    })
    .await;
    let http = http(&server.url);
    let (message, destination) = (Some(Class::Message), Some(Class::Destination));

    for (status, expected) in [
        (200, None),
        (201, None),
        (202, None),
        (204, None),
        (301, destination),
        (302, destination),
        (307, destination),
        (308, destination),
        (400, message),
        (401, destination),
        (403, destination),
        (404, destination),
        (408, destination),
        (409, destination),
        (410, destination),
        (413, message),
        (415, message),
        (422, message),
        (425, destination),
        (429, destination),
        (500, destination),
        (502, destination),
        (503, destination),
        (504, destination),
    ] {
        let result = post(&http, to(&format!("{}/{status}", server.url), "a")).await;

        assert_eq!(class(&result), expected, "{status}");
        if let Err(failure) = result {
            let says = format!("{} answered {status}", server.url);
            assert!(failure.reason.starts_with(&says), "{}", failure.reason);
            assert!(failure.reason.ends_with(": because"), "{}", failure.reason);
        }
    }
}

#[tokio::test]
async fn retry_after_is_honoured_in_seconds_and_as_a_date() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(40));
    for (status, value, least, most) in [(429, "7", 7, 7), (503, date.as_str(), 30, 40), (409, "1", 1, 1)] {
        let server = Server::answering(status, &[("retry-after", value)]).await;

        let failure = post(&http(&server.url), to(&server.url, "a")).await.unwrap_err();

        let seconds = failure.retry_after.unwrap().as_secs();
        assert!((least..=most).contains(&seconds), "{status}: {seconds} s");
        assert_eq!(failure.class, Class::Destination);
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::answering(200, &[]).await;
    let location = format!("{}/secret?token=hunter2", elsewhere.url);
    let server = Server::answering(307, &[("location", location.as_str())]).await;

    let failure = post(&http(&server.url), to(&server.url, "a")).await.unwrap_err();

    assert_eq!(failure.class, Class::Destination);
    assert!(failure.reason.contains("307") && failure.reason.contains("http://127.0.0.1"));
    assert!(!failure.reason.contains("hunter2"), "{}", failure.reason);
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn a_large_or_endless_answer_is_not_read_to_its_end() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let server = Server::start(move |seen| {
        let (counter, is_endless) = (Arc::clone(&counter), seen.path.ends_with("endless"));
        let chunks = std::iter::repeat_with(move || {
            counter.fetch_add(CHUNK, Ordering::SeqCst);
            Ok::<_, std::io::Error>(vec![7_u8; CHUNK])
        });
        let chunks = chunks.take(if is_endless { usize::MAX } else { (10 << 20) / CHUNK });
        let status = if seen.path.starts_with("/good") { 200 } else { 500 };
        Box::pin(async move { reply(status, Body::from_stream(stream::iter(chunks))) })
    })
    .await;
    let http = http(&server.url);

    for path in ["bad/large", "bad/endless"] {
        let failure = post(&http, to(&format!("{}/{path}", server.url), "a")).await.unwrap_err();
        assert!(failure.reason.len() < 2_000, "{} characters", failure.reason.len());
        assert!(!failure.reason.contains(char::is_control));
    }
    for path in ["good/large", "good/endless"] {
        assert_eq!(post(&http, to(&format!("{}/{path}", server.url), "b")).await, Ok(()));
    }

    // What the sockets between hold is sent, not what there is to send.
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent < 40 << 20, "{sent} bytes");
}

#[tokio::test]
async fn what_is_neither_configured_nor_allowed_is_not_posted() {
    let server = Server::answering(200, &[]).await;
    let http = http(&format!("{}/hooks", server.url));

    for destination in [
        "orders".to_owned(),
        format!("{}/admin", server.url),
        format!("{}/hooks/../admin", server.url),
        server.url.replace("http://", "http://user:hunter2@") + "/hooks",
        "http://169.254.169.254/hooks".into(),
    ] {
        let failure = post(&http, to(&destination, "a")).await.unwrap_err();

        assert_eq!(failure.class, Class::Destination);
        assert!(!failure.reason.contains("hunter2"));
    }
    assert!(server.seen().is_empty());
}
