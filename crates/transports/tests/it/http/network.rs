//! Peers that are slow, gone or broken.

use std::time::{Duration, Instant};

use oncebox_conformance::server::free_port;
use oncebox_core::Envelope;
use oncebox_core::transport::Class;
use oncebox_transports::http::Http;

use super::server::{Server, reply, socket};
use super::{class, http, options, post, post_all, stop_the_clock, to};

const MOMENT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_slow_answer_leaves_it_open_whether_the_message_arrived() {
    let _stopped = stop_the_clock();
    let server = Server::start(|_| Box::pin(std::future::pending())).await;
    let http = Http::new(options(&server.url).timeout(MOMENT)).unwrap();

    let message = to(&server.url, "a");
    let posted = tokio::spawn(async move { post(&http, message).await });
    let began = Instant::now();
    while server.seen().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing has arrived");
        tokio::task::yield_now().await;
    }
    tokio::time::advance(2 * MOMENT).await;
    let failure = posted.await.unwrap().unwrap_err();

    assert_eq!(failure.class, Class::Unknown);
    assert!(failure.reason.contains("200ms"), "{}", failure.reason);
    assert_eq!(server.ids(), ["a"]);
}

#[tokio::test]
async fn a_call_ends_in_time_and_leaves_the_rest_to_the_next() {
    let server = Server::start(|_| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            reply(200, "")
        })
    })
    .await;
    let http = Http::new(options(&server.url).concurrency(1).window(Duration::from_millis(750))).unwrap();

    for key in [None, Some("k".to_owned())] {
        let message = |n: i32| Envelope { key: key.clone(), ..to(&server.url, &n.to_string()) };
        // Half a minute's worth.
        let batch: Vec<_> = (0..100).map(message).collect();
        let before = server.seen().len();

        let began = Instant::now();
        let results = post_all(&http, &batch).await;

        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(results.iter().any(Result::is_ok));
        let rest = results.iter().filter(|result| class(result) == Some(Class::Pending)).count();
        assert_eq!(rest, 100 - (server.seen().len() - before), "what was not sent is not in doubt");
    }
}

#[tokio::test]
async fn a_refused_connection_is_the_destinations_fault() {
    let url = format!("http://127.0.0.1:{}", free_port());

    let failure = post(&http(&url), to(&url, "a")).await.unwrap_err();

    assert_eq!(failure.class, Class::Destination);
    assert!(failure.reason.contains(&url), "{}", failure.reason);
}

#[tokio::test]
async fn a_name_that_resolves_to_nothing_is_the_destinations_fault() {
    let url = "https://oncebox.invalid/hook";

    // Whoever should know the name may not answer at all.
    let http = Http::new(options(url).connect_timeout(Duration::from_secs(3))).unwrap();
    let failure = post(&http, to(url, "a")).await.unwrap_err();

    assert_eq!(failure.class, Class::Destination, "{failure}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_leaves_it_open_whether_the_message_arrived() {
    for (answer, is_reset) in [
        (&b""[..], false),
        (b"", true),
        (b"HTTP/1.1 200 OK\r\nContent-Le", false),
        (b"HTTP/1.1 200 OK\r\nContent-Le", true),
        (b"SSH-2.0-OpenSSH_9.9\r\n", false),
    ] {
        let (url, serving) = socket(answer, is_reset).await;

        let failure = post(&http(&url), to(&url, "a")).await.unwrap_err();

        assert_eq!(failure.class, Class::Unknown, "{answer:?}: {failure}");
        serving.abort();
    }
}

#[tokio::test]
async fn a_confirm_whose_body_breaks_off_is_a_confirm() {
    let (url, serving) = socket(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"id\":", true).await;

    assert_eq!(post(&http(&url), to(&url, "a")).await, Ok(()));
    serving.abort();
}

#[tokio::test]
async fn an_endless_head_is_not_read() {
    let head = [b"HTTP/1.1 200 OK\r\n".as_slice(), &vec![b'x'; 1 << 20]].concat();
    let (url, serving) = socket(Box::leak(head.into_boxed_slice()), false).await;

    let failure = post(&http(&url), to(&url, "a")).await.unwrap_err();

    assert_eq!(failure.class, Class::Unknown);
    serving.abort();
}

#[tokio::test]
async fn a_connection_is_used_again_and_one_that_was_closed_is_replaced() {
    let (url, serving) = socket(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false).await;
    let http = http(&url);

    // This server hangs up after every answer without saying so.
    let mut confirmed = 0;
    for n in 0..20 {
        match post(&http, to(&url, &n.to_string())).await {
            Ok(()) => confirmed += 1,
            Err(failure) => assert_eq!(failure.class, Class::Unknown, "{failure}"),
        }
        tokio::task::yield_now().await;
    }

    assert!(confirmed >= 10, "{confirmed} of 20");
    serving.abort();
}
