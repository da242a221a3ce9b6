//! Processes that die at the named points, and others that take over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncebox_core::{HandlerError, Store};
use oncebox_flow::crash::Reaction;
use oncebox_flow::{CrashPoint, Probe};

use super::carrier::Carrier;
use super::scene::{HANDLER, Scene, entry};
use crate::fixture::StoreFixture;
use crate::sample::Posted;

/// A probe that lets its process die once, at `point`; and whether it did.
fn dies_once(point: CrashPoint) -> (Probe, Arc<AtomicBool>) {
    let died = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&died);
    let probe = Probe::new(move |reached| {
        let is_here = reached == point && !seen.swap(true, Ordering::SeqCst);
        std::future::ready(if is_here { Reaction::Crash } else { Reaction::Go })
    });
    (probe, died)
}

fn messages(start: i64) -> Vec<Posted> {
    (start..start + 6).map(|n| Posted::on(["red", "blue"][usize::try_from(n % 2).unwrap()], n)).collect()
}

pub async fn a_relay_that_dies_anywhere_loses_and_doubles_nothing<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    for (start, point) in (0..).step_by(6).zip([CrashPoint::R2, CrashPoint::R5, CrashPoint::R6]) {
        // Whoever worked before is gone for good.
        scene.clock.advance(Duration::from_secs(31));
        let (probe, died) = dies_once(point);
        let mut dying = scene.relay_builder().probe(probe).build().unwrap();
        scene.commit(&messages(start)).await;

        let crashed = dying.step().await;
        drop(dying);
        scene.clock.advance(Duration::from_secs(31));
        scene.settle(&mut [scene.relay()]).await;

        assert!(died.load(Ordering::SeqCst) && crashed.is_err(), "{point:?} was reached");
    }

    scene.check().await;
}

pub async fn a_consumer_that_dies_anywhere_loses_and_doubles_nothing<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let mut relays = [scene.relay()];
    let points = [CrashPoint::C1, CrashPoint::C2, CrashPoint::C3, CrashPoint::C5, CrashPoint::C6];
    for (start, point) in (0..).step_by(6).zip(points) {
        let (probe, died) = dies_once(point);
        let inbox = scene.inbox().handler(scene.booker(HANDLER)).probe(probe).build().unwrap();
        let consumer = scene.consume(inbox, 1).await;
        scene.commit(&messages(start)).await;

        scene.settle(&mut relays).await;
        consumer.stop().await;

        assert!(died.load(Ordering::SeqCst), "{point:?} was reached");
        scene.check().await;
    }
}

pub async fn a_producer_that_dies_anywhere_leaves_all_or_nothing<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let points = [
        (CrashPoint::P1, false),
        (CrashPoint::P2, false),
        (CrashPoint::P3, false),
        (CrashPoint::P4, true),
        (CrashPoint::P5, true),
    ];
    for (n, (point, is_committed)) in (0..).zip(points) {
        let (probe, died) = dies_once(point);
        let outbox = scene.outbox.clone().probe(probe);
        let (fixture, message) = (Arc::clone(&scene.fixture), Posted::unkeyed(n));

        let crashed = outbox
            .transact(move |unit| {
                Box::pin(async move {
                    fixture.effect(unit.tx(), &entry("business", &n.to_string(), &message)).await?;
                    unit.put(&message).await.map_err(HandlerError::retry)
                })
            })
            .await;

        assert!(died.load(Ordering::SeqCst) && crashed.is_err(), "{point:?} was reached");
        let (written, logged) = (scene.fixture.effects().await, scene.status().await.logged);
        let count =
            points.iter().take(usize::try_from(n).unwrap() + 1).filter(|(_, committed)| *committed).count();
        assert_eq!(written.iter().any(|effect| effect.sequence == n), is_committed, "{point:?}");
        assert_eq!((written.len(), logged), (count, i64::try_from(count).unwrap()), "{point:?}");
    }
    // The connections they died on are good for others.
    scene.store.rollback(scene.store.begin().await.unwrap()).await.unwrap();
}
