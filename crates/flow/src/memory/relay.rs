//! The relay's half of the mailbox: claim, read, settle.

use oncebox_core::log::{
    ClaimRequest, Cursor, MAX_HOLES, Position, Row, SHARDS, Settlement, Span, Window, fair_share,
};
use oncebox_core::{Error, Kind, Result, Timestamp};

use super::state::{Log, Logged, Member, Sink, State};

/// Renews, gives back what is above the fair share, takes what is free below it.
pub(super) fn claim(state: &mut State, request: &ClaimRequest, now: Timestamp) -> Vec<Cursor> {
    let sink = state.sinks.entry(request.sink.clone()).or_default();
    let until = now.plus(request.lease);
    let member = Member { seen_until: until, outage: request.outage_text() };
    sink.members.insert(request.holder.clone(), member);
    for shard in 0..SHARDS {
        sink.cursors.entry(shard).or_default();
    }
    let live = sink.members.values().filter(|member| member.seen_until > now).fold(0, |live, _| live + 1);
    let fair = fair_share(live);
    let mut held = 0;
    for place in sink.cursors.values_mut().filter(|place| place.holder.as_ref() == Some(&request.holder)) {
        held += 1;
        place.lease_until = Some(until);
        if held > fair {
            place.holder = None;
            place.lease_until = None;
        }
    }
    let free = sink.cursors.values_mut().filter(|place| {
        place.holder.is_none() || place.lease_until.is_some_and(|lease_until| lease_until < now)
    });
    for place in free.take(usize::try_from(fair - held).unwrap_or(0)) {
        place.holder = Some(request.holder.clone());
        place.lease_until = Some(until);
        place.fence += 1;
    }
    held_by(sink, &request.holder)
}

fn held_by(sink: &Sink, holder: &str) -> Vec<Cursor> {
    let held = sink.cursors.iter().filter(|(_, place)| place.holder.as_deref() == Some(holder));
    held.map(|(shard, place)| Cursor {
        shard: *shard,
        fence: place.fence,
        position: place.position,
        holes: place.holes.clone(),
    })
    .collect()
}

/// Gives everything back, for others to take at once.
pub(super) fn release(state: &mut State, sink: &str, holder: &str) {
    let Some(sink) = state.sinks.get_mut(sink) else { return };
    for place in sink.cursors.values_mut().filter(|place| place.holder.as_deref() == Some(holder)) {
        place.holder = None;
        place.lease_until = None;
    }
    sink.members.remove(holder);
}

/// Reads rows. No position can be filled late here: a hole is a row whose
/// confirm is missing, and one without a row is closed.
pub(super) fn read(log: &Log, window: Window<'_>) -> Span {
    let found = |position: &Position| log.rows().get(position).map(|row| (*position, row));
    let mine = |(_, row): &(Position, &Logged)| window.shards.contains(&row.shard);
    let mut rows: Vec<Row> = window.holes.iter().filter_map(found).filter(mine).map(row).collect();
    rows.sort_unstable_by_key(|row| row.position);
    if window.holes.len() > MAX_HOLES {
        return Span { rows, through: window.after, holes: Vec::new(), full: false };
    }
    let above = log.rows().range(window.after.saturating_add(1)..).map(|(position, row)| (*position, row));
    let before = rows.len();
    rows.extend(above.filter(mine).take(window.limit).map(row));
    let full = rows.len() - before == window.limit;
    let end = if full { rows.last().map(|row| row.position) } else { log.end() };
    Span { rows, through: end.unwrap_or(window.after).max(window.after), holes: Vec::new(), full }
}

/// A row of the log as the relay sees it.
pub(super) fn row((position, logged): (Position, &Logged)) -> Row {
    Row { position, shard: logged.shard, envelope: Ok(logged.envelope.clone()) }
}

/// Writes progress back if every fence still holds.
pub(super) fn settle(state: &mut State, settlement: &Settlement, now: Timestamp) -> Result<()> {
    let sink = state.sinks.entry(settlement.sink.clone()).or_default();
    let is_owned = settlement.fences.iter().all(|(shard, fence)| {
        sink.cursors.get(shard).is_some_and(|place| place.fence == *fence && place.holder.is_some())
    });
    if !is_owned {
        return Err(Error::new(Kind::Fenced, "a shard of this settlement has another owner"));
    }
    if let Some((position, holes)) = &settlement.progress {
        for (shard, _) in &settlement.fences {
            let place = sink.cursors.entry(*shard).or_default();
            place.position = *position;
            place.holes.clone_from(holes);
            place.moved_at = Some(now);
        }
    }
    for park in &settlement.park {
        sink.parked.park(park, now);
    }
    for position in &settlement.unpark {
        sink.parked.remove(*position);
    }
    for lane in &settlement.free {
        sink.parked.free(lane, settlement.skip_dead, now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn request(holder: &str) -> ClaimRequest {
        ClaimRequest { sink: "s".into(), holder: holder.into(), lease: Duration::from_secs(10), outage: None }
    }

    fn seconds(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn shards(cursors: &[Cursor]) -> Vec<i16> {
        cursors.iter().map(|cursor| cursor.shard).collect()
    }

    #[test]
    fn two_relays_end_up_with_half_each() {
        let mut state = State::default();

        let alone = claim(&mut state, &request("a"), seconds(0));
        let nothing = claim(&mut state, &request("b"), seconds(1));
        let half = claim(&mut state, &request("a"), seconds(2));
        let other = claim(&mut state, &request("b"), seconds(3));

        assert_eq!(alone.len(), 8);
        assert!(nothing.is_empty());
        assert_eq!(shards(&half), [0, 1, 2, 3]);
        assert_eq!(shards(&other), [4, 5, 6, 7]);
        assert!(other.iter().all(|cursor| cursor.fence == 2));
    }

    #[test]
    fn a_late_relay_keeps_what_nobody_took_and_loses_what_somebody_did() {
        let mut state = State::default();
        claim(&mut state, &request("a"), seconds(0));

        let late = claim(&mut state, &request("a"), seconds(60));
        let taken = claim(&mut state, &request("b"), seconds(120));
        let stale = settle(
            &mut state,
            &Settlement { sink: "s".into(), fences: vec![(0, 1)], ..Settlement::default() },
            seconds(121),
        );

        assert!(late.iter().all(|cursor| cursor.fence == 1), "renewing is no change of owner");
        assert_eq!(taken.len(), 8);
        assert_eq!(stale.unwrap_err().kind(), Kind::Fenced);
    }

    #[test]
    fn one_lost_shard_refuses_the_whole_settlement() {
        let mut state = State::default();
        let cursors = claim(&mut state, &request("a"), seconds(0));
        let mut fences: Vec<_> = cursors.iter().map(|cursor| (cursor.shard, cursor.fence)).collect();
        fences[7].1 -= 1;
        let settlement =
            Settlement { sink: "s".into(), fences, progress: Some((5, vec![3])), ..Settlement::default() };

        settle(&mut state, &settlement, seconds(1)).unwrap_err();

        assert!(claim(&mut state, &request("a"), seconds(2)).iter().all(|cursor| cursor.position == 0));
    }

    #[test]
    fn released_shards_are_free_at_once_and_refuse_their_old_owner() {
        let mut state = State::default();
        claim(&mut state, &request("a"), seconds(0));

        release(&mut state, "s", "a");
        let stale = settle(
            &mut state,
            &Settlement { sink: "s".into(), fences: vec![(0, 1)], ..Settlement::default() },
            seconds(0),
        );

        assert_eq!(stale.unwrap_err().kind(), Kind::Fenced);
        assert_eq!(claim(&mut state, &request("b"), seconds(0)).len(), 8);
    }
}
