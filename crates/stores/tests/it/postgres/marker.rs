//! Two transactions at one marker, and letters that are buried.

use super::*;

/// Marks from a transaction of its own, which is then rolled back.
async fn mark_beside(store: PostgresStore, key: MessageKey) -> Marked {
    let mut tx = store.begin().await.unwrap();
    store.mark(&mut tx, &mark(&key), None).await.unwrap()
}

/// Until some transaction waits for another one with a statement on this schema.
async fn wait_for_waiter(store: &PostgresStore, schema: &str) {
    let end = Instant::now() + Duration::from_secs(10);
    let text =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, $1) > 0";
    while 0 == sqlx::query_scalar::<_, i64>(text).bind(schema).fetch_one(store.pool()).await.unwrap() {
        assert!(Instant::now() < end, "nobody waits");
    }
}

#[tokio::test]
async fn a_copy_waits_for_the_owner_and_then_is_a_duplicate() {
    on_tables("a_copy_waits_for_the_owner_and_then_is_a_duplicate", |store, schema| async move {
        let key = MessageKey::business("k");
        let mut owner = store.begin().await.unwrap();
        assert_eq!(store.mark(&mut owner, &mark(&key), None).await.unwrap(), Marked::First);
        let copy = tokio::spawn(mark_beside(store.clone(), key.clone()));
        wait_for_waiter(&store, &schema).await;
        store.reply(&mut owner, &mark(&key), b"done").await.unwrap();
        store.commit(owner).await.unwrap();

        assert_eq!(copy.await.unwrap(), Marked::Duplicate { result: Some(b"done".to_vec()) });
        let mut tx = store.begin().await.unwrap();
        let other = Mark { digest: Digest::of(b"other"), ..mark(&key) };
        assert_eq!(store.mark(&mut tx, &other, None).await.unwrap(), Marked::Conflict);
    })
    .await;
}

#[tokio::test]
async fn a_copy_takes_over_when_the_owner_rolls_back() {
    on_tables("a_copy_takes_over_when_the_owner_rolls_back", |store, schema| async move {
        let key = MessageKey::business("k");
        let mut owner = store.begin().await.unwrap();
        store.mark(&mut owner, &mark(&key), None).await.unwrap();
        let copy = tokio::spawn(mark_beside(store.clone(), key));
        wait_for_waiter(&store, &schema).await;
        store.rollback(owner).await.unwrap();

        assert_eq!(copy.await.unwrap(), Marked::First);
    })
    .await;
}

#[tokio::test]
async fn a_wait_in_vain_is_busy() {
    on_tables("a_wait_in_vain_is_busy", |store, _| async move {
        let store = store.lock_wait(Duration::from_millis(30));
        let key = MessageKey::business("k");
        let mut owner = store.begin().await.unwrap();
        store.mark(&mut owner, &mark(&key), None).await.unwrap();
        store.put(&mut owner, &[envelope("1")], None).await.unwrap();

        let mut copy = store.begin().await.unwrap();

        assert_eq!(kind(store.mark(&mut copy, &mark(&key), None).await), Kind::Busy);
        assert_eq!(kind(store.holds(&envelope("1")).await), Kind::Busy);
    })
    .await;
}

#[tokio::test]
async fn a_message_older_than_the_markers_can_prove_is_refused() {
    on_tables("a_message_older_than_the_markers_can_prove_is_refused", |store, _| async move {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let key = MessageKey::business("k");
        let window = Duration::from_secs(60);
        let of = |age| Mark { time: Some(now.minus(age)), window: Some(window), ..mark(&key) };
        let mut tx = store.begin().await.unwrap();

        let old = store.mark(&mut tx, &of(window + Duration::from_micros(1)), Some(now)).await.unwrap();
        let young = store.mark(&mut tx, &of(window), Some(now)).await.unwrap();
        let known = store.mark(&mut tx, &of(Duration::from_secs(99)), Some(now)).await.unwrap();

        assert_eq!((old, young, known), (Marked::TooOld, Marked::First, Marked::Duplicate { result: None }));
    })
    .await;
}

#[tokio::test]
async fn a_letter_buried_twice_is_kept_once_whatever_it_carries() {
    on_tables("a_letter_buried_twice_is_kept_once_whatever_it_carries", |store, _| async move {
        let mut letter = envelope("i\0d");
        letter.tenant = "t".repeat(100_000) + "\0";
        letter.headers.insert("h\0".into(), "\0".into());
        letter.payload = vec![0, 255];
        let (channel, handler, code, reason) = ("c", "h", "permanent", "bro\0ken");
        let burial = Burial { channel, handler, code, reason, attempts: u32::MAX, envelope: &letter };

        store.bury(&burial, None).await.unwrap();
        store.bury(&burial, None).await.unwrap();

        assert_eq!(store.status().await.unwrap().dead_letters, 1);
    })
    .await;
}
