//! What an answer, or none, says about a message and its destination.

use std::time::{Duration, SystemTime};

use hyper::header::{HeaderMap, LOCATION, RETRY_AFTER};
use hyper::{StatusCode, Uri};
use hyper_util::client::legacy;
use oncebox_core::Failure;
use oncebox_core::error::chain;

/// The most characters of an answer's body that are quoted.
const EXCERPT_CHARS: usize = 200;

/// An answer that is no confirm, as far as it matters.
pub(super) struct Refusal<'a> {
    pub(super) status: StatusCode,
    pub(super) headers: &'a HeaderMap,
    /// The beginning of the body.
    pub(super) body: &'a [u8],
    pub(super) now: SystemTime,
}

/// A failure, and whether the destination as a whole is to blame.
#[derive(Debug)]
pub(super) struct Blame {
    pub(super) failure: Failure,
    /// Counts against the destination.
    pub(super) is_down: bool,
    /// How long the destination asked to be left alone by everybody.
    pub(super) wish: Option<Duration>,
}

impl Refusal<'_> {
    /// The table of statuses. The destination is blamed for what no other
    /// message would fare better with; only what is left is the message's fault.
    pub(super) fn blame(&self, place: &str) -> Blame {
        let reason = self.reason(place);
        let retry_after = self.retry_after();
        let (failure, is_down) = match self.status.as_u16() {
            // The same message is being handled at this moment.
            409 => (Failure::destination(reason), false),
            // Nobody is let in, nobody is there, or nobody takes a POST there.
            401 | 403 | 404 | 405 | 407 | 410 | 421 | 426 => (Failure::destination(reason), true),
            408 | 425 | 429 => (Failure::destination(reason), true),
            400..=499 => (Failure::message(reason), false),
            _ => (Failure::destination(reason), true),
        };
        let is_everybodys = matches!(self.status.as_u16(), 429 | 503);
        Blame {
            failure: Failure { retry_after, ..failure },
            is_down,
            wish: retry_after.filter(|_| is_everybodys),
        }
    }

    fn reason(&self, place: &str) -> String {
        let mut reason = format!("{place} answered {}", self.status);
        if self.status.is_redirection() {
            reason.push_str(" and redirects are not followed");
            if let Some(to) = self.redirect_origin() {
                reason.push_str(&format!(" (to {to})"));
            }
        }
        let excerpt = excerpt(self.body);
        if !excerpt.is_empty() {
            reason.push_str(": ");
            reason.push_str(&excerpt);
        }
        reason
    }

    /// Not the whole URL, which may hold a secret.
    fn redirect_origin(&self) -> Option<String> {
        let to: Uri = self.headers.get(LOCATION)?.to_str().ok()?.parse().ok()?;
        Some(format!("{}://{}", to.scheme_str()?, to.host()?))
    }

    /// Seconds or a date.
    fn retry_after(&self) -> Option<Duration> {
        let text = self.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
        if let Ok(seconds) = text.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let date = httpdate::parse_http_date(text).ok()?;
        Some(date.duration_since(self.now).unwrap_or_default())
    }
}

/// No answer came.
pub(super) fn no_answer(place: &str, error: &legacy::Error) -> Blame {
    let reason = format!("{place}: {}", chain(error));
    // Once the request is on its way, nobody knows how far it came.
    let failure = if error.is_connect() { Failure::destination(reason) } else { Failure::unknown(reason) };
    Blame { failure, is_down: true, wish: None }
}

/// No answer came in time.
pub(super) fn too_slow(place: &str, timeout: Duration) -> Blame {
    let failure = Failure::unknown(format!("{place} did not answer within {timeout:?}"));
    Blame { failure, is_down: true, wish: None }
}

/// The beginning of a body on one line; what a terminal would obey is escaped.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let mut excerpt = String::new();
    for c in text.trim().chars().take(EXCERPT_CHARS) {
        match c {
            '"' | '\'' | '\\' => excerpt.push(c),
            _ => excerpt.extend(c.escape_debug()),
        }
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use oncebox_core::transport::Class;

    use super::*;

    fn blame(status: u16, header: Option<(&str, &str)>, body: &[u8]) -> Blame {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name.parse::<hyper::header::HeaderName>().unwrap(), value.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480);
        Refusal { status, headers: &headers, body, now }.blame("orders")
    }

    #[test]
    fn every_status_blames_the_message_or_the_destination() {
        let (message, destination) = (Class::Message, Class::Destination);
        for (status, class, is_down) in [
            (300, destination, true),
            (301, destination, true),
            (302, destination, true),
            (304, destination, true),
            (307, destination, true),
            (308, destination, true),
            (400, message, false),
            (401, destination, true),
            (402, message, false),
            (403, destination, true),
            (404, destination, true),
            (405, destination, true),
            (406, message, false),
            (407, destination, true),
            (408, destination, true),
            (409, destination, false),
            (410, destination, true),
            (411, message, false),
            (412, message, false),
            (413, message, false),
            (414, message, false),
            (415, message, false),
            (417, message, false),
            (421, destination, true),
            (422, message, false),
            (425, destination, true),
            (426, destination, true),
            (428, message, false),
            (429, destination, true),
            (431, message, false),
            (451, message, false),
            (500, destination, true),
            (501, destination, true),
            (502, destination, true),
            (503, destination, true),
            (504, destination, true),
            (507, destination, true),
            (599, destination, true),
            (999, destination, true),
        ] {
            let blame = blame(status, None, b"");
            assert_eq!((blame.failure.class, blame.is_down), (class, is_down), "{status}");
            assert!(!blame.failure.permanent && blame.failure.retry_after.is_none());
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        for (text, seconds) in [
            ("120", Some(120)),
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("Wed, 21 Oct 2015 07:28:30 GMT", Some(30)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", Some(0)),
            ("Wednesday, 21-Oct-15 07:28:30 GMT", Some(30)),
            ("soon", None),
            ("-1", None),
            ("", None),
        ] {
            let blame = blame(503, Some(("retry-after", text)), b"");
            let expected = seconds.map(Duration::from_secs);
            assert_eq!((blame.failure.retry_after, blame.wish), (expected, expected), "{text}");
        }
    }

    #[test]
    fn only_a_busy_destination_asks_everybody_to_wait() {
        for (status, is_everybodys) in [(409, false), (413, false), (429, true), (500, false), (503, true)] {
            let blame = blame(status, Some(("retry-after", "3")), b"");
            assert_eq!(blame.failure.retry_after, Some(Duration::from_secs(3)));
            assert_eq!(blame.wish.is_some(), is_everybodys, "{status}");
        }
    }

    #[test]
    fn a_redirect_is_named_by_its_origin() {
        let blame = blame(302, Some(("location", "https://login.test/?token=hunter2")), b"");

        assert_eq!(
            blame.failure.reason,
            "orders answered 302 Found and redirects are not followed (to https://login.test)"
        );
    }

    #[test]
    fn an_excerpt_is_short_and_obeyed_by_no_terminal() {
        let body = format!("it's \"bad\":\r\n\u{1b}[2J\u{202e}{}", "x".repeat(100_000));

        let reason = blame(422, None, body.as_bytes()).failure.reason;

        assert!(reason.starts_with(
            "orders answered 422 Unprocessable Entity: it's \"bad\":\\r\\n\\u{1b}[2J\\u{202e}xx"
        ));
        assert!(reason.len() < 400 && !reason.contains(char::is_control), "{reason}");
        assert!(blame(500, None, &[0xff; 10]).failure.reason.ends_with('\u{fffd}'));
    }
}
