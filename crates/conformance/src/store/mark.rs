//! A marker commits with the handler's writes, or not at all.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::handler::MessageKey;
use oncebox_core::store::{Mark, Marked, Purge};
use oncebox_core::{Dedup, Digest, Mailbox, Retention, Store};

use crate::fixture::StoreFixture;
use crate::sample::{at, moment, plain};
use crate::steps::logged;

/// The key of a message.
pub(super) fn key(id: &str) -> MessageKey {
    MessageKey { source: "shop".into(), id: id.into() }
}

/// A mark of handler `h` without gate.
pub(super) fn mark<'a>(key: &'a MessageKey, body: &str) -> Mark<'a> {
    Mark { tenant: "", handler: "h", key, digest: Digest::of(body.as_bytes()), time: None, window: None }
}

/// Marks in a transaction of its own and commits.
async fn marked<S: Dedup>(store: &S, mark: &Mark<'_>) -> Marked {
    let mut tx = store.begin().await.unwrap();
    let marked = store.mark(&mut tx, mark, at(0)).await.unwrap();
    store.commit(tx).await.unwrap();
    marked
}

const DUPLICATE: Marked = Marked::Duplicate { result: None };

pub async fn the_first_mark_is_first_and_the_next_a_duplicate<F: StoreFixture>(fixture: Arc<F>) {
    let (store, key) = (fixture.store(), key("1"));

    assert_eq!(marked(&store, &mark(&key, "x")).await, Marked::First);
    assert_eq!(marked(&store, &mark(&key, "x")).await, DUPLICATE);
    assert_eq!(marked(&store, &mark(&key, "x")).await, DUPLICATE);
}

pub async fn a_rolled_back_mark_leaves_no_marker<F: StoreFixture>(fixture: Arc<F>) {
    let (store, key) = (fixture.store(), key("1"));
    let mut tx = store.begin().await.unwrap();
    store.mark(&mut tx, &mark(&key, "x"), at(0)).await.unwrap();

    store.rollback(tx).await.unwrap();

    assert_eq!(marked(&store, &mark(&key, "another body")).await, Marked::First);
}

pub async fn another_body_under_a_marked_key_is_a_conflict<F: StoreFixture>(fixture: Arc<F>) {
    let (store, key) = (fixture.store(), key("1"));
    marked(&store, &mark(&key, "x")).await;

    assert_eq!(marked(&store, &mark(&key, "y")).await, Marked::Conflict);
    assert_eq!(marked(&store, &mark(&key, "x")).await, DUPLICATE, "the first body stays");
}

pub async fn handlers_tenants_sources_and_ids_are_marked_apart<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let keys = ["1", "2", "1 ", "I"].map(key);
    let other_source = MessageKey { source: "Shop".into(), id: "1".into() };
    let business = MessageKey::business("1");

    for key in keys.iter().chain([&other_source, &business]) {
        for (handler, tenant) in [("h", ""), ("other", ""), ("h", "t"), ("h", "T")] {
            let mark = Mark { handler, tenant, ..mark(key, "x") };
            assert_eq!(marked(&store, &mark).await, Marked::First, "{mark:?}");
        }
    }
}

pub async fn a_message_older_than_the_window_is_too_old<F: StoreFixture>(fixture: Arc<F>) {
    let (store, key) = (fixture.store(), key("1"));
    let aged = |time| Mark { time: Some(time), window: Some(Duration::from_secs(60)), ..mark(&key, "x") };
    let just_too_old = oncebox_core::Timestamp::from_micros(moment(-60).micros() - 1);

    assert_eq!(marked(&store, &aged(moment(-61))).await, Marked::TooOld);
    assert_eq!(marked(&store, &aged(just_too_old)).await, Marked::TooOld);
    assert_eq!(marked(&store, &aged(moment(-60))).await, Marked::First, "refusing wrote nothing");
}

pub async fn a_marker_proves_more_than_an_age<F: StoreFixture>(fixture: Arc<F>) {
    let (store, key) = (fixture.store(), key("1"));
    let window = Some(Duration::from_secs(60));
    marked(&store, &mark(&key, "x")).await;

    let old = Mark { time: Some(moment(-999)), window, ..mark(&key, "x") };
    let other = Mark { time: Some(moment(-999)), window, ..mark(&key, "y") };

    assert_eq!(marked(&store, &old).await, DUPLICATE);
    assert_eq!(marked(&store, &other).await, Marked::Conflict);
}

pub async fn a_message_without_a_time_passes_the_gate<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (timeless, gateless, future) = (key("1"), key("2"), key("3"));
    let window = Some(Duration::from_secs(60));

    assert_eq!(marked(&store, &Mark { window, ..mark(&timeless, "x") }).await, Marked::First);
    assert_eq!(
        marked(&store, &Mark { time: Some(moment(-999)), ..mark(&gateless, "x") }).await,
        Marked::First
    );
    let ahead = Mark { time: Some(moment(999)), window, ..mark(&future, "x") };
    assert_eq!(marked(&store, &ahead).await, Marked::First);
}

pub async fn a_reply_is_kept_and_returned<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for (id, reply) in [("1", &b"{\"ok\":true}"[..]), ("2", &[0, 255, 7]), ("3", &[])] {
        let key = key(id);
        let mut tx = store.begin().await.unwrap();
        store.mark(&mut tx, &mark(&key, "x"), at(0)).await.unwrap();

        store.reply(&mut tx, &mark(&key, "x"), reply).await.unwrap();
        store.commit(tx).await.unwrap();

        let again = marked(&store, &mark(&key, "x")).await;
        assert_eq!(again, Marked::Duplicate { result: Some(reply.to_vec()) });
    }
}

pub async fn a_reply_shares_the_fate_of_its_transaction<F: StoreFixture>(fixture: Arc<F>) {
    let (store, key) = (fixture.store(), key("1"));
    marked(&store, &mark(&key, "x")).await;
    let mut tx = store.begin().await.unwrap();
    store.reply(&mut tx, &mark(&key, "x"), b"lost").await.unwrap();

    store.rollback(tx).await.unwrap();

    assert_eq!(marked(&store, &mark(&key, "x")).await, DUPLICATE);
}

pub async fn a_transaction_stays_usable_after_a_duplicate<F: StoreFixture>(fixture: Arc<F>) {
    let (store, one, two) = (fixture.store(), key("1"), key("2"));
    marked(&store, &mark(&one, "x")).await;

    let mut tx = store.begin().await.unwrap();
    assert_eq!(store.mark(&mut tx, &mark(&one, "x"), at(0)).await.unwrap(), DUPLICATE);
    assert_eq!(store.mark(&mut tx, &mark(&one, "y"), at(0)).await.unwrap(), Marked::Conflict);
    assert_eq!(store.mark(&mut tx, &mark(&two, "x"), at(0)).await.unwrap(), Marked::First);
    assert_eq!(
        store.mark(&mut tx, &mark(&two, "x"), at(0)).await.unwrap(),
        DUPLICATE,
        "its own marker counts"
    );
    store.put(&mut tx, &[plain("a")], at(0)).await.unwrap();
    store.commit(tx).await.unwrap();

    assert_eq!(logged(&store).await, ["a"]);
}

pub async fn keys_of_255_bytes_and_any_character_are_marked<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let long = "ü".repeat(127) + "x";
    for id in [long.as_str(), "quote ' \" \\", "\u{1F680}\n\t%_", " "] {
        let key = MessageKey { source: id.into(), id: id.into() };
        let mark = Mark { tenant: id, ..mark(&key, "x") };
        assert_eq!(marked(&store, &mark).await, Marked::First, "{id}");
        assert_eq!(marked(&store, &mark).await, DUPLICATE, "{id}");
    }
}

pub async fn runs_that_never_left_are_counted<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let key = key("1");
    let mark = mark(&key, "");

    let died = [store.enter(&mark, at(0)).await.unwrap(), store.enter(&mark, at(1)).await.unwrap()];
    let mut tx = store.begin().await.unwrap();
    store.leave(&mut tx, &mark).await.unwrap();
    store.commit(tx).await.unwrap();
    let after_one_left = store.enter(&mark, at(2)).await.unwrap();

    assert_eq!(died, [1, 2]);
    assert_eq!(after_one_left, 2, "a run that left takes back its own entry, not the other's");
    assert_eq!(store.purge(&Purge::Entries(Duration::from_secs(10)), 10, at(11)).await.unwrap(), 0);
    assert_eq!(store.purge(&Purge::Entries(Duration::from_secs(10)), 10, at(13)).await.unwrap(), 1);
}

pub async fn a_run_that_is_rolled_back_has_not_left<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let key = key("1");
    let mark = mark(&key, "");
    store.enter(&mark, at(0)).await.unwrap();

    let mut tx = store.begin().await.unwrap();
    store.leave(&mut tx, &mark).await.unwrap();
    store.rollback(tx).await.unwrap();

    assert_eq!(store.enter(&mark, at(1)).await.unwrap(), 2);
}
