//! Waiting for what is often done at once: neither a timer nor a task is
//! started before something has to be waited for.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::error::Elapsed;

/// What comes of it, unless that takes too long.
pub(crate) async fn within<T>(patience: Duration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    let mut work = pin!(work);
    if let Poll::Ready(done) = futures_util::poll!(work.as_mut()) {
        return Ok(done);
    }
    tokio::time::timeout(patience, work).await
}

/// Runs on when whoever waits for it goes away; `None` if it panics. What never
/// has to wait cannot be left, and needs no task of its own.
pub(crate) async fn to_its_end<T: Send + 'static>(
    work: Pin<Box<impl Future<Output = T> + Send + 'static>>,
) -> Option<T> {
    let mut work = AssertUnwindSafe(work).catch_unwind();
    if let Poll::Ready(done) = futures_util::poll!(&mut work) {
        return done.ok();
    }
    tokio::spawn(work).await.ok()?.ok()
}
