//! The rows one sink keeps beside the log, with the orders they are looked up in.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use oncebox_core::Timestamp;
use oncebox_core::log::{LaneKey, MAX_BLOCKED, Park, Parking, Position, Shard};

/// One more than a relay lists, so that it can tell.
const BLOCKED_LIMIT: usize = MAX_BLOCKED + 1;

/// A row beside the log.
pub(super) struct Parked {
    pub(super) shard: Shard,
    pub(super) lane: Option<LaneKey>,
    pub(super) stand: Stand,
    pub(super) attempts: u32,
    pub(super) reason: Option<String>,
    pub(super) since: Timestamp,
}

/// What a parked row waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stand {
    /// Its time.
    Waiting(Timestamp),
    /// An earlier row of its lane.
    Behind,
    /// A person.
    Dead,
}

impl Stand {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Waiting(_) => "waiting",
            Self::Behind => "behind",
            Self::Dead => "dead",
        }
    }
}

/// All parked rows of one sink.
#[derive(Default)]
pub(super) struct ParkingLot {
    rows: BTreeMap<Position, Parked>,
    lanes: BTreeMap<LaneKey, BTreeSet<Position>>,
    waiting: BTreeSet<(Timestamp, Position)>,
}

impl ParkingLot {
    pub(super) fn rows(&self) -> &BTreeMap<Position, Parked> {
        &self.rows
    }

    /// Adds a row, or changes what it waits for.
    pub(super) fn park(&mut self, park: &Park, now: Timestamp) {
        let stand = match park.parking {
            Parking::Waiting { after } => Stand::Waiting(now.plus(after)),
            Parking::Behind => Stand::Behind,
            Parking::Dead => Stand::Dead,
        };
        let row = self.rows.entry(park.position).or_insert_with(|| Parked {
            shard: park.shard,
            lane: park.lane.clone(),
            stand: Stand::Behind,
            attempts: 0,
            reason: None,
            since: now,
        });
        row.attempts = park.attempts;
        row.reason.clone_from(&park.reason);
        if let Some(lane) = &row.lane {
            self.lanes.entry(lane.clone()).or_default().insert(park.position);
        }
        self.stand(park.position, stand);
    }

    /// Forgets a row.
    pub(super) fn remove(&mut self, position: Position) -> Option<Parked> {
        self.stand(position, Stand::Behind);
        let row = self.rows.remove(&position)?;
        if let Some(lane) = &row.lane
            && let Some(positions) = self.lanes.get_mut(lane)
        {
            positions.remove(&position);
            if positions.is_empty() {
                self.lanes.remove(lane);
            }
        }
        Some(row)
    }

    /// Lets the first row of a lane be tried, if it waits behind what is gone.
    pub(super) fn free(&mut self, lane: &LaneKey, skip_dead: bool, now: Timestamp) {
        let first = self.lane(lane).find(|(_, row)| !(skip_dead && row.stand == Stand::Dead));
        if let Some((position, row)) = first
            && row.stand == Stand::Behind
        {
            self.stand(position, Stand::Waiting(now));
        }
    }

    /// Tries a dead letter again with fresh attempts.
    pub(super) fn requeue(&mut self, position: Position, now: Timestamp) -> bool {
        let Some(row) = self.rows.get_mut(&position).filter(|row| row.stand == Stand::Dead) else {
            return false;
        };
        row.attempts = 0;
        self.stand(position, Stand::Waiting(now));
        true
    }

    /// Gives a dead letter up.
    pub(super) fn discard(&mut self, position: Position, now: Timestamp) -> bool {
        if self.rows.get(&position).is_none_or(|row| row.stand != Stand::Dead) {
            return false;
        }
        if let Some(lane) = self.remove(position).and_then(|row| row.lane) {
            self.free(&lane, false, now);
        }
        true
    }

    /// Rows to try, by position: those whose time has come, each with the rows
    /// right behind it. A row in front whose time has not come holds its lane back.
    pub(super) fn due(&self, shards: &[Shard], limit: usize, now: Timestamp) -> Vec<(Position, u32)> {
        let due = self.waiting.iter().take_while(|(next, _)| *next <= now);
        let heads = due
            .filter_map(|(_, position)| self.rows.get(position).map(|row| (*position, row)))
            .filter(|(_, row)| shards.contains(&row.shard))
            .filter(|(position, row)| !self.has_undue_front(*position, row, now))
            .take(limit);
        let mut found = BTreeMap::new();
        for (head, row) in heads {
            found.insert(head, row.attempts);
            let Some(lane) = &row.lane else { continue };
            let behind = self.lane_after(lane, head).take_while(|(_, row)| row.stand == Stand::Behind);
            found.extend(behind.take(limit).map(|(position, row)| (position, row.attempts)));
        }
        found.into_iter().take(limit).collect()
    }

    /// The lanes that have rows here.
    pub(super) fn blocked(&self, shards: &[Shard], skip_dead: bool) -> Vec<LaneKey> {
        let blocks = |row: &Parked| shards.contains(&row.shard) && !(skip_dead && row.stand == Stand::Dead);
        let lanes = self.lanes.keys().filter(|lane| self.lane(lane).any(|(_, row)| blocks(row)));
        lanes.take(BLOCKED_LIMIT).cloned().collect()
    }

    fn has_undue_front(&self, position: Position, row: &Parked, now: Timestamp) -> bool {
        let Some(lane) = &row.lane else { return false };
        let mut front = self.lane(lane).take_while(|(other, _)| *other < position);
        front.any(|(_, row)| matches!(row.stand, Stand::Waiting(next) if next > now))
    }

    fn lane(&self, lane: &LaneKey) -> impl Iterator<Item = (Position, &Parked)> {
        self.lane_after(lane, Position::MIN)
    }

    fn lane_after(&self, lane: &LaneKey, after: Position) -> impl Iterator<Item = (Position, &Parked)> {
        let positions = self.lanes.get(lane).into_iter();
        let positions =
            positions.flat_map(move |positions| positions.range((Bound::Excluded(after), Bound::Unbounded)));
        positions.filter_map(|position| self.rows.get(position).map(|row| (*position, row)))
    }

    /// The one place that changes what a row waits for, to keep `waiting` true.
    fn stand(&mut self, position: Position, stand: Stand) {
        let Some(row) = self.rows.get_mut(&position) else { return };
        if let Stand::Waiting(next) = row.stand {
            self.waiting.remove(&(next, position));
        }
        if let Stand::Waiting(next) = stand {
            self.waiting.insert((next, position));
        }
        row.stand = stand;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000);

    fn lane(key: &str) -> LaneKey {
        LaneKey { tenant: String::new(), key: key.into() }
    }

    fn lot(rows: &[(Position, &str, Parking)]) -> ParkingLot {
        let mut lot = ParkingLot::default();
        for (position, key, parking) in rows {
            let lane = (!key.is_empty()).then(|| lane(key));
            let park = Park {
                position: *position,
                shard: 0,
                lane,
                parking: parking.clone(),
                attempts: 1,
                reason: None,
            };
            lot.park(&park, NOW);
        }
        lot
    }

    fn waiting(micros: u64) -> Parking {
        Parking::Waiting { after: Duration::from_micros(micros) }
    }

    fn due(lot: &ParkingLot, limit: usize, now: Timestamp) -> Vec<Position> {
        lot.due(&[0], limit, now).into_iter().map(|(position, _)| position).collect()
    }

    #[test]
    fn a_due_head_brings_the_rows_behind_it_and_no_others() {
        let lot = lot(&[
            (1, "a", waiting(0)),
            (2, "b", waiting(9)),
            (3, "a", Parking::Behind),
            (4, "b", Parking::Behind),
            (5, "", waiting(0)),
            (6, "c", Parking::Dead),
            (7, "c", Parking::Behind),
        ]);

        assert_eq!(due(&lot, 10, NOW), [1, 3, 5]);
        assert_eq!(due(&lot, 2, NOW), [1, 3]);
        assert!(lot.due(&[1], 10, NOW).is_empty());
        assert_eq!(due(&lot, 10, Timestamp::from_micros(2_000)), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_dead_row_between_keeps_the_rows_behind_it() {
        let lot = lot(&[(1, "a", waiting(0)), (2, "a", Parking::Dead), (3, "a", Parking::Behind)]);

        assert_eq!(due(&lot, 10, NOW), [1]);
    }

    #[test]
    fn a_row_that_came_late_does_not_stall_the_head_behind_it() {
        let mut lot = lot(&[(2, "a", waiting(0)), (1, "a", Parking::Behind)]);

        assert_eq!(due(&lot, 10, NOW), [2]);
        lot.remove(2);
        lot.free(&lane("a"), false, NOW);

        assert_eq!(due(&lot, 10, NOW), [1]);
    }

    #[test]
    fn a_front_row_that_is_not_due_holds_its_lane_back() {
        let lot = lot(&[(1, "a", waiting(9)), (2, "a", waiting(0)), (3, "a", Parking::Behind)]);

        assert!(due(&lot, 10, NOW).is_empty());
    }

    #[test]
    fn a_dead_head_blocks_its_lane_unless_dead_rows_are_skipped() {
        let mut lot = lot(&[(1, "a", Parking::Dead), (2, "a", Parking::Behind)]);

        lot.free(&lane("a"), false, NOW);
        assert!(due(&lot, 10, NOW).is_empty());

        lot.free(&lane("a"), true, NOW);
        assert_eq!(due(&lot, 10, NOW), [2]);
    }

    #[test]
    fn discarding_a_dead_head_frees_the_next_row() {
        let mut lot = lot(&[(1, "a", Parking::Dead), (2, "a", Parking::Behind), (3, "a", Parking::Behind)]);

        assert!(!lot.discard(2, NOW), "only dead letters are given up");
        assert!(lot.discard(1, NOW));

        assert_eq!(due(&lot, 10, NOW), [2, 3]);
    }

    #[test]
    fn a_requeued_dead_letter_has_its_attempts_back() {
        let mut lot = lot(&[(1, "a", Parking::Dead), (2, "a", Parking::Behind)]);

        assert!(lot.requeue(1, NOW));
        assert!(!lot.requeue(1, NOW));

        assert_eq!(lot.due(&[0], 10, NOW), [(1, 0), (2, 1)]);
    }

    #[test]
    fn lanes_with_only_dead_rows_are_blocked_unless_those_are_skipped() {
        let lot = lot(&[(1, "a", Parking::Dead), (2, "b", Parking::Behind), (3, "", waiting(0))]);

        assert_eq!(lot.blocked(&[0], false), [lane("a"), lane("b")]);
        assert_eq!(lot.blocked(&[0], true), [lane("b")]);
        assert!(lot.blocked(&[1], false).is_empty());
    }

    #[test]
    fn parking_a_row_again_keeps_the_time_it_was_first_parked() {
        let mut lot = lot(&[(1, "a", waiting(0))]);
        let park = Park {
            position: 1,
            shard: 0,
            lane: Some(lane("a")),
            parking: Parking::Dead,
            attempts: 2,
            reason: Some("no".into()),
        };

        lot.park(&park, Timestamp::from_micros(5_000));

        assert_eq!(lot.rows().get(&1).map(|row| row.since), Some(NOW));
        assert!(due(&lot, 10, Timestamp::from_micros(9_000)).is_empty());
    }
}
