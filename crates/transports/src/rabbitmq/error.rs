//! What the server's and the client's errors mean: one table, tested row by row.

use std::future::Future;
use std::io;
use std::time::Duration;

use lapin::ErrorKind;
use oncebox_core::{Error, Kind};

/// Something went wrong on a channel or connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// The server's own reply code, if it was the server who complained.
    pub(super) code: Option<u16>,
    /// What it means to the caller.
    pub(super) kind: Kind,
    /// What happened, for people. The server cuts its texts off at 255 bytes.
    pub(super) text: String,
    /// No answer came: the connection may be half open.
    pub(super) is_silence: bool,
}

impl Trouble {
    /// The connection cannot be used.
    pub(super) fn unavailable(text: impl Into<String>) -> Self {
        Self { code: None, kind: Kind::Unavailable, text: text.into(), is_silence: false }
    }

    /// Somebody has to change something.
    pub(super) fn config(text: impl Into<String>) -> Self {
        Self { code: None, kind: Kind::Config, text: text.into(), is_silence: false }
    }

    fn silence(what: &str, limit: Duration) -> Self {
        Self { is_silence: true, ..Self::unavailable(format!("no answer to {what} within {limit:?}")) }
    }

    /// The error of a seam, saying what was tried.
    pub(super) fn error(self, what: impl std::fmt::Display) -> Error {
        Error::new(self.kind, format!("{what}: {}", self.text))
    }
}

impl From<lapin::Error> for Trouble {
    fn from(error: lapin::Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(said) => {
                let (code, text) = (said.get_id(), said.get_message().to_string());
                Self { code: Some(code), kind: kind(code, &text), text, is_silence: false }
            }
            ErrorKind::IOError(io) => {
                // Certificates are refused as invalid data.
                let is_set_up = matches!(io.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput);
                let kind = if is_set_up { Kind::Config } else { Kind::Unavailable };
                Self { code: None, kind, text: io.to_string(), is_silence: false }
            }
            ErrorKind::InvalidProtocolVersion(_) | ErrorKind::AuthProviderError(_) => {
                Self::config(error.to_string())
            }
            _ => Self::unavailable(error.to_string()),
        }
    }
}

/// What the server's reply codes mean outside of publishing.
fn kind(code: u16, text: &str) -> Kind {
    match code {
        // A channel whose consumer took too long to answer is closed by the same code as a bad declaration.
        406 if text.contains("timed out") => Kind::Unavailable,
        // content too large, access refused, not found, locked, precondition failed, not allowed, not implemented
        311 | 403 | 404 | 405 | 406 | 530 | 540 => Kind::Config,
        _ => Kind::Unavailable,
    }
}

/// Waits for an answer, but not for ever: the client may never hear that the
/// server has gone (lapin 409).
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    call: impl Future<Output = lapin::Result<T>>,
) -> Result<T, Trouble> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(Trouble::from),
        Err(_elapsed) => Err(Trouble::silence(what, limit)),
    }
}

/// The number that follows `before` in a text of the server.
pub(super) fn number_after(text: &str, before: &str) -> Option<usize> {
    let rest = text.split_once(before)?.1.trim_start();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// What stands in the next quotes after `before` in a text of the server.
pub(super) fn quoted_after<'t>(text: &'t str, before: &str) -> Option<&'t str> {
    text.split_once(before)?.1.split('\'').nth(1)
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};

    use super::*;

    fn said(kind: impl Into<AMQPErrorKind>, text: &str) -> Trouble {
        lapin::Error::from(ErrorKind::ProtocolError(AMQPError::new(kind.into(), text.into()))).into()
    }

    #[test]
    fn every_reply_code_has_its_kind() {
        let timed_out = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms";
        let rows = [
            (said(AMQPSoftError::CONTENTTOOLARGE, ""), 311, Kind::Config),
            (
                said(AMQPHardError::CONNECTIONFORCED, "CONNECTION_FORCED - broker forced connection closure"),
                320,
                Kind::Unavailable,
            ),
            (said(AMQPSoftError::ACCESSREFUSED, "ACCESS_REFUSED - Login was refused"), 403, Kind::Config),
            (said(AMQPSoftError::NOTFOUND, "NOT_FOUND - no queue 'q' in vhost '/'"), 404, Kind::Config),
            (said(AMQPSoftError::RESOURCELOCKED, ""), 405, Kind::Config),
            (
                said(AMQPSoftError::PRECONDITIONFAILED, "PRECONDITION_FAILED - inequivalent arg 'durable'"),
                406,
                Kind::Config,
            ),
            (said(AMQPSoftError::PRECONDITIONFAILED, timed_out), 406, Kind::Unavailable),
            (said(AMQPHardError::FRAMEERROR, ""), 501, Kind::Unavailable),
            (said(AMQPHardError::RESOURCEERROR, ""), 506, Kind::Unavailable),
            (said(AMQPHardError::NOTALLOWED, "NOT_ALLOWED - vhost nowhere not found"), 530, Kind::Config),
            (said(AMQPHardError::NOTIMPLEMENTED, ""), 540, Kind::Config),
            (said(AMQPHardError::INTERNALERROR, ""), 541, Kind::Unavailable),
        ];

        for (trouble, code, kind) in rows {
            assert_eq!((trouble.code, trouble.kind), (Some(code), kind), "{trouble:?}");
        }
    }

    #[test]
    fn a_refused_certificate_is_a_matter_of_set_up_and_a_refused_connection_is_not() {
        let of = |kind| Trouble::from(lapin::Error::from(io::Error::from(kind))).kind;

        assert_eq!(of(io::ErrorKind::InvalidData), Kind::Config);
        assert_eq!(of(io::ErrorKind::ConnectionRefused), Kind::Unavailable);
        assert_eq!(
            Trouble::from(lapin::Error::from(ErrorKind::MissingHeartbeatError)).kind,
            Kind::Unavailable
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_never_answered_ends() {
        let hung =
            within(Duration::from_secs(10), "queue.declare", std::future::pending::<lapin::Result<()>>())
                .await;

        let trouble = hung.unwrap_err();
        assert!(trouble.is_silence);
        assert_eq!(trouble.text, "no answer to queue.declare within 10s");
    }

    #[test]
    fn texts_of_the_server_are_read() {
        let large = "PRECONDITION_FAILED - message size 2048 is larger than configured max size 1024";
        let gone = "NOT_FOUND - no exchange 'orders' in vhost '/'";

        assert_eq!(number_after(large, "message size"), Some(2048));
        assert_eq!(number_after(gone, "message size"), None);
        assert_eq!(quoted_after(gone, "exchange"), Some("orders"));
        assert_eq!(quoted_after("no exchange", "exchange"), None);
    }
}
