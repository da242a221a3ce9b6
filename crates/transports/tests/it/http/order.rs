//! Keys keep their order within a call; a destination gets a few at a time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use oncebox_core::Envelope;
use oncebox_core::transport::Class;
use tokio::sync::Barrier;

use super::server::{Server, reply};
use super::{class, http, post_all, to};

fn keyed(url: &str, id: &str) -> Envelope {
    Envelope { key: Some(id[..1].to_owned()), ..to(url, id) }
}

#[tokio::test]
async fn messages_of_a_key_arrive_one_after_the_other_and_in_order() {
    let open: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let per_key = Arc::clone(&open);
    let server = Server::start(move |seen| {
        let per_key = Arc::clone(&per_key);
        let key = seen.header("ce-partitionkey").unwrap().to_owned();
        Box::pin(async move {
            let others = std::mem::replace(per_key.lock().unwrap().entry(key.clone()).or_default(), 1);
            tokio::task::yield_now().await;
            per_key.lock().unwrap().insert(key, 0);
            reply(if others == 0 { 200 } else { 400 }, "")
        })
    })
    .await;
    let batch: Vec<_> =
        (0..60).map(|n| keyed(&server.url, &format!("{}{n:02}", ["a", "b", "c"][n % 3]))).collect();

    let results = post_all(&http(&server.url), &batch).await;

    assert!(results.iter().all(Result::is_ok), "two of a key were there at once: {results:?}");
    for key in ["a", "b", "c"] {
        let ids: Vec<_> = server.ids().into_iter().filter(|id| id.starts_with(key)).collect();
        assert!(ids.len() == 20 && ids.is_sorted(), "{ids:?}");
    }
}

#[tokio::test]
async fn after_a_failure_the_rest_of_its_key_is_not_sent() {
    let server = Server::start(|seen| {
        let status = if seen.header("ce-id") == Some("a2") { 422 } else { 200 };
        Box::pin(async move { reply(status, "") })
    })
    .await;
    let batch = ["a1", "a2", "a3", "b1", "a4", "b2"].map(|id| keyed(&server.url, id));

    let results = post_all(&http(&server.url), &batch).await;

    let classes: Vec<_> = results.iter().map(class).collect();
    let (message, behind) = (Some(Class::Message), Some(Class::Pending));
    assert_eq!(classes, [None, message, behind, None, behind, None]);
    let mut ids = server.ids();
    ids.sort();
    assert_eq!(ids, ["a1", "a2", "b1", "b2"]);
}

#[tokio::test]
async fn a_key_keeps_its_order_across_destinations() {
    let good = Server::answering(200, &[]).await;
    let bad = Server::answering(500, &[]).await;
    let options = super::options(&good.url).allow(&bad.url);
    let http = oncebox_transports::http::Http::new(options).unwrap();

    let batch = [keyed(&good.url, "a1"), keyed(&bad.url, "a2"), keyed(&good.url, "a3")];
    let results = post_all(&http, &batch).await;

    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(good.ids(), ["a1"]);
}

#[tokio::test]
async fn a_destination_gets_eight_at_once_and_no_more() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counter, maximum) = (Arc::clone(&now), Arc::clone(&most));
    // Nobody is answered before eight are there.
    let eight = Arc::new(Barrier::new(8));
    let server = Server::start(move |_| {
        let (counter, maximum, eight) = (Arc::clone(&counter), Arc::clone(&maximum), Arc::clone(&eight));
        Box::pin(async move {
            maximum.fetch_max(counter.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            eight.wait().await;
            counter.fetch_sub(1, Ordering::SeqCst);
            reply(200, "")
        })
    })
    .await;
    let batch: Vec<_> = (0..32).map(|n| to(&server.url, &n.to_string())).collect();

    let results = post_all(&http(&server.url), &batch).await;

    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(most.load(Ordering::SeqCst), 8);
}
