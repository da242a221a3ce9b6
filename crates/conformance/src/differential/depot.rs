//! The same for the durable inbox: what workers, operators and the janitor do
//! to deliveries, named by handler and message id.

mod choice;
mod operation;
mod side;

use std::sync::Arc;

use oncebox_flow::memory::MemoryStore;

use crate::depot::DepotFixture;
use crate::dice::Dice;
use crate::run;
use choice::Chooser;
use side::Side;

/// Runs `sequences` of `operations` each; the seed is printed with a
/// difference and taken from `ONCEBOX_SEED`.
pub fn compare<F: DepotFixture>(sequences: u64, operations: usize) {
    let seed = Dice::seed("differential depot");
    for sequence in 0..sequences {
        run::on_store::<F, _, _>(move |fixture| one(fixture, seed.wrapping_add(sequence), operations));
    }
}

async fn one<F: DepotFixture>(fixture: Arc<F>, seed: u64, operations: usize) {
    let mut chooser = Chooser::new(seed);
    let (mut oracle, mut subject) = (Side::new(MemoryStore::new()), Side::new(fixture.store()));
    let mut history = Vec::new();
    for _ in 0..operations {
        let operation = chooser.next(&oracle);
        let now = chooser.now();
        let (expected, found) = (oracle.apply(&operation, now).await, subject.apply(&operation, now).await);
        history.push(format!("{operation:?} -> {expected}"));
        assert_eq!(
            found,
            expected,
            "ONCEBOX_SEED={seed} tells stores apart at operation {}:\n{}",
            history.len(),
            history.join("\n")
        );
    }
}
