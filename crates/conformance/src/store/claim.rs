//! Relays share the shards of a sink.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncebox_core::Mailbox;
use oncebox_core::log::{ClaimRequest, Cursor, Settlement, Shard};

use crate::fixture::StoreFixture;
use crate::sample::{ALL_SHARDS, at};
use crate::steps::{claim, fences, request, settlement};

pub async fn a_relay_alone_gets_every_shard<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    let cursors = claim(&store, "a", 0).await;

    assert_eq!(shards(&cursors), ALL_SHARDS);
    assert!(cursors.iter().all(|cursor| cursor.position == 0 && cursor.holes.is_empty()));
}

pub async fn any_number_of_relays_share_fairly<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for count in [1_usize, 2, 3, 8, 9] {
        let sink = format!("sink of {count}");
        let mut held = BTreeMap::new();
        for second in 0..3 {
            for relay in 0..count {
                let request = ClaimRequest { sink: sink.clone(), ..request(&format!("relay {relay}")) };
                held.insert(relay, store.claim(&request, at(second)).await.unwrap());
            }
        }

        let fair = 8_usize.div_ceil(count);
        assert!(held.values().all(|cursors| cursors.len() <= fair), "{count} relays: {held:?}");
        let mut all: Vec<Shard> = held.values().flat_map(|cursors| shards(cursors)).collect();
        all.sort_unstable();
        assert_eq!(all, ALL_SHARDS, "{count} relays hold every shard once");
    }
}

pub async fn renewing_keeps_the_fence_and_a_change_of_owner_raises_it<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    let first = claim(&store, "a", 0).await;
    let renewed = claim(&store, "a", 10).await;
    store.release("sink", "a").await.unwrap();
    let next = claim(&store, "b", 11).await;
    store.release("sink", "b").await.unwrap();
    let back = claim(&store, "a", 12).await;

    assert_eq!(fences(&first), fences(&renewed));
    for ((first, next), back) in first.iter().zip(&next).zip(&back) {
        assert!(first.fence < next.fence && next.fence < back.fence);
    }
}

pub async fn a_lease_that_ran_out_is_taken_over<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    claim(&store, "a", 0).await;

    let early = claim(&store, "b", 29).await;
    let late = claim(&store, "b", 31).await;

    assert!(early.is_empty());
    assert_eq!(late.len(), 8);
}

pub async fn a_renewed_lease_is_not_taken_over<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    claim(&store, "a", 0).await;
    claim(&store, "b", 1).await;

    let renewed = claim(&store, "a", 20).await;
    let other = claim(&store, "b", 40).await;

    assert_eq!(shards(&renewed), [0, 1, 2, 3], "half is given back");
    assert_eq!(shards(&other), [4, 5, 6, 7], "and no more is taken");
}

pub async fn a_late_relay_keeps_what_nobody_took<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let first = claim(&store, "a", 0).await;

    let late = claim(&store, "a", 500).await;

    assert_eq!(fences(&first), fences(&late));
}

pub async fn released_shards_are_free_at_once<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    claim(&store, "a", 0).await;

    store.release("sink", "a").await.unwrap();
    store.release("sink", "nobody").await.unwrap();
    store.release("nothing", "a").await.unwrap();

    assert_eq!(claim(&store, "b", 0).await.len(), 8, "and who released does not count any more");
}

pub async fn a_relay_gives_back_its_surplus_when_another_joins<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let all = claim(&store, "a", 0).await;
    let nothing = claim(&store, "b", 1).await;

    let half = claim(&store, "a", 2).await;
    let other = claim(&store, "b", 3).await;

    assert!(nothing.is_empty(), "what is held is not taken away");
    assert_eq!((half.len(), other.len()), (4, 4));
    let kept: Vec<_> = half.iter().map(|cursor| (cursor.shard, cursor.fence)).collect();
    assert!(kept.iter().all(|fence| fences(&all).contains(fence)), "what is kept keeps its fence");
}

pub async fn a_relay_that_died_stops_counting_when_its_lease_is_over<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    claim(&store, "a", 0).await;
    claim(&store, "b", 1).await;
    claim(&store, "a", 2).await;
    claim(&store, "b", 3).await;

    let alone = claim(&store, "a", 100).await;

    assert_eq!(alone.len(), 8);
}

pub async fn a_new_owner_starts_where_the_old_one_settled<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let cursors = claim(&store, "a", 0).await;
    let settled = Settlement { progress: Some((42, vec![7, 40])), ..settlement(&cursors) };
    store.settle(&settled, at(1)).await.unwrap();

    let next = claim(&store, "b", 100).await;

    assert_eq!(next.len(), 8);
    assert!(next.iter().all(|cursor| cursor.position == 42 && cursor.holes == [7, 40]));
}

pub async fn sinks_are_claimed_apart<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    claim(&store, "a", 0).await;

    let other = ClaimRequest { sink: "another".into(), ..request("b") };

    assert_eq!(store.claim(&other, at(0)).await.unwrap().len(), 8);
}

pub async fn concurrent_claims_never_give_a_shard_to_two<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for round in 0..5 {
        let mut tasks = tokio::task::JoinSet::new();
        for relay in 0..6 {
            let store = store.clone();
            tasks.spawn(async move {
                loop {
                    match store.claim(&request(&format!("relay {relay}")), at(round)).await {
                        Ok(cursors) => return (relay, cursors),
                        Err(error) => assert!(error.kind().is_transient(), "{}", error.chain()),
                    }
                }
            });
        }
        let held: BTreeMap<i32, Vec<Cursor>> = tasks.join_all().await.into_iter().collect();
        // What one gave back another may have taken: only fences tell who owns a shard in the end.
        let mut owners: BTreeMap<(Shard, i64), usize> = BTreeMap::new();
        for fence in held.values().flat_map(|cursors| fences(cursors)) {
            *owners.entry(fence).or_default() += 1;
        }
        assert!(owners.values().all(|owners| *owners == 1), "{owners:?}");
    }
}

fn shards(cursors: &[Cursor]) -> Vec<Shard> {
    cursors.iter().map(|cursor| cursor.shard).collect()
}
