//! An answer in the making. A client that hangs up ends it, but only until the
//! request may have been admitted: from there on it comes to its end.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::Response;
use tokio::runtime::Handle;

use crate::body::GateBody;

type Answer<E> = Result<Response<GateBody>, E>;
type Work<E> = Pin<Box<dyn Future<Output = Answer<E>> + Send>>;

/// What the gate answers, in a while. When whoever waits for it goes away after
/// the store was asked, it goes on in a task of its own.
pub struct GateFuture<E: Send + 'static> {
    work: Option<Work<E>>,
    admitting: Option<Admitting>,
}

/// Says that the store is asked from now on.
#[derive(Clone, Default)]
pub(crate) struct Admitting(Arc<AtomicBool>);

impl Admitting {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<E: Send + 'static> GateFuture<E> {
    /// An answer that ends with whoever waits for it.
    pub(crate) fn new(work: impl Future<Output = Answer<E>> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), admitting: None }
    }

    /// One that comes to its end once it has said so.
    pub(crate) fn to_its_end<F>(work: impl FnOnce(Admitting) -> F) -> Self
    where
        F: Future<Output = Answer<E>> + Send + 'static,
    {
        let admitting = Admitting::default();
        Self { work: Some(Box::pin(work(admitting.clone()))), admitting: Some(admitting) }
    }
}

impl<E: Send + 'static> Future for GateFuture<E> {
    type Output = Answer<E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Polled again after its answer, which nobody may do, it waits for good rather than panic.
        let Some(work) = &mut self.work else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl<E: Send + 'static> Drop for GateFuture<E> {
    fn drop(&mut self) {
        let has_begun = self.admitting.as_ref().is_some_and(Admitting::has_begun);
        let work = self.work.take().filter(|_| has_begun);
        // Without a runtime there is nobody left to run it, as for every task of one that ends.
        if let (Some(work), Ok(runtime)) = (work, Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

impl<E: Send + 'static> fmt::Debug for GateFuture<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateFuture").finish_non_exhaustive()
    }
}
