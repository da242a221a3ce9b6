//! What is confirmed is stored, and what is refused says why and stays apart.

use oncebox_conformance::sample::{DESTINATION, keyed, plain};
use oncebox_core::transport::Class;
use oncebox_core::{Envelope, Failure, Publisher, Result, Subscriber};
use oncebox_transports::nats::{Nats, NatsOptions, Topology};

use super::scene::{Scene, finish, unique, until};

fn failure(result: &Result<(), Failure>) -> &Failure {
    result.as_ref().expect_err("it was not confirmed")
}

#[tokio::test]
async fn a_batch_larger_than_the_window_is_stored_once_and_whole() {
    let Some(scene) = Scene::fresh("a batch larger than the window").await else { return };
    let transport = Nats::new(scene.options().window(16));
    let batch: Vec<Envelope> =
        (0..300).map(|n| if n % 3 == 0 { plain(n.to_string()) } else { keyed(n.to_string(), "k") }).collect();

    let results = transport.publish(&batch).await;

    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(scene.stored().await, 300);
    scene.clean().await;
}

#[tokio::test]
async fn a_subject_without_a_stream_is_named_and_the_others_flow() {
    let Some(scene) = Scene::fresh("a subject without a stream").await else { return };
    let lost = Envelope { destination: "nowhere".into(), ..plain("lost") };

    let results = scene.transport().publish(&[lost, plain("a"), plain("b")]).await;

    assert_eq!(failure(&results[0]).class, Class::Destination);
    assert!(failure(&results[0]).reason.contains(&scene.subject("nowhere")), "{results:?}");
    assert!(results[1].is_ok() && results[2].is_ok());
    scene.clean().await;
}

#[tokio::test]
async fn a_missing_stream_is_made_where_that_is_allowed() {
    let Some(scene) = Scene::fresh("a missing stream is made").await else { return };
    let prefix = unique();
    let options = NatsOptions::from_url(&scene.url).unwrap().prefix(&prefix);
    let transport = Nats::new(options.clone());
    let checking = Nats::new(options.topology(Topology::Check));

    assert!(checking.subscribe(DESTINATION, "group").await.is_err(), "nothing is made");
    let results = transport.publish(&[plain("a")]).await;
    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();

    assert!(results[0].is_ok(), "{results:?}");
    assert_eq!(finish(&mut feed, 1).await, ["a"]);
    drop(feed);
    let subject = format!("{prefix}.{DESTINATION}");
    let name = scene.context.stream_by_subject(subject).await.unwrap();
    scene.context.delete_stream(name).await.unwrap();
    scene.clean().await;
}

#[tokio::test]
async fn a_stream_deleted_while_running_is_an_outage_until_it_is_back() {
    let Some(scene) = Scene::fresh("a stream deleted while running").await else { return };
    let transport = scene.transport();
    let mut feed = transport.subscribe(DESTINATION, "group").await.unwrap();
    assert!(transport.publish(&[plain("a")]).await[0].is_ok());
    assert_eq!(finish(&mut feed, 1).await, ["a"]);

    scene.clean().await;
    let refused = transport.publish(&[plain("b")]).await;
    scene.context.create_stream(scene.config()).await.unwrap();
    until("the stream takes messages again", || async { transport.publish(&[plain("b")]).await[0].is_ok() })
        .await;

    assert_eq!(failure(&refused[0]).class, Class::Destination, "{refused:?}");
    assert_eq!(finish(&mut feed, 1).await, ["b"], "the feed has made its consumer again");
    scene.clean().await;
}

#[tokio::test]
async fn a_full_stream_refuses_and_no_later_message_of_a_key_slips_in() {
    let Some(scene) = Scene::fresh("a full stream").await else { return };
    let limited = async_nats::jetstream::stream::Config { max_bytes: 3_000, ..scene.config() };
    scene.context.update_stream(limited).await.unwrap();
    let large = Envelope { payload: vec![b'x'; 2_990], ..keyed("large", "k") };

    let results = scene.transport().publish(&[large, keyed("small", "k"), keyed("other", "o")]).await;

    assert_eq!(failure(&results[0]).class, Class::Destination, "{results:?}");
    assert!(results[1].is_err(), "it would have fitted, and overtaken");
    assert!(results[2].is_ok(), "{results:?}");
    assert_eq!(scene.stored().await, 1);
    scene.clean().await;
}

#[tokio::test]
async fn a_subject_that_is_none_is_refused_for_good_and_for_itself_alone() {
    let Some(scene) = Scene::fresh("an invalid subject").await else { return };
    let bad = |destination: &str| Envelope { destination: destination.into(), ..plain("bad") };
    let batch = [bad("a b"), bad("orders.*"), bad("orders..eu"), bad("orders.>"), plain("good")];

    let results = scene.transport().publish(&batch).await;

    for result in &results[..4] {
        assert_eq!((failure(result).class, failure(result).permanent), (Class::Message, true));
        assert!(failure(result).reason.contains("is no subject"), "{result:?}");
    }
    assert!(results[4].is_ok());
    scene.clean().await;
}

#[tokio::test]
async fn what_is_behind_a_refused_message_of_its_key_waits_and_blames_nobody() {
    let Some(scene) = Scene::fresh("behind a refused message").await else { return };
    let limited = async_nats::jetstream::stream::Config { max_message_size: 10_000, ..scene.config() };
    scene.context.update_stream(limited).await.unwrap();
    let large = Envelope { payload: vec![0; 20_000], ..keyed("large", "k") };

    let results = scene.transport().publish(&[large, keyed("behind", "k"), keyed("other", "o")]).await;

    assert_eq!(failure(&results[0]).class, Class::Message, "{results:?}");
    assert_eq!(failure(&results[1]).class, Class::Pending, "{results:?}");
    assert!(results[2].is_ok(), "{results:?}");
    scene.clean().await;
}

#[tokio::test]
async fn a_message_too_large_for_server_or_stream_is_refused_for_good() {
    let Some(scene) = Scene::fresh("an oversized message").await else { return };
    let sized = |bytes: usize| Envelope { payload: vec![0; bytes], ..plain(bytes.to_string()) };
    let limited = async_nats::jetstream::stream::Config { max_message_size: 10_000, ..scene.config() };
    scene.context.update_stream(limited).await.unwrap();

    let results = scene.transport().publish(&[sized(9 << 20), sized(20_000), sized(5_000)]).await;

    for result in &results[..2] {
        assert_eq!((failure(result).class, failure(result).permanent), (Class::Message, true), "{result:?}");
    }
    assert!(results[2].is_ok(), "{results:?}");
    scene.clean().await;
}
