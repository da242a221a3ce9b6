//! Two contenders in turn, so that whatever else the machine does hits both.

use std::time::Instant;

/// Runs both once to warm up, then `rounds` times, each time the other one
/// first. Each answers with what it has measured, so that its preparations are not timed.
pub(crate) async fn interleave<T>(
    rounds: usize,
    mut ours: impl AsyncFnMut() -> T,
    mut ceiling: impl AsyncFnMut() -> T,
) -> Vec<(T, T)> {
    ours().await;
    ceiling().await;
    let mut rates = Vec::with_capacity(rounds);
    for round in 0..rounds {
        if round % 2 == 0 {
            let first = ours().await;
            rates.push((first, ceiling().await));
        } else {
            let first = ceiling().await;
            rates.push((ours().await, first));
        }
    }
    rates
}

/// Messages per second of `work`, which says how many it moved.
pub(crate) async fn rate(work: impl Future<Output = u64>) -> f64 {
    let started = Instant::now();
    let moved = work.await;
    moved as f64 / started.elapsed().as_secs_f64()
}
