//! A finish commits with the handler's writes, or not at all.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{Fate, Finish, Savepoint, Standing, Ticket};
use oncebox_core::store::Marked;
use oncebox_core::{Dedup, Depot, Kind, Store};

use super::DepotFixture;
use super::steps::{counts, done, finish, finishing, give, mark, marked, take_one, taken};
use crate::fixture::kind;
use crate::ledger::Entry;
use crate::sample::{at, plain};

/// Long enough to see that somebody waits.
const GLANCE: Duration = Duration::from_millis(50);
const YEAR: i64 = 365 * 86_400;

fn effect(id: &str) -> Entry {
    Entry { handler: "h".into(), id: id.into(), key: None, sequence: 1, amount: 1 }
}

pub async fn a_finished_delivery_is_done_and_its_marker_written<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = take_one(&store, 0).await;

    let first = finish(&store, &Finish { result: Some(b"\0ok"), ..finishing(&held) }, 1).await.unwrap();

    assert_eq!(first, Marked::First);
    assert_eq!(store.standing(held.ticket).await.unwrap(), Standing::Done);
    let proof = marked(&store, "1", &plain("1").payload).await;
    assert_eq!(proof, Marked::Duplicate { result: Some(b"\0ok".to_vec()) });
    assert_eq!(marked(&store, "1", b"another body").await, Marked::Conflict);
    assert!(taken(&store, YEAR).await.is_empty());
    assert!(!store.has_suspects("", &super::steps::WANTS, at(YEAR)).await.unwrap());
}

pub async fn a_finish_shares_the_fate_of_the_handlers_writes<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = take_one(&store, 0).await;

    let mut lost = store.begin().await.unwrap();
    fixture.effect(&mut lost, &effect("1")).await.unwrap();
    store.finish(&mut lost, &finishing(&held), at(1)).await.unwrap();
    store.rollback(lost).await.unwrap();
    let before = (store.standing(held.ticket).await.unwrap(), marked(&store, "1", b"any").await);
    let mut kept = store.begin().await.unwrap();
    fixture.effect(&mut kept, &effect("1")).await.unwrap();
    store.finish(&mut kept, &finishing(&held), at(1)).await.unwrap();
    store.commit(kept).await.unwrap();

    assert_eq!(before, (Standing::Held, Marked::First), "nothing was left by the first try");
    assert_eq!(store.standing(held.ticket).await.unwrap(), Standing::Done);
    assert_eq!(fixture.effects().await.len(), 1);
}

pub async fn a_marker_that_is_there_is_told_and_the_delivery_concluded<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["same", "other"], 0).await;
    let held = super::steps::take(&store, 0).await;
    // A copy came another way and was handled while this one was running.
    for (held, digest) in [(&held[0], held[0].digest), (&held[1], held[0].digest)] {
        let mut tx = store.begin().await.unwrap();
        let mark = oncebox_core::store::Mark { digest, ..mark(held) };
        store.mark(&mut tx, &mark, at(0)).await.unwrap();
        store.reply(&mut tx, &mark, b"reply").await.unwrap();
        store.commit(tx).await.unwrap();
    }

    let same = finish(&store, &finishing(&held[0]), 1).await.unwrap();
    let other = finish(&store, &finishing(&held[1]), 1).await.unwrap();
    let before = store.standing(held[0].ticket).await.unwrap();
    store.conclude(held[0].ticket, &Fate::Duplicate, None, at(1)).await.unwrap();

    assert_eq!(same, Marked::Duplicate { result: Some(b"reply".to_vec()) });
    assert_eq!((other, before), (Marked::Conflict, Standing::Held));
    assert_eq!(store.standing(held[0].ticket).await.unwrap(), Standing::Done);
    assert_eq!(counts(&store).await.leased, 1);
}

pub async fn a_finish_without_a_mark_writes_no_marker<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = take_one(&store, 0).await;

    let first = finish(&store, &Finish { mark: None, ..finishing(&held) }, 1).await.unwrap();

    assert_eq!(first, Marked::First);
    assert_eq!(store.standing(held.ticket).await.unwrap(), Standing::Done);
    assert_eq!(marked(&store, "1", b"any").await, Marked::First);
}

pub async fn several_finishes_of_one_transaction_tell_what_each_has_found<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2", "same", "other"], 0).await;
    let held = super::steps::take(&store, 0).await;
    for held in &held[2..] {
        let mut tx = store.begin().await.unwrap();
        let mark = oncebox_core::store::Mark { digest: plain("same").digest(), ..mark(held) };
        store.mark(&mut tx, &mark, at(0)).await.unwrap();
        store.reply(&mut tx, &mark, b"reply").await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let with_reply = Finish { result: Some(b"two"), ..finishing(&held[1]) };
    let both = [finishing(&held[0]), with_reply];
    let all = [both[0].clone(), both[1].clone(), finishing(&held[2]), finishing(&held[3])];

    let mut tx = store.begin().await.unwrap();
    let found = store.finish_all(&mut tx, &all, at(1)).await.unwrap();
    store.rollback(tx).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let first = store.finish_all(&mut tx, &both, at(1)).await.unwrap();
    let none = store.finish_all(&mut tx, &[], at(1)).await.unwrap();
    store.commit(tx).await.unwrap();

    let duplicate = Marked::Duplicate { result: Some(b"reply".to_vec()) };
    assert_eq!(found, [Marked::First, Marked::First, duplicate, Marked::Conflict]);
    assert_eq!((first, none), (vec![Marked::First, Marked::First], vec![]));
    let mut standing = Vec::new();
    for held in &held {
        standing.push(store.standing(held.ticket).await.unwrap());
    }
    assert_eq!(standing, [Standing::Done, Standing::Done, Standing::Held, Standing::Held]);
    let reply = Marked::Duplicate { result: Some(b"two".to_vec()) };
    assert_eq!(marked(&store, "2", &plain("2").payload).await, reply);
}

pub async fn of_two_finishes_with_one_marker_one_is_the_first<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2"], 0).await;
    let held = super::steps::take(&store, 0).await;
    let same = Finish { mark: Some(mark(&held[0])), ..finishing(&held[1]) };

    let mut tx = store.begin().await.unwrap();
    let mut found = store.finish_all(&mut tx, &[finishing(&held[0]), same], at(1)).await.unwrap();
    store.rollback(tx).await.unwrap();

    found.sort_by_key(|marked| *marked != Marked::First);
    assert!(matches!(found[..], [Marked::First, Marked::Duplicate { .. }]), "{found:?}");
}

pub async fn one_lost_lease_refuses_all_finishes_of_a_transaction<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2", "3"], 0).await;
    let held = super::steps::take(&store, 0).await;
    store.give_back(&[held[1].ticket], at(0)).await.unwrap();

    let mut tx = store.begin().await.unwrap();
    let late = store
        .finish_all(&mut tx, &[finishing(&held[0]), finishing(&held[1]), finishing(&held[2])], at(1))
        .await;
    store.rollback(tx).await.unwrap();

    assert_eq!(kind(late), Some(Kind::Fenced));
    for (held, id) in [(&held[0], "1"), (&held[2], "3")] {
        assert_eq!(store.standing(held.ticket).await.unwrap(), Standing::Held);
        assert_eq!(marked(&store, id, b"any").await, Marked::First);
    }
}

pub async fn what_is_undone_leaves_what_was_written_before_and_after<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2", "3"], 0).await;
    let held = super::steps::take(&store, 0).await;
    let mut tx = store.begin().await.unwrap();

    store.savepoint(&mut tx, Savepoint::Set).await.unwrap();
    fixture.effect(&mut tx, &effect("1")).await.unwrap();
    store.savepoint(&mut tx, Savepoint::Next).await.unwrap();
    for _ in 0..2 {
        fixture.effect(&mut tx, &effect("2")).await.unwrap();
        store.mark(&mut tx, &mark(&held[1]), at(1)).await.unwrap();
        store.savepoint(&mut tx, Savepoint::Undo).await.unwrap();
    }
    fixture.effect(&mut tx, &effect("3")).await.unwrap();
    store.savepoint(&mut tx, Savepoint::Next).await.unwrap();
    store.savepoint(&mut tx, Savepoint::Undo).await.unwrap();
    store.finish_all(&mut tx, &[finishing(&held[0]), finishing(&held[2])], at(1)).await.unwrap();
    store.commit(tx).await.unwrap();

    let ids: Vec<String> = fixture.effects().await.into_iter().map(|effect| effect.id).collect();
    assert_eq!(ids, ["1", "3"]);
    assert_eq!(store.standing(held[1].ticket).await.unwrap(), Standing::Held);
    assert_eq!(marked(&store, "2", b"any").await, Marked::First);
    assert!(matches!(marked(&store, "3", &plain("3").payload).await, Marked::Duplicate { .. }));
}

pub async fn a_lease_that_ran_out_finishes_while_nobody_took_it<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = take_one(&store, 0).await;

    done(&store, &held, YEAR).await;

    assert_eq!(store.standing(held.ticket).await.unwrap(), Standing::Done);
}

pub async fn standing_tells_whose_it_is<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = take_one(&store, 0).await;
    let stale = Ticket { fence: held.ticket.fence - 1, ..held.ticket };
    let unknown = Ticket { number: 999_999, fence: 1 };

    let mut found = Vec::new();
    for ticket in [held.ticket, stale, unknown] {
        found.push(store.standing(ticket).await.unwrap());
    }
    store.conclude(held.ticket, &super::steps::RETRY, None, at(1)).await.unwrap();
    found.push(store.standing(held.ticket).await.unwrap());

    assert_eq!(found, [Standing::Held, Standing::Lost, Standing::Lost, Standing::Lost]);
}

pub async fn standing_waits_for_whoever_is_about_to_decide<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let held = take_one(&store, 0).await;
    let mut tx = store.begin().await.unwrap();
    store.finish(&mut tx, &finishing(&held), at(1)).await.unwrap();
    let mut asking = tokio::spawn({
        let (store, ticket) = (store.clone(), held.ticket);
        async move { store.standing(ticket).await }
    });

    let early = tokio::time::timeout(GLANCE, &mut asking).await;
    let busy = fixture.impatient().standing(held.ticket).await;
    store.commit(tx).await.unwrap();

    assert!(early.is_err(), "the outcome is not known yet");
    assert_eq!(kind(busy), Some(Kind::Busy));
    assert_eq!(asking.await.unwrap().unwrap(), Standing::Done);
}
