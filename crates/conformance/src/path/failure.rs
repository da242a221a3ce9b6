//! What a failure costs, and when a message is given up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Envelope, Error, HandlerError, Kind, Outcome, Verdict};
use oncebox_flow::HandlerOptions;
use oncebox_flow::inbox::InboxOptions;

use super::carrier::Carrier;
use super::scene::{Booker, HANDLER, Scene, arrived, swift};
use crate::fixture::StoreFixture;
use crate::sample::Posted;

/// Sends three messages of one account through a consumer with this handler.
async fn through<F: StoreFixture, T: Carrier>(
    scene: &Scene<F, T>,
    booker: Booker<F>,
    retry: RetryPolicy,
) -> usize {
    let runs = booker.runs();
    let inbox = scene.inbox().handler(booker).retry(retry).build().unwrap();
    let consumer = scene.consume(inbox, 1).await;
    scene.commit(&[Posted::on("red", 1), Posted::on("red", 2), Posted::on("red", 3)]).await;
    scene.settle(&mut [scene.relay()]).await;
    consumer.stop().await;
    runs.load(Ordering::SeqCst)
}

/// Fails the second message for ever, in this way.
fn spoiled<F>(booker: Booker<F>, fail: fn() -> Result<(), HandlerError>) -> Booker<F> {
    booker.acting(move |_, message| if message.sequence == 2 { fail() } else { Ok(()) })
}

pub async fn a_failing_message_is_tried_as_often_as_allowed_and_buried<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let booker = spoiled(scene.booker(HANDLER), || Err(HandlerError::retry("never")));

    let runs = through(&scene, booker, RetryPolicy { max_attempts: Some(4), ..swift() }).await;

    assert_eq!(runs, 2 + 4);
    assert_eq!(scene.sequences().await, [1, 3]);
    let status = scene.status().await;
    assert_eq!((status.dead_letters, status.markers), (1, 2), "a failed message leaves no marker");
}

pub async fn a_message_that_fails_at_first_takes_effect_once<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let booker = scene.booker(HANDLER).acting(|attempt, message| match (attempt, message.sequence) {
        (1, 1) => Err(HandlerError::retry("later")),
        (2, 1) => Err(HandlerError::retry_after(Duration::from_millis(1), "a little later")),
        _ => Ok(()),
    });

    let runs = through(&scene, booker, swift()).await;

    assert_eq!(runs, 5);
    scene.check().await;
    assert_eq!(scene.status().await.dead_letters, 0);
}

pub async fn a_permanent_failure_is_buried_at_once<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let booker = spoiled(scene.booker(HANDLER), || Err(HandlerError::permanent("never")));

    let runs = through(&scene, booker, swift()).await;

    assert_eq!(runs, 3);
    assert_eq!(scene.sequences().await, [1, 3]);
    assert_eq!(scene.status().await.dead_letters, 1);
}

pub async fn a_panic_is_a_failure_of_its_message_only<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let booker = spoiled(scene.booker(HANDLER), || panic!("on purpose"));

    let runs = through(&scene, booker, RetryPolicy { max_attempts: Some(2), ..swift() }).await;

    assert_eq!(runs, 4);
    assert_eq!(scene.sequences().await, [1, 3]);
    assert_eq!(scene.status().await.dead_letters, 1);
}

pub async fn a_handler_that_takes_too_long_leaves_nothing<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let options = HandlerOptions { timeout: Some(Duration::from_millis(30)), ..HandlerOptions::default() };
    let endless = Endless { booker: scene.booker(HANDLER).options(options) };
    let inbox = scene.inbox().handler(endless).build().unwrap();

    let outcome = inbox.receive(arrived("1", &Posted::unkeyed(1)), 1).await.single().unwrap();

    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
    assert!(scene.fixture.effects().await.is_empty());
    assert_eq!(scene.status().await.markers, 0);
}

/// Books, then waits for ever.
struct Endless<F> {
    booker: Booker<F>,
}

impl<F: StoreFixture> oncebox_flow::Handler<<F::Store as oncebox_core::Store>::Tx> for Endless<F> {
    type Message = Posted;

    fn key(&self) -> oncebox_core::HandlerKey {
        oncebox_core::HandlerKey::new("endless")
    }

    fn options(&self) -> HandlerOptions {
        self.booker.options.clone()
    }

    async fn handle(
        &self,
        cx: &mut oncebox_flow::Context<'_, <F::Store as oncebox_core::Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        self.booker.handle(cx, message).await?;
        std::future::pending().await
    }
}

pub async fn an_undecodable_message_is_buried<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let inbox = scene.inbox().handler(scene.booker(HANDLER)).build().unwrap();
    let broken = Envelope { payload: b"{\"account\":".to_vec(), ..arrived("1", &Posted::unkeyed(1)) };

    let outcome = inbox.receive(broken.clone(), 1).await.single().unwrap();
    let verdict = inbox.deliver(broken, 1).await;

    assert!(matches!(outcome, Outcome::Refused { code: "undecodable", .. }), "{outcome:?}");
    assert_eq!(verdict, Verdict::Done, "it is safely buried");
    assert_eq!(scene.status().await.dead_letters, 1);
}

pub async fn an_unknown_type_is_buried_or_ignored<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let unknown = Envelope { kind: "nobody.knows".into(), ..arrived("1", &Posted::unkeyed(1)) };
    let ignoring = InboxOptions { ignore_unknown: true, ..InboxOptions::default() };
    let lenient = scene.inbox().handler(scene.booker(HANDLER)).options(ignoring).build().unwrap();
    let strict = scene.inbox().handler(scene.booker(HANDLER)).build().unwrap();

    assert_eq!(lenient.deliver(unknown.clone(), 1).await, Verdict::Done);
    let ignored = scene.status().await.dead_letters;
    assert_eq!(strict.deliver(unknown.clone(), 1).await, Verdict::Done);
    assert_eq!(strict.deliver(unknown, 2).await, Verdict::Done);

    assert_eq!((ignored, scene.status().await.dead_letters), (0, 1));
}

pub async fn the_databases_troubles_spend_no_attempt<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let troubles = [Kind::Unavailable, Kind::Busy, Kind::CommitUnknown];
    let booker = scene.booker(HANDLER);
    let runs = booker.runs();
    let booker = booker.acting({
        let runs = Arc::clone(&runs);
        move |attempt, _| {
            assert_eq!(attempt, 1, "nothing was the message's fault");
            let trouble = troubles.get(runs.load(Ordering::SeqCst) - 1).copied();
            trouble.map_or(Ok(()), |kind| Err(HandlerError::retry(Error::new(kind, "trouble"))))
        }
    });
    let inbox = scene.inbox().handler(booker).retry(RetryPolicy { max_attempts: Some(1), ..swift() });
    let consumer = scene.consume(inbox.build().unwrap(), 1).await;
    scene.commit(&[Posted::on("red", 1)]).await;

    scene.settle(&mut [scene.relay()]).await;
    consumer.stop().await;

    assert_eq!(runs.load(Ordering::SeqCst), 4);
    scene.check().await;
    assert_eq!(scene.status().await.dead_letters, 0);
}

pub async fn an_undecodable_message_on_the_wire_holds_up_no_other<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let _consumer = scene.consume_plainly().await;
    let broken = Envelope { payload: b"{\"account\":".to_vec(), ..arrived("1", &Posted::on("red", 1)) };

    scene.send(&[broken, arrived("2", &Posted::on("red", 2))]).await;

    assert_eq!(scene.sequences().await, [2]);
    assert_eq!(scene.status().await.dead_letters, 1);
}
