//! Taking over from a member that is gone, without overtaking it.
//!
//! What the former member held is delivered again when the server misses a sign
//! of life, in no particular order and possibly after newer messages (measured
//! on 2.15.1: second, third, first). So a member that was just pinned holds
//! everything back until it has what was under way, and hands it out in the
//! order of the stream.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// A takeover under way. `T` is what is held back.
#[derive(Debug)]
pub(super) struct Takeover<T> {
    held_back: BTreeMap<u64, T>,
    /// The last sequence that was under way when the server was asked.
    through: u64,
    /// How many of those have not come yet; `None` until the server was asked.
    missing: Option<usize>,
    /// When waiting has an end: what was delayed on purpose may take longer, and
    /// has no key, or it would not have been given back.
    deadline: Instant,
}

impl<T> Takeover<T> {
    pub(super) const fn new(deadline: Instant) -> Self {
        Self { held_back: BTreeMap::new(), through: 0, missing: None, deadline }
    }

    /// Holds back what arrived.
    pub(super) fn hold_back(&mut self, sequence: u64, arrived: T) {
        let is_new = self.held_back.insert(sequence, arrived).is_none();
        if is_new
            && sequence <= self.through
            && let Some(missing) = &mut self.missing
        {
            *missing = missing.saturating_sub(1);
        }
    }

    /// The server's view: delivered up to `through`, `pending` of all without an
    /// answer, of which `held` are in this member's hands already.
    pub(super) fn learn(&mut self, through: u64, pending: usize, held: usize) {
        self.through = through;
        self.missing = Some(pending.saturating_sub(held).saturating_sub(self.held_back.len()));
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.missing == Some(0) || now >= self.deadline
    }

    pub(super) fn len(&self) -> usize {
        self.held_back.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.held_back.values()
    }

    /// What was held back, in the order of the stream.
    pub(super) fn into_ordered(self) -> impl Iterator<Item = T> {
        self.held_back.into_values()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn nothing_goes_before_what_was_under_way_has_come() {
        let now = Instant::now();
        let mut takeover = Takeover::new(now + Duration::from_secs(30));

        takeover.hold_back(9, 'i');
        assert!(!takeover.is_over(now), "nobody knows yet what is missing");
        takeover.learn(9, 4, 0);
        takeover.hold_back(10, 'j');
        takeover.hold_back(7, 'g');
        takeover.hold_back(8, 'h');
        takeover.hold_back(8, 'h');
        assert!(!takeover.is_over(now), "the sixth is missing");
        takeover.hold_back(6, 'f');

        assert!(takeover.is_over(now));
        assert_eq!(takeover.into_ordered().collect::<String>(), "fghij");
    }

    #[tokio::test]
    async fn waiting_has_an_end() {
        let now = Instant::now();
        let mut takeover: Takeover<()> = Takeover::new(now + Duration::from_secs(30));

        takeover.learn(5, 3, 1);

        assert!(!takeover.is_over(now));
        assert!(takeover.is_over(now + Duration::from_secs(30)));
        takeover.learn(5, 1, 1);
        assert!(takeover.is_over(now), "all that is under way is in our hands");
    }
}
