//! Progress is written back whole, and only by whoever holds the shards.

use std::sync::Arc;

use oncebox_core::log::{Cursor, Settlement};
use oncebox_core::{Kind, Mailbox};

use crate::fixture::{StoreFixture, kind};
use crate::sample::{at, keyed};
use crate::steps::{blocked, claim, due, log, parked, put, settlement, waiting};

pub async fn position_and_holes_are_kept<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let cursors = claim(&store, "a", 0).await;

    let settled = Settlement { progress: Some((9, vec![2, 5])), ..settlement(&cursors) };
    store.settle(&settled, at(1)).await.unwrap();
    let moved = claim(&store, "a", 2).await;
    let settled = Settlement { progress: Some((12, vec![])), ..settlement(&cursors) };
    store.settle(&settled, at(3)).await.unwrap();
    let closed = claim(&store, "a", 4).await;

    assert!(all_at(&moved, 9, &[2, 5]));
    assert!(all_at(&closed, 12, &[]));
}

pub async fn a_settlement_after_a_takeover_changes_nothing<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[keyed("1", "k"), keyed("2", "k")]).await;
    let rows = log(&store).await;
    let old = claim(&store, "a", 0).await;
    let first = Settlement { park: vec![parked(&rows[0], waiting(5))], ..settlement(&old) };
    store.settle(&first, at(0)).await.unwrap();
    let new = claim(&store, "b", 100).await;

    let stale = [
        Settlement { progress: Some((rows[1].position, vec![])), ..settlement(&old) },
        Settlement { park: vec![parked(&rows[1], waiting(0))], ..settlement(&old) },
        Settlement { unpark: vec![rows[0].position], ..settlement(&old) },
        Settlement {
            progress: Some((rows[1].position, vec![])),
            park: vec![parked(&rows[1], waiting(0))],
            unpark: vec![rows[0].position],
            free: vec![crate::steps::lane("k")],
            ..settlement(&old)
        },
    ];
    for settlement in stale {
        assert_eq!(kind(store.settle(&settlement, at(101)).await), Some(Kind::Fenced));
    }

    assert!(all_at(&claim(&store, "b", 102).await, 0, &[]));
    assert_eq!(due(&store, 102).await, ["1"]);
    store.settle(&Settlement { progress: Some((1, vec![])), ..settlement(&new) }, at(103)).await.unwrap();
}

pub async fn one_lost_shard_refuses_the_whole_settlement<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[keyed("1", "k")]).await;
    let rows = log(&store).await;
    let mut cursors = claim(&store, "a", 0).await;
    cursors[7].fence -= 1;

    let progress = Settlement { progress: Some((9, vec![2])), ..settlement(&cursors) };
    let parking = Settlement { park: vec![parked(&rows[0], waiting(0))], ..progress.clone() };

    for settlement in [progress, parking] {
        assert_eq!(kind(store.settle(&settlement, at(1)).await), Some(Kind::Fenced));
        assert!(all_at(&claim(&store, "a", 2).await, 0, &[]), "whole or not at all");
        assert!(blocked(&store, false).await.is_empty());
    }
}

pub async fn a_settlement_after_a_release_is_refused<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let cursors = claim(&store, "a", 0).await;
    store.release("sink", "a").await.unwrap();

    let settled = Settlement { progress: Some((9, vec![])), ..settlement(&cursors) };

    assert_eq!(kind(store.settle(&settled, at(1)).await), Some(Kind::Fenced));
    assert_eq!(kind(store.settle(&settlement(&cursors), at(1)).await), Some(Kind::Fenced));
    assert!(all_at(&claim(&store, "b", 2).await, 0, &[]));
}

pub async fn a_lease_that_ran_out_settles_while_nobody_took_it<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let cursors = claim(&store, "a", 0).await;

    let settled = Settlement { progress: Some((9, vec![])), ..settlement(&cursors) };
    store.settle(&settled, at(500)).await.unwrap();

    assert!(all_at(&claim(&store, "b", 501).await, 9, &[]));
}

pub async fn shards_move_apart<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let cursors = claim(&store, "a", 0).await;

    let low = Settlement { progress: Some((5, vec![])), ..settlement(&cursors[..3]) };
    let high = Settlement { progress: Some((7, vec![6])), ..settlement(&cursors[3..]) };
    store.settle(&low, at(1)).await.unwrap();
    store.settle(&high, at(1)).await.unwrap();

    let moved = claim(&store, "a", 2).await;
    assert!(all_at(&moved[..3], 5, &[]));
    assert!(all_at(&moved[3..], 7, &[6]));
}

pub async fn a_settlement_without_progress_moves_nothing<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &[keyed("1", "k")]).await;
    let rows = log(&store).await;
    let cursors = claim(&store, "a", 0).await;
    let settled = Settlement { progress: Some((5, vec![3])), ..settlement(&cursors) };
    store.settle(&settled, at(1)).await.unwrap();

    let park = Settlement { park: vec![parked(&rows[0], waiting(0))], ..settlement(&cursors) };
    store.settle(&park, at(2)).await.unwrap();
    store.settle(&settlement(&cursors), at(3)).await.unwrap();

    assert!(all_at(&claim(&store, "a", 4).await, 5, &[3]));
    assert_eq!(due(&store, 4).await, ["1"]);
}

pub async fn many_holes_are_kept<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let cursors = claim(&store, "a", 0).await;
    let holes: Vec<i64> = (1..5_000).map(|n| n * 2).collect();

    let settled = Settlement { progress: Some((10_000, holes.clone())), ..settlement(&cursors) };
    store.settle(&settled, at(1)).await.unwrap();

    assert!(all_at(&claim(&store, "a", 2).await, 10_000, &holes));
}

fn all_at(cursors: &[Cursor], position: i64, holes: &[i64]) -> bool {
    !cursors.is_empty() && cursors.iter().all(|cursor| cursor.position == position && cursor.holes == holes)
}
