//! Random choices that a seed repeats.

use std::time::Duration;

/// A splitmix64 generator: small, and good enough to choose victims.
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 up to, but not including, `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True in so many of a thousand cases.
    pub(super) fn per_mille(&mut self, cases: u64) -> bool {
        self.below(1000) < cases
    }

    pub(super) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// A seed nobody chose.
pub(super) fn fresh_seed() -> u64 {
    let bits = uuid::Uuid::now_v7().as_u128();
    u64::try_from(bits & u128::from(u32::MAX)).unwrap_or(1)
}
