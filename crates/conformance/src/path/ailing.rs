//! A database that hangs, fails at a bad moment or tells a wrong time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use oncebox_core::store::Purge;
use oncebox_core::{HandlerError, Kind, Mailbox, Outcome, Retention, Store};
use oncebox_flow::{CancellationToken, Clock, Inbox, Janitor, Outbox, Relay};

use super::scene::{HANDLER, Scene, arrived, entry, swift};
use crate::ailing::{Ail, AilingStore, Call};
use crate::fixture::{StoreFixture, kind};
use crate::sample::{DESTINATION, Posted};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn ailing<F: StoreFixture>(scene: &Scene<F>) -> AilingStore<F::Store> {
    AilingStore::new(scene.store.clone())
}

/// Waits until something holds, but not for ever.
async fn eventually<Fut: Future<Output = bool>>(what: &str, holds: impl Fn() -> Fut) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}: not within 60 s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub async fn a_pass_that_hangs_is_given_up_and_the_relay_goes_on<F: StoreFixture>(fixture: Arc<F>) {
    let scene = Scene::new(&fixture);
    let _consumer = scene.consume_plainly().await;
    let store = ailing(&scene);
    store.ail(Call::Read, Ail::Hang, 2);
    let relay = Relay::builder(store.clone(), scene.picky.clone())
        .clock(scene.clock.clone())
        .lease(Duration::from_secs(2))
        .publish_timeout(Duration::from_secs(1))
        .error_backoff(Duration::from_millis(10))
        .poll(Duration::from_millis(20));
    let stop = CancellationToken::new();
    scene.commit(&[Posted::on("red", 1), Posted::on("red", 2), Posted::unkeyed(3)]).await;

    let running = tokio::spawn(relay.build().unwrap().run(stop.clone()));
    eventually("all took effect", async || fixture.effects().await.len() == 3).await;
    stop.cancel();
    let report = running.await.unwrap();

    assert!(store.is_well(), "it hung twice");
    assert_eq!((report.errors, report.published, report.drained), (2, 3, true));
    scene.check().await;
}

pub async fn a_rollback_that_hangs_is_given_up_and_the_message_comes_again<F: StoreFixture>(fixture: Arc<F>) {
    let scene = Scene::new(&fixture);
    let store = ailing(&scene);
    store.ail(Call::Rollback, Ail::Hang, 1);
    let booker = scene.booker(HANDLER).acting(|attempt, _| match attempt {
        1 => Err(HandlerError::retry("not yet")),
        _ => Ok(()),
    });
    let inbox = Inbox::builder(store.clone(), DESTINATION).clock(scene.clock.clone()).handler(booker);
    let inbox = inbox.build().unwrap();
    let message = Posted::on("red", 1);

    let begun = Instant::now();
    let first = inbox.receive(arrived("1", &message), 1).await.single().unwrap();
    let took = begun.elapsed();
    let second = inbox.receive(arrived("1", &message), 2).await.single().unwrap();

    assert!(matches!(first, Outcome::Failed { .. }), "{first:?}");
    assert!(store.is_well() && took < Duration::from_secs(30), "{took:?}");
    assert!(matches!(second, Outcome::Done { .. }), "{second:?}");
    assert_eq!(fixture.effects().await, [entry(HANDLER, "1", &message)]);
}

pub async fn a_sweep_that_hangs_does_not_hold_up_a_stop<F: StoreFixture>(fixture: Arc<F>) {
    let scene = Scene::new(&fixture);
    let store = ailing(&scene);
    store.ail(Call::Purge, Ail::Hang, 1);
    let janitor = Janitor::new(store.clone()).interval(Duration::from_millis(1));
    let stop = CancellationToken::new();

    let running = tokio::spawn(janitor.run(stop.clone()));
    eventually("it hangs", async || store.is_well()).await;
    stop.cancel();

    tokio::time::timeout(Duration::from_secs(30), running).await.expect("it stops").unwrap();
}

pub async fn a_janitor_does_not_believe_a_clock_that_jumped<F: StoreFixture>(fixture: Arc<F>) {
    let scene = Scene::new(&fixture);
    let store = ailing(&scene);
    // By the database's own clock, as in production.
    let outbox = Outbox::new(store.clone());
    let mut tx = store.begin().await.unwrap();
    outbox.put(&mut tx, &Posted::unkeyed(1)).await.unwrap();
    store.commit(tx).await.unwrap();
    let _consumer = scene.consume_plainly().await;
    Relay::builder(store.clone(), scene.picky.clone()).build().unwrap().step().await.unwrap();
    let janitor = Janitor::new(store.clone());
    let early = janitor.sweep().await.unwrap();

    store.jump(8 * DAY);
    let refused = janitor.sweep().await;
    let kept = scene.status().await.logged;
    store.jump(Duration::ZERO);
    let refused_back = janitor.sweep().await;
    let steady = janitor.sweep().await.unwrap();
    store.jump(8 * DAY);

    assert_eq!(early.outbox, 0);
    let text = refused.as_ref().unwrap_err().chain();
    assert!(text.contains("the database's clock jumped") && text.contains("nothing is purged"), "{text}");
    assert_eq!((kind(refused), kind(refused_back)), (Some(Kind::Unavailable), Some(Kind::Unavailable)));
    assert_eq!((kept, steady.outbox), (1, 0));
    let believed = store.purge(&Purge::Outbox(7 * DAY), 10, None).await.unwrap();
    assert_eq!(believed, 1, "whoever believes that clock deletes what is an instant old");
}

pub async fn a_delay_counts_by_the_databases_clock<F: StoreFixture>(fixture: Arc<F>) {
    let scene = Scene::new(&fixture);
    let store = ailing(&scene);
    store.jump(DAY);
    let outbox = Outbox::new(store.clone());

    let mut tx = store.begin().await.unwrap();
    let before = store.clock(&mut tx).await.unwrap();
    outbox.message(&Posted::unkeyed(1)).unwrap().delay(HOUR).put(&mut tx).await.unwrap();
    let after = store.clock(&mut tx).await.unwrap();
    store.commit(tx).await.unwrap();

    let instant = Duration::from_micros(1);
    let by_this_machine = scene.store.promote(10, Some(before.minus(DAY).plus(2 * HOUR))).await.unwrap();
    let too_early = scene.store.promote(10, Some(before.plus(HOUR).minus(instant))).await.unwrap();
    let in_time = scene.store.promote(10, Some(after.plus(HOUR))).await.unwrap();
    assert_eq!((by_this_machine, too_early, in_time), (0, 0, 1));
}

pub async fn a_run_that_could_not_be_signed_off_is_not_a_death<F: StoreFixture>(fixture: Arc<F>) {
    let scene = Scene::new(&fixture);
    let store = ailing(&scene);
    let booker = scene.booker(HANDLER).acting(|attempt, _| match attempt {
        1 => Err(HandlerError::retry("not yet")),
        _ => Ok(()),
    });
    let runs = booker.runs();
    let retry = oncebox_core::verdict::RetryPolicy { max_attempts: Some(2), ..swift() };
    let inbox = Inbox::builder(store.clone(), DESTINATION).clock(Clock::Database).retry(retry);
    let inbox = inbox.count_deaths(true).handler(booker).build().unwrap();
    let message = Posted::on("red", 1);
    let deliver = async |attempt| inbox.receive(arrived("1", &message), attempt).await.single().unwrap();
    let deliver_when_over = async |attempt| loop {
        match deliver(attempt).await {
            Outcome::Busy => tokio::time::sleep(Duration::from_millis(20)).await,
            outcome => return outcome,
        }
    };

    // As many as deaths would be allowed, and more often each than is tried
    // while the transport waits for its answer.
    store.ail(Call::Leave, Ail::Fail, 4);
    let first = deliver(1).await;
    let meanwhile = deliver(1).await;
    eventually("it was signed off", async || store.is_well()).await;
    store.ail(Call::Leave, Ail::Fail, 4);
    let second = deliver_when_over(1).await;
    eventually("it was signed off", async || store.is_well()).await;
    let last = deliver_when_over(2).await;

    assert!(matches!((&first, &second), (Outcome::Failed { .. }, Outcome::Failed { .. })), "{second:?}");
    assert_eq!(meanwhile, Outcome::Busy, "it is not over yet");
    assert!(matches!(last, Outcome::Done { .. }), "{last:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}
