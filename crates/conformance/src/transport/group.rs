//! Who gets a message, and what is said when nobody can.

use std::sync::Arc;

use oncebox_core::transport::Class;
use oncebox_core::{Acknowledge, Envelope, Failure, Feed, Order, Publisher, Result, Subscriber};

use super::exchange::{all_confirmed, finish, is_quiet, join, next, publish};
use crate::fixture::TransportFixture;
use crate::sample::{DESTINATION, plain};

pub async fn every_group_gets_a_copy<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let (mut one, mut two) = (join(&transport, "one").await, join(&transport, "two").await);
    let published = publish(&transport, ["a", "b"].map(plain).to_vec());

    let (mut first, mut second) = (finish(&mut one, 2).await, finish(&mut two, 2).await);

    first.sort();
    second.sort();
    assert_eq!((first, second), (vec!["a".into(), "b".into()], vec!["a".to_owned(), "b".to_owned()]));
    assert!(all_confirmed(published).await);
}

pub async fn members_of_a_group_share<F: TransportFixture>(fixture: Arc<F>) {
    if F::CAPABILITIES.order == Order::SingleActive {
        return;
    }
    let transport = fixture.transport();
    let (mut one, mut two) = (join(&transport, "group").await, join(&transport, "group").await);
    let published = publish(&transport, ["a", "b"].map(plain).to_vec());

    // Neither is answered yet, so the other member must get the other message.
    let (first, second) = (next(&mut one).await, next(&mut two).await);

    assert_ne!(first.envelope.id, second.envelope.id);
    first.ack.ack().await.unwrap();
    second.ack.ack().await.unwrap();
    assert!(all_confirmed(published).await);
    assert!(is_quiet(&mut one).await && is_quiet(&mut two).await);
}

pub async fn destinations_are_apart<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let mut here = join(&transport, "group").await;
    let mut there = transport.subscribe("elsewhere", "group").await.unwrap();
    let elsewhere = Envelope { destination: "elsewhere".into(), ..plain("there") };
    let published = publish(&transport, vec![plain("here"), elsewhere]);

    assert_eq!(finish(&mut here, 1).await, ["here"]);
    assert_eq!(finish(&mut there, 1).await, ["there"]);
    assert!(all_confirmed(published).await);
    assert!(is_quiet(&mut here).await && is_quiet(&mut there).await);
}

pub async fn what_is_published_between_two_feeds_waits<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    drop(join(&transport, "group").await);
    let published = publish(&transport, vec![plain("a")]);

    let mut feed = join(&transport, "group").await;

    assert_eq!(finish(&mut feed, 1).await, ["a"]);
    assert!(all_confirmed(published).await);
}

pub async fn a_full_queue_speaks_of_the_destination<F: TransportFixture>(fixture: Arc<F>) {
    let Some(transport) = fixture.bounded(2) else { return };
    let mut feed = join(&transport, "group").await;
    let published = publish(&transport, ["a", "b", "c"].map(plain).to_vec());

    let mut ids = finish(&mut feed, 2).await;
    let results = published.await.unwrap();
    let retried = publish(&transport, vec![plain("c")]);

    ids.sort();
    assert_eq!(ids, ["a", "b"]);
    assert!(results[0].is_ok() && results[1].is_ok());
    assert_eq!(class(&results[2]), Some(Class::Destination), "a full queue says nothing about the message");
    assert_eq!(finish(&mut feed, 1).await, ["c"]);
    assert!(all_confirmed(retried).await);
}

pub async fn a_destination_nobody_knows_confirms_nothing<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let lost = Envelope { destination: "nowhere".into(), ..plain("a") };

    let results = transport.publish(&[lost]).await;

    assert_eq!(results.len(), 1);
    assert!(matches!(class(&results[0]), Some(Class::Destination | Class::Unknown)), "{results:?}");
}

pub async fn a_closed_transport_ends_its_feeds_and_confirms_nothing<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let waiting = tokio::spawn(async move { feed.next().await.map(|next| next.is_none()) });
    if !fixture.close() {
        waiting.abort();
        return;
    }

    assert!(waiting.await.unwrap().unwrap(), "the feed has ended");
    let results = transport.publish(&[plain("a")]).await;
    assert_eq!(class(&results[0]), Some(Class::Destination));
    assert!(transport.subscribe(DESTINATION, "group").await.is_err());
}

fn class(result: &Result<(), Failure>) -> Option<Class> {
    result.as_ref().err().map(|failure| failure.class)
}
