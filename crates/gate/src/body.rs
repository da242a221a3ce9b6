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
    // Most bodies are one piece, and that need not be copied.
    let (mut first, mut more, mut trailers) = (Bytes::new(), BytesMut::new(), None);
    while let Some(frame) = within(stall, body.frame()).await.map_err(|_elapsed| Gap::Broken)? {
        match frame.map_err(|_broken| Gap::Broken)?.into_data() {
            Ok(piece) if first.len().max(more.len()) + piece.len() > limit => return Err(Gap::TooLarge),
            Ok(piece) if first.is_empty() => first = piece,
            Ok(piece) => {
                if more.is_empty() {
                    more.extend_from_slice(&first);
                }
                more.extend_from_slice(&piece);
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
        // Its length may tell, so that nobody need be asked once more.
        if body.is_end_stream() {
            break;
        }
    }
    let data = if more.is_empty() { first } else { more.freeze() };
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

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(5);

    async fn gathered(pieces: &[&'static [u8]], limit: usize) -> Option<Bytes> {
        let frames: Vec<Piece> =
            pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece)))).collect();
        gather(StreamBody::new(stream::iter(frames)), STALL, limit).await.ok().map(|gathered| gathered.data)
    }

    #[tokio::test]
    async fn a_body_is_whole_in_however_many_pieces_it_comes() {
        let cases: [(&[&[u8]], &[u8]); 5] = [
            (&[], b""),
            (&[b"", b""], b""),
            (&[b"one"], b"one"),
            (&[b"", b"one", b"", b" and two"], b"one and two"),
            (&[b"a", b"b", b"c", b"d"], b"abcd"),
        ];
        for (pieces, whole) in cases {
            assert_eq!(gathered(pieces, 11).await.as_deref(), Some(whole), "{pieces:?}");
        }
    }

    #[tokio::test]
    async fn it_may_be_as_large_as_allowed_and_no_larger() {
        assert!(gathered(&[b"four"], 4).await.is_some());
        assert!(gathered(&[b"fo", b"ur"], 4).await.is_some());
        assert!(gathered(&[b"fiver"], 4).await.is_none());
        assert!(gathered(&[b"fiv", b"er"], 4).await.is_none());
        assert!(gathered(&[b"fi", b"v", b"er"], 4).await.is_none());
    }
}
