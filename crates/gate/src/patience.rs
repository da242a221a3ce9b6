//! Waiting for what is often done at once: neither a timer nor a task is
//! started before one is needed.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::CatchUnwind;
use tokio::runtime::Handle;
use tokio::time::error::Elapsed;

/// What comes of it, unless that takes too long.
pub(crate) async fn within<T>(patience: Duration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    let mut work = pin!(work);
    if let Poll::Ready(done) = futures_util::poll!(work.as_mut()) {
        return Ok(done);
    }
    tokio::time::timeout(patience, work).await
}

/// Work that comes to its end: when whoever waits for it goes away, it goes on
/// in a task of its own. Tells `None` if it panics.
pub(crate) struct ToItsEnd<F>(Option<CatchUnwind<AssertUnwindSafe<Pin<Box<F>>>>>)
where
    F: Future<Output: Send + 'static> + Send + 'static;

impl<F: Future<Output: Send + 'static> + Send + 'static> ToItsEnd<F> {
    pub(crate) fn new(work: F) -> Self {
        Self(Some(AssertUnwindSafe(Box::pin(work)).catch_unwind()))
    }
}

impl<F: Future<Output: Send + 'static> + Send + 'static> Future for ToItsEnd<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.0 else { return Poll::Ready(None) };
        let polled = work.poll_unpin(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled.map(Result::ok)
    }
}

impl<F: Future<Output: Send + 'static> + Send + 'static> Drop for ToItsEnd<F> {
    fn drop(&mut self) {
        // Without a runtime there is nobody left to run it, as for every task of one that ends.
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}
