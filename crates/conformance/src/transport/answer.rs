//! A delivery is answered once, and what is not answered comes again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox_core::{Acknowledge, Envelope, Feed};

use super::exchange::{all_confirmed, finish, is_quiet, join, next, publish, take};
use crate::fixture::TransportFixture;
use crate::sample::{at, full, keyed, plain};

pub async fn a_confirmed_message_is_delivered_whole<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let sent = Envelope { time: at(0), ..full("a") };
    let published = publish(&transport, vec![sent.clone()]);

    let delivery = next(&mut feed).await;
    let (envelope, attempt) = (delivery.envelope.clone(), delivery.attempt);
    delivery.ack.ack().await.unwrap();

    assert!(all_confirmed(published).await);
    assert!(envelope == sent, "a field was lost");
    assert_eq!(attempt, 1);
}

pub async fn an_acknowledged_message_does_not_come_again<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let published = publish(&transport, ["a", "b"].map(plain).to_vec());

    let mut ids = finish(&mut feed, 2).await;

    ids.sort();
    assert_eq!(ids, ["a", "b"]);
    assert!(all_confirmed(published).await);
    assert!(is_quiet(&mut feed).await);
}

pub async fn a_dropped_answer_means_redelivery<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let published = publish(&transport, vec![plain("a")]);

    drop(next(&mut feed).await);
    let again = next(&mut feed).await;

    assert_eq!(again.envelope.id, "a");
    again.ack.ack().await.unwrap();
    assert!(all_confirmed(published).await);
}

pub async fn a_refused_delivery_comes_again_after_its_delay<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let _published = publish(&transport, vec![plain("a")]);
    let delay = Duration::from_millis(150);

    let refused = Instant::now();
    next(&mut feed).await.ack.nack(delay, true).await.unwrap();
    let again = next(&mut feed).await;
    let waited = refused.elapsed();

    assert_eq!(again.envelope.id, "a");
    assert!(waited >= delay || !F::CAPABILITIES.delayed_nack, "it came after {waited:?}");
    again.ack.nack(Duration::ZERO, true).await.unwrap();
    assert_eq!(finish(&mut feed, 1).await, ["a"]);
}

pub async fn only_spent_attempts_are_counted<F: TransportFixture>(fixture: Arc<F>) {
    if !F::CAPABILITIES.exact_attempts {
        return;
    }
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let _published = publish(&transport, vec![keyed("a", "k")]);

    let mut attempts = Vec::new();
    for spent in [true, false, false, true, false] {
        let delivery = next(&mut feed).await;
        attempts.push(delivery.attempt);
        delivery.ack.nack(Duration::ZERO, spent).await.unwrap();
    }
    attempts.push(next(&mut feed).await.attempt);

    assert_eq!(attempts, [1, 2, 2, 2, 3, 3]);
}

pub async fn a_feed_that_is_dropped_loses_no_delivery<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let mut first = join(&transport, "group").await;
    let published = publish(&transport, ["a", "b", "c"].map(plain).to_vec());

    let unanswered = take(&mut first, 2).await;
    drop(first);
    drop(unanswered);
    let mut second = join(&transport, "group").await;
    let mut ids = finish(&mut second, 3).await;

    ids.sort();
    assert_eq!(ids, ["a", "b", "c"]);
    assert!(all_confirmed(published).await);
}

pub async fn a_dropped_wait_loses_no_delivery<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let batch: Vec<Envelope> = (0..20).map(|n| plain(n.to_string())).collect();
    let published = publish(&transport, batch);

    let mut seen = 0;
    while seen < 20 {
        // Given up at once, most of the time while something is on its way.
        if let Ok(delivery) = tokio::time::timeout(Duration::from_micros(30), feed.next()).await {
            delivery.unwrap().unwrap().ack.ack().await.unwrap();
            seen += 1;
        }
    }

    assert!(all_confirmed(published).await);
    assert!(is_quiet(&mut feed).await);
}
