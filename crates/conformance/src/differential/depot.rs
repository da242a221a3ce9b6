//! The same for the durable inbox: what workers, operators and the janitor do
//! to deliveries, named by handler and message id.

mod choice;
mod operation;
mod side;

use std::sync::Arc;

use oncebox_core::inspect::Inspect;
use oncebox_core::{Depot, Letters, Retention, Timestamp};
use oncebox_flow::memory::MemoryStore;

use crate::depot::DepotFixture;
use crate::dice::Dice;
use crate::run;
use choice::Chooser;
use operation::Operation;
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
        let (expected, found) =
            (told(&mut oracle, &operation, now).await, told(&mut subject, &operation, now).await);
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

/// The answer, and how many deliveries are in which state after it.
async fn told<S: Depot + Letters + Inspect + Retention>(
    side: &mut Side<S>,
    operation: &Operation,
    now: Timestamp,
) -> String {
    let answer = side.apply(operation, now).await;
    format!("{answer}; {}", side.apply(&Operation::Status, now).await)
}
