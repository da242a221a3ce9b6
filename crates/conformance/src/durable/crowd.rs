//! Many messages that arrive at once: more than one transaction stores.

use std::sync::Arc;

use futures_util::future::join_all;
use oncebox_core::Verdict;
use oncebox_core::depot::Depot;
use oncebox_core::inspect::HandlerStatus;
use oncebox_core::letters::Letters;
use oncebox_core::plan::OnDead;
use oncebox_flow::{Inbox, WorkOptions, Worker};

use super::scene::{Bench, options};
use crate::fixture::StoreFixture;
use crate::path::scene::{HANDLER, arrived};
use crate::sample::Posted;

/// Enough for two transactions beside each other.
const CROWD: i64 = 1_100;

/// Delivers all of them without waiting for any.
async fn deliver_at_once<F: StoreFixture>(inbox: &Inbox<F::Store>, messages: &[(String, Posted)])
where
    F::Store: Depot + Letters,
{
    let delivered = join_all(messages.iter().map(|(id, message)| inbox.deliver(arrived(id, message), 1)));
    assert!(delivered.await.iter().all(|verdict| *verdict == Verdict::Done));
}

fn is_over(counts: &HandlerStatus) -> bool {
    counts.ready + counts.leased + counts.behind == 0
}

pub async fn of_a_crowd_with_copies_each_takes_effect_once<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let inbox = bench.inbox().handler(bench.booker(HANDLER)).build().unwrap();
    let of = |sequence: i64| (sequence.to_string(), Posted::on("red", sequence));
    // And all of them once more from the last to the first: transactions that store the one and the
    // other at the same time would meet halfway, and each wait for the other.
    let messages: Vec<_> = (1..=CROWD).chain((1..=CROWD).rev()).map(of).collect();

    deliver_at_once::<F>(&inbox, &messages).await;

    let batches = WorkOptions { batch: 100, ..options() };
    let worker = Worker::new(&inbox, batches).unwrap();
    bench.run_until(vec![worker], HANDLER, CROWD as usize).await;
    assert_eq!(bench.effects().await, (1..=CROWD).collect::<Vec<_>>());
    assert!(is_over(&bench.counts(HANDLER).await));
}

pub async fn a_crowd_in_order_is_stored_in_order<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot + Letters,
{
    let bench = Bench::new(&fixture);
    let (booker, in_order) = (bench.booker(HANDLER), OnDead::BlockKey);
    let inbox = bench.inbox().handler_with(booker, |options| options.in_order(in_order)).build().unwrap();
    let accounts = ["red", "blue", "green"];
    let each = 100;
    let messages: Vec<_> = (1..=each)
        .flat_map(|n| accounts.map(|account| (format!("{account}-{n}"), Posted::on(account, n))))
        .collect();

    deliver_at_once::<F>(&inbox, &messages).await;

    bench.run_until(vec![bench.worker(&inbox)], HANDLER, messages.len()).await;
    for account in accounts {
        let effects = fixture.effects().await;
        let of_account = effects.iter().filter(|effect| effect.key.as_deref() == Some(account));
        let sequences: Vec<i64> = of_account.map(|effect| effect.sequence).collect();
        assert_eq!(sequences, (1..=each).collect::<Vec<_>>(), "{account}");
    }
}
