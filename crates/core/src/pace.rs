//! How fast a handler may be run: a rate, and a circuit that opens when it
//! fails again and again; and how far to fetch ahead. Times are measured from
//! any fixed moment.

use std::time::Duration;

use crate::error::{Error, Kind, Result};

/// At most `count` runs in `per`, with bursts of up to `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// In how long.
    pub per: Duration,
}

impl Rate {
    /// # Errors
    /// [`Kind::Config`] if nothing could ever run.
    pub fn check(&self) -> Result<()> {
        if self.count == 0 || self.per.is_zero() {
            return Err(Error::new(Kind::Config, "a rate allows at least one run in some time"));
        }
        Ok(())
    }
}

/// When a circuit opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// Failures in a row.
    pub failures: u32,
    /// The pause before one run tries again.
    pub pause: Duration,
}

impl BreakerOptions {
    /// # Errors
    /// [`Kind::Config`] if it would open before anything has failed.
    pub fn check(&self) -> Result<()> {
        if self.failures == 0 || self.pause.is_zero() {
            return Err(Error::new(
                Kind::Config,
                "a breaker opens after at least one failure, for some time",
            ));
        }
        Ok(())
    }
}

/// How much of a [`Rate`] is left.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    /// Runs left, in parts.
    left: f64,
    filled_at: Duration,
}

impl Bucket {
    /// A full one.
    #[must_use]
    pub fn new(rate: Rate, now: Duration) -> Self {
        Self { rate, left: f64::from(rate.count), filled_at: now }
    }

    /// Runs that may start now.
    pub fn left(&mut self, now: Duration) -> usize {
        let passed = now.saturating_sub(self.filled_at).as_secs_f64() / self.rate.per.as_secs_f64();
        self.left = passed.mul_add(f64::from(self.rate.count), self.left).min(f64::from(self.rate.count));
        self.filled_at = self.filled_at.max(now);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to u32::MAX")]
        let whole = self.left.max(0.0) as usize;
        whole
    }

    /// Takes runs out, or puts back those that did not take place.
    pub fn spend(&mut self, runs: f64) {
        self.left = (self.left - runs).min(f64::from(self.rate.count));
    }
}

/// A circuit: closed while a handler works, open while it fails.
#[derive(Clone, Debug)]
pub struct Circuit {
    options: BreakerOptions,
    failures: u32,
    open_until: Option<Duration>,
}

impl Circuit {
    /// A closed one.
    #[must_use]
    pub const fn new(options: BreakerOptions) -> Self {
        Self { options, failures: 0, open_until: None }
    }

    /// How many runs may be under way: all, none, or the one that finds out.
    #[must_use]
    pub fn admits(&self, now: Duration) -> usize {
        match self.open_until {
            None => usize::MAX,
            Some(until) => usize::from(until <= now),
        }
    }

    /// A run succeeded.
    pub const fn succeed(&mut self) {
        self.failures = 0;
        self.open_until = None;
    }

    /// A run failed; tells whether the circuit is open now.
    pub fn fail(&mut self, now: Duration) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.options.failures {
            self.open_until = Some(now.saturating_add(self.options.pause));
        }
        self.open_until.is_some()
    }
}

/// What is worth fetching ahead is what gets done in this time.
const MOMENT: Duration = Duration::from_millis(250);
/// A speed is measured over no less.
const GLANCE: Duration = Duration::from_millis(20);

/// How much to hold beyond what runs. Where work is fast that makes fetching
/// cheap; where it is slow, nobody hoards what others could do.
#[derive(Clone, Debug)]
pub struct Ahead {
    least: usize,
    most: usize,
    current: usize,
    finished: usize,
    looked_at: Duration,
}

impl Ahead {
    /// Between `least` and `most`, which bounds `least` as well.
    #[must_use]
    pub fn new(least: usize, most: usize) -> Self {
        let least = least.min(most);
        Self { least, most, current: least, finished: 0, looked_at: Duration::ZERO }
    }

    /// One is done.
    pub const fn finish_one(&mut self) {
        self.finished += 1;
    }

    /// How much to hold. Follows the speed up at once and down by halves: a
    /// pause says little about what comes after it.
    pub fn look(&mut self, now: Duration) -> usize {
        let span = now.saturating_sub(self.looked_at);
        if span >= GLANCE {
            let done_in_a_moment = self.finished as f64 * MOMENT.as_secs_f64() / span.as_secs_f64();
            self.current = (done_in_a_moment as usize).max(self.current / 2).clamp(self.least, self.most);
            (self.finished, self.looked_at) = (0, now);
        }
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_bucket_gives_its_count_at_once_and_then_as_time_goes_by() {
        let mut bucket = Bucket::new(Rate { count: 10, per: SECOND }, SECOND);

        assert_eq!(bucket.left(SECOND), 10);
        bucket.spend(10.0);
        assert_eq!(bucket.left(SECOND), 0);
        assert_eq!(bucket.left(SECOND + SECOND / 2), 5);
        assert_eq!(bucket.left(100 * SECOND), 10, "it does not overflow");
    }

    #[test]
    fn a_run_that_did_not_take_place_is_put_back() {
        let mut bucket = Bucket::new(Rate { count: 2, per: SECOND }, SECOND);

        bucket.spend(2.0);
        bucket.spend(-1.0);

        assert_eq!(bucket.left(SECOND), 1);
    }

    #[test]
    fn what_is_held_ahead_follows_the_speed() {
        let mut ahead = Ahead::new(4, 100);
        let mut look = |done: usize, at: Duration| {
            (0..done).for_each(|_| ahead.finish_one());
            ahead.look(at)
        };

        assert_eq!(look(1, GLANCE / 2), 4, "too soon to tell");
        assert_eq!(look(199, SECOND), 50, "a quarter of what a second does");
        assert_eq!(look(10_000, 2 * SECOND), 100);
        assert_eq!(look(0, 9 * SECOND), 50, "a pause");
        assert_eq!([10, 11, 12, 13].map(|at| look(1, at * SECOND)), [25, 12, 6, 4]);
        assert_eq!(Ahead::new(4, 0).look(SECOND), 0);
    }

    #[test]
    fn a_circuit_opens_after_failures_in_a_row_and_lets_one_run_find_out() {
        let mut circuit = Circuit::new(BreakerOptions { failures: 2, pause: SECOND });

        assert!(!circuit.fail(SECOND));
        circuit.succeed();
        assert!(!circuit.fail(SECOND), "the success in between counts");
        assert!(circuit.fail(SECOND));

        assert_eq!(circuit.admits(SECOND), 0);
        assert_eq!(circuit.admits(2 * SECOND), 1);
        assert!(circuit.fail(2 * SECOND), "it found out");
        assert_eq!(circuit.admits(2 * SECOND), 0);
        circuit.succeed();
        assert_eq!(circuit.admits(2 * SECOND), usize::MAX);
    }
}
