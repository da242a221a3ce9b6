//! Messages of one key, one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncebox_core::HandlerError;
use oncebox_core::depot::Depot;
use oncebox_core::letters::{Letters, Requeued};
use oncebox_core::plan::OnDead;
use oncebox_flow::Inbox;

use super::pace::Sleeper;
use super::scene::Bench;
use crate::fixture::StoreFixture;
use crate::path::scene::{Booker, HANDLER};
use crate::sample::Posted;

/// Delivers `count` messages to each of the accounts, in turn.
async fn deliver<F: StoreFixture>(bench: &Bench<F>, inbox: &Inbox<F::Store>, accounts: &[&str], count: i64)
where
    F::Store: Depot + Letters,
{
    for sequence in 1..=count {
        for account in accounts.iter().copied() {
            bench.deliver_one(inbox, &format!("{account}-{sequence}"), &Posted::on(account, sequence)).await;
        }
    }
}

async fn sequences<F: StoreFixture>(bench: &Bench<F>, account: &str) -> Vec<i64>
where
    F::Store: Depot + Letters,
{
    let effects = bench.fixture.effects().await;
    let of_account = effects.iter().filter(|effect| effect.key.as_deref() == Some(account));
    of_account.map(|effect| effect.sequence).collect()
}

/// Fails the second message of the red account for ever.
fn spoiled<F: StoreFixture>(booker: Booker<F>) -> Booker<F> {
    booker.acting(|_, message| match (message.account.as_deref(), message.sequence) {
        (Some("red"), 2) => Err(HandlerError::permanent("never")),
        _ => Ok(()),
    })
}

pub async fn messages_of_a_key_are_handled_in_order_by_many_seats<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let sleeper = Sleeper::new(&fixture, HANDLER, Duration::from_millis(1));
    let inbox =
        bench.inbox().handler_with(sleeper, |options| options.in_order(OnDead::BlockKey)).build().unwrap();
    deliver(&bench, &inbox, &["red", "blue", "green"], 8).await;
    assert_eq!(bench.counts(HANDLER).await.behind, 21);

    let workers = vec![bench.worker(&inbox), bench.worker(&inbox)];
    bench.run_until(workers, HANDLER, 24).await;

    for account in ["red", "blue", "green"] {
        assert_eq!(sequences(&bench, account).await, [1, 2, 3, 4, 5, 6, 7, 8], "{account}");
    }
}

pub async fn a_dead_head_blocks_its_key_and_no_other<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker = spoiled(bench.booker(HANDLER));
    let inbox =
        bench.inbox().handler_with(booker, |options| options.in_order(OnDead::BlockKey)).build().unwrap();
    deliver(&bench, &inbox, &["red", "blue"], 4).await;
    let worker = bench.worker(&inbox);

    bench.exhaust(&worker).await;

    assert_eq!(sequences(&bench, "red").await, [1]);
    assert_eq!(sequences(&bench, "blue").await, [1, 2, 3, 4]);
    let letters = bench.letters().await;
    assert_eq!((letters.len(), letters[0].blocks), (1, 2));
    assert!(bench.store.discard_letter(letters[0].id, bench.clock.now()).await.unwrap());
    bench.exhaust(&worker).await;
    assert_eq!(sequences(&bench, "red").await, [1, 3, 4]);
}

pub async fn a_dead_head_is_passed_by_if_that_was_chosen<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker = spoiled(bench.booker(HANDLER));
    let inbox =
        bench.inbox().handler_with(booker, |options| options.in_order(OnDead::SkipKey)).build().unwrap();
    deliver(&bench, &inbox, &["red"], 4).await;

    bench.exhaust(&bench.worker(&inbox)).await;

    assert_eq!(sequences(&bench, "red").await, [1, 3, 4]);
    let letter = bench.letters().await.remove(0);
    let requeued = bench.store.requeue_letter(letter.id, None, bench.clock.now()).await.unwrap();
    assert_eq!(requeued, Requeued::Ready);
}

pub async fn a_failing_head_holds_its_key_until_it_succeeds<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let booker = bench.booker(HANDLER).acting(|attempt, message| match (attempt, message.sequence) {
        (1 | 2, 2) => Err(HandlerError::retry("not yet")),
        _ => Ok(()),
    });
    let runs = booker.runs();
    let inbox =
        bench.inbox().handler_with(booker, |options| options.in_order(OnDead::BlockKey)).build().unwrap();
    deliver(&bench, &inbox, &["red"], 3).await;

    bench.exhaust(&bench.worker(&inbox)).await;

    assert_eq!(sequences(&bench, "red").await, [1, 2, 3]);
    assert_eq!(runs.load(Ordering::SeqCst), 5);
}
