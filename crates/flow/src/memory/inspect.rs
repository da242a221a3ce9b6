//! What operators see of the store.

use std::collections::BTreeMap;

use oncebox_core::Timestamp;
use oncebox_core::inspect::{BoxFuture, COUNT_CAP, HandlerStatus, Inspect, SinkStatus, Status};
use oncebox_core::log::{ParkedRow, Position};

use super::delivery::{HandlerId, Stage};
use super::parking::Stand;
use super::state::{Log, Logged, Sink, State};
use super::stock::Stock;
use super::store::{MemoryStore, at};

impl Inspect for MemoryStore {
    fn status(&self) -> BoxFuture<'_, oncebox_core::Result<Status>> {
        Box::pin(async { Ok(status(&self.state(), at(None))) })
    }

    fn parked(&self, limit: usize) -> BoxFuture<'_, oncebox_core::Result<Vec<ParkedRow>>> {
        Box::pin(async move { Ok(parked(&self.state(), limit, |_| true)) })
    }

    fn dead<'s>(
        &'s self,
        sink: Option<&'s str>,
        limit: usize,
    ) -> BoxFuture<'s, oncebox_core::Result<Vec<ParkedRow>>> {
        let is_meant = move |row: &ParkedRow| row.state == "dead" && sink.is_none_or(|sink| row.sink == sink);
        Box::pin(async move { Ok(parked(&self.state(), limit, is_meant)) })
    }
}

fn status(state: &State, now: Timestamp) -> Status {
    let relayed = state.sinks.iter().filter(|(_, sink)| !sink.cursors.is_empty());
    Status {
        logged: capped(state.log.rows().len()),
        scheduled: capped(state.log.scheduled()),
        sinks: relayed.map(|(name, sink)| sink_status(name, sink, &state.log, now)).collect(),
        markers: capped(state.markers.count()),
        dead_letters: capped(state.graveyard.letters().len() + dead(&state.stock)),
        handlers: handlers(&state.stock, now),
    }
}

fn dead(stock: &Stock) -> usize {
    stock.open().filter(|(_, row, _)| row.stage == Stage::Dead).count()
}

/// Each handler that has deliveries which are not over.
fn handlers(stock: &Stock, now: Timestamp) -> Vec<HandlerStatus> {
    let mut handlers: BTreeMap<&HandlerId, HandlerStatus> = BTreeMap::new();
    for (_, row, message) in stock.open() {
        let id = &row.identity.handler;
        let fresh =
            || HandlerStatus { scope: id.0.clone(), handler: id.1.clone(), ..HandlerStatus::default() };
        let status = handlers.entry(id).or_insert_with(fresh);
        let count = match row.stage {
            Stage::Ready => &mut status.ready,
            Stage::Leased => &mut status.leased,
            Stage::Behind => &mut status.behind,
            Stage::Parked => &mut status.parked,
            Stage::Dead => &mut status.dead,
            Stage::Done | Stage::Discarded => continue,
        };
        *count = (*count + 1).min(COUNT_CAP);
        status.oldest = status.oldest.max(Some(now.since(message.received_at)));
    }
    handlers.into_values().collect()
}

fn sink_status(name: &str, sink: &Sink, log: &Log, now: Timestamp) -> SinkStatus {
    let standing =
        |wanted: &str| capped(sink.parked.rows().values().filter(|row| row.stand.name() == wanted).count());
    let oldest = pending(sink, log).map(|(_, row)| row.created_at).min();
    let live = || sink.members.values().filter(|member| member.seen_until > now);
    SinkStatus {
        sink: name.to_owned(),
        pending: capped(pending(sink, log).take(usize::try_from(COUNT_CAP).unwrap_or(usize::MAX)).count()),
        oldest: oldest.map(|created_at| now.since(created_at)),
        waiting: standing("waiting"),
        behind: standing("behind"),
        dead: standing(Stand::Dead.name()),
        relays: capped(live().count()),
        unowned_shards: capped(
            sink.cursors.values().filter(|place| place.lease_until.is_none_or(|until| until < now)).count(),
        ),
        moved_at: sink.cursors.values().filter_map(|place| place.moved_at).max(),
        outage: live().filter_map(|member| member.outage.clone()).min(),
    }
}

/// Rows this sink has not settled: above their shard's cursor, or a hole of it.
fn pending<'a>(sink: &'a Sink, log: &'a Log) -> impl Iterator<Item = (Position, &'a Logged)> {
    let start = sink.cursors.values().map(|place| place.position).min().unwrap_or(0);
    let holes = sink.cursors.iter().flat_map(move |(shard, place)| {
        let rows = place.holes.iter().filter_map(|hole| log.rows().get(hole).map(|row| (*hole, row)));
        rows.filter(move |(_, row)| row.shard == *shard)
    });
    let above = log.rows().range(start.saturating_add(1)..).map(|(position, row)| (*position, row));
    let above = above.filter(|(position, row)| {
        sink.cursors.get(&row.shard).is_none_or(|place| *position > place.position)
    });
    holes.chain(above)
}

fn parked(state: &State, limit: usize, is_meant: impl Fn(&ParkedRow) -> bool) -> Vec<ParkedRow> {
    let mut rows: Vec<ParkedRow> = Vec::new();
    for (name, sink) in &state.sinks {
        rows.extend(sink.parked.rows().iter().filter_map(|(position, row)| {
            let envelope = &state.log.rows().get(position)?.envelope;
            Some(ParkedRow {
                sink: name.clone(),
                position: *position,
                id: envelope.id.clone(),
                kind: envelope.kind.clone(),
                state: row.stand.name().to_owned(),
                attempts: row.attempts,
                reason: row.reason.clone(),
                since: row.since,
            })
        }));
    }
    rows.retain(is_meant);
    rows.sort_by_key(|row| (row.since, row.position));
    rows.truncate(limit);
    rows
}

pub(super) fn capped(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(COUNT_CAP).min(COUNT_CAP)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncebox_core::log::{ClaimRequest, Park, Parking, Settlement};
    use oncebox_core::{Envelope, Mailbox, Store};

    use super::*;

    #[tokio::test]
    async fn settled_rows_are_not_pending_and_holes_are() {
        let store = MemoryStore::new();
        let mut tx = store.begin().await.unwrap();
        for id in ["1", "2", "3", "4"] {
            let (id, destination) = (id.to_owned(), "d".to_owned());
            let envelope =
                Envelope { id, destination, source: "s".into(), kind: "k".into(), ..Envelope::default() };
            store.put(&mut tx, &[envelope], None).await.unwrap();
        }
        store.commit(tx).await.unwrap();
        let request = ClaimRequest {
            sink: "s".into(),
            holder: "me".into(),
            lease: Duration::from_secs(60),
            outage: None,
        };
        let cursors = store.claim(&request, None).await.unwrap();
        let dead =
            Park { position: 2, shard: 2, lane: None, parking: Parking::Dead, attempts: 1, reason: None };
        let settlement = Settlement {
            sink: "s".into(),
            fences: cursors.iter().map(|cursor| (cursor.shard, cursor.fence)).collect(),
            progress: Some((3, vec![1])),
            park: vec![dead],
            ..Settlement::default()
        };
        store.settle(&settlement, None).await.unwrap();

        let status = store.status().await.unwrap();
        let parked = store.parked(10).await.unwrap();

        let sink = &status.sinks[0];
        assert_eq!((status.logged, sink.pending, sink.dead), (4, 2, 1), "row 4 is ahead, row 1 is a hole");
        assert_eq!((sink.relays, sink.unowned_shards), (1, 0));
        assert_eq!((parked[0].position, parked[0].id.as_str(), parked[0].state.as_str()), (2, "2", "dead"));
    }
}
