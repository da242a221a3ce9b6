//! What a torture showed.

use std::collections::BTreeMap;

use oncebox_flow::CrashPoint;
use serde_json::{Value, json};

use super::broker::Kind;
use super::ground::Ledger;
use super::memory::Counts;
use super::plan::Role;
use crate::machine;
use crate::report::Output;

/// With fewer kills than this a point may be missed by bad luck.
const ENOUGH_KILLS: u64 = 200;
/// The same where one worker at a time is served: the others die idle.
const ENOUGH_KILLS_OF_SERVERS: u64 = 600;

/// Everything that was counted.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) store: &'static str,
    pub(super) kind: Kind,
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) at_points: BTreeMap<CrashPoint, u64>,
    pub(super) at_random: BTreeMap<Role, u64>,
    /// Children that ended although nobody killed them.
    pub(super) died_alone: u64,
    /// Kills of the broker itself.
    pub(super) at_broker: u64,
    pub(super) broker: Option<Counts>,
    pub(super) ledger: Ledger,
    pub(super) backlog: i64,
    pub(super) heal_seconds: f64,
}

impl Verdict {
    pub(super) fn kills(&self) -> u64 {
        self.at_points.values().sum::<u64>() + self.at_random.values().sum::<u64>() + self.at_broker
    }

    /// Kills of each kind of process.
    fn by_role(&self) -> BTreeMap<&'static str, u64> {
        let mut kills: BTreeMap<&str, u64> = self.at_random.iter().map(|(r, n)| (r.name(), *n)).collect();
        for role in [Role::Producer, Role::Relay, Role::Worker] {
            let at_points = role.points().iter().filter_map(|point| self.at_points.get(point)).sum::<u64>();
            *kills.entry(role.name()).or_default() += at_points;
        }
        if self.at_broker > 0 {
            kills.insert("broker", self.at_broker);
        }
        kills
    }

    fn missed(&self) -> Vec<String> {
        let is_missed = |point: &CrashPoint| self.at_points.get(point).copied().unwrap_or(0) == 0;
        CrashPoint::ALL.into_iter().filter(is_missed).map(CrashPoint::name).collect()
    }

    pub(super) fn passed(&self) -> bool {
        let Ledger { orders, lost, doubled, phantom, inversions, .. } = self.ledger;
        let is_clean = [lost, doubled, phantom, inversions, self.backlog] == [0; 5];
        let enough = if self.kind.brand().is_some() { ENOUGH_KILLS_OF_SERVERS } else { ENOUGH_KILLS };
        let is_covered = self.kills() < enough || self.missed().is_empty();
        orders > 0 && is_clean && is_covered && self.died_alone == 0
    }

    fn json(&self) -> Value {
        let points: BTreeMap<String, u64> = self.at_points.iter().map(|(p, n)| (p.name(), *n)).collect();
        let random: BTreeMap<&str, u64> = self.at_random.iter().map(|(r, n)| (r.name(), *n)).collect();
        let counts = self.broker.unwrap_or_default();
        json!({
            "v": 1, "name": "torture", "store": self.store, "broker": self.kind.name(), "seed": self.seed,
            "seconds": self.seconds.round(), "heal_seconds": (self.heal_seconds * 10.0).round() / 10.0,
            "kills": self.kills(), "kills_per_minute": (self.kills() as f64 / self.seconds * 60.0).round(),
            "by_role": self.by_role(), "points": points, "random": random, "never_hit": self.missed(), "died_alone": self.died_alone,
            "stored": counts.stored, "duplicates": counts.doubled,
            "confirms_lost": counts.confirms_lost, "redelivered": counts.redelivered,
            "orders": self.ledger.orders, "effects": self.ledger.effects,
            "lost": self.ledger.lost, "doubled": self.ledger.doubled, "phantom": self.ledger.phantom,
            "inversions": self.ledger.inversions, "backlog": self.backlog,
            "load": machine::load(), "pass": self.passed(),
        })
    }

    pub(super) fn print(&self, output: Output) {
        let json = self.json();
        if output == Output::Json {
            println!("{json}");
            return;
        }
        println!("torture on {} and {} (seed {})", self.store, self.kind.name(), self.seed);
        println!(
            "  kills      {} in {} s, {} per minute",
            self.kills(),
            json["seconds"],
            json["kills_per_minute"]
        );
        println!("  by role    {}", list(&json["by_role"]));
        println!("  at points  {}", list(&json["points"]));
        println!("  at random  {}", list(&json["random"]));
        if !self.missed().is_empty() {
            println!("  never hit  {}", self.missed().join(" "));
        }
        if let Some(Counts { stored, doubled, confirms_lost, redelivered }) = self.broker {
            println!(
                "  broker     {stored} stored, {doubled} duplicates made, {confirms_lost} confirms lost, {redelivered} redelivered",
            );
        }
        println!(
            "  ledger     {} orders, {} effects: {} lost, {} doubled, {} phantom, {} inversions; backlog {} after {} s",
            self.ledger.orders,
            self.ledger.effects,
            self.ledger.lost,
            self.ledger.doubled,
            self.ledger.phantom,
            self.ledger.inversions,
            self.backlog,
            json["heal_seconds"]
        );
        if self.died_alone > 0 {
            println!("  {} children ended by themselves", self.died_alone);
        }
        println!("  verdict    {}", if self.passed() { "pass" } else { "FAIL" });
    }
}

fn list(counts: &Value) -> String {
    let counts = counts.as_object().into_iter().flatten();
    counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join("  ")
}
