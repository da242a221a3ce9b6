//! Keys keep their order; what has no key waits for nobody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::{Acknowledge, Delivery, Envelope, Feed, Order};

use super::exchange::{all_confirmed, finish, is_quiet, join, next, publish, take};
use crate::fixture::TransportFixture;
use crate::sample::{keyed, plain};

const MOMENT: Duration = Duration::from_millis(60);

pub async fn messages_of_a_key_come_one_at_a_time_and_in_order<F: TransportFixture>(fixture: Arc<F>) {
    if F::CAPABILITIES.order == Order::None {
        return;
    }
    let transport = fixture.transport();
    let mut feeds = vec![join(&transport, "group").await];
    if F::CAPABILITIES.order == Order::ByKey {
        feeds.push(join(&transport, "group").await);
    }
    let batch: Vec<Envelope> = (0..12).map(|n| keyed(format!("{n:02}"), ["a", "b"][n % 2])).collect();
    let published = publish(&transport, batch);

    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..6 {
        let (first, second) = pair(&mut feeds).await;
        assert_ne!(first.envelope.key, second.envelope.key, "a key has one delivery out at a time");
        for feed in &mut feeds {
            assert!(is_quiet(feed).await);
        }
        for delivery in [first, second] {
            seen.entry(delivery.envelope.key.unwrap()).or_default().push(delivery.envelope.id);
            delivery.ack.ack().await.unwrap();
        }
    }

    assert!(seen.values().all(|ids| ids.len() == 6 && ids.is_sorted()), "{seen:?}");
    assert!(all_confirmed(published).await);
}

/// Two deliveries, one of each member, or both of the only one.
async fn pair<F: Feed>(feeds: &mut [F]) -> (Delivery<F::Ack>, Delivery<F::Ack>) {
    let first = next(&mut feeds[0]).await;
    let last = feeds.len() - 1;
    (first, next(&mut feeds[last]).await)
}

pub async fn a_refused_head_holds_back_its_key<F: TransportFixture>(fixture: Arc<F>) {
    if F::CAPABILITIES.order == Order::None {
        return;
    }
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let published = publish(&transport, vec![keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b")]);

    let head = next(&mut feed).await;
    assert_eq!(head.envelope.id, "a1");
    head.ack.nack(MOMENT, true).await.unwrap();
    let rest = finish(&mut feed, 3).await;

    let of_a: Vec<&String> = rest.iter().filter(|id| id.starts_with('a')).collect();
    assert_eq!(of_a, ["a1", "a2"], "{rest:?}");
    assert!(all_confirmed(published).await);
}

pub async fn messages_without_a_key_pass_a_refused_one<F: TransportFixture>(fixture: Arc<F>) {
    if !F::CAPABILITIES.delayed_nack {
        return;
    }
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let published = publish(&transport, vec![plain("a"), plain("b"), plain("c")]);

    let head = next(&mut feed).await;
    let refused = head.envelope.id.clone();
    // Longer than a slow machine takes to deliver the others.
    head.ack.nack(Duration::from_secs(2), true).await.unwrap();
    let rest = finish(&mut feed, 3).await;

    assert_eq!(rest[2], refused, "{rest:?}");
    assert!(all_confirmed(published).await);
}

pub async fn tenants_with_equal_keys_do_not_wait_for_each_other<F: TransportFixture>(fixture: Arc<F>) {
    let transport = fixture.transport();
    let mut feed = join(&transport, "group").await;
    let of = |tenant: &str| Envelope { tenant: tenant.into(), ..keyed(tenant, "k") };
    let published = publish(&transport, vec![of("one"), of("two")]);

    let both = take(&mut feed, 2).await;

    for delivery in both {
        delivery.ack.ack().await.unwrap();
    }
    assert!(all_confirmed(published).await);
}
