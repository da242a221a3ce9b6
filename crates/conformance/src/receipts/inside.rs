//! Requests that are admitted and sealed in the transaction of their effect.

use std::sync::Arc;

use oncebox_core::gate::{Admission, AdmitRequest, Claiming, Fields, OnMismatch, Receipts, Reply};
use oncebox_core::{Kind, Result, Store as _};

use super::ReceiptsFixture;
use super::steps::{LEASE, TTL, admitted, at, is_fenced, replay, reply, request, seconds, told};
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
            || copy.as_ref().is_err_and(|error| error.kind() == Kind::Busy),
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

/// Claims a key that nothing is in the way of.
async fn claimed<S: Receipts>(store: &S, request: &AdmitRequest, second: i64) -> S::Begun {
    match store.begin_claim(request, at(second)).await.unwrap() {
        Claiming::Begun(tx) => tx,
        Claiming::Told(told) => panic!("not admitted: {told:?}"),
    }
}

/// What a claim is told that is not admitted.
async fn refused<S: Receipts>(store: &S, request: &AdmitRequest, second: i64) -> Result<Admission> {
    match store.begin_claim(request, at(second)).await? {
        Claiming::Begun(_) => panic!("admitted"),
        Claiming::Told(told) => Ok(told),
    }
}

pub async fn a_claim_is_sealed_with_its_writes_or_was_never_there<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for commits in [false, true] {
        let asked = request("a", "body");
        let mut tx = claimed(&store, &asked, 0).await;
        fixture.effect(&mut tx, &effect()).await.unwrap();
        if commits {
            store.seal_claim(tx, &asked, &reply("done"), at(0)).await.unwrap();
        } else {
            store.rollback(tx).await.unwrap();
        }
    }

    assert_eq!(told(&store, 1).await, replay(reply("done"), TTL - 1));
    assert_eq!(refused(&store, &request("a", "body"), 1).await.unwrap(), replay(reply("done"), TTL - 1));
    assert_eq!(fixture.effect_count().await, 1);
    admitted(&store, &request("a", "body"), TTL).await;
}

pub async fn a_claim_that_was_told_has_let_go_of_the_key<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for n in 0..20 {
        let name = n.to_string();
        let pass = admitted(&store, &request(&name, "body"), 0).await;
        store.seal(&pass, &reply("done")).await.unwrap();

        assert_eq!(
            refused(&store, &request(&name, "body"), 1).await.unwrap(),
            replay(reply("done"), TTL - 1)
        );

        admitted(&store, &request(&name, "body"), TTL).await;
    }
}

pub async fn a_claim_keeps_every_byte_of_a_reply<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let bodies =
        [None, Some(Vec::new()), Some(b"'; DROP TABLE \\x $1 --".to_vec()), Some(every_byte.repeat(256))];
    for (n, body) in bodies.into_iter().enumerate() {
        let headers = Fields::from_iter([("x-quoted", &b"'\\\"$2"[..])]);
        let kept = Reply { headers, body, ..reply("") };
        let asked = request(&n.to_string(), "body");
        let tx = claimed(&store, &asked, 0).await;
        store.seal_claim(tx, &asked, &kept, at(0)).await.unwrap();

        let copy = store.admit(&request(&n.to_string(), "body"), at(1)).await.unwrap();
        assert_eq!(copy, replay(kept, TTL - 1));
    }
}

pub async fn a_claim_is_told_where_its_request_stands<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;
    let running = refused(&store, &request("a", "body"), 10).await.unwrap();
    let other = refused(&store, &request("a", "other"), 10).await.unwrap();
    store.doubt(&pass).await.unwrap();
    let careful = AdmitRequest { on_doubt: oncebox_core::gate::OnDoubt::Block, ..request("a", "body") };

    assert_eq!(running, Admission::InFlight { left: seconds(LEASE - 10) });
    assert_eq!(other, Admission::Mismatch);
    assert_eq!(refused(&store, &careful, 10).await.unwrap(), Admission::InDoubt);
}

pub async fn while_a_claim_is_open_nobody_else_is_admitted<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let asked = request("a", "body");
    let tx = claimed(&store, &asked, 0).await;

    // Where writers queue for one lock, a copy is told that it is busy.
    let impatient = fixture.impatient();
    let outside = impatient.admit(&request("a", "body"), at(1)).await;
    for copy in [outside, refused(&impatient, &request("a", "body"), 1).await] {
        assert!(
            matches!(copy, Ok(Admission::InFlight { .. }))
                || copy.as_ref().is_err_and(|error| error.kind() == Kind::Busy),
            "{copy:?}"
        );
    }

    store.seal_claim(tx, &asked, &reply("done"), at(0)).await.unwrap();
    assert_eq!(refused(&store, &request("a", "body"), 1).await.unwrap(), replay(reply("done"), TTL - 1));
}

pub async fn another_request_is_told_so_while_a_claim_is_open<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    // The second claim of a store may go another way than its first.
    for name in ["a", "b", "c"] {
        let asked = request(name, "body");
        let tx = claimed(&store, &asked, 0).await;

        // Where writers queue for one lock, nobody can be told anything yet.
        let other = refused(&fixture.impatient(), &request(name, "other"), 1).await;
        assert!(
            matches!(other, Ok(Admission::Mismatch))
                || other.as_ref().is_err_and(|error| error.kind() == Kind::Busy),
            "{other:?}"
        );

        store.seal_claim(tx, &asked, &reply("done"), at(0)).await.unwrap();
        assert_eq!(refused(&store, &request(name, "other"), 1).await.unwrap(), Admission::Mismatch);
        assert_eq!(refused(&store, &request(name, "body"), 1).await.unwrap(), replay(reply("done"), TTL - 1));
    }
}

pub async fn a_claim_inherits_what_is_over_and_fences_it_off<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let lost = admitted(&store, &request("a", "body"), 0).await;

    for commits in [false, true] {
        let asked = request("a", "body");
        let tx = claimed(&store, &asked, LEASE).await;
        if commits {
            store.seal_claim(tx, &asked, &reply("done"), at(LEASE)).await.unwrap();
        } else {
            store.rollback(tx).await.unwrap();
        }
    }
    assert!(is_fenced(&store.seal(&lost, &reply("stale")).await));
    assert_eq!(told(&store, LEASE + 1).await, replay(reply("done"), TTL - 1));

    let replacing = AdmitRequest { on_mismatch: OnMismatch::Replace, ..request("a", "other") };
    let tx = claimed(&store, &replacing, LEASE + 2).await;
    store.seal_claim(tx, &replacing, &reply("anew"), at(LEASE + 2)).await.unwrap();
    let copy = store.admit(&request("a", "other"), at(LEASE + 3)).await.unwrap();
    assert_eq!(copy, replay(reply("anew"), TTL - 1));
}

pub async fn a_claim_that_is_a_copy_keeps_a_receipt_where_that_is_wanted<F: ReceiptsFixture>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    let asked = request("a", "body");
    let tx = claimed(&store, &asked, 0).await;
    store.seal_claim(tx, &asked, &reply("done"), at(0)).await.unwrap();

    let sliding = AdmitRequest { sliding: true, ..request("a", "body") };
    assert_eq!(refused(&store, &sliding, TTL / 2).await.unwrap(), replay(reply("done"), TTL / 2));
    assert_eq!(told(&store, TTL + 1).await, replay(reply("done"), TTL / 2 - 1));
}

pub async fn of_many_claims_at_once_one_is_admitted<F: ReceiptsFixture>(fixture: Arc<F>) {
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let store = fixture.store();
        clients.spawn(async move {
            let asked = request("a", "body");
            match store.begin_claim(&asked, at(0)).await {
                Ok(Claiming::Begun(tx)) => {
                    tokio::task::yield_now().await;
                    store.seal_claim(tx, &asked, &reply("done"), at(0)).await.unwrap();
                    true
                }
                Ok(Claiming::Told(Admission::Replay { .. } | Admission::InFlight { .. })) => false,
                Err(error) if error.kind() == Kind::Busy => false,
                other => panic!("{:?}", other.map(|_| "told otherwise")),
            }
        });
    }
    let admitted = clients.join_all().await;

    assert_eq!(admitted.into_iter().filter(|is_admitted| *is_admitted).count(), 1);
}
