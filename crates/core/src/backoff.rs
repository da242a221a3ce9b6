//! How long to wait before the next attempt.

use std::time::Duration;

/// Exponential backoff with equal jitter: half of the step is certain, half is
/// drawn, so that failures neither retry in a herd nor retry at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The step after the first failure.
    pub base: Duration,
    /// No step is longer than this.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), cap: Duration::from_secs(300) }
    }
}

impl Backoff {
    /// The wait after `attempt` failed attempts (1 = the first just failed),
    /// with `chance` drawn from 0.0 to 1.0 by the caller.
    #[must_use]
    pub fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let step = self.base.saturating_mul(1 << doublings).min(self.cap);
        let half = step / 2;
        half + half.mul_f64(chance.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_double_up_to_the_cap_and_jitter_stays_in_the_upper_half() {
        let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(10) };

        let steps: Vec<_> = (1..=6).map(|n| backoff.delay(n, 1.0).as_secs()).collect();

        assert_eq!(steps, [1, 2, 4, 8, 10, 10]);
        assert_eq!(backoff.delay(3, 0.0), Duration::from_secs(2));
        assert_eq!(backoff.delay(u32::MAX, 1.0), Duration::from_secs(10));
    }
}
