//! Random operations on a store and on the memory store at once: whatever can
//! be observed must be equal.
//!
//! Positions differ between stores (a sequence skips, an index does not), so
//! operations name rows by message id and each side translates. Shards differ
//! too, so rows are read and parked over all of them.

mod choice;
pub mod depot;
mod operation;
mod side;

use std::sync::Arc;

use oncebox_flow::memory::MemoryStore;

use crate::dice::Dice;
use crate::fixture::StoreFixture;
use crate::run;
use choice::Chooser;
use side::Side;

/// Runs `sequences` of `operations` each; the seed is printed with a
/// difference and taken from `ONCEBOX_SEED`.
pub fn compare<F: StoreFixture>(sequences: u64, operations: usize) {
    let seed = Dice::seed("differential");
    for sequence in 0..sequences {
        run::on_store::<F, _, _>(move |fixture| one(fixture, seed.wrapping_add(sequence), operations));
    }
}

async fn one<F: StoreFixture>(fixture: Arc<F>, seed: u64, operations: usize) {
    let mut chooser = Chooser::new(seed);
    let (mut oracle, mut subject) = (Side::new(MemoryStore::new()), Side::new(fixture.store()));
    let mut history = Vec::new();
    for _ in 0..operations {
        let operation = chooser.next(&oracle).await;
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
    oracle.end().await;
    subject.end().await;
}
