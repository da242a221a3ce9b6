//! Whoever has lost a lease can change nothing, whatever the moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{Fate, Standing, TakeRequest, Ticket};
use oncebox_core::inspect::Inspect;
use oncebox_core::store::Marked;
use oncebox_core::{Depot, Kind, LetterId, Letters, Result, Store};
use tokio::task::JoinSet;

use super::DepotFixture;
use super::steps::{
    DEAD, LEASE, RETRY, finish, finishing, give, marked, patiently, request, suspects, take, take_one, taken,
};
use crate::fixture::kind;
use crate::ledger::Entry;
use crate::sample::at;

const FENCED: Option<Kind> = Some(Kind::Fenced);

/// Everything a worker can try with a ticket must be refused.
async fn refused<F: DepotFixture>(fixture: &F, ticket: Ticket) {
    let store = fixture.store();
    for fate in [RETRY, DEAD, Fate::Duplicate] {
        assert_eq!(kind(store.conclude(ticket, &fate, None, at(1)).await), FENCED, "{fate:?}");
    }
    let bare =
        oncebox_core::depot::Finish { ticket, mark: None, result: None, frees_lane: false, next: None };
    assert_eq!(kind(finish(&store, &bare, 1).await), FENCED);
    assert_eq!(store.renew(&[ticket], Duration::from_secs(9_000), at(1)).await.unwrap(), [false]);
    assert_eq!(store.start(&[ticket]).await.unwrap(), [false]);
    store.give_back(&[ticket], at(1)).await.unwrap();
    assert_eq!(kind(store.intend(ticket, "effect", at(1)).await), FENCED);
    assert_eq!(kind(store.record(ticket, "effect", b"x").await), FENCED);
}

pub async fn a_ticket_that_was_taken_over_changes_nothing<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let lost = take_one(&store, 0).await;
    let held = store.take(&suspects("b"), at(LEASE)).await.unwrap().remove(0);

    refused(&*fixture, lost.ticket).await;
    let marker = finish(&store, &finishing(&lost), LEASE).await;

    assert_eq!(kind(marker), FENCED);
    assert_eq!(marked(&store, "1", b"any").await, Marked::First, "and left no marker");
    assert_eq!(store.standing(lost.ticket).await.unwrap(), Standing::Lost);
    assert_eq!(store.standing(held.ticket).await.unwrap(), Standing::Held);
    let next = store.take(&suspects("c"), at(2 * LEASE)).await.unwrap().remove(0);
    assert_eq!((next.attempt, next.deaths), (3, 2), "nothing was counted or taken back");
}

pub async fn what_is_over_is_never_overwritten<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["done", "dead", "discarded", "retried"], 0).await;
    let held = take(&store, 0).await;
    finish(&store, &finishing(&held[0]), 1).await.unwrap();
    store.conclude(held[1].ticket, &DEAD, None, at(1)).await.unwrap();
    store.conclude(held[2].ticket, &DEAD, None, at(1)).await.unwrap();
    store.discard_letter(LetterId::Delivery(held[2].ticket.number), at(1)).await.unwrap();
    let later = Fate::Retry { after: Duration::from_secs(999), spent: true, code: "c", reason: "r" };
    store.conclude(held[3].ticket, &later, None, at(1)).await.unwrap();
    let before = store.status().await.unwrap();
    let letter = store.letter(LetterId::Delivery(held[1].ticket.number)).await.unwrap();

    for taken in &held {
        refused(&*fixture, taken.ticket).await;
    }

    let after = store.status().await.unwrap();
    let counted = |status: &oncebox_core::inspect::Status| {
        let handler = &status.handlers[0];
        (handler.ready, handler.leased, handler.dead, status.dead_letters, status.markers)
    };
    assert_eq!(counted(&after), counted(&before));
    assert_eq!(store.letter(LetterId::Delivery(held[1].ticket.number)).await.unwrap(), letter);
    assert_eq!(store.standing(held[0].ticket).await.unwrap(), Standing::Done);
    assert_eq!(taken(&store, 999).await, Vec::<String>::new());
    assert_eq!(taken(&store, 1000).await, ["retried"]);
}

pub async fn a_refused_conclusion_starts_nobody<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2"], 0).await;
    let held = store.take(&TakeRequest { seats: 1, ..request("a") }, at(0)).await.unwrap();
    store.give_back(&[held[0].ticket], at(LEASE + 1)).await.unwrap();

    let late = store.conclude(held[0].ticket, &RETRY, Some(held[1].ticket), at(1)).await;

    assert_eq!(kind(late), FENCED);
    assert_eq!(taken(&store, LEASE).await, ["2"], "it was not started, so it is no suspect");
}

pub async fn a_finish_racing_a_takeover_has_one_winner<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for round in 0..25 {
        let id = format!("{round}");
        give(&store, &[&id], 0).await;
        let held = take_one(&store, 0).await;
        let (finisher, taker) = (fixture.store(), fixture.store());
        let finishing =
            tokio::spawn(
                async move { patiently!(finish(&finisher, &super::steps::finishing(&held), LEASE)) },
            );
        let taking = tokio::spawn(async move { patiently!(taker.take(&suspects("b"), at(LEASE))).unwrap() });

        let (finished, over) = (finishing.await.unwrap(), taking.await.unwrap());

        match finished {
            Ok(Marked::First) => assert!(over.is_empty(), "round {round}: done, and taken over"),
            Ok(other) => panic!("round {round}: {other:?}"),
            Err(error) => {
                assert_eq!((error.kind(), over.len()), (Kind::Fenced, 1), "round {round}");
                assert_eq!(
                    finish(&store, &super::steps::finishing(&over[0]), LEASE).await.unwrap(),
                    Marked::First
                );
            }
        }
    }
}

/// Workers that take each other's deliveries away all the time: leases are
/// over as soon as they are given. Every effect is there once all the same.
pub async fn workers_that_rob_each_other_commit_each_effect_once<F: DepotFixture>(fixture: Arc<F>) {
    const MESSAGES: usize = 40;
    /// Of each worker.
    const ROBBERIES: usize = 30;
    let names: Vec<String> = (0..MESSAGES).map(|n| n.to_string()).collect();
    give(&fixture.store(), &names.iter().map(String::as_str).collect::<Vec<_>>(), 0).await;
    let mut workers = JoinSet::new();
    for n in 0..4 {
        let fixture = Arc::clone(&fixture);
        workers.spawn(async move {
            let (store, holder) = (fixture.store(), format!("worker {n}"));
            let (mut stale, mut rounds) = (0, 0);
            while !store.status().await.unwrap().handlers.is_empty() {
                rounds += 1;
                // Where nothing has to be waited for, this would never let the others go on.
                tokio::task::yield_now().await;
                // In the end each keeps what it takes: in step they could rob each other for ever.
                let lease = if rounds > ROBBERIES { request(&holder).lease } else { Duration::ZERO };
                for is_suspect in [false, true] {
                    let robbing = TakeRequest { lease, limit: 5, suspects: is_suspect, ..request(&holder) };
                    let held = patiently!(store.take(&robbing, at(0))).unwrap();
                    for taken in held {
                        let outcome = patiently!(handle(&*fixture, &taken));
                        match outcome {
                            Ok(marked) => assert_eq!(marked, Marked::First),
                            Err(error) => {
                                assert_eq!(error.kind(), Kind::Fenced, "{}", error.chain());
                                stale += 1;
                            }
                        }
                    }
                }
            }
            stale
        });
    }

    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }

    let mut counted: HashMap<String, usize> = HashMap::new();
    for effect in fixture.effects().await {
        *counted.entry(effect.id).or_default() += 1;
    }
    assert_eq!(counted.len(), MESSAGES);
    assert!(counted.values().all(|count| *count == 1), "{counted:?}");
}

async fn handle<F: DepotFixture>(fixture: &F, taken: &oncebox_core::depot::Taken) -> Result<Marked> {
    let store = fixture.store();
    let mut tx = store.begin().await?;
    let id = taken.envelope.id.clone();
    let effect = Entry { handler: "h".into(), id, key: None, sequence: 1, amount: 1 };
    fixture.effect(&mut tx, &effect).await.unwrap();
    tokio::task::yield_now().await;
    match store.finish(&mut tx, &finishing(taken), at(0)).await {
        Ok(Marked::First) => store.commit(tx).await.map(|()| Marked::First),
        other => {
            store.rollback(tx).await?;
            other
        }
    }
}
