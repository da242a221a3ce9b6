//! Waiting for what is often done at once: no timer is started before one is needed.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::error::Elapsed;

/// What comes of it, unless that takes too long.
pub(crate) async fn within<T>(patience: Duration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    let mut work = pin!(work);
    if let Poll::Ready(done) = futures_util::poll!(work.as_mut()) {
        return Ok(done);
    }
    // In a box: those that need no timer do not carry its room along.
    Box::pin(tokio::time::timeout(patience, work)).await
}
