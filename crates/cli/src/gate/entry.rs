//! Where requests come in from a connection: straight from hyper to the gate,
//! unless their end is ambiguous.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, HeaderValue};
use axum::http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use oncebox_gate::{GateBody, GateFuture};

use super::refusal;
use super::wire::{Ambiguous, Framing, Notes};

/// The service of one connection.
#[derive(Debug)]
pub(super) struct Entry<G> {
    gate: G,
    notes: Notes,
}

impl<G> Entry<G> {
    pub(super) const fn new(gate: G, notes: Notes) -> Self {
        Self { gate, notes }
    }
}

impl<G> hyper::service::Service<Request<Incoming>> for Entry<G>
where
    G: tower_service::Service<Request<Body>, Future = GateFuture<Infallible>> + Clone,
{
    type Response = Response<Reply>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let judged = self.notes.judge();
        // What follows a chunked body cannot be told from it.
        let is_last = !matches!(judged, Ok(Framing::Length(_)));
        let work = match judged {
            Ok(_) => Work::Runs(self.gate.clone().call(request.map(Body::new))),
            Err(why) => {
                tracing::info!(why = why.0, "a request was refused, since its end is ambiguous");
                Work::Refused(why)
            }
        };
        Answer { work, is_last, notes: self.notes.clone() }
    }
}

/// What a request is answered, in a while.
pub(super) struct Answer {
    work: Work,
    /// Whether the connection is closed after it.
    is_last: bool,
    notes: Notes,
}

enum Work {
    Runs(GateFuture<Infallible>),
    Refused(Ambiguous),
}

impl Future for Answer {
    type Output = Result<Response<Reply>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = match &mut self.work {
            Work::Refused(why) => refused(*why),
            Work::Runs(gate) => match Pin::new(gate).poll(cx) {
                Poll::Ready(Ok(response)) => response,
                Poll::Ready(Err(never)) => match never {},
                Poll::Pending => return Poll::Pending,
            },
        };
        if self.is_last {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let notes = self.notes.clone();
        Poll::Ready(Ok(response.map(|body| Reply { body, notes })))
    }
}

fn refused(Ambiguous(why): Ambiguous) -> Response<GateBody> {
    let status = StatusCode::BAD_REQUEST;
    let detail = format!("the end of the request is ambiguous: {why}");
    let text = refusal::text(status, "request-ambiguous", &detail, Some(false));
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in refusal::FIELDS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The body of an answer. With it the request is over, and the connection waits for another.
pub(super) struct Reply {
    body: GateBody,
    notes: Notes,
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = <GateBody as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.notes.wait();
    }
}
