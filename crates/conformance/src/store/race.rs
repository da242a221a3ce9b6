//! Copies of one message that arrive at the same moment.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::store::Marked;
use oncebox_core::{Dedup, Error, Kind, Result, Store};
use tokio::task::{JoinHandle, JoinSet};

use super::mark::{key, mark};
use crate::fixture::StoreFixture;
use crate::ledger::Entry;
use crate::sample::at;

/// Long enough to see that somebody waits.
const GLANCE: Duration = Duration::from_millis(50);

/// Marks message `1` in a transaction of its own, as a second copy would.
fn copy<S: Dedup>(store: &S) -> JoinHandle<Result<Marked>> {
    let store = store.clone();
    tokio::spawn(async move {
        let key = key("1");
        let mut tx = store.begin().await?;
        let marked = store.mark(&mut tx, &mark(&key, "x"), at(0)).await;
        store.rollback(tx).await?;
        marked
    })
}

pub async fn a_concurrent_duplicate_waits_and_sees_the_commit<F: StoreFixture>(fixture: Arc<F>) {
    let (store, key) = (fixture.store(), key("1"));
    let mut tx = store.begin().await.unwrap();
    store.mark(&mut tx, &mark(&key, "x"), at(0)).await.unwrap();
    let mut second = copy(&store);

    let early = tokio::time::timeout(GLANCE, &mut second).await;
    store.commit(tx).await.unwrap();

    assert!(early.is_err(), "the outcome is not known yet");
    assert_eq!(second.await.unwrap().unwrap(), Marked::Duplicate { result: None });
}

pub async fn a_concurrent_duplicate_waits_and_takes_over_after_a_rollback<F: StoreFixture>(fixture: Arc<F>) {
    let (store, key) = (fixture.store(), key("1"));
    let mut tx = store.begin().await.unwrap();
    store.mark(&mut tx, &mark(&key, "x"), at(0)).await.unwrap();
    let mut second = copy(&store);

    let early = tokio::time::timeout(GLANCE, &mut second).await;
    store.rollback(tx).await.unwrap();

    assert!(early.is_err(), "the outcome is not known yet");
    assert_eq!(second.await.unwrap().unwrap(), Marked::First);
}

pub async fn a_duplicate_that_waits_too_long_is_told_so<F: StoreFixture>(fixture: Arc<F>) {
    let (store, key) = (fixture.store(), key("1"));
    let mut tx = store.begin().await.unwrap();
    store.mark(&mut tx, &mark(&key, "x"), at(0)).await.unwrap();

    let busy = copy(&fixture.impatient()).await.unwrap();
    store.commit(tx).await.unwrap();
    let later = copy(&fixture.impatient()).await.unwrap();

    assert_eq!(busy.as_ref().err().map(Error::kind), Some(Kind::Busy), "{busy:?}");
    assert_eq!(later.unwrap(), Marked::Duplicate { result: None }, "the wait broke nothing");
}

pub async fn of_many_copies_at_once_one_takes_effect<F: StoreFixture>(fixture: Arc<F>) {
    let outcomes = crowd(&fixture, |_| true).await;

    let firsts = outcomes.iter().filter(|marked| **marked == Marked::First).count();
    assert_eq!(firsts, 1, "{outcomes:?}");
    assert_eq!(fixture.effects().await.len(), 1);
}

pub async fn a_crowd_behind_failing_transactions_still_takes_effect_once<F: StoreFixture>(fixture: Arc<F>) {
    // The first to get through fail, and somebody behind them must not be shut out.
    let outcomes = crowd(&fixture, |attempt| attempt > 0).await;

    assert!(outcomes.contains(&Marked::First));
    assert_eq!(fixture.effects().await.len(), 1);
}

/// Many copies, each tried until it is first or a duplicate; an attempt that
/// does not `commit` is rolled back after its effect was written.
async fn crowd<F: StoreFixture>(fixture: &Arc<F>, commit: fn(u32) -> bool) -> Vec<Marked> {
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let fixture = Arc::clone(fixture);
        tasks.spawn(async move {
            let mut attempt = 0;
            loop {
                match one_of_the_crowd(&*fixture, commit(attempt)).await {
                    Ok(Some(marked)) => return marked,
                    Ok(None) => attempt += 1,
                    Err(error) => assert!(error.kind().is_transient(), "{}", error.chain()),
                }
            }
        });
    }
    tasks.join_all().await
}

async fn one_of_the_crowd<F: StoreFixture>(fixture: &F, is_committed: bool) -> Result<Option<Marked>> {
    let (store, key) = (fixture.store(), key("1"));
    let mut tx = store.begin().await?;
    match store.mark(&mut tx, &mark(&key, "x"), at(0)).await {
        Ok(Marked::First) => {}
        other => {
            store.rollback(tx).await?;
            return other.map(Some);
        }
    }
    let effect = Entry { handler: "h".into(), id: "1".into(), key: None, sequence: 1, amount: 1 };
    fixture.effect(&mut tx, &effect).await.unwrap();
    if is_committed {
        store.commit(tx).await?;
        return Ok(Some(Marked::First));
    }
    store.rollback(tx).await?;
    Ok(None)
}
