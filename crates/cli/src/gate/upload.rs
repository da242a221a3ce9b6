//! A request on its way to the service, and how far it has got: as long as
//! something comes, it may take its time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;

/// How far it has got.
#[derive(Clone, Debug)]
pub(super) struct Progress(Arc<Steps>);

#[derive(Debug)]
struct Steps {
    /// The latest one, and whether it was the last.
    latest: Mutex<(Instant, bool)>,
    /// The last one was made: from then on another limit counts.
    whole: Notify,
}

/// A body that tells when a piece of it is taken.
#[derive(Debug)]
pub(super) struct Upload {
    body: Body,
    progress: Progress,
}

/// Who was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// The request stood still before it was whole.
    Client,
    /// It was whole, and the service did not answer.
    Service,
}

impl Upload {
    pub(super) fn new(body: Body) -> (Self, Progress) {
        let is_whole = http_body::Body::is_end_stream(&body);
        let steps = Steps { latest: Mutex::new((Instant::now(), is_whole)), whole: Notify::new() };
        let progress = Progress(Arc::new(steps));
        (Self { body, progress: progress.clone() }, progress)
    }
}

impl Progress {
    fn latest(&self) -> MutexGuard<'_, (Instant, bool)> {
        self.0.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, is_whole: bool) {
        let mut latest = self.latest();
        if latest.1 {
            return;
        }
        *latest = (Instant::now(), is_whole);
        if is_whole {
            self.0.whole.notify_one();
        }
    }

    /// When somebody is too slow, as far as that can be told by now.
    fn deadline(&self, idle: Duration, answer: Duration) -> (Instant, Late) {
        match *self.latest() {
            (last, true) => (last + answer, Late::Service),
            (last, false) => (last + idle, Late::Client),
        }
    }

    /// Waits for an answer: no longer than `answer` from when the request is
    /// whole, and until then as long as it does not stand still for `idle`.
    ///
    /// # Errors
    /// Who was too slow.
    pub(super) async fn limit<T>(
        &self,
        (idle, answer): (Duration, Duration),
        call: impl Future<Output = T>,
    ) -> Result<T, Late> {
        let mut call = std::pin::pin!(call);
        loop {
            let (deadline, late) = self.deadline(idle, answer);
            if deadline <= Instant::now() {
                return Err(late);
            }
            tokio::select! {
                done = &mut call => return Ok(done),
                () = tokio::time::sleep_until(deadline.into()) => {}
                () = self.0.whole.notified() => {}
            }
        }
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        this.progress.note(frame.is_none() || this.body.is_end_stream());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
