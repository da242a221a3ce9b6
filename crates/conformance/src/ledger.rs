//! What was committed against what took effect.
//!
//! The invariants, by the names faults are reported under: I1 nothing is lost,
//! I2 nothing takes effect twice, I3 nothing takes effect that was not
//! committed, I4 the amounts add up, I5 per key the effects keep their order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// One effect of one handler: expected, if its message was committed, or seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// The handler.
    pub handler: String,
    /// The message's id.
    pub id: String,
    /// The ordering key; entries without one are in no order.
    pub key: Option<String>,
    /// The place in the order of the key.
    pub sequence: i64,
    /// What is added to the key's balance.
    pub amount: i64,
}

/// An effect by handler and message.
pub type Identity = (String, String);

impl Entry {
    /// What may take effect once.
    #[must_use]
    pub fn identity(&self) -> Identity {
        (self.handler.clone(), self.id.clone())
    }

    fn account(&self) -> Account {
        (self.handler.clone(), self.key.clone())
    }
}

/// A balance: one handler's sum over one key.
type Account = (String, Option<String>);

/// An effect that came after one of a higher place in its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inversion {
    /// The handler.
    pub handler: String,
    /// The key.
    pub key: String,
    /// The place that came first.
    pub before: i64,
    /// The lower place that came after it.
    pub after: i64,
}

/// A balance that is not what was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imbalance {
    /// The handler.
    pub handler: String,
    /// The key, if it has one.
    pub key: Option<String>,
    /// The sum of what was committed.
    pub expected: i64,
    /// The sum of what took effect.
    pub found: i64,
}

/// What is wrong. Empty if everything holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// I1: committed, without effect.
    pub lost: Vec<Identity>,
    /// I2: took effect more than once, with how often.
    pub doubled: Vec<(Identity, usize)>,
    /// I3: took effect, was not committed.
    pub phantoms: Vec<Identity>,
    /// I4: sums that differ.
    pub imbalances: Vec<Imbalance>,
    /// I5: effects out of order.
    pub inversions: Vec<Inversion>,
    /// Entries expected.
    pub committed: usize,
    /// Entries seen.
    pub effects: usize,
}

impl Findings {
    /// Whether every invariant holds.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.lost.is_empty()
            && self.doubled.is_empty()
            && self.phantoms.is_empty()
            && self.imbalances.is_empty()
            && self.inversions.is_empty()
    }

    /// Ends the test with the findings, if there are any.
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

/// At most this many findings of a sort are written out.
const SHOWN: usize = 10;

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} committed, {} effects: {} lost, {} doubled, {} phantoms, {} imbalances, {} inversions",
            self.committed,
            self.effects,
            self.lost.len(),
            self.doubled.len(),
            self.phantoms.len(),
            self.imbalances.len(),
            self.inversions.len()
        )?;
        for (handler, id) in self.lost.iter().take(SHOWN) {
            write!(f, "\n  lost: {id} by {handler}")?;
        }
        for ((handler, id), times) in self.doubled.iter().take(SHOWN) {
            write!(f, "\n  doubled: {id} by {handler}, {times} times")?;
        }
        for (handler, id) in self.phantoms.iter().take(SHOWN) {
            write!(f, "\n  phantom: {id} by {handler}")?;
        }
        for Imbalance { handler, key, expected, found } in self.imbalances.iter().take(SHOWN) {
            let key = key.as_deref().unwrap_or("(no key)");
            write!(f, "\n  imbalance: {key} of {handler} is {found}, not {expected}")?;
        }
        for Inversion { handler, key, before, after } in self.inversions.iter().take(SHOWN) {
            write!(f, "\n  inversion: {key} of {handler} saw {after} after {before}")?;
        }
        Ok(())
    }
}

/// The checker.
#[derive(Clone, Copy, Debug)]
pub struct Ledger;

impl Ledger {
    /// Compares what was committed with what took effect; `effects` in the
    /// order they were written.
    #[must_use]
    pub fn check(committed: &[Entry], effects: &[Entry]) -> Findings {
        Self::check_with_unknown(committed, &[], effects)
    }

    /// The same where the fate of some commits never became known: those may
    /// have taken effect once, or not at all.
    #[must_use]
    pub fn check_with_unknown(committed: &[Entry], unknown: &[Entry], effects: &[Entry]) -> Findings {
        let seen = tally(effects);
        let expected: HashSet<Identity> = committed.iter().map(Entry::identity).collect();
        let allowed: HashSet<Identity> = unknown.iter().map(Entry::identity).collect();
        let mut findings =
            Findings { committed: committed.len(), effects: effects.len(), ..Findings::default() };
        findings.lost = expected.iter().filter(|identity| !seen.contains_key(*identity)).cloned().collect();
        for (identity, times) in &seen {
            if *times > 1 {
                findings.doubled.push((identity.clone(), *times));
            }
            if !expected.contains(identity) && !allowed.contains(identity) {
                findings.phantoms.push(identity.clone());
            }
        }
        let happened = unknown.iter().filter(|entry| {
            let identity = entry.identity();
            seen.contains_key(&identity) && !expected.contains(&identity)
        });
        findings.imbalances = imbalances(committed.iter().chain(happened), effects);
        findings.inversions = inversions(effects);
        findings.lost.sort();
        findings.doubled.sort();
        findings.phantoms.sort();
        findings
    }
}

fn tally(effects: &[Entry]) -> HashMap<Identity, usize> {
    let mut seen = HashMap::new();
    for effect in effects {
        *seen.entry(effect.identity()).or_default() += 1;
    }
    seen
}

fn imbalances<'e>(expected: impl Iterator<Item = &'e Entry>, effects: &[Entry]) -> Vec<Imbalance> {
    let mut sums: BTreeMap<Account, (i64, i64)> = BTreeMap::new();
    for entry in expected {
        sums.entry(entry.account()).or_default().0 += entry.amount;
    }
    for effect in effects {
        sums.entry(effect.account()).or_default().1 += effect.amount;
    }
    let differ = sums.into_iter().filter(|(_, (expected, found))| expected != found);
    differ.map(|((handler, key), (expected, found))| Imbalance { handler, key, expected, found }).collect()
}

/// Only the first effect of a message counts for the order: a second one is
/// a double, and reporting it twice would hide which of the two was broken.
fn inversions(effects: &[Entry]) -> Vec<Inversion> {
    let mut last: HashMap<Account, i64> = HashMap::new();
    let mut met: HashSet<Identity> = HashSet::new();
    let mut inversions = Vec::new();
    for effect in effects {
        let Some(key) = effect.key.clone().filter(|_| met.insert(effect.identity())) else { continue };
        let highest = last.entry(effect.account()).or_insert(effect.sequence);
        if effect.sequence < *highest {
            let (handler, before, after) = (effect.handler.clone(), *highest, effect.sequence);
            inversions.push(Inversion { handler, key, before, after });
        }
        *highest = (*highest).max(effect.sequence);
    }
    inversions
}

#[cfg(test)]
mod tests;
