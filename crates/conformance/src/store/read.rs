//! A reader that goes on from where it stood never skips a committed row.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncebox_core::log::{Position, Shard, Window};
use oncebox_core::{Envelope, Mailbox, Store};

use crate::dice::Dice;
use crate::fixture::StoreFixture;
use crate::sample::{ALL_SHARDS, at, keyed, plain};
use crate::steps::{ids, log, logged, put, read};

/// Rounds of reading in which a hole must have closed.
const PATIENCE: usize = 200;

pub async fn rows_come_in_the_order_they_were_committed<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    for n in 0..10 {
        put(&store, &[keyed(format!("{n}a"), "k"), plain(format!("{n}b"))]).await;
    }

    let rows = log(&store).await;

    let expected: Vec<String> = (0..10).flat_map(|n| [format!("{n}a"), format!("{n}b")]).collect();
    assert_eq!(ids(&rows), expected);
    assert!(rows.is_sorted_by(|a, b| a.position < b.position));
}

pub async fn the_shards_together_hold_every_row_once<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let batch: Vec<Envelope> = (0..40)
        .map(|n| keyed(format!("k{n}"), &format!("order-{n}")))
        .chain((0..40).map(|n| plain(format!("p{n}"))))
        .collect();
    put(&store, &batch).await;

    let mut seen = Vec::new();
    for shard in ALL_SHARDS {
        let span = read(&store, &[shard], 0, 1000).await;
        assert!(span.rows.iter().all(|row| row.shard == shard));
        seen.push(span.rows.len());
    }

    assert_eq!(seen.iter().sum::<usize>(), 80);
    assert!(seen.iter().all(|rows| *rows > 0), "rows spread over all shards: {seen:?}");
}

pub async fn messages_of_one_key_share_a_shard<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let keys = ["a", "order-1", "ünï", "\u{1F680}", "0f8fad5b-d9cb-469f-a165-70867728950e"];
    for n in 0..5 {
        put(&store, &keys.map(|key| keyed(format!("{key}{n}"), key))).await;
    }

    let mut shards: BTreeMap<String, Vec<Shard>> = BTreeMap::new();
    for row in log(&store).await {
        shards.entry(row.envelope.unwrap().key.unwrap()).or_default().push(row.shard);
    }

    assert_eq!(shards.len(), keys.len());
    for (key, shards) in shards {
        assert!(shards.iter().all(|shard| *shard == shards[0]), "{key}: {shards:?}");
        assert!(ALL_SHARDS.contains(&shards[0]));
    }
}

pub async fn a_read_stops_at_its_limit_and_says_so<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &["a", "b", "c", "d"].map(plain)).await;

    let part = read(&store, &ALL_SHARDS, 0, 3).await;
    let rest = read(&store, &ALL_SHARDS, part.through, 3).await;
    let nothing = read(&store, &ALL_SHARDS, rest.through, 3).await;

    assert_eq!((ids(&part.rows), part.full), (vec!["a".into(), "b".into(), "c".into()], true));
    assert_eq!(part.through, part.rows[2].position);
    assert_eq!((ids(&rest.rows), rest.full), (vec!["d".to_owned()], false));
    assert!(nothing.rows.is_empty() && !nothing.full);
    assert_eq!(nothing.through, rest.through);
}

pub async fn pages_hold_every_row_once<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let batch: Vec<Envelope> = (0..50).map(|n| keyed(format!("{n:02}"), &format!("k{}", n % 11))).collect();
    put(&store, &batch).await;

    for shards in [&ALL_SHARDS[..], &[0, 2, 4], &[1, 3, 5, 6, 7]] {
        let whole = ids(&read(&store, shards, 0, 1000).await.rows);
        let (mut after, mut pages) = (0, Vec::new());
        loop {
            let span = read(&store, shards, after, 7).await;
            pages.extend(ids(&span.rows));
            after = span.through;
            if !span.full {
                break;
            }
        }
        assert_eq!(pages, whole, "{shards:?}");
    }
}

pub async fn a_reader_of_some_shards_passes_the_rows_of_others<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &(0..30).map(|n| plain(n.to_string())).collect::<Vec<_>>()).await;
    let last = log(&store).await.last().unwrap().position;

    let span = read(&store, &[3], 0, 1000).await;

    assert_eq!(span.through, last, "the next read need not look at them again");
    assert!(span.holes.is_empty() && !span.full);
}

pub async fn a_listed_hole_is_read_again_if_its_row_is_there<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    put(&store, &["a", "b", "c", "d"].map(plain)).await;
    let rows = log(&store).await;
    let holes = [rows[0].position, rows[2].position];

    let window = Window { shards: &ALL_SHARDS, after: rows[2].position, holes: &holes, limit: 10 };
    let span = store.read(window).await.unwrap();
    let other: Vec<Shard> = ALL_SHARDS.into_iter().filter(|shard| *shard != rows[0].shard).collect();
    let foreign = store.read(Window { shards: &other, holes: &holes[..1], ..window }).await.unwrap();

    assert_eq!(ids(&span.rows), ["a", "c", "d"]);
    assert!(span.holes.is_empty(), "what was found is a row, not a hole");
    assert!(!ids(&foreign.rows).contains(&"a".to_owned()), "a row of another shard is another reader's");
}

pub async fn an_empty_log_reads_as_empty<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();

    let span = read(&store, &ALL_SHARDS, 0, 10).await;
    let far = read(&store, &[1], 99, 10).await;

    assert!(span.rows.is_empty() && span.holes.is_empty() && !span.full);
    assert_eq!((span.through, far.through), (0, 99), "a reader never goes back");
}

pub async fn a_late_commit_below_what_was_read_is_not_lost<F: StoreFixture>(fixture: Arc<F>) {
    if !F::GUARANTEES.concurrent_writers {
        return;
    }
    let store = fixture.store();
    for shards in [&ALL_SHARDS[..], &ALL_SHARDS[..4]] {
        // One message per shard, so that whoever reads has one of each.
        let batch =
            |name: &str| (0..8).map(|n| plain(format!("{name}{n}{}", shards.len()))).collect::<Vec<_>>();
        let start = read(&store, shards, 0, 1000).await.through;
        let mut late = store.begin().await.unwrap();
        store.put(&mut late, &batch("late"), at(0)).await.unwrap();
        put(&store, &batch("early")).await;

        let first = read(&store, shards, start, 1000).await;
        store.commit(late).await.unwrap();
        let window = Window { shards, after: first.through, holes: &first.holes, limit: 1000 };
        let second = store.read(window).await.unwrap();

        assert_eq!(first.rows.len(), shards.len());
        assert!(ids(&first.rows).iter().all(|id| id.starts_with("early")));
        assert_eq!(second.rows.len(), shards.len(), "{shards:?}");
        assert!(ids(&second.rows).iter().all(|id| id.starts_with("late")));
    }
}

pub async fn a_hole_closes_when_its_transaction_rolls_back<F: StoreFixture>(fixture: Arc<F>) {
    if !F::GUARANTEES.concurrent_writers {
        return;
    }
    let store = fixture.store();
    let mut late = store.begin().await.unwrap();
    store.put(&mut late, &["x", "y"].map(plain), at(0)).await.unwrap();
    put(&store, &[plain("early")]).await;

    let mut reader = Reader::of(&ALL_SHARDS);
    reader.read(&store).await;
    let open = reader.holes.len();
    for _ in 0..5 {
        reader.read(&store).await;
    }
    let still_open = reader.holes.len();
    store.rollback(late).await.unwrap();
    reader.close(&store).await;

    assert_eq!((open, still_open), (2, 2), "a hole stays open while its transaction is");
    assert_eq!(reader.seen, ["early"]);
}

pub async fn a_reader_of_everything_loses_nothing_to_interleaved_transactions<F: StoreFixture>(
    fixture: Arc<F>,
) {
    interleave(&fixture.store(), vec![Reader::of(&ALL_SHARDS)], F::GUARANTEES.concurrent_writers).await;
}

pub async fn readers_of_parts_lose_nothing_to_interleaved_transactions<F: StoreFixture>(fixture: Arc<F>) {
    let readers = vec![Reader::of(&[0, 1, 2]), Reader::of(&[3]), Reader::of(&[4, 5, 6, 7])];
    interleave(&fixture.store(), readers, F::GUARANTEES.concurrent_writers).await;
}

/// Goes through the log as a relay does.
struct Reader {
    shards: Vec<Shard>,
    after: Position,
    holes: Vec<Position>,
    seen: Vec<String>,
}

impl Reader {
    fn of(shards: &[Shard]) -> Self {
        Self { shards: shards.to_vec(), after: 0, holes: Vec::new(), seen: Vec::new() }
    }

    async fn read<S: Mailbox>(&mut self, store: &S) {
        let window = Window { shards: &self.shards, after: self.after, holes: &self.holes, limit: 5 };
        let span = store.read(window).await.unwrap();
        assert!(span.through >= self.after, "a reader never goes back");
        assert!(span.holes.is_sorted() && span.holes.iter().all(|hole| *hole <= span.through));
        self.seen.extend(ids(&span.rows));
        (self.after, self.holes) = (span.through, span.holes);
    }

    /// Reads until nothing is left and no hole is open.
    async fn close<S: Mailbox>(&mut self, store: &S) {
        for _ in 0..PATIENCE {
            let before = self.seen.len();
            self.read(store).await;
            if self.seen.len() == before && self.holes.is_empty() {
                return;
            }
            // The store looks at open transactions every few milliseconds.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("the holes {:?} did not close", self.holes);
    }
}

/// Transactions that begin, put and end in any order, with readers in between.
async fn interleave<S: Mailbox>(store: &S, mut readers: Vec<Reader>, is_concurrent: bool) {
    let mut dice = Dice::new(Dice::seed("interleave"));
    let (mut open, mut committed, mut number) = (Vec::new(), Vec::new(), 0);
    let most = if is_concurrent { 4 } else { 1 };
    for _ in 0..120 {
        if open.len() < most && dice.once_in(2) {
            open.push((store.begin().await.unwrap(), Vec::new()));
        }
        let chosen = dice.below(most);
        if let Some((tx, puts)) = open.get_mut(chosen) {
            number += 1;
            let id = number.to_string();
            let envelope =
                if dice.once_in(2) { plain(&id) } else { keyed(&id, &format!("k{}", dice.below(9))) };
            store.put(tx, &[envelope], at(0)).await.unwrap();
            puts.push(id);
            if dice.once_in(3) {
                let (tx, puts) = open.swap_remove(chosen);
                if dice.once_in(3) {
                    store.rollback(tx).await.unwrap();
                } else {
                    store.commit(tx).await.unwrap();
                    committed.extend(puts);
                }
            }
        }
        let reader = dice.below(readers.len());
        readers[reader].read(store).await;
    }
    for (tx, puts) in open {
        store.commit(tx).await.unwrap();
        committed.extend(puts);
    }
    let mut seen = Vec::new();
    for reader in &mut readers {
        reader.close(store).await;
        seen.append(&mut reader.seen);
    }
    seen.sort();
    committed.sort();
    assert_eq!(seen, committed, "every committed row is read, and read once");
    assert_eq!(logged(store).await.len(), committed.len());
}
