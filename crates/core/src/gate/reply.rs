//! Replies, as they are kept with a receipt.

use crate::error::{Error, Kind, Result};

/// Changed whenever an older build could not read a reply any more.
const VERSION: u8 = 1;
/// The body was too large to keep.
const NO_BODY: u8 = 1;

/// Fields of a reply in their order; a name may come more than once.
pub type Fields = Vec<(String, Vec<u8>)>;

/// What a request was answered with, to be answered again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers that are kept.
    pub headers: Fields,
    /// The body; `None` if it was too large to keep.
    pub body: Option<Vec<u8>>,
    /// What came after the body.
    pub trailers: Fields,
}

impl Reply {
    /// Everything but the body, in bytes that a later build can read.
    #[must_use]
    pub fn head(&self) -> Vec<u8> {
        let fields = self.headers.iter().chain(&self.trailers);
        let size: usize = fields.map(|(name, value)| name.len() + value.len() + 8).sum();
        let mut head = Vec::with_capacity(size + 12);
        head.extend_from_slice(&[VERSION, if self.body.is_none() { NO_BODY } else { 0 }]);
        head.extend_from_slice(&self.status.to_be_bytes());
        for fields in [&self.headers, &self.trailers] {
            number(&mut head, fields.len());
            for (name, value) in fields {
                number(&mut head, name.len());
                head.extend_from_slice(name.as_bytes());
                number(&mut head, value.len());
                head.extend_from_slice(value);
            }
        }
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
        let fields = self.headers.iter().chain(&self.trailers);
        let body = self.body.as_ref().map_or(0, Vec::len);
        fields.map(|(name, value)| name.len() + value.len() + 8).sum::<usize>() + body
    }
}

fn number(to: &mut Vec<u8>, number: usize) {
    // Fields are bounded by what an HTTP server takes, far below this.
    to.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
}

fn read(head: &[u8], body: Option<Vec<u8>>) -> Option<Reply> {
    let (start, mut rest) = head.split_at_checked(4)?;
    let &[VERSION, flags, high, low] = start else { return None };
    let (headers, trailers) = (fields(&mut rest)?, fields(&mut rest)?);
    let body = if flags & NO_BODY == 0 { Some(body.unwrap_or_default()) } else { None };
    let status = u16::from_be_bytes([high, low]);
    rest.is_empty().then_some(Reply { status, headers, body, trailers })
}

fn fields(rest: &mut &[u8]) -> Option<Fields> {
    let count = read_number(rest)?;
    // Not with that capacity: a damaged count must not ask for all memory.
    let mut fields = Vec::new();
    for _ in 0..count {
        let name = String::from_utf8(text(rest)?.to_vec()).ok()?;
        fields.push((name, text(rest)?.to_vec()));
    }
    Some(fields)
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = read_number(rest)?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(text)
}

fn read_number(rest: &mut &[u8]) -> Option<usize> {
    let (number, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*number)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Reply {
        Reply {
            status: 201,
            headers: vec![
                ("link".into(), b"</a>".to_vec()),
                ("etag".into(), vec![0xff, b'"']),
                ("link".into(), b"</b>".to_vec()),
                ("x-empty".into(), Vec::new()),
            ],
            body: Some(b"\0\xff".to_vec()),
            trailers: vec![("grpc-status".into(), b"0".to_vec())],
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
