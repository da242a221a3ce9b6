//! Effects outside the database.

use std::sync::{Arc, Mutex};

use oncebox_core::HandlerError;
use oncebox_core::depot::Depot;
use oncebox_core::letters::Letters;
use oncebox_flow::inbox::Effects;

use super::scene::Bench;
use crate::fixture::StoreFixture;
use crate::path::scene::HANDLER;
use crate::sample::Posted;

/// The world outside: the keys it was called with.
type World = Arc<Mutex<Vec<String>>>;

/// Calls the world twice, the second time in vain at first.
async fn charge_and_mail(world: World, effects: Effects, message: Posted) -> Result<(), HandlerError> {
    let (sink, amount) = (Arc::clone(&world), message.amount);
    let receipt: i64 = effects
        .once("charge", |key| async move {
            sink.lock().unwrap().push(format!("charge {key}"));
            Ok(amount)
        })
        .await?;
    assert_eq!(receipt, message.amount, "a later run gets the result of the first");
    let attempt = effects.attempt();
    effects
        .once("mail", |key| async move {
            world.lock().unwrap().push(format!("mail {key}"));
            if attempt == 1 { Err(HandlerError::retry("the mail server is down")) } else { Ok(()) }
        })
        .await
}

async fn run<F: StoreFixture>(fixture: &Arc<F>) -> (Bench<F>, World, oncebox_flow::Inbox<F::Store>)
where
    F::Store: Depot + Letters,
{
    let (bench, world) = (Bench::new(fixture), World::default());
    let called = Arc::clone(&world);
    let inbox = bench
        .inbox()
        .outside::<Posted, _, _>(HANDLER, move |effects, message| {
            charge_and_mail(Arc::clone(&called), effects, message)
        })
        .build()
        .unwrap();
    bench.deliver(&inbox, [1]).await;
    bench.exhaust(&bench.worker(&inbox)).await;
    (bench, world, inbox)
}

pub async fn an_effect_outside_is_caused_with_the_same_key_in_every_run<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let (bench, world, _inbox) = run(&fixture).await;

    let calls = world.lock().unwrap().clone();
    let mails: Vec<&String> = calls.iter().filter(|call| call.starts_with("mail")).collect();
    assert_eq!(mails.len(), 2);
    assert_eq!(mails[0], mails[1]);
    assert_ne!(mails[0].trim_start_matches("mail"), calls[0].trim_start_matches("charge"));
    assert_eq!(bench.counts(HANDLER).await.ready, 0);
}

pub async fn an_effect_that_was_recorded_is_not_caused_again<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let (_bench, world, _inbox) = run(&fixture).await;

    let charges = world.lock().unwrap().iter().filter(|call| call.starts_with("charge")).count();
    assert_eq!(charges, 1);
}

pub async fn effects_of_a_replayed_delivery_are_caused_again_with_another_key<F: StoreFixture>(
    fixture: Arc<F>,
) where
    F::Store: Depot + Letters,
{
    let (bench, world, inbox) = run(&fixture).await;

    // The only delivery of a fresh store.
    assert!(bench.store.replay_delivery(1, bench.clock.now()).await.unwrap());
    bench.exhaust(&bench.worker(&inbox)).await;

    let calls = world.lock().unwrap().clone();
    let charges: Vec<&String> = calls.iter().filter(|call| call.starts_with("charge")).collect();
    assert_eq!(charges.len(), 2);
    assert_ne!(charges[0], charges[1]);
}
