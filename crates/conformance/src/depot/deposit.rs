//! A message is accepted once, with one delivery for each handler.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{Assigned, Deposit, Deposited, Want};
use oncebox_core::handler::MessageKey;
use oncebox_core::inspect::Inspect;
use oncebox_core::store::Mark;
use oncebox_core::{Dedup, Depot, Digest, Envelope, LetterFilter, Letters, Store, Timestamp};

use super::DepotFixture;
use super::steps::{
    CHANNEL, HANDLER, counts, deposit, give, ids, put, request, share, take, take_one, taken,
};
use crate::sample::{SOURCE, at, full, moment, plain};

/// What became of the shares of the only deposit.
fn assigned(deposited: &[Deposited]) -> &[Assigned] {
    match deposited {
        [Deposited::Stored { assigned, .. }] => assigned,
        other => panic!("not stored: {other:?}"),
    }
}

fn other_body(id: &str) -> Envelope {
    Envelope { payload: b"another body".to_vec(), ..plain(id) }
}

pub async fn a_deposit_is_seen_only_after_commit<F: DepotFixture>(fixture: Arc<F>) {
    let (store, envelope) = (fixture.store(), plain("1"));
    let mut tx = store.begin().await.unwrap();

    store.deposit(&mut tx, &[deposit(&envelope, &[HANDLER])], at(0)).await.unwrap();
    let before = store.status().await.unwrap().handlers;
    store.commit(tx).await.unwrap();

    assert!(before.is_empty());
    assert_eq!(taken(&store, 0).await, ["1"]);
}

pub async fn a_rolled_back_deposit_leaves_nothing_and_its_id_free<F: DepotFixture>(fixture: Arc<F>) {
    let (store, envelope) = (fixture.store(), plain("1"));
    let mut tx = store.begin().await.unwrap();
    store.deposit(&mut tx, &[deposit(&envelope, &[HANDLER])], at(0)).await.unwrap();

    store.rollback(tx).await.unwrap();
    let nothing = taken(&store, 0).await;
    let other = other_body("1");
    let again = put(&store, &[deposit(&other, &[HANDLER])], 0).await;

    assert!(nothing.is_empty());
    assert_eq!(assigned(&again), [Assigned::New]);
}

pub async fn a_message_that_is_there_is_a_duplicate_and_another_body_a_conflict<F: DepotFixture>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    give(&store, &["1"], 0).await;
    let (same, other) = (plain("1"), other_body("1"));

    let again = put(&store, &[deposit(&same, &[HANDLER, "late"]), deposit(&other, &[HANDLER])], 1).await;

    assert_eq!(again, [Deposited::Duplicate, Deposited::Conflict]);
    assert_eq!(take(&store, 1).await[0].envelope, same, "the first body stays");
    assert_eq!(store.status().await.unwrap().handlers.len(), 1, "the handlers of that time stay");
}

pub async fn equal_deposits_of_a_batch_are_one_and_a_duplicate<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (one, two, other) = (plain("1"), plain("2"), other_body("1"));
    let batch = [&one, &two, &one, &other].map(|envelope| deposit(envelope, &[HANDLER]));

    let deposited = put(&store, &batch, 0).await;

    assert!(matches!(deposited[0], Deposited::Stored { .. }));
    assert!(matches!(deposited[1], Deposited::Stored { .. }));
    assert_eq!(deposited[2..], [Deposited::Duplicate, Deposited::Conflict]);
    assert_eq!(taken(&store, 0).await, ["1", "2"]);
}

pub async fn a_large_batch_keeps_its_order_for_every_handler<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let envelopes: Vec<Envelope> = (0..150).map(|n| plain(format!("{n:03}"))).collect();
    let batch: Vec<Deposit<'_>> = envelopes.iter().map(|e| deposit(e, &[HANDLER, "g", "f"])).collect();

    let deposited = put(&store, &batch, 0).await;

    let numbers = deposited.iter().map(|deposited| match deposited {
        Deposited::Stored { number, assigned } if *assigned == [Assigned::New; 3] => *number,
        other => panic!("{other:?}"),
    });
    assert!(numbers.is_sorted());
    for handler in [HANDLER, "g", "f"] {
        let wants = [Want { handler, limit: 1000 }];
        let request = oncebox_core::depot::TakeRequest { wants: &wants, ..request("worker") };
        let order = ids(&store.take(&request, at(0)).await.unwrap());
        assert_eq!(order, envelopes.iter().map(|envelope| envelope.id.clone()).collect::<Vec<_>>());
    }
}

pub async fn everything_about_a_message_survives_the_deposit<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut envelope = Envelope { time: Some(Timestamp::from_micros(moment(-5).micros() + 7)), ..full("1") };
    envelope.headers.insert("oncebox-signature".into(), "v1,abc=".into());
    let mut deposit = deposit(&envelope, &[HANDLER]);
    deposit.assignments[0].lane = Some("läne 'x'");
    put(&store, &[deposit], 3).await;

    let taken = take_one(&store, 4).await;

    assert_eq!(taken.envelope, envelope);
    assert_eq!((taken.handler.as_str(), taken.channel.as_str()), (HANDLER, CHANNEL));
    assert_eq!((taken.key.source.as_str(), taken.key.id.as_str()), (SOURCE, "1"));
    assert_eq!((taken.digest, taken.lane.as_deref()), (envelope.digest(), Some("läne 'x'")));
    assert_eq!((taken.attempt, taken.deaths, taken.generation), (1, 0, 0));
    assert_eq!((taken.started, taken.received_at), (true, moment(3)));
}

pub async fn scopes_tenants_sources_and_handlers_are_deposited_apart<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let of_tenant = Envelope { tenant: "t".into(), ..plain("1") };
    let of_source = Envelope { source: "Shop".into(), ..plain("1") };
    let (one, space) = (plain("1"), plain("1 "));
    let batch = [
        deposit(&one, &[HANDLER]),
        deposit(&of_tenant, &[HANDLER]),
        deposit(&of_source, &[HANDLER]),
        deposit(&space, &[HANDLER]),
        Deposit { scope: "Scope", ..deposit(&one, &[HANDLER]) },
        Deposit { scope: "scope", ..deposit(&one, &[HANDLER]) },
    ];

    let deposited = put(&store, &batch, 0).await;

    for one in &deposited {
        assert_eq!(assigned(std::slice::from_ref(one)), [Assigned::New], "{deposited:?}");
    }
}

pub async fn a_handler_gets_a_message_once_whatever_channels_bring_it<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (one, other) = (plain("1"), other_body("1"));
    give(&store, &["1"], 0).await;

    let by_another = put(&store, &[Deposit { channel: "b", ..deposit(&one, &[HANDLER, "g"]) }], 0).await;
    let with_another = put(&store, &[Deposit { channel: "c", ..deposit(&other, &[HANDLER]) }], 0).await;

    assert_eq!(assigned(&by_another), [Assigned::Duplicate, Assigned::New]);
    assert_eq!(assigned(&with_another), [Assigned::Conflict]);
    assert_eq!(taken(&store, 0).await, ["1"]);
}

pub async fn a_message_without_an_id_is_told_by_its_body<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (x, y) =
        (Envelope { payload: b"x".to_vec(), ..plain("") }, Envelope { payload: b"y".to_vec(), ..plain("") });
    let keyed = |envelope| {
        let mut deposit = deposit(envelope, &[HANDLER]);
        deposit.assignments[0].key = MessageKey::business(&envelope.digest().to_string());
        deposit
    };

    let deposited = put(&store, &[keyed(&x), keyed(&y), keyed(&x)], 0).await;

    assert_eq!(deposited[2], Deposited::Duplicate);
    let envelopes: Vec<Envelope> = take(&store, 0).await.into_iter().map(|taken| taken.envelope).collect();
    assert_eq!(envelopes, [x, y], "the id stays empty");
}

pub async fn ids_longer_than_any_column_are_kept_apart<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let long = |end: &str| Envelope { source: "s".repeat(700), ..plain("x".repeat(3000) + end) };
    let (a, b) = (long("a"), long("b"));
    let keyed = |envelope| {
        let mut deposit = deposit(envelope, &[HANDLER]);
        deposit.assignments[0].key = MessageKey::business(&envelope.id);
        deposit
    };

    let deposited = put(&store, &[keyed(&a), keyed(&b), keyed(&a)], 0).await;

    assert_eq!(deposited[2], Deposited::Duplicate);
    let envelopes: Vec<Envelope> = take(&store, 0).await.into_iter().map(|taken| taken.envelope).collect();
    assert_eq!(envelopes, [a, b]);
}

pub async fn what_a_marker_proves_is_not_delivered_again<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for id in ["1", "2"] {
        let key = MessageKey { source: SOURCE.into(), id: id.into() };
        let digest = Digest::of(&plain(id).payload);
        let mark = Mark { tenant: "", handler: "marker", key: &key, digest, time: None, window: None };
        let mut tx = store.begin().await.unwrap();
        store.mark(&mut tx, &mark, at(0)).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let (same, other) = (plain("1"), other_body("2"));
    let marked = |envelope| {
        let mut deposit = deposit(envelope, &[HANDLER, "g"]);
        deposit.assignments[0].marker = "marker";
        deposit
    };

    let deposited = put(&store, &[marked(&same), marked(&other)], 0).await;

    assert_eq!(assigned(&deposited[..1]), [Assigned::Duplicate, Assigned::New]);
    assert_eq!(assigned(&deposited[1..]), [Assigned::Conflict, Assigned::New]);
    assert!(taken(&store, 0).await.is_empty());
}

pub async fn a_message_older_than_its_window_is_born_dead<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let aged = |id: &str, micros: i64| Envelope {
        time: Some(Timestamp::from_micros(moment(-60).micros() + micros)),
        ..plain(id)
    };
    let (old, young, timeless) = (aged("old", -1), aged("young", 0), plain("timeless"));
    let windowed = |envelope| {
        let mut deposit = deposit(envelope, &[HANDLER]);
        deposit.assignments[0].window = Some(Duration::from_secs(60));
        deposit
    };

    let deposited = put(&store, &[windowed(&old), windowed(&young), windowed(&timeless)], 0).await;

    assert_eq!(assigned(&deposited[..1]), [Assigned::New]);
    assert_eq!(taken(&store, 0).await, ["young", "timeless"]);
    let letters = store.letters(&LetterFilter::default(), 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].envelope.id.as_str(), letters[0].code.as_str()), ("old", "too_old"));
    assert_eq!((letters[0].attempts, letters[0].died_at), (0, moment(0)));
}

pub async fn a_refused_message_is_born_dead_with_its_reason<F: DepotFixture>(fixture: Arc<F>) {
    let (store, envelope) = (fixture.store(), plain("1"));
    let mut refused = deposit(&envelope, &["g"]);
    let why = Some(("forged", "signed by \0nobody"));
    refused.assignments.push(oncebox_core::depot::Assignment { refused: why, ..share(HANDLER, &envelope) });

    put(&store, &[refused], 5).await;

    assert!(taken(&store, 1000).await.is_empty());
    assert_eq!(counts(&store).await.dead, 1);
    let letters = store.letters(&LetterFilter::default(), 10).await.unwrap();
    assert_eq!(
        (letters[0].code.as_str(), letters[0].reason.as_str()),
        ("forged", "signed by \u{fffd}nobody")
    );
    assert_eq!((letters[0].handler.as_str(), letters[0].died_at), (HANDLER, moment(5)));
}
