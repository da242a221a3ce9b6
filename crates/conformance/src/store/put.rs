//! A message enters the log if and only if its transaction commits.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::log::Row;
use oncebox_core::{Envelope, Kind, Mailbox, Once, Store};

use crate::fixture::{StoreFixture, kind};
use crate::ledger::Entry;
use crate::sample::{at, full, keyed, plain};
use crate::steps::{log, logged, put};

pub async fn a_message_is_visible_only_after_commit<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();

    store.put(&mut tx, &[plain("a")], at(0)).await.unwrap();
    let before = logged(&store).await;
    store.commit(tx).await.unwrap();

    assert!(before.is_empty());
    assert_eq!(logged(&store).await, ["a"]);
}

pub async fn a_commit_that_goes_on_commits_what_was_before_and_nothing_after<F: StoreFixture>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();
    store.put(&mut tx, &[plain("a")], at(0)).await.unwrap();

    let open = store.commit_sound(tx, true).await.unwrap();
    let committed = logged(&store).await;
    let mut next = match open {
        Some(next) => next,
        None => store.begin().await.unwrap(),
    };
    store.put(&mut next, &[plain("b")], at(1)).await.unwrap();
    store.rollback(next).await.unwrap();
    let mut last = store.begin().await.unwrap();
    store.put(&mut last, &[plain("c")], at(2)).await.unwrap();
    let open = store.commit_sound(last, false).await.unwrap();

    assert_eq!(committed, ["a"]);
    assert!(open.is_none(), "nobody asked to go on");
    assert_eq!(logged(&store).await, ["a", "c"]);
}

pub async fn a_rolled_back_put_leaves_nothing_and_its_id_free<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();

    store.put(&mut tx, &[plain("a")], at(0)).await.unwrap();
    store.rollback(tx).await.unwrap();

    assert!(logged(&store).await.is_empty());
    assert!(!store.holds(&plain("a")).await.unwrap());
    assert_eq!(put(&store, &[plain("a")]).await, [Once::First]);
}

pub async fn a_dropped_transaction_leaves_nothing<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut tx = store.begin().await.unwrap();

    store.put(&mut tx, &[plain("a")], at(0)).await.unwrap();
    drop(tx);

    // `holds` waits for whoever is still about to decide.
    assert!(!store.holds(&plain("a")).await.unwrap());
    assert!(logged(&store).await.is_empty());
}

pub async fn an_id_that_is_there_is_a_duplicate_and_the_transaction_stays_usable<F: StoreFixture>(
    fixture: Arc<F>,
) {
    let store = fixture.store();
    put(&store, &[plain("a")]).await;

    let mut tx = store.begin().await.unwrap();
    let again =
        store.put(&mut tx, &[Envelope { payload: b"other".to_vec(), ..plain("a") }], at(1)).await.unwrap();
    let other = store.put(&mut tx, &[plain("b")], at(1)).await.unwrap();
    let twice = store.put(&mut tx, &[plain("b")], at(1)).await.unwrap();
    store.commit(tx).await.unwrap();

    assert_eq!((again, other, twice), (vec![Once::Duplicate], vec![Once::First], vec![Once::Duplicate]));
    let rows = log(&store).await;
    assert_eq!(envelope(&rows[0]).payload, plain("a").payload, "the first is left alone");
    assert_eq!(rows.len(), 2);
}

pub async fn a_batch_keeps_its_order_and_the_first_of_equal_ids<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[plain("there")]).await;
    let second = Envelope { payload: b"second".to_vec(), ..plain("a") };
    let batch = [plain("z"), plain("a"), second, plain("there"), keyed("m", "k")];

    let once = put(&store, &batch).await;

    let (first, duplicate) = (Once::First, Once::Duplicate);
    assert_eq!(once, [first, first, duplicate, duplicate, first]);
    let rows = log(&store).await;
    assert_eq!(crate::steps::ids(&rows), ["there", "z", "a", "m"]);
    assert_eq!(envelope(&rows[2]).payload, plain("a").payload);
}

pub async fn an_empty_batch_puts_nothing<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    assert!(put(&store, &[]).await.is_empty());

    assert!(logged(&store).await.is_empty());
}

pub async fn ids_differ_by_tenant_source_case_and_space<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let of = |tenant: &str, source: &str, id: &str| Envelope {
        tenant: tenant.into(),
        source: source.into(),
        ..plain(id)
    };
    let batch = [
        of("", "shop", "id"),
        of("t1", "shop", "id"),
        of("t2", "shop", "id"),
        of("", "Shop", "id"),
        of("", "shop", "ID"),
        of("", "shop", "id "),
        of("", "shop", " id"),
        of("", "shop", "íd"),
        of("", "shop", "i\u{301}d"),
        // Joined without care, these two would be one.
        of("a", "bc", "d"),
        of("ab", "c", "d"),
    ];

    let once = put(&store, &batch).await;

    assert!(once.iter().all(|once| *once == Once::First), "{once:?}");
    assert!(put(&store, &batch).await.iter().all(|once| *once == Once::Duplicate));
    assert_eq!(log(&store).await.len(), batch.len());
    assert!(store.holds(&batch[1]).await.unwrap());
    assert!(!store.holds(&of("t3", "shop", "id")).await.unwrap());
}

pub async fn every_field_survives_the_round_trip<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let batch = [full("full"), plain("plain")];

    put(&store, &batch).await;
    put(&store, &[full("alone")]).await;

    let rows = log(&store).await;
    let found: Vec<Envelope> = rows.iter().map(envelope).cloned().collect();
    let stored = |envelope: Envelope| Envelope { time: at(0), ..envelope };
    for (found, put) in found.iter().zip([full("full"), plain("plain"), full("alone")]) {
        // `Debug` of an envelope hides what differs.
        let put = stored(put);
        assert_eq!(found.headers, put.headers);
        assert_eq!(found.payload, put.payload);
        assert_eq!((&found.key, &found.subject, &found.tenant), (&put.key, &put.subject, &put.tenant));
        assert_eq!(found.time, put.time);
        assert!(*found == put, "another field of {} differs", put.id);
    }
    assert_eq!(found.len(), 3);
}

pub async fn payloads_of_all_sizes_survive_the_round_trip<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let sizes = [0_usize, 1, 255, 8_192, 1 << 20];
    let batch: Vec<Envelope> = sizes
        .iter()
        .map(|size| Envelope {
            payload: (0..*size).map(|n| (n * 31 % 251) as u8).collect(),
            ..plain(size.to_string())
        })
        .collect();

    put(&store, &batch).await;

    let rows = log(&store).await;
    assert_eq!(rows.len(), sizes.len());
    for (row, put) in rows.iter().zip(&batch) {
        assert!(envelope(row).payload == put.payload, "the payload of {} bytes differs", put.payload.len());
    }
}

pub async fn names_of_255_bytes_are_kept_and_longer_ones_refused<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let long = "ü".repeat(127) + "x";
    let longest = Envelope { source: long.clone(), tenant: long.clone(), ..keyed(long.clone(), &long) };
    let too_long = [
        Envelope { id: long.clone() + "x", ..plain("a") },
        Envelope { source: long.clone() + "x", ..plain("a") },
        Envelope { tenant: long.clone() + "x", ..plain("a") },
        Envelope { kind: long.clone() + "x", ..plain("a") },
        keyed("a", &(long.clone() + "x")),
        keyed("a", ""),
        plain(""),
        Envelope { destination: String::new(), ..plain("a") },
    ];

    assert_eq!(put(&store, std::slice::from_ref(&longest)).await, [Once::First]);
    for bad in too_long {
        let mut tx = store.begin().await.unwrap();
        let refused = store.put(&mut tx, std::slice::from_ref(&bad), at(0)).await;
        store.rollback(tx).await.unwrap();
        assert_eq!(kind(refused), Some(Kind::Invalid), "{bad:?}");
    }

    assert_eq!(logged(&store).await, [long]);
}

pub async fn a_put_and_a_business_write_share_their_fate<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let entry = |id: &str| Entry { handler: "h".into(), id: id.into(), key: None, sequence: 1, amount: 2 };

    for (id, is_kept) in [("lost", false), ("kept", true)] {
        let mut tx = store.begin().await.unwrap();
        fixture.effect(&mut tx, &entry(id)).await.unwrap();
        store.put(&mut tx, &[plain(id)], at(0)).await.unwrap();
        if is_kept {
            store.commit(tx).await.unwrap();
        } else {
            store.rollback(tx).await.unwrap();
        }
    }

    assert_eq!(fixture.effects().await, [entry("kept")]);
    assert_eq!(logged(&store).await, ["kept"]);
}

pub async fn holds_tells_what_is_committed<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    put(&store, &[plain("a"), crate::sample::due("later", 60)]).await;

    assert!(store.holds(&plain("a")).await.unwrap());
    assert!(store.holds(&crate::sample::due("later", 60)).await.unwrap());
    assert!(!store.holds(&plain("b")).await.unwrap());
    assert_eq!(logged(&store).await, ["a"], "asking puts nothing");
    assert_eq!(put(&store, &[plain("b")]).await, [Once::First]);
}

pub async fn holds_waits_for_whoever_is_about_to_decide<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for (id, is_kept) in [("lost", false), ("kept", true)] {
        let mut tx = store.begin().await.unwrap();
        store.put(&mut tx, &[plain(id)], at(0)).await.unwrap();
        let mut asked = tokio::spawn({
            let store = store.clone();
            async move { store.holds(&plain(id)).await }
        });

        let early = tokio::time::timeout(Duration::from_millis(50), &mut asked).await;
        if is_kept {
            store.commit(tx).await.unwrap();
        } else {
            store.rollback(tx).await.unwrap();
        }

        assert!(early.is_err(), "nothing was decided yet");
        assert_eq!(asked.await.unwrap().unwrap(), is_kept, "{id}");
    }
}

fn envelope(row: &Row) -> &Envelope {
    row.envelope.as_ref().expect("a row that was put can be understood")
}
