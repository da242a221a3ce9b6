//! The server's own dedup drops a message for its id alone; nothing is lost to it.

use async_nats::HeaderMap;
use oncebox_conformance::sample::plain;
use oncebox_core::transport::Class;
use oncebox_core::{Envelope, Keyring, Publisher, Subscriber, signature};
use oncebox_transports::nats::Nats;

use super::scene::{Scene, finish};

/// The id a message is sent under, as anybody can read it from the stream.
async fn id_of(scene: &Scene, sequence: u64) -> String {
    let stream = scene.context.get_stream(&scene.stream).await.unwrap();
    let message = stream.get_raw_message(sequence).await.unwrap();
    message.headers.get("Nats-Msg-Id").unwrap().as_str().to_owned()
}

async fn forge(scene: &Scene, id: &str, destination: &str) {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", id);
    let sent = scene.context.publish_with_headers(scene.subject(destination), headers, "forged".into()).await;
    assert!(!sent.unwrap().await.unwrap().duplicate);
}

#[tokio::test]
async fn a_message_sent_again_is_confirmed_and_stored_once() {
    let Some(scene) = Scene::fresh("a message sent again").await else { return };

    for transport in [scene.transport(), scene.transport()] {
        for _ in 0..2 {
            let results = transport.publish(&[plain("a"), plain("b")]).await;
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        }
    }

    assert_eq!(scene.stored().await, 2);
    scene.clean().await;
}

#[tokio::test]
async fn one_message_to_two_subjects_of_a_stream_is_stored_twice() {
    let Some(scene) = Scene::fresh("one message to two subjects").await else { return };
    let other = Envelope { destination: "elsewhere".into(), ..plain("a") };

    let results = scene.transport().publish(&[plain("a"), other]).await;

    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(scene.stored().await, 2);
    scene.clean().await;
}

#[tokio::test]
async fn a_forged_message_under_its_id_is_a_conflict_and_never_counts_as_sent() {
    let Some(scene) = Scene::fresh("a forged id").await else { return };
    assert!(scene.transport().publish(&[plain("a")]).await[0].is_ok());
    let id = id_of(&scene, 1).await;
    for destination in ["bookings", "elsewhere"] {
        scene.remake().await;
        forge(&scene, &id, destination).await;

        let results = scene.transport().publish(&[plain("a"), plain("b")]).await;

        let conflict = results[0].as_ref().unwrap_err();
        assert_eq!((conflict.class, conflict.permanent), (Class::Message, false));
        assert!(conflict.reason.contains("conflict"), "{conflict}");
        assert!(results[1].is_ok());
    }
    scene.clean().await;
}

#[tokio::test]
async fn with_a_keyring_the_id_cannot_be_known_in_advance() {
    let Some(scene) = Scene::fresh("an id from a keyring").await else { return };
    assert!(scene.transport().publish(&[plain("a")]).await[0].is_ok());
    let guessed = id_of(&scene, 1).await;
    scene.remake().await;
    forge(&scene, &guessed, "bookings").await;
    let keyring = Keyring::new("k", "0123456789abcdef").unwrap();

    let results = Nats::new(scene.options().keyring(keyring)).publish(&[plain("a")]).await;

    assert!(results[0].is_ok(), "{results:?}");
    assert_eq!(scene.stored().await, 2);
    scene.clean().await;
}

#[tokio::test]
async fn a_message_sent_again_under_another_key_is_no_conflict() {
    let Some(scene) = Scene::fresh("a changed key").await else { return };
    let ring = |id: &str| Keyring::new(id, "0123456789abcdef").unwrap();
    let signed = |id: &str| {
        let mut envelope = plain("a");
        envelope.headers.insert(signature::HEADER.into(), ring(id).sign(&envelope));
        envelope
    };
    let secret = Nats::new(scene.options().keyring(ring("ids")));

    for (transport, stored) in [(&secret, 1), (&scene.transport(), 3)] {
        for envelope in [signed("old"), signed("new"), signed("new")] {
            let results = transport.publish(&[envelope]).await;
            assert!(results[0].is_ok(), "{results:?}");
        }
        assert_eq!(scene.stored().await, stored, "twice only where the id could be guessed");
    }
    scene.clean().await;
}

#[tokio::test]
async fn a_duplicate_of_something_that_is_gone_is_stored_under_another_id() {
    let Some(scene) = Scene::fresh("a duplicate of something gone").await else { return };
    let transport = scene.transport();
    let mut feed = transport.subscribe("bookings", "group").await.unwrap();
    assert!(transport.publish(&[plain("a")]).await[0].is_ok());
    assert_eq!(finish(&mut feed, 1).await, ["a"]);
    let stream = scene.context.get_stream(&scene.stream).await.unwrap();
    stream.delete_message(1).await.unwrap();

    for _ in 0..2 {
        let results = transport.publish(&[plain("a")]).await;
        assert!(results[0].is_ok(), "{results:?}");
    }

    assert_eq!(scene.stored().await, 1, "sent once more, not each time");
    assert_eq!(finish(&mut feed, 1).await, ["a"]);
    scene.clean().await;
}
