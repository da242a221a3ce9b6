//! A message goes where the routes say, and each sink takes what is its own.

use std::sync::Arc;

use oncebox_core::{Envelope, Failure, Kind, Mailbox, Publisher, Result, Routes, Rule, Store};
use oncebox_flow::{Outbox, Relay, Routed};

use super::scene::Scene;
use crate::fixture::{StoreFixture, kind};
use crate::sample::{Echoed, Posted};
use crate::steps::log;

const POSTED: &str = "conformance.posted.v1";

/// Takes everything, except what goes to `closed`.
#[derive(Clone, Default)]
struct Post {
    taken: Arc<std::sync::Mutex<Vec<(String, String)>>>,
    closed: Arc<std::sync::Mutex<Option<String>>>,
}

impl Post {
    fn taken(&self) -> Vec<String> {
        self.taken.lock().unwrap().iter().map(|(kind, to)| format!("{kind} to {to}")).collect()
    }
}

impl Publisher for Post {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let closed = self.closed.lock().unwrap().clone();
        let take = |envelope: &Envelope| {
            if Some(&envelope.destination) == closed.as_ref() {
                return Err(Failure::destination("closed"));
            }
            self.taken.lock().unwrap().push((envelope.kind.clone(), envelope.destination.clone()));
            Ok(())
        };
        batch.iter().map(take).collect()
    }
}

/// The destinations of what is in the log.
async fn destinations<S: Mailbox>(store: &S) -> Vec<String> {
    log(store).await.into_iter().map(|row| row.envelope.unwrap().destination).collect()
}

async fn put_both<F: StoreFixture>(scene: &Scene<F>) {
    let mut tx = scene.store.begin().await.unwrap();
    scene.outbox.put(&mut tx, &Posted::unkeyed(1)).await.unwrap();
    scene.outbox.put(&mut tx, &Echoed(Posted::unkeyed(1))).await.unwrap();
    scene.store.commit(tx).await.unwrap();
}

pub async fn sinks_take_what_is_theirs_each_at_its_own_pace<F: StoreFixture>(fixture: Arc<F>) {
    let scene = Scene::new(&fixture);
    let (orders, audit) = (Post::default(), Post::default());
    let sink = |name: &str, post: &Post, rules: Vec<Rule>| {
        let routed = Routed::new(post.clone(), Routes::new(rules).unwrap());
        Relay::builder(scene.store.clone(), routed).sink(name).clock(scene.clock.clone()).build().unwrap()
    };
    let mut relays = [
        sink("orders", &orders, vec![Rule::to(POSTED, "orders/{destination}"), Rule::skip("*")]),
        sink("audit", &audit, vec![Rule::to("*", "audit.{type}")]),
    ];
    *audit.closed.lock().unwrap() = Some(format!("audit.{POSTED}"));

    put_both(&scene).await;
    for relay in &mut relays {
        relay.step().await.unwrap();
    }
    let early = (orders.taken(), audit.taken());
    *audit.closed.lock().unwrap() = None;
    scene.settle(&mut relays).await;

    assert_eq!(early.0, [format!("{POSTED} to orders/bookings")], "the other message is not for this sink");
    assert_eq!(audit.taken().len(), 2);
    assert!(audit.taken().contains(&format!("{POSTED} to audit.{POSTED}")));
    assert_eq!(orders.taken().len(), 1, "a sink's outage is its own");
}

pub async fn the_destination_that_is_down_is_told_by_where_messages_really_go<F: StoreFixture>(
    fixture: Arc<F>,
) {
    let scene = Scene::new(&fixture);
    let post = Post::default();
    // Both go to one destination by their own account, and to two by the sink's.
    let routes = Routes::new([Rule::to("*", "{type}")]).unwrap();
    let relay = Relay::builder(scene.store.clone(), Routed::new(post.clone(), routes));
    let mut relay = relay.clock(scene.clock.clone()).build().unwrap();
    *post.closed.lock().unwrap() = Some(POSTED.into());
    let outbox = scene.outbox.clone().route::<Echoed>(crate::sample::DESTINATION);
    let mut tx = scene.store.begin().await.unwrap();
    outbox.put(&mut tx, &Posted::unkeyed(1)).await.unwrap();
    outbox.put(&mut tx, &Echoed(Posted::unkeyed(2))).await.unwrap();
    scene.store.commit(tx).await.unwrap();

    let progress = relay.step().await.unwrap();

    assert_eq!((progress.published, progress.parked, progress.outage), (1, 1, None));
}

pub async fn an_outbox_routes_by_name_unless_told_otherwise<F: StoreFixture>(fixture: Arc<F>) {
    let scene = Scene::new(&fixture);
    let routes = Routes::new([Rule::to("conformance.*", "{tenant}-{destination}")]).unwrap();
    let outbox: Outbox<F::Store> = scene
        .outbox
        .clone()
        .routes(routes)
        .route::<Echoed>("by-type")
        .enrich(|envelope| envelope.tenant = "acme".into());
    let message = Posted::unkeyed(1);
    let mut tx = scene.store.begin().await.unwrap();

    outbox.put(&mut tx, &message).await.unwrap();
    outbox.put(&mut tx, &Echoed(message.clone())).await.unwrap();
    outbox.message(&message).unwrap().put(&mut tx).await.unwrap();
    outbox.message(&message).unwrap().destination("by-hand").put(&mut tx).await.unwrap();
    scene.store.commit(tx).await.unwrap();

    let mut found = destinations(&scene.store).await;
    found.sort();
    assert_eq!(found, ["acme-bookings", "acme-bookings", "by-hand", "by-type"]);
}

pub async fn a_routes_size_limit_is_checked_at_put<F: StoreFixture>(fixture: Arc<F>) {
    let scene = Scene::new(&fixture);
    let limited = |max| Routes::new([Rule::to("conformance.*", "small").within(max)]).unwrap();
    let message = Posted::on(&"x".repeat(200), 1);
    let mut tx = scene.store.begin().await.unwrap();

    let refused = scene.outbox.clone().routes(limited(100)).put(&mut tx, &message).await;
    let taken = scene.outbox.clone().routes(limited(1000)).put(&mut tx, &message).await;
    scene.store.commit(tx).await.unwrap();

    let error = refused.as_ref().err().map(ToString::to_string).unwrap_or_default();
    assert!(error.contains("the limit is 100"), "{error}");
    assert_eq!(kind(refused), Some(Kind::Invalid));
    assert!(taken.is_ok());
    assert_eq!(destinations(&scene.store).await, ["small"]);
}
