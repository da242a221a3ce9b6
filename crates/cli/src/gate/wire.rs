//! A connection of which the heads of requests are also seen as they came.
//!
//! hyper tidies a head before anybody else sees it: of a length beside an
//! encoding it drops the length, of two equal lengths one, and it takes a bare line feed for the
//! end of a line. Whatever stands before the gate may have read such a request in
//! another way, so it must be refused, not tidied. Here the bytes of a head are kept until hyper
//! has read it, and then read once more with hyper's own parser. Where the next head begins
//! follows from the length of the body. After a chunked body that could be told
//! only by reading chunks; such a request is the last on its connection instead.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// As many as hyper takes.
const MAX_FIELDS: usize = 100;

/// A connection that notes what is read from it.
#[derive(Debug)]
pub(super) struct Wire<T> {
    stream: T,
    notes: Notes,
}

/// What is known of a connection; its clones share it.
#[derive(Clone, Debug)]
pub(super) struct Notes(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// From the beginning of a head that was not judged yet.
    bytes: Vec<u8>,
    /// How much of the body before it is yet to come.
    body: u64,
    /// Nobody knows where the next head would begin, so there must not be one.
    is_last: bool,
    /// When the wait for a head began; none while a request is answered.
    waits: Option<Instant>,
    /// Since when the client takes nothing of what there is for it.
    stuck: Option<Instant>,
}

/// How a request says where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// After so many bytes.
    Length(u64),
    /// With the last chunk.
    Chunked,
}

/// Why two parsers could see the end of a request in two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ambiguous(pub(super) &'static str);

impl<T> Wire<T> {
    pub(super) fn new(stream: T) -> (Self, Notes) {
        let state =
            State { bytes: Vec::new(), body: 0, is_last: false, waits: Some(Instant::now()), stuck: None };
        let notes = Notes(Arc::new(Mutex::new(state)));
        (Self { stream, notes: notes.clone() }, notes)
    }
}

impl Notes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges the head that was just read; from here on the request is answered.
    pub(super) fn judge(&self) -> Result<Framing, Ambiguous> {
        let mut state = self.state();
        state.waits = None;
        let judged = if state.is_last {
            Err(Ambiguous("it follows one after which none may come"))
        } else {
            framing(&state.bytes)
        };
        match judged {
            Ok((head, Framing::Length(length))) => {
                let came = state.bytes.len().saturating_sub(head) as u64;
                state.body = length.saturating_sub(came);
                let past = head + usize::try_from(length.min(came)).unwrap_or(usize::MAX);
                state.bytes.drain(..past);
            }
            Ok((_, Framing::Chunked)) | Err(_) => {
                state.is_last = true;
                state.bytes = Vec::new();
            }
        }
        judged.map(|(_, framing)| framing)
    }

    /// The request is answered; another may come.
    pub(super) fn wait(&self) {
        self.state().waits = Some(Instant::now());
    }

    /// The client has taken something, or nothing although there was something for it.
    fn offered(&self, is_taken: bool) {
        let mut state = self.state();
        if !is_taken {
            state.stuck.get_or_insert_with(Instant::now);
            return;
        }
        state.stuck = None;
        // A slow client that still takes its answer is not to be called slow in asking.
        if state.waits.is_some() {
            state.waits = Some(Instant::now());
        }
    }

    /// Since when nothing was taken.
    pub(super) fn stuck(&self) -> Option<Instant> {
        self.state().stuck
    }

    /// Since when a head is waited for.
    pub(super) fn waits(&self) -> Option<Instant> {
        self.state().waits
    }

    fn read(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.is_last {
            return;
        }
        let body = bytes.len().min(usize::try_from(state.body).unwrap_or(usize::MAX));
        state.body -= body as u64;
        state.bytes.extend_from_slice(bytes.get(body..).unwrap_or_default());
    }
}

/// How long the head is that these bytes begin with, and what it says about the body.
fn framing(bytes: &[u8]) -> Result<(usize, Framing), Ambiguous> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_request_with_uninit_headers(&mut head, bytes, &mut fields);
    // hyper has read it, so this is never so; if it were, nobody would know what was read.
    let Ok(httparse::Status::Complete(length)) = parsed else {
        return Err(Ambiguous("its head cannot be read"));
    };
    if has_bare_line_feed(bytes.get(..length).unwrap_or_default()) {
        return Err(Ambiguous("a line ends without a carriage return"));
    }
    let (mut stated, mut coding) = (None, None);
    for field in head.headers.iter() {
        let seen = if field.name.eq_ignore_ascii_case("content-length") {
            stated.replace(field.value)
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            coding.replace(field.value)
        } else {
            continue;
        };
        if seen.is_some() {
            return Err(Ambiguous("it has more than one content-length or transfer-encoding"));
        }
    }
    let framing = match (stated, coding) {
        (None, None) => Framing::Length(0),
        (Some(digits), None) => Framing::Length(number(digits)?),
        (None, Some(coding)) if coding.trim_ascii().eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
        (None, Some(_)) => return Err(Ambiguous("its transfer-encoding is not plainly chunked")),
        (Some(_), Some(_)) => return Err(Ambiguous("it has a content-length and a transfer-encoding")),
    };
    Ok((length, framing))
}

fn number(digits: &[u8]) -> Result<u64, Ambiguous> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_number);
    text.and_then(|text| text.parse().ok()).ok_or(Ambiguous("its content-length is no number"))
}

fn has_bare_line_feed(head: &[u8]) -> bool {
    let mut rest = head;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
        if at.checked_sub(1).and_then(|before| rest.get(before)) != Some(&b'\r') {
            return true;
        }
        rest = rest.get(at + 1..).unwrap_or_default();
    }
    false
}

impl<T: AsyncRead + Unpin> AsyncRead for Wire<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        this.notes.read(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Wire<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.notes.offered(written.is_ready());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces);
        this.notes.offered(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(fields: &str) -> Result<Framing, Ambiguous> {
        let (_, notes) = Wire::new(());
        notes.read(format!("POST / HTTP/1.1\r\nhost: x\r\n{fields}\r\n").as_bytes());
        notes.judge()
    }

    #[test]
    fn an_end_that_can_be_seen_in_two_places_is_ambiguous() {
        for fields in [
            "content-length: 4\r\ntransfer-encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            "content-length: 4\r\ncontent-length: 4\r\n",
            "content-length: 4\r\nCONTENT-LENGTH: 5\r\n",
            "content-length: 4, 4\r\n",
            "content-length: +4\r\n",
            "content-length:\r\n",
            "content-length: 99999999999999999999\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: identity\r\n",
            "x: y\n",
            "content-length: 0\n",
        ] {
            assert!(judged(fields).is_err(), "{fields:?}");
        }
        assert_eq!(judged(""), Ok(Framing::Length(0)));
        assert_eq!(judged("content-length: 004\r\n"), Ok(Framing::Length(4)));
        assert_eq!(judged("transfer-encoding:  Chunked \r\n"), Ok(Framing::Chunked));
    }

    #[test]
    fn the_next_head_begins_where_the_body_ends_however_the_bytes_come() {
        let first = "POST /a HTTP/1.1\r\ncontent-length: 5\r\n\r\nabcde";
        let all = format!("{first}GET /b HTTP/1.1\r\n\r\n\r\nPOST /c HTTP/1.1\r\ncontent-length: 1\r\n\r\nx");
        let heads = [first.find("abcde").unwrap(), all.find("\r\nPOST").unwrap(), all.len() - 1];
        let framings = [5, 0, 1].map(Framing::Length);

        for step in 1..=all.len() {
            let (_, notes) = Wire::new(());
            let (mut read, mut judged) = (0, Vec::new());
            for piece in all.as_bytes().chunks(step) {
                notes.read(piece);
                read += piece.len();
                // As hyper does: when a head is whole, and not before.
                while judged.len() < heads.len() && read >= heads[judged.len()] {
                    judged.push(notes.judge().unwrap());
                }
            }
            assert_eq!(judged, framings, "{step}");
        }
    }

    #[test]
    fn after_a_chunked_body_or_a_refusal_none_may_come() {
        let next = "GET / HTTP/1.1\r\n\r\n";
        for first in ["transfer-encoding: chunked\r\n", "content-length: 1\r\ncontent-length: 1\r\n"] {
            let (_, notes) = Wire::new(());
            notes.read(format!("POST / HTTP/1.1\r\n{first}\r\n0\r\n\r\n").as_bytes());
            assert_eq!(notes.judge().is_ok(), first.starts_with('t'));
            notes.read(next.as_bytes());
            assert!(notes.judge().is_err(), "{first}");
        }
    }

    #[test]
    fn a_head_is_waited_for_except_while_a_request_is_answered() {
        let (_, notes) = Wire::new(());
        assert!(notes.waits().is_some());
        notes.read(b"GET / HTTP/1.1\r\n\r\n");
        notes.judge().unwrap();
        assert!(notes.waits().is_none());
        notes.wait();
        assert!(notes.waits().is_some());
    }
}
