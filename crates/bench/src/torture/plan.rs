//! Who dies where: every crash point of the product belongs to a role.

use clap::ValueEnum;
use oncebox_flow::CrashPoint;

use super::chance::Chance;

/// What a child process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Role {
    Producer,
    Relay,
    Worker,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Relay => "relay",
            Self::Worker => "worker",
        }
    }

    /// The points on this role's way, in a fixed order.
    pub(super) fn points(self) -> Vec<CrashPoint> {
        let letter = match self {
            Self::Producer => 'P',
            Self::Relay => 'R',
            Self::Worker => 'C',
        };
        CrashPoint::ALL.into_iter().filter(|point| point.name().starts_with(letter)).collect()
    }
}

/// Where a child is to stop and wait for its end: at the nth visit of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) point: CrashPoint,
    pub(super) visit: u64,
}

/// Deals out points, so that each role meets all of its points equally often.
#[derive(Debug)]
pub(super) struct Plan {
    dealt: [usize; 3],
    /// A child dies at one of so many visits.
    visits: u64,
}

impl Plan {
    pub(super) const fn new(visits: u64) -> Self {
        Self { dealt: [0; 3], visits }
    }

    /// The next child's end; now and then none, and then it lives until it is chosen at random.
    pub(super) fn deal(&mut self, role: Role, chance: &mut Chance) -> Option<Stop> {
        if chance.per_mille(250) {
            return None;
        }
        let (points, dealt) = (role.points(), &mut self.dealt[role as usize]);
        let point = *points.get(*dealt % points.len())?;
        *dealt += 1;
        Some(Stop { point, visit: 1 + chance.below(self.visits) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crash_point_belongs_to_exactly_one_role() {
        let mut dealt: Vec<_> =
            [Role::Producer, Role::Relay, Role::Worker].into_iter().flat_map(Role::points).collect();
        dealt.sort_unstable();

        assert_eq!(dealt, CrashPoint::ALL);
    }
}
