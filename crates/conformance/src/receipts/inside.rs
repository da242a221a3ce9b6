//! Requests that are admitted and sealed in the transaction of their effect.

use std::sync::Arc;

use oncebox_core::Store as _;
use oncebox_core::gate::{Admission, Receipts as _};

use super::ReceiptsFixture;
use super::steps::{TTL, admitted, at, replay, reply, request, told};
use crate::Entry;

fn effect() -> Entry {
    Entry { handler: "gate".into(), id: "a".into(), key: None, sequence: 1, amount: 1 }
}

pub async fn a_request_sealed_in_a_transaction_shares_the_fate_of_its_writes<F: ReceiptsFixture>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    for commits in [false, true] {
        let mut tx = store.begin().await.unwrap();
        let admission = store.admit_in(&mut tx, &request("a", "body"), at(0)).await.unwrap();
        let Admission::Proceed(pass) = admission else { panic!("{admission:?}") };
        fixture.effect(&mut tx, &effect()).await.unwrap();
        store.seal_in(&mut tx, &pass, &reply("done")).await.unwrap();
        if commits {
            store.commit(tx).await.unwrap();
        } else {
            store.rollback(tx).await.unwrap();
            assert_eq!(fixture.effect_count().await, 0);
        }
    }

    assert_eq!(told(&store, 1).await, replay(reply("done"), TTL - 1));
    assert_eq!(fixture.effect_count().await, 1);
}

pub async fn a_rolled_back_request_is_a_first_one_again<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();
    store.admit_in(&mut tx, &request("a", "body"), at(0)).await.unwrap();
    store.rollback(tx).await.unwrap();

    admitted(&store, &request("a", "other"), 0).await;
}

pub async fn while_a_transaction_has_the_key_nobody_else_is_admitted<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();
    let admission = store.admit_in(&mut tx, &request("a", "body"), at(0)).await.unwrap();
    let Admission::Proceed(pass) = admission else { panic!("{admission:?}") };

    // Where writers queue for one lock, a copy is told that it is busy.
    let copy = fixture.impatient().admit(&request("a", "body"), at(1)).await;
    assert!(
        matches!(copy, Ok(Admission::InFlight { .. }))
            || copy.as_ref().is_err_and(|error| error.kind() == oncebox_core::Kind::Busy),
        "{copy:?}"
    );

    store.seal_in(&mut tx, &pass, &reply("done")).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(told(&store, 1).await, replay(reply("done"), TTL - 1));
}

pub async fn a_replay_is_told_inside_a_transaction<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;
    store.seal(&pass, &reply("done")).await.unwrap();

    let mut tx = store.begin().await.unwrap();
    let copy = store.admit_in(&mut tx, &request("a", "body"), at(1)).await.unwrap();
    let other = store.admit_in(&mut tx, &request("a", "other"), at(1)).await.unwrap();
    store.rollback(tx).await.unwrap();

    assert_eq!((copy, other), (replay(reply("done"), TTL - 1), Admission::Mismatch));
}

pub async fn a_request_admitted_outside_can_be_sealed_inside<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;

    let mut tx = store.begin().await.unwrap();
    fixture.effect(&mut tx, &effect()).await.unwrap();
    store.seal_in(&mut tx, &pass, &reply("done")).await.unwrap();
    store.commit(tx).await.unwrap();

    assert_eq!(told(&store, 1).await, replay(reply("done"), TTL - 1));
    assert_eq!(fixture.effect_count().await, 1);
}

pub async fn a_request_admitted_outside_stays_in_flight_when_its_transaction_rolls_back<
    F: ReceiptsFixture,
>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;

    let mut tx = store.begin().await.unwrap();
    store.seal_in(&mut tx, &pass, &reply("done")).await.unwrap();
    store.rollback(tx).await.unwrap();

    assert!(matches!(told(&store, 1).await, Admission::InFlight { .. }));
    store.withdraw(&pass).await.unwrap();
    admitted(&store, &request("a", "body"), 1).await;
}
