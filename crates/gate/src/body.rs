//! The body of what the gate answers: bytes it has, a stream it hands on while
//! it keeps a copy, or the inner service's own.

use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
/// A piece of a body, or what went wrong with it.
pub(crate) type Piece = Result<Frame<Bytes>, BoxError>;

/// A body that the gate answers with.
pub struct GateBody(Inner);

enum Inner {
    Whole { data: Option<Bytes>, trailers: Option<http::HeaderMap> },
    Handed(mpsc::Receiver<Piece>),
    Other(Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>),
}

impl GateBody {
    pub(crate) fn whole(data: Bytes, trailers: Option<http::HeaderMap>) -> Self {
        Self(Inner::Whole { data: Some(data).filter(|data| !data.is_empty()), trailers })
    }

    /// Pieces that somebody reads for it.
    pub(crate) const fn handed(pieces: mpsc::Receiver<Piece>) -> Self {
        Self(Inner::Handed(pieces))
    }

    /// The inner service's own, untouched.
    pub(crate) fn other<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Inner::Other(Box::pin(http_body_util::BodyExt::map_err(body, Into::into))))
    }
}

impl std::fmt::Debug for GateBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GateBody")
    }
}

impl Body for GateBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        match &mut self.0 {
            Inner::Whole { data, trailers } => {
                let next = data.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(next.map(Ok))
            }
            Inner::Handed(pieces) => pieces.poll_recv(cx),
            Inner::Other(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Inner::Handed(_) => false,
            Inner::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole { data, .. } => SizeHint::with_exact(data.as_ref().map_or(0, Bytes::len) as u64),
            Inner::Handed(_) => SizeHint::default(),
            Inner::Other(body) => body.size_hint(),
        }
    }
}
