//! Which orders meet which fault, drawn once from the seed and the same for
//! both lanes.

use std::collections::BTreeMap;
use std::ops::Range;

use super::wire::KillPoint;

/// Kills every run has at least: one at each point.
pub(super) const MIN_KILLS: u32 = 3;
/// One delivery in this many is repeated.
const DUPLICATE_ONE_IN: u64 = 7;

/// The faults of a run.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    pub(super) orders: u32,
    kills: BTreeMap<u32, KillPoint>,
    outages: Vec<Range<u32>>,
}

impl Schedule {
    pub(super) fn draw(seed: u64, orders: u32) -> Self {
        let mut dice = Dice::new(seed);
        let width = (orders / 100).clamp(3, 50);
        // One outage in the second fifth, one in the fourth.
        let outages: Vec<Range<u32>> = [1, 3]
            .map(|fifth| {
                let start = orders / 5 * fifth + dice.below(u64::from(orders / 10).max(1)) as u32;
                start..start + width
            })
            .into();
        // An order that is lost in an outage cannot be killed over later, so
        // the victims are chosen elsewhere; `Client::WINDOW` orders are in flight.
        let margin = super::lane::WINDOW as u32;
        let clear = |order: u32| outages.iter().all(|o| order + margin < o.start || order > o.end + margin);
        let wanted = (orders / 100).clamp(MIN_KILLS, 60).next_multiple_of(3);
        let mut kills = BTreeMap::new();
        for _ in 0..wanted * 50 {
            if kills.len() as u32 == wanted {
                break;
            }
            let order = dice.below(u64::from(orders)) as u32;
            let point = KillPoint::ALL.into_iter().cycle().nth(kills.len());
            if let Some(point) = point.filter(|_| clear(order) && !kills.contains_key(&order)) {
                kills.insert(order, point);
            }
        }
        Self { seed, orders, kills, outages }
    }

    pub(super) fn kill(&self, order: u32) -> Option<KillPoint> {
        self.kills.get(&order).copied()
    }

    pub(super) fn outages(&self) -> &[Range<u32>] {
        &self.outages
    }

    pub(super) fn is_duplicated(&self, order: u32) -> bool {
        Dice::new(self.seed ^ (u64::from(order) << 20)).below(DUPLICATE_ONE_IN) == 0
    }

    /// What an order is worth, in cents.
    pub(super) fn amount(&self, order: u32) -> i64 {
        Dice::new(self.seed ^ (u64::from(order) << 40)).below(9_900) as i64 + 100
    }
}

/// A small deterministic generator (splitmix64): the same seed gives the same
/// faults on every machine.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_again_and_every_point_has_a_victim() {
        for seed in 0..200 {
            for orders in [60, 100, 1000] {
                let (one, two) = (Schedule::draw(seed, orders), Schedule::draw(seed, orders));
                assert_eq!(one.kills, two.kills);
                for point in KillPoint::ALL {
                    assert!(
                        one.kills.values().any(|p| *p == point),
                        "seed {seed}, {orders} orders, {point:?}"
                    );
                }
            }
        }
    }
}
