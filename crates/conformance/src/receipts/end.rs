//! What comes of a request.

use std::sync::Arc;

use oncebox_core::gate::{Admission, AdmitRequest, Fields, OnDoubt, OnMismatch, Receipts as _, Reply};

use super::ReceiptsFixture;
use super::steps::{LEASE, TTL, admitted, at, is_fenced, replay, reply, request, seconds, told};

pub async fn a_sealed_reply_comes_back_as_it_was<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let zoo = [
        Reply { status: 204, ..Reply::default() },
        Reply { body: Some(Vec::new()), ..reply("") },
        Reply { body: Some(vec![0, 0xff, 0, b'\'', b'\\']), ..reply("") },
        Reply { body: Some(vec![7; 1 << 20]), ..reply("") },
        Reply {
            headers: Fields::from_iter([
                ("link", &b"</1>"[..]),
                ("location", b"/orders/1"),
                ("link", b"</2>"),
                ("x-latin", &[0xe9]),
                ("x-empty", b""),
            ]),
            trailers: Fields::from_iter([("grpc-status", &b"0"[..])]),
            ..reply("x")
        },
    ];
    for (n, reply) in zoo.into_iter().enumerate() {
        let name = n.to_string();
        let pass = admitted(&store, &request(&name, "body"), 0).await;
        let reply = Reply { body: Some(reply.body.unwrap_or_default()), ..reply };

        store.seal(&pass, &reply).await.unwrap();

        let again = store.admit(&request(&name, "body"), at(1)).await.unwrap();
        assert_eq!(again, replay(reply, TTL - 1), "{n}");
    }
}

pub async fn a_reply_that_was_too_large_is_told_without_its_body<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;
    let large = Reply { body: None, ..reply("") };

    store.seal(&pass, &large).await.unwrap();

    assert_eq!(told(&store, 1).await, replay(large, TTL - 1));
}

pub async fn sealing_twice_changes_nothing<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;

    store.seal(&pass, &reply("first")).await.unwrap();
    store.seal(&pass, &reply("second")).await.unwrap();
    store.withdraw(&pass).await.unwrap();
    store.doubt(&pass).await.unwrap();

    assert_eq!(told(&store, 1).await, replay(reply("first"), TTL - 1));
}

pub async fn a_withdrawn_request_is_a_first_one_again<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;

    store.withdraw(&pass).await.unwrap();
    store.withdraw(&pass).await.unwrap();

    assert!(is_fenced(&store.seal(&pass, &reply("late")).await));
    admitted(&store, &request("a", "other"), 1).await;
}

pub async fn a_doubt_is_retried_or_blocks<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;
    let careful = AdmitRequest { on_doubt: OnDoubt::Block, ..request("a", "body") };

    store.doubt(&pass).await.unwrap();

    assert_eq!(store.admit(&careful, at(1)).await.unwrap(), Admission::InDoubt);
    assert_eq!(store.admit(&request("a", "other"), at(1)).await.unwrap(), Admission::Mismatch);
    assert!(matches!(told(&store, 1).await, Admission::Proceed(_)));
}

pub async fn where_doubts_block_so_does_a_dead_request<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let careful = AdmitRequest { on_doubt: OnDoubt::Block, ..request("a", "body") };
    let pass = admitted(&store, &careful, 0).await;

    let copy = store.admit(&AdmitRequest { token: -1, ..careful }, at(LEASE)).await.unwrap();
    assert_eq!(copy, Admission::InDoubt);
    assert_eq!(store.peek(&careful, at(LEASE)).await.unwrap(), Some(Admission::InDoubt));

    store.seal(&pass, &reply("late")).await.unwrap();
    assert_eq!(store.admit(&careful, at(LEASE)).await.unwrap(), replay(reply("late"), TTL - LEASE));
}

pub async fn a_doubt_cannot_be_sealed_afterwards<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;
    store.doubt(&pass).await.unwrap();

    assert!(is_fenced(&store.seal(&pass, &reply("late")).await));
}

pub async fn the_last_may_win_but_not_while_the_first_one_runs<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let bold = || AdmitRequest { on_mismatch: OnMismatch::Replace, ..request("a", "other") };
    let first = admitted(&store, &request("a", "body"), 0).await;

    assert_eq!(store.admit(&bold(), at(1)).await.unwrap(), Admission::Mismatch);
    store.seal(&first, &reply("first")).await.unwrap();
    let last = admitted(&store, &bold(), 2).await;
    store.seal(&last, &reply("last")).await.unwrap();

    assert_eq!(store.admit(&bold(), at(3)).await.unwrap(), replay(reply("last"), TTL - 1));
    assert_eq!(told(&store, 3).await, Admission::Mismatch);
}

pub async fn a_renewed_lease_is_nobody_elses<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;

    assert_eq!(store.prolong(&[pass], seconds(LEASE), at(LEASE - 1)).await.unwrap(), [true]);

    assert_eq!(told(&store, LEASE).await, Admission::InFlight { left: seconds(LEASE - 1) });
    store.seal(&pass, &reply("done")).await.unwrap();
}

pub async fn a_renewal_tells_which_passes_are_good<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut passes = Vec::new();
    for name in ["sealed", "withdrawn", "lost", "held"] {
        passes.push(admitted(&store, &request(name, "body"), 0).await);
    }
    store.seal(&passes[0], &reply("done")).await.unwrap();
    store.withdraw(&passes[1]).await.unwrap();
    admitted(&store, &request("lost", "body"), LEASE).await;

    let good = store.prolong(&passes, seconds(LEASE), at(LEASE)).await.unwrap();

    assert_eq!(good, [false, false, false, true]);
    assert_eq!(store.prolong(&[], seconds(LEASE), at(LEASE)).await.unwrap(), Vec::<bool>::new());
}

pub async fn a_seal_after_the_lease_counts_while_nobody_was_admitted<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let pass = admitted(&store, &request("a", "body"), 0).await;

    store.seal(&pass, &reply("late")).await.unwrap();

    assert_eq!(told(&store, LEASE + 1).await, replay(reply("late"), TTL - LEASE - 1));
}

pub async fn what_is_old_is_deleted_and_what_runs_stays<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for n in 0..5 {
        let pass = admitted(&store, &request(&n.to_string(), "body"), n).await;
        store.seal(&pass, &reply("done")).await.unwrap();
    }
    admitted(&store, &request("dead", "body"), 0).await;
    admitted(&store, &request("running", "body"), TTL - 1).await;
    let short = AdmitRequest { ttl: seconds(1), ..request("long", "body") };
    admitted(&store, &short, TTL).await;

    assert_eq!(store.forget(2, at(TTL + 3)).await.unwrap(), 2);
    assert_eq!(
        store.forget(100, at(TTL + 3)).await.unwrap(),
        3,
        "three sealed ones and the dead one, less two"
    );
    assert_eq!(store.forget(100, at(TTL + 3)).await.unwrap(), 0);
    assert!(matches!(
        store.admit(&request("long", "body"), at(TTL + 3)).await.unwrap(),
        Admission::InFlight { .. }
    ));
}

pub async fn a_token_of_the_past_means_nothing_to_a_later_receipt<F: ReceiptsFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let zombie = admitted(&store, &request("a", "body"), 0).await;
    let second = admitted(&store, &request("a", "body"), LEASE).await;
    store.withdraw(&second).await.unwrap();
    let third = admitted(&store, &request("a", "body"), LEASE + 1).await;

    assert!(is_fenced(&store.seal(&zombie, &reply("stale")).await));
    assert!(is_fenced(&store.seal(&second, &reply("stale")).await));
    store.seal(&third, &reply("done")).await.unwrap();

    assert_eq!(told(&store, LEASE + 2).await, replay(reply("done"), TTL - 1));
}
