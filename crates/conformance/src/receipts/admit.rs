//! Who may run a request.

use std::sync::Arc;

use oncebox_core::Store as _;
use oncebox_core::gate::{Admission, AdmitRequest, Durability, OnDoubt, Pass, Receipts as _, Reply};
use tokio::task::JoinSet;

use super::ReceiptsFixture;
use super::steps::{LEASE, TTL, admitted, at, is_fenced, of_another, replay, reply, request, seconds, told};

pub async fn the_first_request_is_admitted_and_a_copy_waits_for_it<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    let pass = admitted(&store, &request("a", "body"), 0).await;

    assert_eq!(told(&store, 10).await, Admission::InFlight { left: seconds(LEASE - 10) });
    store.seal(&pass, &reply("done")).await.unwrap();
    assert_eq!(told(&store, 10).await, replay(reply("done"), TTL - 10));
}

pub async fn another_request_under_the_key_is_refused_wherever_the_first_one_stands<F: ReceiptsFixture>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    let other = async |second| store.admit(&request("a", "other"), at(second)).await.unwrap();

    let pass = admitted(&store, &request("a", "body"), 0).await;
    assert_eq!(other(1).await, Admission::Mismatch, "in flight");
    assert_eq!(other(LEASE).await, Admission::Mismatch, "its lease is over");
    store.seal(&pass, &reply("done")).await.unwrap();
    assert_eq!(other(1).await, Admission::Mismatch, "sealed");

    assert_eq!(told(&store, 2).await, replay(reply("done"), TTL - 2), "the first one is unharmed");
}

pub async fn who_asks_again_because_the_answer_was_lost_is_let_in<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let careful = AdmitRequest { on_doubt: OnDoubt::Block, ..request("a", "body") };
    let pass = admitted(&store, &careful, 0).await;

    assert_eq!(admitted(&store, &careful, 0).await, pass);
    let other = AdmitRequest { on_doubt: OnDoubt::Block, ..request("a", "body") };
    assert!(matches!(store.admit(&other, at(1)).await.unwrap(), Admission::InFlight { .. }), "it alone");
    assert_eq!(store.admit(&careful, at(2 * LEASE)).await.unwrap(), Admission::InDoubt, "it came too late");

    store.seal(&pass, &reply("done")).await.unwrap();
    assert_eq!(store.admit(&careful, at(2)).await.unwrap(), replay(reply("done"), TTL - 2));
}

pub async fn an_admission_that_does_not_wait_for_the_disk_is_one_like_any_other<F: ReceiptsFixture>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    let relaxed = |body| AdmitRequest { durability: Durability::Relaxed, ..request("a", body) };
    let lost = admitted(&store, &relaxed("body"), 0).await;

    assert_eq!(told(&store, 1).await, Admission::InFlight { left: seconds(LEASE - 1) });
    assert_eq!(store.admit(&relaxed("other"), at(1)).await.unwrap(), Admission::Mismatch);
    let pass = admitted(&store, &relaxed("body"), LEASE).await;
    assert!(is_fenced(&store.seal(&lost, &reply("stale")).await));
    store.seal(&pass, &reply("done")).await.unwrap();
    assert_eq!(told(&store, LEASE + 1).await, replay(reply("done"), TTL - 1));
    assert_eq!(store.admit(&relaxed("body"), at(LEASE + 1)).await.unwrap(), replay(reply("done"), TTL - 1));

    // Many at once, of both kinds, share commits on some stores.
    let mut clients = JoinSet::new();
    for n in 0..32 {
        let store = fixture.store();
        let durability = if n % 2 == 0 { Durability::Relaxed } else { Durability::Full };
        clients.spawn(async move {
            let asked = AdmitRequest { durability, ..request(&format!("many-{}", n / 4), "body") };
            matches!(store.admit(&asked, at(0)).await.unwrap(), Admission::Proceed(_))
        });
    }
    let admitted = clients.join_all().await;
    assert_eq!(admitted.into_iter().filter(|is_admitted| *is_admitted).count(), 8);
}

pub async fn scopes_and_keys_are_apart<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    for request in [request("a", "body"), of_another(request("a", "body")), request("b", "body")] {
        let pass = admitted(&store, &request, 0).await;
        store.seal(&pass, &reply(&format!("{}", pass.token))).await.unwrap();
    }

    let first = store.admit(&of_another(request("a", "body")), at(1)).await.unwrap();
    assert_ne!(first, told(&store, 1).await);
}

pub async fn a_lease_that_is_over_lets_the_same_request_in_again<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    admitted(&store, &request("a", "body"), 0).await;

    assert!(matches!(told(&store, LEASE - 1).await, Admission::InFlight { .. }));
    let pass = admitted(&store, &request("a", "body"), LEASE).await;

    assert_eq!(told(&store, LEASE + 1).await, Admission::InFlight { left: seconds(LEASE - 1) });
    store.seal(&pass, &reply("done")).await.unwrap();
    assert_eq!(told(&store, LEASE + 1).await, replay(reply("done"), TTL - 1));
}

pub async fn whoever_lost_the_lease_can_neither_seal_nor_withdraw_nor_doubt<F: ReceiptsFixture>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    let lost = admitted(&store, &request("a", "body"), 0).await;
    let held = admitted(&store, &request("a", "body"), LEASE).await;

    assert!(is_fenced(&store.seal(&lost, &reply("stale")).await));
    store.withdraw(&lost).await.unwrap();
    store.doubt(&lost).await.unwrap();
    assert_eq!(store.prolong(&[lost, held], seconds(LEASE), at(LEASE)).await.unwrap(), [false, true]);

    assert!(matches!(told(&store, LEASE + 1).await, Admission::InFlight { .. }));
    store.seal(&held, &reply("done")).await.unwrap();
    assert!(is_fenced(&store.seal(&lost, &reply("stale")).await));
    assert_eq!(told(&store, LEASE + 1).await, replay(reply("done"), TTL - 1));
}

pub async fn a_receipt_is_forgotten_when_its_time_is_over<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;
    store.seal(&pass, &reply("done")).await.unwrap();

    assert_eq!(told(&store, TTL - 1).await, replay(reply("done"), 1));
    let pass = admitted(&store, &request("a", "other"), TTL).await;

    assert!(matches!(told(&store, TTL).await, Admission::Mismatch), "now it is another one's");
    store.seal(&pass, &reply("anew")).await.unwrap();
}

pub async fn a_run_that_outlives_its_receipt_is_not_run_again_beside_itself<F: ReceiptsFixture>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    let short = AdmitRequest { ttl: seconds(10), ..request("a", "body") };
    let pass = admitted(&store, &short, 0).await;

    assert_eq!(told(&store, 20).await, Admission::InFlight { left: seconds(LEASE - 20) });
    assert_eq!(store.forget(100, at(20)).await.unwrap(), 0);
    store.seal(&pass, &reply("late")).await.unwrap();

    assert!(matches!(told(&store, 20).await, Admission::Proceed(_)), "and then it is forgotten");
}

pub async fn replays_do_not_keep_a_receipt_unless_that_is_wanted<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for name in ["a", "b"] {
        let pass = admitted(&store, &request(name, "body"), 0).await;
        store.seal(&pass, &reply(name)).await.unwrap();
    }
    let sliding = AdmitRequest { sliding: true, ..request("b", "body") };

    told(&store, TTL / 2).await;
    assert_eq!(store.admit(&sliding, at(TTL / 2)).await.unwrap(), replay(reply("b"), TTL / 2));

    assert!(matches!(told(&store, TTL + 1).await, Admission::Proceed(_)));
    let again = store.admit(&request("b", "body"), at(TTL + 1)).await.unwrap();
    assert_eq!(again, replay(reply("b"), TTL / 2 - 1));
}

/// Admits the request many times at once; tells how often it was let in.
async fn race<F: ReceiptsFixture>(fixture: &Arc<F>, second: i64) -> usize {
    let mut clients = JoinSet::new();
    for _ in 0..16 {
        let store = fixture.store();
        clients.spawn(async move {
            match store.admit(&request("a", "body"), at(second)).await.unwrap() {
                Admission::Proceed(_) => true,
                Admission::InFlight { .. } => false,
                other => panic!("{other:?}"),
            }
        });
    }
    clients.join_all().await.into_iter().filter(|is_admitted| *is_admitted).count()
}

pub async fn of_many_at_once_one_is_admitted<F: ReceiptsFixture>(fixture: Arc<F>) {
    assert_eq!(race(&fixture, 0).await, 1);
}

pub async fn of_many_at_once_one_inherits_a_dead_request<F: ReceiptsFixture>(fixture: Arc<F>) {
    admitted(&fixture.store(), &request("a", "body"), 0).await;

    assert_eq!(race(&fixture, LEASE).await, 1);
}

/// Stores may write what arrives together at once; everybody is told its own.
pub async fn many_requests_at_once_do_not_get_mixed_up<F: ReceiptsFixture>(fixture: Arc<F>) {
    let mut clients = JoinSet::new();
    for n in 0..100 {
        let store = fixture.store();
        clients.spawn(async move {
            let (name, large) = (n.to_string(), if n % 10 == 0 { 30_000 } else { 0 });
            let kept = Reply { status: 200 + n, ..reply(&format!("{name}{}", "x".repeat(large))) };
            let kept = if n % 7 == 0 { Reply { body: None, ..kept } } else { kept };
            let pass = admitted(&store, &request(&name, "body"), 0).await;
            let other = store.admit(&request(&name, "other"), at(1)).await.unwrap();
            let copy = store.admit(&request(&name, "body"), at(1)).await.unwrap();
            assert_eq!(
                (other, copy),
                (Admission::Mismatch, Admission::InFlight { left: seconds(LEASE - 1) })
            );
            if n % 5 == 0 {
                let stale = Pass { token: -1, ..pass };
                assert!(is_fenced(&store.seal(&stale, &reply("stale")).await));
            }
            store.seal(&pass, &kept).await.unwrap();
            let copy = store.admit(&request(&name, "body"), at(2)).await.unwrap();
            assert_eq!(copy, replay(kept, TTL - 2));
        });
    }
    clients.join_all().await;
}

pub async fn a_replay_does_not_wait_for_a_transaction<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;
    store.seal(&pass, &reply("done")).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    store.admit_in(&mut tx, &request("b", "body"), at(0)).await.unwrap();

    assert_eq!(told(&fixture.impatient(), 1).await, replay(reply("done"), TTL - 1));
    assert_eq!(told(&store, 1).await, replay(reply("done"), TTL - 1));
    store.rollback(tx).await.unwrap();
}

pub async fn a_look_writes_nothing<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let look = async |second| store.peek(&request("a", "body"), at(second)).await.unwrap();

    assert_eq!(look(0).await, None);
    let pass = admitted(&store, &request("a", "body"), 0).await;
    assert_eq!(look(10).await, Some(Admission::InFlight { left: seconds(LEASE - 10) }));
    assert_eq!(look(LEASE).await, None, "it would be admitted");
    assert_eq!(store.peek(&request("a", "other"), at(1)).await.unwrap(), Some(Admission::Mismatch));
    store.seal(&pass, &reply("done")).await.unwrap();
    assert_eq!(look(LEASE).await, Some(replay(reply("done"), TTL - LEASE)));
    assert_eq!(look(TTL).await, None);
}

pub async fn each_scope_has_its_own_count<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mine = request("0", "body").key.scope;
    for n in 0..5 {
        let pass = admitted(&store, &request(&n.to_string(), "body"), 0).await;
        if n % 2 == 0 {
            store.seal(&pass, &reply("done")).await.unwrap();
        }
    }
    let other = of_another(request("0", "body"));
    let pass = admitted(&store, &other, 0).await;

    assert_eq!(store.count(&mine, 100).await.unwrap(), 5, "sealed or not");
    assert_eq!(store.count(&mine, 3).await.unwrap(), 3, "no more than was asked for");
    assert_eq!(store.count(&other.key.scope, 100).await.unwrap(), 1);
    store.withdraw(&pass).await.unwrap();
    assert_eq!(store.count(&other.key.scope, 100).await.unwrap(), 0);
    store.forget(100, at(TTL)).await.unwrap();
    assert_eq!(store.count(&mine, 100).await.unwrap(), 0);
}
