//! Chance that can be had again: a seed and a small generator.

/// The environment variable that fixes the seed.
pub const SEED: &str = "ONCEBOX_SEED";

/// A xorshift64* generator. Good enough to choose test cases, useless for secrets.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that always fall the same way.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not start alike, and zero would stay zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The seed of the environment, else one from the clock; printed, so that
    /// a failure can be had again.
    #[must_use]
    pub fn seed(case: &str) -> u64 {
        let given = std::env::var(SEED).ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |now| now.as_micros() as u64)
        });
        println!("{case}: {SEED}={seed}");
        seed
    }

    /// The next number.
    pub const fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which must not be zero.
    pub const fn below(&mut self, end: usize) -> usize {
        ((self.roll() >> 11) % end as u64) as usize
    }

    /// True once in `times`.
    pub const fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_fall_alike_and_neighbours_do_not() {
        let rolls = |seed| {
            let mut dice = Dice::new(seed);
            (0..20).map(|_| dice.below(1000)).collect::<Vec<_>>()
        };

        assert_eq!(rolls(7), rolls(7));
        assert_ne!(rolls(7), rolls(8));
        assert_ne!(rolls(0), rolls(1));
    }
}
