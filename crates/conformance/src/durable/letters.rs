//! What a person does with dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncebox_core::depot::Depot;
use oncebox_core::letters::{DeadLetter, LetterId, Letters, Requeued};
use oncebox_core::{Envelope, HandlerError, Message as _};
use oncebox_flow::Inbox;

use super::scene::Bench;
use crate::fixture::StoreFixture;
use crate::path::scene::HANDLER;
use crate::sample::Posted;

/// An inbox whose handler fails until the switch is set.
fn moody<F: StoreFixture>(bench: &Bench<F>) -> (Inbox<F::Store>, Arc<AtomicBool>)
where
    F::Store: Depot + Letters,
{
    let is_well = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_well);
    let booker = bench.booker(HANDLER).acting(move |attempt, message| {
        if seen.load(Ordering::SeqCst) || message.amount == 77 {
            Ok(())
        } else {
            Err(HandlerError::retry(format!("failed at attempt {attempt}")))
        }
    });
    (bench.inbox().handler(booker).build().unwrap(), is_well)
}

/// A message that the moody handler has given up.
async fn buried<F: StoreFixture>(bench: &Bench<F>) -> (Inbox<F::Store>, Arc<AtomicBool>, DeadLetter)
where
    F::Store: Depot + Letters,
{
    let (inbox, is_well) = moody(bench);
    bench.deliver(&inbox, [1]).await;
    bench.exhaust(&bench.worker(&inbox)).await;
    let letter = bench.letters().await.remove(0);
    (inbox, is_well, letter)
}

pub async fn a_dead_letter_tells_its_story_and_runs_again_when_requeued<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let (inbox, is_well, DeadLetter { id, .. }) = buried(&bench).await;
    let worker = bench.worker(&inbox);

    let letter = bench.store.letter(id).await.unwrap().unwrap();
    let story: Vec<(u32, &str)> =
        letter.history.iter().map(|attempt| (attempt.attempt, attempt.reason.as_str())).collect();
    assert_eq!(story, [(1, "failed at attempt 1"), (2, "failed at attempt 2"), (3, "failed at attempt 3")]);
    let too_old =
        bench.store.requeue_letter(id, Some(Duration::from_secs(1)), bench.clock.now()).await.unwrap();
    assert_eq!(too_old, Requeued::TooOld);

    is_well.store(true, Ordering::SeqCst);
    assert_eq!(bench.store.requeue_letter(id, None, bench.clock.now()).await.unwrap(), Requeued::Ready);
    assert_eq!(bench.store.requeue_letter(id, None, bench.clock.now()).await.unwrap(), Requeued::Missing);
    let worked = worker.run_until_idle().await.unwrap();

    assert_eq!(worked.iter().map(|worked| worked.attempt).collect::<Vec<_>>(), [1], "with fresh attempts");
    assert_eq!(bench.effects().await, [1]);
    assert_eq!(bench.letters().await.len(), 0);
}

pub async fn a_discarded_letter_is_gone_for_good<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let (inbox, is_well, DeadLetter { id, .. }) = buried(&bench).await;
    let worker = bench.worker(&inbox);

    assert!(bench.store.discard_letter(id, bench.clock.now()).await.unwrap());
    assert!(!bench.store.discard_letter(id, bench.clock.now()).await.unwrap());
    is_well.store(true, Ordering::SeqCst);
    bench.deliver(&inbox, [1]).await;
    bench.exhaust(&worker).await;

    assert_eq!(bench.effects().await, [0_i64; 0], "a copy that comes later is known");
    assert_eq!(bench.letters().await.len(), 0);
}

pub async fn an_edited_letter_runs_as_a_new_message_that_names_the_old_one<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let (inbox, _, letter) = buried(&bench).await;
    let worker = bench.worker(&inbox);
    let mended = Posted { amount: 77, ..Posted::on("red", 1) };
    let edited = Envelope {
        id: "mended-1".into(),
        causation_id: Some(letter.envelope.id.clone()),
        payload: mended.encode().unwrap(),
        ..letter.envelope.clone()
    };

    let number = bench.store.amend_letter(letter.id, &edited, bench.clock.now()).await.unwrap();
    let again = bench.store.amend_letter(letter.id, &edited, bench.clock.now()).await.unwrap();
    let worked = worker.run_until_idle().await.unwrap();

    assert!(number.is_some() && again.is_none());
    assert_eq!(worked.iter().map(|worked| worked.id.as_str()).collect::<Vec<_>>(), ["mended-1"]);
    assert_eq!(bench.effects().await, [1]);
    assert_eq!(bench.letters().await.len(), 0);
}

pub async fn a_letter_of_receiver_mode_can_be_requeued_to_a_worker<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let broken = bench.booker(HANDLER).acting(|_, _| Err(HandlerError::permanent("never")));
    let receiver = bench.receiver().handler(broken).build().unwrap();
    bench.deliver(&receiver, [1]).await;
    let letter = bench.letters().await.remove(0);
    let mended = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();

    assert!(matches!(letter.id, LetterId::Received(_)), "{:?}", letter.id);
    assert_eq!(
        bench.store.requeue_letter(letter.id, None, bench.clock.now()).await.unwrap(),
        Requeued::Ready
    );
    bench.worker(&mended).run_until_idle().await.unwrap();

    assert_eq!(bench.effects().await, [1]);
    assert_eq!(bench.letters().await.len(), 0);
}

pub async fn a_replayed_delivery_takes_effect_once_more_and_no_oftener<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let inbox = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();
    bench.deliver(&inbox, [1]).await;
    let worker = bench.worker(&inbox);
    worker.run_until_idle().await.unwrap();

    let replayed = bench.store.replay_delivery(1, bench.clock.now()).await.unwrap();
    let twice = bench.store.replay_delivery(1, bench.clock.now()).await.unwrap();
    bench.deliver(&inbox, [1]).await;
    bench.exhaust(&worker).await;

    assert!(replayed && !twice, "it is under way already");
    assert_eq!(bench.effects().await, [1, 1]);
}
