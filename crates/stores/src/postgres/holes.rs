//! Holes: positions that were handed out but whose row cannot be seen.
//!
//! PostgreSQL hands out a position when a row is inserted and shows the row
//! when its transaction commits, so a reader meets positions that are missing
//! for now, and positions that are missing for good because a transaction
//! rolled back. Telling one from the other rests on three facts:
//!
//! 1. A writer takes its `RowExclusiveLock` on the log *before* it takes a
//!    position, and holds it until its end (or the end of the savepoint that is
//!    rolled back with the row).
//! 2. A commit makes its rows visible *before* it releases that lock.
//! 3. Positions are not cached per session, so one below a visible position was
//!    handed out before that row was seen.
//!
//! Hence a hole can only be filled by a transaction that holds the lock at a
//! moment after the hole was met: its *suspects*. Once all of them are gone the
//! hole is *doomed*: whatever was going to fill it has been committed, so a
//! row query that *starts after that* finds the row or proves there is none.
//!
//! An unrelated transaction, however long, holds up nothing: if it does not
//! write to the log it is no suspect, and if it began to write later than the
//! hole was met it is none either. A transaction that is PREPAREd keeps its lock
//! under another name; see [`remaining`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::log::{MAX_HOLES, Position};
use tokio::time::Instant;

/// Looking more often than this only costs: the holes of a busy log close by themselves.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Beyond this the memory is dropped; holes that are still open start over.
const MEMORY: usize = 4 * MAX_HOLES;

/// Virtual transaction ids of those who hold the lock.
pub(super) type Writers = HashSet<String>;

/// What is known about holes, shared by all readers of a store in this process.
#[derive(Debug, Default)]
pub(super) struct Holes {
    /// Orders row queries and verdicts: counts the row queries begun.
    reads: u64,
    checked: Option<Instant>,
    states: HashMap<Position, State>,
}

#[derive(Debug)]
enum State {
    /// One of these may fill it.
    Suspects(Arc<Writers>),
    /// Nobody is left to fill it, as known when this many row queries had begun.
    Doomed(u64),
}

impl Holes {
    /// To be called before a row query; the answer goes to [`Self::retain_open`].
    pub(super) fn begin_read(&mut self) -> u64 {
        self.reads += 1;
        self.reads
    }

    /// These were found after all.
    pub(super) fn found(&mut self, positions: impl IntoIterator<Item = Position>) {
        if !self.states.is_empty() {
            positions.into_iter().for_each(|position| drop(self.states.remove(&position)));
        }
    }

    /// Of the holes that the row query `read` looked up in vain, keeps those
    /// that may still be filled. A verdict counts only if it was known before
    /// the query began: another reader may have reached it since.
    pub(super) fn retain_open(&mut self, missing: &mut Vec<Position>, read: u64) {
        missing.retain(|position| match self.states.get(position) {
            Some(State::Doomed(known_at)) if *known_at < read => {
                self.states.remove(position);
                false
            }
            _ => true,
        });
    }

    /// Whether it is time to look for the writers again. Says so once.
    pub(super) fn is_check_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.checked.is_none_or(|last| now.duration_since(last) >= CHECK_INTERVAL);
        if is_due {
            self.checked = Some(now);
        }
        is_due
    }

    /// Judges open holes by the writers there are. `writers` must have been
    /// looked up after the holes were met.
    pub(super) fn judge(&mut self, open: &[Position], writers: Writers) {
        let writers = Arc::new(writers);
        // Holes met together share one set; each set is looked at once.
        let mut seen: HashMap<*const Writers, Arc<Writers>> = HashMap::new();
        for position in open {
            let suspects = match self.states.get(position) {
                Some(State::Doomed(_)) => continue,
                Some(State::Suspects(before)) => {
                    Arc::clone(seen.entry(Arc::as_ptr(before)).or_insert_with(|| remaining(before, &writers)))
                }
                None => Arc::clone(&writers),
            };
            let state =
                if suspects.is_empty() { State::Doomed(self.reads) } else { State::Suspects(suspects) };
            self.states.insert(*position, state);
        }
        if self.states.len() > MEMORY {
            self.states.clear();
        }
    }
}

/// The suspects that are left. `PREPARE TRANSACTION` gives a writer another
/// name, so if one that could have done that is gone, the prepared transactions
/// nobody had on the list take its place.
fn remaining(suspects: &Arc<Writers>, writers: &Writers) -> Arc<Writers> {
    if suspects.is_subset(writers) {
        return Arc::clone(suspects);
    }
    let mut left: Writers = suspects.intersection(writers).cloned().collect();
    if suspects.difference(writers).any(|gone| !is_prepared(gone)) {
        left.extend(writers.difference(suspects).filter(|name| is_prepared(name)).cloned());
    }
    Arc::new(left)
}

fn is_prepared(virtual_transaction: &str) -> bool {
    virtual_transaction.starts_with("-1/")
}

/// Walks the positions after `after` that were seen, ascending, and lists those
/// between them that were not. Stops at `cap`, and then tells how far it came.
pub(super) fn gaps(
    after: Position,
    seen: impl IntoIterator<Item = Position>,
    cap: usize,
) -> (Position, Vec<Position>) {
    let mut through = after;
    let mut missing = Vec::new();
    for position in seen {
        for gap in through.saturating_add(1)..position {
            if missing.len() >= cap {
                return (through, missing);
            }
            missing.push(gap);
            through = gap;
        }
        through = position;
    }
    (through, missing)
}

/// Two ascending lists as one.
pub(super) fn merged(left: &[Position], right: &[Position]) -> Vec<Position> {
    let mut both = [left, right].concat();
    both.sort_unstable();
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writers(names: &[&str]) -> Writers {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// One row query that finds nothing, and a look at the writers.
    fn read(holes: &mut Holes, open: &mut Vec<Position>, names: &[&str]) {
        let read = holes.begin_read();
        holes.retain_open(open, read);
        holes.judge(open, writers(names));
    }

    #[test]
    fn a_hole_closes_only_after_its_suspects_are_gone_and_one_more_query() {
        let (mut holes, mut open) = (Holes::default(), vec![7]);

        read(&mut holes, &mut open, &["3/1", "4/1"]);
        read(&mut holes, &mut open, &["4/1", "9/9"]);
        assert_eq!(open, [7]);
        read(&mut holes, &mut open, &["9/9"]);
        assert_eq!(open, [7], "doomed, but the query had begun before that was known");
        read(&mut holes, &mut open, &["9/9"]);

        assert!(open.is_empty());
    }

    #[test]
    fn a_verdict_of_another_reader_does_not_count_for_a_query_already_under_way() {
        let mut holes = Holes::default();
        let mut open = vec![7];

        let early = holes.begin_read();
        let late = holes.begin_read();
        holes.judge(&[7], writers(&[]));
        holes.retain_open(&mut open, early);
        holes.retain_open(&mut open, late);

        assert_eq!(open, [7]);
        let next = holes.begin_read();
        holes.retain_open(&mut open, next);
        assert!(open.is_empty());
    }

    #[test]
    fn a_suspect_that_prepares_its_transaction_stays_one() {
        let (mut holes, mut open) = (Holes::default(), vec![7]);

        read(&mut holes, &mut open, &["3/1", "-1/500"]);
        read(&mut holes, &mut open, &["-1/900"]);
        read(&mut holes, &mut open, &["-1/900", "-1/901"]);
        read(&mut holes, &mut open, &["-1/900", "-1/902"]);
        assert_eq!(open, [7]);
        read(&mut holes, &mut open, &["-1/902"]);
        read(&mut holes, &mut open, &["-1/902"]);

        assert!(open.is_empty(), "prepared transactions of later do not keep it open");
    }

    #[test]
    fn gaps_are_listed_up_to_the_last_row_or_the_cap() {
        let cases: [(&[Position], usize, Position, &[Position]); 5] = [
            (&[], 9, 10, &[]),
            (&[11, 12], 9, 12, &[]),
            (&[12, 15], 9, 15, &[11, 13, 14]),
            (&[12, 15], 2, 13, &[11, 13]),
            (&[Position::MAX], 2, 12, &[11, 12]),
        ];

        for (seen, cap, through, missing) in cases {
            assert_eq!(gaps(10, seen.iter().copied(), cap), (through, missing.to_vec()), "{seen:?}");
        }
    }
}
