//! The body of what the gate answers: bytes it has, a stream it hands on while
//! it keeps a copy, or the inner service's own.

use std::error::Error as StdError;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::patience::within;

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
/// A piece of a body, or what went wrong with it.
pub(crate) type Piece = Result<Frame<Bytes>, BoxError>;
/// A piece on its way, with the room it takes; no piece is the end.
pub(crate) type Parcel = (Option<Piece>, Option<OwnedSemaphorePermit>);

/// All of a body.
pub(crate) struct Gathered {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Why there is not all of it.
pub(crate) enum Gap {
    TooLarge,
    Broken,
}

/// Reads a body to its end, however slow it is, as long as something comes.
pub(crate) async fn gather<B>(body: B, stall: Duration, limit: usize) -> Result<Gathered, Gap>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    let (mut data, mut trailers) = (Bytes::new(), None);
    while let Some(frame) = within(stall, body.frame()).await.map_err(|_elapsed| Gap::Broken)? {
        let frame = match frame.map_err(|_broken| Gap::Broken)?.into_data() {
            Ok(more) if data.len() + more.len() > limit => return Err(Gap::TooLarge),
            // Most bodies are one piece, and that need not be copied.
            Ok(more) if data.is_empty() => {
                data = more;
                continue;
            }
            Ok(more) => {
                let mut whole = BytesMut::from(data);
                whole.extend_from_slice(&more);
                data = whole.freeze();
                continue;
            }
            Err(frame) => frame,
        };
        trailers = frame.into_trailers().ok();
    }
    Ok(Gathered { data, trailers })
}

/// A body that the gate answers with.
pub type GateBody = UnsyncBoxBody<Bytes, BoxError>;

pub(crate) fn whole(bytes: Bytes, trailers: Option<HeaderMap>) -> GateBody {
    let body = Full::new(bytes).map_err(Into::into);
    match trailers {
        None => body.boxed_unsync(),
        Some(trailers) => body.with_trailers(std::future::ready(Some(Ok(trailers)))).boxed_unsync(),
    }
}

/// Pieces that somebody reads for it. If that one is gone without having said
/// that it was the end, it was not.
pub(crate) fn handed(pieces: mpsc::UnboundedReceiver<Parcel>) -> GateBody {
    let pieces = stream::unfold(Some(pieces), |pieces| async {
        let mut pieces = pieces?;
        match pieces.recv().await {
            Some((None, _)) => None,
            Some((Some(piece), _room)) => Some((piece, Some(pieces))),
            None => Some((Err("the reply was cut off".into()), None)),
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// The inner service's own, untouched.
pub(crate) fn other<B>(body: B) -> GateBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}
