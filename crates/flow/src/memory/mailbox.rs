//! The outbox of the store: putting, scheduling, and the relay's methods.

use oncebox_core::limits::MAX_NAME_BYTES;
use oncebox_core::log::{ClaimRequest, Cursor, DueRow, LaneKey, Position, Settlement, Shard, Span, Window};
use oncebox_core::{Envelope, Error, Kind, Mailbox, Once, Result, Timestamp};

use super::relay;
use super::store::{MemoryStore, MemoryTx, at, lock};

impl Mailbox for MemoryStore {
    async fn put(&self, tx: &mut MemoryTx, batch: &[Envelope], now: Option<Timestamp>) -> Result<Vec<Once>> {
        batch.iter().try_for_each(check)?;
        let now = at(now);
        let state = lock(&tx.state);
        Ok(batch.iter().map(|envelope| tx.puts.add(&state.log, envelope, now)).collect())
    }

    async fn holds(&self, envelope: &Envelope) -> Result<bool> {
        // As a writer, so that whoever is about to decide it has decided.
        self.write(|state| state.log.holds(envelope)).await
    }

    async fn promote(&self, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        let now = at(now);
        // An idle relay must not queue with the writers.
        if !self.state().log.has_due(now) {
            return Ok(0);
        }
        self.write(|state| state.log.promote(limit, now)).await
    }

    async fn claim(&self, request: &ClaimRequest, now: Option<Timestamp>) -> Result<Vec<Cursor>> {
        self.write(|state| relay::claim(state, request, at(now))).await
    }

    async fn read(&self, window: Window<'_>) -> Result<Span> {
        Ok(relay::read(&self.state().log, window))
    }

    async fn settle(&self, settlement: &Settlement, now: Option<Timestamp>) -> Result<()> {
        self.write(|state| relay::settle(state, settlement, at(now))).await?
    }

    async fn due(
        &self,
        sink: &str,
        shards: &[Shard],
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<DueRow>> {
        let state = self.state();
        let due =
            state.sinks.get(sink).map(|sink| sink.parked.due(shards, limit, at(now))).unwrap_or_default();
        let rows = due.into_iter().filter_map(|(position, attempts)| {
            let logged = state.log.rows().get(&position)?;
            Some(DueRow { row: relay::row((position, logged)), attempts })
        });
        Ok(rows.collect())
    }

    async fn blocked(&self, sink: &str, shards: &[Shard], skip_dead: bool) -> Result<Vec<LaneKey>> {
        let state = self.state();
        Ok(state.sinks.get(sink).map(|sink| sink.parked.blocked(shards, skip_dead)).unwrap_or_default())
    }

    async fn release(&self, sink: &str, holder: &str) -> Result<()> {
        self.write(|state| relay::release(state, sink, holder)).await
    }

    async fn requeue(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        self.write(|state| {
            state.sinks.get_mut(sink).is_some_and(|sink| sink.parked.requeue(position, at(now)))
        })
        .await
    }

    async fn discard(&self, sink: &str, position: Position, now: Option<Timestamp>) -> Result<bool> {
        self.write(|state| {
            state.sinks.get_mut(sink).is_some_and(|sink| sink.parked.discard(position, at(now)))
        })
        .await
    }
}

/// The length checks the database stores have on their columns.
fn check(envelope: &Envelope) -> Result<()> {
    let required = [&envelope.id, &envelope.source, &envelope.kind, &envelope.destination];
    let fits = |text: &String| text.len() <= MAX_NAME_BYTES;
    let is_valid = required.into_iter().chain(&envelope.key).all(|text| !text.is_empty() && fits(text));
    if is_valid && fits(&envelope.tenant) {
        return Ok(());
    }
    Err(Error::new(Kind::Invalid, "an id, source, type, tenant, key or destination is empty or too long"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncebox_core::Store;
    use oncebox_core::log::{Park, Parking};

    use super::*;

    const NOW: Option<Timestamp> = Some(Timestamp::from_micros(1_000));
    const ALL: [Shard; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    fn envelope(id: &str, key: Option<&str>) -> Envelope {
        Envelope {
            id: id.into(),
            source: "shop".into(),
            kind: "order.placed".into(),
            destination: "orders".into(),
            key: key.map(Into::into),
            ..Envelope::default()
        }
    }

    async fn put(store: &MemoryStore, batch: &[Envelope]) -> Vec<Once> {
        let mut tx = store.begin().await.unwrap();
        let once = store.put(&mut tx, batch, NOW).await.unwrap();
        store.commit(tx).await.unwrap();
        once
    }

    async fn read(store: &MemoryStore, shards: &[Shard], after: Position, holes: &[Position]) -> Span {
        store.read(Window { shards, after, holes, limit: 3 }).await.unwrap()
    }

    fn positions(span: &Span) -> Vec<Position> {
        span.rows.iter().map(|row| row.position).collect()
    }

    #[tokio::test]
    async fn an_id_is_stored_once_within_a_batch_a_transaction_and_the_log() {
        let store = MemoryStore::new();
        let (a, b) = (envelope("a", None), envelope("b", None));

        let first = put(&store, &[a.clone(), a.clone(), b.clone()]).await;
        let again = put(&store, &[b]).await;

        assert_eq!(first, [Once::First, Once::Duplicate, Once::First]);
        assert_eq!(again, [Once::Duplicate]);
        assert!(store.holds(&a).await.unwrap());
        assert_eq!(positions(&read(&store, &ALL, 0, &[]).await), [1, 2]);
    }

    #[tokio::test]
    async fn a_rolled_back_put_leaves_nothing_and_its_position_is_used_again() {
        let store = MemoryStore::new();

        let mut tx = store.begin().await.unwrap();
        store.put(&mut tx, &[envelope("a", None)], NOW).await.unwrap();
        assert!(read(&store, &ALL, 0, &[]).await.rows.is_empty(), "readers see committed rows only");
        store.rollback(tx).await.unwrap();
        let once = put(&store, &[envelope("a", None)]).await;

        assert_eq!(once, [Once::First]);
        assert_eq!(positions(&read(&store, &ALL, 0, &[]).await), [1]);
    }

    #[tokio::test]
    async fn a_read_stops_at_its_limit_and_goes_past_rows_of_others() {
        let store = MemoryStore::new();
        put(&store, &(1..=6).map(|n| envelope(&n.to_string(), None)).collect::<Vec<_>>()).await;

        let full = read(&store, &ALL, 0, &[]).await;
        let part = read(&store, &[1, 2], 0, &[]).await;
        let holes = read(&store, &ALL, 4, &[1, 3, 99]).await;

        assert_eq!((positions(&full), full.through, full.full), (vec![1, 2, 3], 3, true));
        assert_eq!((positions(&part), part.through, part.full), (vec![1, 2], 6, false));
        assert_eq!((positions(&holes), holes.holes.len()), (vec![1, 3, 5, 6], 0));
    }

    #[tokio::test]
    async fn scheduled_messages_enter_the_log_when_they_are_due() {
        let store = MemoryStore::new();
        let at = |micros| Some(Timestamp::from_micros(micros));
        let late = Envelope { due: at(9_000), ..envelope("late", None) };
        let early = Envelope { due: at(5_000), ..envelope("early", None) };
        put(&store, &[late.clone(), early]).await;
        assert_eq!(put(&store, &[envelope("late", None)]).await, [Once::Duplicate], "its id is taken");

        assert!(read(&store, &ALL, 0, &[]).await.rows.is_empty());
        assert!(store.holds(&late).await.unwrap());
        assert_eq!(store.promote(10, at(4_999)).await.unwrap(), 0);
        assert_eq!(store.promote(10, at(5_000)).await.unwrap(), 1);

        let row = read(&store, &ALL, 0, &[]).await.rows.remove(0).envelope.unwrap();
        assert_eq!((row.id.as_str(), row.time, row.due), ("early", at(5_000), None));
    }

    #[tokio::test]
    async fn a_parked_row_comes_back_with_its_envelope() {
        let store = MemoryStore::new();
        put(&store, &[envelope("a", Some("k"))]).await;
        let shard = read(&store, &ALL, 0, &[]).await.rows[0].shard;
        let request = ClaimRequest {
            sink: "s".into(),
            holder: "me".into(),
            lease: Duration::from_secs(1),
            outage: None,
        };
        let fences = store.claim(&request, NOW).await.unwrap().iter().map(|c| (c.shard, c.fence)).collect();
        let park = Park {
            position: 1,
            shard,
            lane: LaneKey::of(&envelope("a", Some("k"))),
            parking: Parking::Waiting { after: Duration::ZERO },
            attempts: 1,
            reason: Some("no".into()),
        };
        let settlement = Settlement {
            sink: "s".into(),
            fences,
            progress: Some((1, vec![])),
            park: vec![park],
            ..Settlement::default()
        };

        store.settle(&settlement, NOW).await.unwrap();

        let due = store.due("s", &[shard], 10, NOW).await.unwrap();
        assert_eq!(due[0].row.envelope.as_ref().unwrap().id, "a");
        assert_eq!(store.blocked("s", &ALL, false).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn names_that_no_column_takes_are_refused() {
        let store = MemoryStore::new();
        let mut tx = store.begin().await.unwrap();

        for bad in [envelope("", None), envelope(&"x".repeat(256), None), envelope("a", Some(""))] {
            assert_eq!(store.put(&mut tx, &[bad], NOW).await.unwrap_err().kind(), Kind::Invalid);
        }
    }
}
