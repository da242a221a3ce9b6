//! Refused messages stand beside the log, each key in its order.

use std::sync::Arc;

use oncebox_core::inspect::Inspect;
use oncebox_core::log::{ClaimRequest, Cursor, Park, Parking, Row, Settlement, Shard};
use oncebox_core::{Envelope, Mailbox};

use crate::fixture::StoreFixture;
use crate::sample::{ALL_SHARDS, at, full, keyed, moment, plain};
use crate::steps::{blocked, claim, due, ids, lane, log, parked, put, request, settlement, waiting};

/// A store with these messages logged and these states parked, in order.
async fn parking<S: Mailbox>(store: &S, rows: &[(&str, &str, Option<Parking>)]) -> (Vec<Row>, Vec<Cursor>) {
    let batch: Vec<Envelope> =
        rows.iter().map(|(id, key, _)| if key.is_empty() { plain(*id) } else { keyed(*id, key) }).collect();
    put(store, &batch).await;
    let log = log(store).await;
    let cursors = claim(store, "a", 0).await;
    let park: Vec<Park> = log
        .iter()
        .zip(rows)
        .filter_map(|(row, (_, _, parking))| parking.clone().map(|parking| parked(row, parking)))
        .collect();
    let end = log.last().map_or(0, |row| row.position);
    store
        .settle(&Settlement { progress: Some((end, vec![])), park, ..settlement(&cursors) }, at(0))
        .await
        .unwrap();
    (log, cursors)
}

const BEHIND: Option<Parking> = Some(Parking::Behind);
const DEAD: Option<Parking> = Some(Parking::Dead);

fn wait(seconds: u64) -> Option<Parking> {
    Some(waiting(seconds))
}

pub async fn a_refused_head_waits_for_its_time_and_blocks_only_its_key<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    parking(&store, &[("a1", "a", wait(10)), ("b1", "b", None), ("c1", "c", wait(20))]).await;

    assert_eq!(blocked(&store, false).await, [lane("a"), lane("c")]);
    assert!(due(&store, 9).await.is_empty());
    assert_eq!(due(&store, 10).await, ["a1"]);
    assert_eq!(due(&store, 20).await, ["a1", "c1"]);
}

pub async fn followers_come_after_their_head_and_in_order<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let rows = [
        ("a1", "a", wait(10)),
        ("b1", "b", wait(1)),
        ("a2", "a", BEHIND),
        ("b2", "b", BEHIND),
        ("a3", "a", BEHIND),
    ];
    parking(&store, &rows).await;

    assert_eq!(due(&store, 5).await, ["b1", "b2"]);
    assert_eq!(due(&store, 10).await, ["a1", "b1", "a2", "b2", "a3"]);
}

pub async fn a_head_that_is_not_due_keeps_its_followers<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    parking(&store, &[("a1", "a", wait(10)), ("a2", "a", BEHIND), ("n", "", wait(0))]).await;

    assert_eq!(due(&store, 5).await, ["n"]);
}

pub async fn an_unkeyed_row_waits_alone<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    parking(&store, &[("n1", "", wait(5)), ("n2", "", wait(50)), ("n3", "", DEAD)]).await;

    assert!(blocked(&store, false).await.is_empty(), "no key, nothing to block");
    assert_eq!(due(&store, 5).await, ["n1"]);
    assert_eq!(due(&store, 50).await, ["n1", "n2"]);
}

pub async fn a_sent_head_frees_the_next_of_its_key<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (log, cursors) =
        parking(&store, &[("a1", "a", wait(0)), ("a2", "a", BEHIND), ("a3", "a", BEHIND)]).await;

    let sent = |n: usize| Settlement {
        unpark: vec![log[n].position],
        free: vec![lane("a")],
        ..settlement(&cursors)
    };
    store.settle(&sent(0), at(1)).await.unwrap();
    let after_one = due(&store, 1).await;
    store.settle(&sent(1), at(2)).await.unwrap();
    let after_two = due(&store, 2).await;
    store.settle(&sent(2), at(3)).await.unwrap();

    assert_eq!(after_one, ["a2", "a3"]);
    assert_eq!(after_two, ["a3"]);
    assert!(blocked(&store, false).await.is_empty());
    assert!(due(&store, 99).await.is_empty());
}

pub async fn a_dead_head_blocks_its_key<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (_, cursors) = parking(&store, &[("a1", "a", DEAD), ("a2", "a", BEHIND), ("b1", "b", DEAD)]).await;

    let free = Settlement { free: vec![lane("a"), lane("b")], ..settlement(&cursors) };
    store.settle(&free, at(1)).await.unwrap();

    assert!(due(&store, 99).await.is_empty());
    assert_eq!(blocked(&store, false).await, [lane("a"), lane("b")]);
    assert_eq!(
        blocked(&store, true).await,
        [lane("a")],
        "a lane of dead letters only is passed when they are skipped"
    );
}

pub async fn a_dead_head_is_passed_if_dead_ones_are_skipped<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let rows = [("a1", "a", DEAD), ("a2", "a", BEHIND), ("a3", "a", BEHIND)];
    let (_, cursors) = parking(&store, &rows).await;

    let free = Settlement { free: vec![lane("a")], skip_dead: true, ..settlement(&cursors) };
    store.settle(&free, at(1)).await.unwrap();

    assert_eq!(due(&store, 1).await, ["a2", "a3"]);
}

pub async fn what_is_due_stops_at_its_limit_with_the_beginning_of_each_key<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let mut rows = Vec::new();
    let names: Vec<(String, String)> = (0..12)
        .map(|n| (format!("{}{:02}", ["a", "b", "c"][n % 3], n / 3), ["a", "b", "c"][n % 3].to_owned()))
        .collect();
    for (id, key) in &names {
        rows.push((id.as_str(), key.as_str(), if id.ends_with("00") { wait(0) } else { BEHIND }));
    }
    parking(&store, &rows).await;

    for limit in 1..=12 {
        let due = store.due("sink", &ALL_SHARDS, limit, at(1)).await.unwrap();
        let due = ids(&due.into_iter().map(|due| due.row).collect::<Vec<_>>());
        assert!(!due.is_empty() && due.len() <= limit);
        for key in ["a", "b", "c"] {
            let of_key: Vec<_> = due.iter().filter(|id| id.starts_with(key)).cloned().collect();
            let beginning: Vec<String> = (0..of_key.len()).map(|n| format!("{key}{n:02}")).collect();
            assert_eq!(of_key, beginning, "limit {limit}");
        }
    }
    assert_eq!(due(&store, 1).await.len(), 12);
}

pub async fn only_asked_for_shards_are_due<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (log, _) = parking(&store, &[("a1", "a", wait(0)), ("a2", "a", BEHIND)]).await;
    let mine = log[0].shard;
    let others: Vec<Shard> = ALL_SHARDS.into_iter().filter(|shard| *shard != mine).collect();

    assert_eq!(store.due("sink", &[mine], 10, at(1)).await.unwrap().len(), 2);
    assert!(store.due("sink", &others, 10, at(1)).await.unwrap().is_empty());
    assert_eq!(store.blocked("sink", &[mine], false).await.unwrap(), [lane("a")]);
    assert!(store.blocked("sink", &others, false).await.unwrap().is_empty());
}

pub async fn parking_again_changes_the_row_and_keeps_its_date<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (log, cursors) = parking(&store, &[("a1", "a", wait(0))]).await;

    let again = Park { attempts: 7, reason: Some("still refused".into()), ..parked(&log[0], waiting(10)) };
    store.settle(&Settlement { park: vec![again], ..settlement(&cursors) }, at(5)).await.unwrap();

    let listed = store.parked(10).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].attempts, listed[0].reason.as_deref()), (7, Some("still refused")));
    assert_eq!(listed[0].since, moment(0));
    assert!(due(&store, 14).await.is_empty());
    assert_eq!(store.due("sink", &ALL_SHARDS, 10, at(15)).await.unwrap()[0].attempts, 7);
}

pub async fn a_parked_row_comes_back_whole<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[full("a")]).await;
    let rows = log(&store).await;
    let cursors = claim(&store, "a", 0).await;
    let park = Settlement { park: vec![parked(&rows[0], waiting(0))], ..settlement(&cursors) };
    store.settle(&park, at(0)).await.unwrap();

    let due = store.due("sink", &ALL_SHARDS, 10, at(1)).await.unwrap();

    let row = &due[0].row;
    assert_eq!((row.position, row.shard), (rows[0].position, rows[0].shard));
    assert!(*row.envelope.as_ref().unwrap() == Envelope { time: at(0), ..full("a") });
}

pub async fn sinks_park_apart<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (log, _) = parking(&store, &[("a1", "a", wait(0))]).await;
    let other = ClaimRequest { sink: "other".into(), ..request("b") };
    let cursors = store.claim(&other, at(0)).await.unwrap();
    let in_other = |settlement: Settlement| Settlement { sink: "other".into(), ..settlement };

    let dead = in_other(Settlement { park: vec![parked(&log[0], Parking::Dead)], ..settlement(&cursors) });
    store.settle(&dead, at(0)).await.unwrap();

    assert_eq!(due(&store, 1).await, ["a1"]);
    assert!(store.due("other", &ALL_SHARDS, 10, at(1)).await.unwrap().is_empty());
    assert!(!store.requeue("sink", log[0].position, at(1)).await.unwrap());
    assert!(store.discard("other", log[0].position, at(1)).await.unwrap());
    assert_eq!(due(&store, 1).await, ["a1"]);
}

pub async fn tenants_with_equal_keys_are_different_lanes<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let of = |tenant: &str| Envelope { tenant: tenant.into(), ..keyed("1", "k") };
    put(&store, &[of("one"), of("two")]).await;
    let rows = log(&store).await;
    let cursors = claim(&store, "a", 0).await;

    let park = vec![parked(&rows[0], waiting(50)), parked(&rows[1], waiting(0))];
    store.settle(&Settlement { park, ..settlement(&cursors) }, at(0)).await.unwrap();

    let due = store.due("sink", &ALL_SHARDS, 10, at(1)).await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].row.envelope.as_ref().unwrap().tenant, "two");
    assert_eq!(blocked(&store, false).await.len(), 2);
}

pub async fn a_requeued_dead_letter_has_its_attempts_back<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (log, _) = parking(&store, &[("a1", "a", DEAD), ("a2", "a", BEHIND)]).await;

    assert!(store.requeue("sink", log[0].position, at(5)).await.unwrap());

    let due = store.due("sink", &ALL_SHARDS, 10, at(5)).await.unwrap();
    assert_eq!(due.iter().map(|due| due.attempts).collect::<Vec<_>>(), [0, 1]);
    assert!(!store.requeue("sink", log[0].position, at(5)).await.unwrap(), "it is not dead any more");
}

pub async fn a_discarded_dead_letter_frees_its_key<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (log, _) = parking(&store, &[("a1", "a", DEAD), ("a2", "a", BEHIND), ("a3", "a", BEHIND)]).await;

    assert!(store.discard("sink", log[0].position, at(5)).await.unwrap());

    assert_eq!(due(&store, 5).await, ["a2", "a3"]);
    assert!(!store.discard("sink", log[0].position, at(5)).await.unwrap());
}

pub async fn only_dead_letters_are_requeued_or_discarded<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (log, _) = parking(&store, &[("a1", "a", wait(50)), ("a2", "a", BEHIND), ("b1", "b", None)]).await;

    for position in log.iter().map(|row| row.position).chain([999_999]) {
        assert!(!store.requeue("sink", position, at(1)).await.unwrap());
        assert!(!store.discard("sink", position, at(1)).await.unwrap());
    }

    assert!(due(&store, 1).await.is_empty());
    assert_eq!(due(&store, 50).await, ["a1", "a2"]);
}

pub async fn a_row_in_front_that_is_not_due_holds_back_a_later_one_that_is<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    // A key that went on past its dead and was refused again has two heads once the dead one is requeued.
    let rows = [("a1", "a", wait(50)), ("a2", "a", wait(0)), ("a3", "a", BEHIND), ("b1", "b", wait(0))];
    parking(&store, &rows).await;

    assert_eq!(due(&store, 1).await, ["b1"]);
    assert_eq!(due(&store, 50).await, ["a1", "a2", "a3", "b1"]);
}

pub async fn a_requeued_dead_letter_goes_before_a_later_one_that_waits<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let rows = [("a1", "a", DEAD), ("a2", "a", wait(10)), ("a3", "a", BEHIND)];
    let (log, _) = parking(&store, &rows).await;
    assert_eq!(
        due(&store, 10).await,
        ["a2", "a3"],
        "a dead letter holds back what is behind it, not what waits"
    );

    assert!(store.requeue("sink", log[0].position, at(5)).await.unwrap());

    assert_eq!(due(&store, 5).await, ["a1"]);
    assert_eq!(due(&store, 10).await, ["a1", "a2", "a3"]);
}
