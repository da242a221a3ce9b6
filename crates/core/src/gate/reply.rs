//! Replies, as they are kept with a receipt.

use super::fields::Fields;
use crate::error::{Error, Kind, Result};

/// Changed whenever an older build could not read a reply any more.
const VERSION: u8 = 1;
/// The body was not kept.
const NO_BODY: u8 = 1;

/// What a request was answered with, to be answered again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers that are kept.
    pub headers: Fields,
    /// The body; `None` if it was too large to keep, or was not to be kept.
    pub body: Option<Vec<u8>>,
    /// What came after the body.
    pub trailers: Fields,
}

impl Reply {
    /// Everything but the body, in bytes that a later build can read.
    #[must_use]
    pub fn head(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(12 + self.headers.size() + self.trailers.size());
        head.extend_from_slice(&[VERSION, if self.body.is_none() { NO_BODY } else { 0 }]);
        head.extend_from_slice(&self.status.to_be_bytes());
        self.headers.write(&mut head);
        self.trailers.write(&mut head);
        head
    }

    /// The reply of what [`head`](Self::head) wrote, and its body.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if it is damaged or of a later build.
    pub fn from_stored(head: &[u8], body: Option<Vec<u8>>) -> Result<Self> {
        read(head, body).ok_or_else(|| Error::new(Kind::Invalid, "a stored reply cannot be read"))
    }

    /// How many bytes it takes.
    #[must_use]
    pub fn size(&self) -> usize {
        let body = self.body.as_ref().map_or(0, Vec::len);
        self.headers.size() + self.trailers.size() + body
    }
}

fn read(head: &[u8], body: Option<Vec<u8>>) -> Option<Reply> {
    let (start, mut rest) = head.split_at_checked(4)?;
    let &[VERSION, flags, high, low] = start else { return None };
    let (headers, trailers) = (Fields::read(&mut rest)?, Fields::read(&mut rest)?);
    let body = if flags & NO_BODY == 0 { Some(body.unwrap_or_default()) } else { None };
    let status = u16::from_be_bytes([high, low]);
    rest.is_empty().then_some(Reply { status, headers, body, trailers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Reply {
        Reply {
            status: 201,
            headers: Fields::from_iter([
                ("link", &b"</a>"[..]),
                ("etag", &[0xff, b'"']),
                ("link", b"</b>"),
                ("x-empty", b""),
            ]),
            body: Some(b"\0\xff".to_vec()),
            trailers: Fields::from_iter([("grpc-status", &b"0"[..])]),
        }
    }

    #[test]
    fn a_reply_comes_back_as_it_was() {
        for reply in [
            reply(),
            Reply { body: Some(Vec::new()), ..reply() },
            Reply { body: None, ..reply() },
            Reply { status: 599, ..Reply::default() },
        ] {
            assert_eq!(Reply::from_stored(&reply.head(), reply.body.clone()).unwrap(), reply);
        }
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let whole = reply().head();

        for end in 0..whole.len() {
            assert!(Reply::from_stored(&whole[..end], None).is_err(), "{end}");
        }
        assert!(Reply::from_stored(&[&whole[..], b"x"].concat(), None).is_err());
        let mut later = whole.clone();
        later[0] = 2;
        assert_eq!(Reply::from_stored(&later, None).unwrap_err().kind(), Kind::Invalid);
        // A count that promises more than there is.
        assert!(Reply::from_stored(&[1, 0, 0, 200, 255, 255, 255, 255], None).is_err());
    }
}
