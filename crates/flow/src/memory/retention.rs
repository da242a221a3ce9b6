//! Forgetting what everybody has settled.

use std::time::Duration;

use oncebox_core::log::Position;
use oncebox_core::store::Purge;
use oncebox_core::{Result, Retention, Timestamp};

use super::state::State;
use super::store::{MemoryStore, at};

impl Retention for MemoryStore {
    async fn purge(&self, purge: &Purge, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        self.write(|state| {
            let now = at(now);
            match purge {
                Purge::Outbox(age) => purge_log(state, limit, now.minus(*age)),
                Purge::Markers { handler, older_than } => {
                    state.markers.purge(handler, limit, now.minus(*older_than))
                }
                Purge::Relays(age) => purge_members(state, limit, now.minus(*age)),
                Purge::Entries(age) => purge_entries(state, limit, now.minus(*age)),
                Purge::Deliveries { scope, handler, older_than } => {
                    let handler = (scope.clone(), handler.clone());
                    state.stock.purge_deliveries(&handler, limit, now.minus(*older_than))
                }
                Purge::Messages(age) => state.stock.purge_messages(limit, now.minus(*age)),
            }
        })
        .await
    }

    async fn hold_broom(&self, holder: &str, lease: Duration, now: Option<Timestamp>) -> Result<bool> {
        self.write(|state| {
            let now = at(now);
            if state.broom.as_ref().is_some_and(|(other, until)| other != holder && *until > now) {
                return false;
            }
            state.broom = Some((holder.to_owned(), now.plus(lease)));
            true
        })
        .await
    }
}

/// Walks up from the lowest position and looks at no more rows than it may delete.
fn purge_log(state: &mut State, limit: usize, cutoff: Timestamp) -> usize {
    let places = state.sinks.values().flat_map(|sink| sink.cursors.values());
    // Nothing at or above a cursor's first hole is settled for its sink.
    let settled = places.map(|place| {
        let hole = place.holes.iter().min().map_or(place.position, |hole| hole.saturating_sub(1));
        hole.min(place.position)
    });
    // Where nobody has a cursor, nobody has settled anything.
    let Some(settled) = settled.min() else { return 0 };
    let is_parked =
        |position: &Position| state.sinks.values().any(|sink| sink.parked.rows().contains_key(position));
    let looked_at =
        state.log.rows().range(..=settled).filter(|(position, _)| !is_parked(position)).take(limit);
    let old = looked_at.filter(|(_, row)| row.created_at < cutoff);
    let purged: Vec<Position> = old.map(|(position, _)| *position).collect();
    for position in &purged {
        state.log.remove(*position);
    }
    purged.len()
}

fn purge_members(state: &mut State, limit: usize, cutoff: Timestamp) -> usize {
    let mut purged = 0;
    for sink in state.sinks.values_mut() {
        sink.members.retain(|_, member| {
            let is_gone = purged < limit && member.seen_until < cutoff;
            purged += usize::from(is_gone);
            !is_gone
        });
    }
    purged
}

fn purge_entries(state: &mut State, limit: usize, cutoff: Timestamp) -> usize {
    let mut purged = 0;
    state.entries.retain(|_, (_, entered_at)| {
        let is_gone = purged < limit && *entered_at < cutoff;
        purged += usize::from(is_gone);
        !is_gone
    });
    purged
}

#[cfg(test)]
mod tests {
    use oncebox_core::log::{ClaimRequest, Park, Parking, Settlement, Window};
    use oncebox_core::{Envelope, Mailbox, Store};

    use super::*;

    fn seconds(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp::from_micros(seconds * 1_000_000))
    }

    async fn store_of(rows: usize) -> MemoryStore {
        let store = MemoryStore::new();
        let mut tx = store.begin().await.unwrap();
        for n in 1..=rows {
            let (id, destination) = (n.to_string(), "d".to_owned());
            let envelope =
                Envelope { id, destination, source: "s".into(), kind: "k".into(), ..Envelope::default() };
            store.put(&mut tx, &[envelope], seconds(0)).await.unwrap();
        }
        store.commit(tx).await.unwrap();
        store
    }

    async fn settle(store: &MemoryStore, sink: &str, progress: (Position, Vec<Position>), park: Vec<Park>) {
        let request = ClaimRequest {
            sink: sink.into(),
            holder: "me".into(),
            lease: Duration::from_secs(10),
            outage: None,
        };
        let cursors = store.claim(&request, seconds(0)).await.unwrap();
        let fences = cursors.iter().map(|cursor| (cursor.shard, cursor.fence)).collect();
        let sink = sink.to_owned();
        let settlement = Settlement { sink, fences, progress: Some(progress), park, ..Settlement::default() };
        store.settle(&settlement, seconds(0)).await.unwrap();
    }

    async fn positions(store: &MemoryStore) -> Vec<Position> {
        let window = Window { shards: &[0, 1, 2, 3, 4, 5, 6, 7], after: 0, holes: &[], limit: 100 };
        store.read(window).await.unwrap().rows.iter().map(|row| row.position).collect()
    }

    #[tokio::test]
    async fn only_old_rows_that_every_sink_has_settled_are_purged() {
        let store = store_of(8).await;
        let outbox = Purge::Outbox(Duration::from_secs(60));
        assert_eq!(store.purge(&outbox, 10, seconds(100)).await.unwrap(), 0, "no sink, no proof");
        let dead =
            Park { position: 3, shard: 3, lane: None, parking: Parking::Dead, attempts: 1, reason: None };
        settle(&store, "a", (7, vec![6]), vec![dead]).await;
        settle(&store, "b", (7, vec![]), vec![]).await;

        assert_eq!(store.purge(&outbox, 10, seconds(60)).await.unwrap(), 0, "not older than that");
        assert_eq!(store.purge(&outbox, 2, seconds(100)).await.unwrap(), 2);
        assert_eq!(store.purge(&outbox, 10, seconds(100)).await.unwrap(), 2);

        assert_eq!(positions(&store).await, [3, 6, 7, 8]);
    }

    #[tokio::test]
    async fn relays_are_forgotten_when_they_have_not_been_seen_for_long() {
        let store = store_of(0).await;
        settle(&store, "a", (0, vec![]), vec![]).await;
        let relays = Purge::Relays(Duration::from_secs(60));

        assert_eq!(store.purge(&relays, 10, seconds(70)).await.unwrap(), 0);
        assert_eq!(store.purge(&relays, 10, seconds(71)).await.unwrap(), 1);
    }
}
