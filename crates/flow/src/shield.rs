//! Work that must come to its end, whoever stops waiting for it.
//!
//! A future that is dropped half-way through BEGIN or COMMIT leaves a
//! connection in a state nobody knows of. Running it in a task of its own would
//! prevent that, at the price of two hops between threads for every
//! transaction. A shield runs it where it stands and moves it to a task only
//! when its caller is dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future that, once started, is finished even if this is dropped.
#[must_use = "a shield does nothing until it is polled"]
pub struct Shield<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    work: Option<Pin<Box<F>>>,
    is_started: bool,
}

impl<F> Shield<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// Shields `work`.
    pub fn new(work: F) -> Self {
        Self { work: Some(Box::pin(work)), is_started: false }
    }
}

impl<F> Future for Shield<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.is_started = true;
        // Taken out while it runs: work that panics is not run again.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<F> Drop for Shield<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        let Some(work) = self.work.take().filter(|_| self.is_started) else { return };
        // Without a runtime nothing is left to finish it; the process is ending.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(work);
        }
    }
}

impl<F> std::fmt::Debug for Shield<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shield").field("is_started", &self.is_started).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn work_that_has_started_ends_although_its_caller_is_gone() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let mut shield = Box::pin(Shield::new(async move {
            gone.await.ok();
            done.send(()).ok();
        }));

        assert!(futures_util::poll!(shield.as_mut()).is_pending());
        drop(shield);
        go.send(()).unwrap();

        ended.await.unwrap();
    }

    #[tokio::test]
    async fn work_that_was_never_started_is_dropped() {
        let (done, ended) = oneshot::channel::<()>();

        drop(Shield::new(async move {
            done.send(()).ok();
        }));

        assert!(ended.await.is_err());
    }
}
