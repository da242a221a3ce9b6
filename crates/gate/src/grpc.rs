//! What the gate itself answers to a gRPC call. Its clients do not read
//! problems of HTTP: a call that is refused ends at once, with a status in the
//! headers and no body.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::answer::Problem;
use crate::body::{self, GateBody};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// When the client may try again, in milliseconds.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Why the gate has refused; an extension of what it answers.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) problem: Problem,
    pub(crate) code: &'static str,
}

/// The code of gRPC that comes nearest.
const fn status(problem: &Problem) -> u16 {
    match problem {
        // Unknown.
        Problem::OutcomeUnknown | Problem::ReplyBroken => 2,
        // Invalid argument.
        Problem::KeyMissing | Problem::KeyMalformed(_) | Problem::KeyNotOfContent => 3,
        // Already exists.
        Problem::NotRetained { .. } => 6,
        // Permission denied.
        Problem::KeyOfAnother => 7,
        // Resource exhausted.
        Problem::TooManyKeys | Problem::BodyTooLarge { .. } => 8,
        // Failed precondition.
        Problem::KeyReused | Problem::KeyExpired => 9,
        // Aborted.
        Problem::InFlight { .. } => 10,
        // Internal.
        Problem::Panicked | Problem::NotSealed => 13,
        // Unavailable.
        Problem::BodyBroken | Problem::StoreDown | Problem::CommitUnknown => 14,
        // Unauthenticated.
        Problem::CallerUnknown => 16,
    }
}

/// The answer to a gRPC call: what the gate refuses, as gRPC says it.
pub(crate) fn told(mut response: Response<GateBody>) -> Response<GateBody> {
    let Some(Refusal { problem, code }) = response.extensions_mut().remove() else {
        return response;
    };
    let mut answer = Response::new(body::whole(Bytes::new(), None));
    *answer.status_mut() = StatusCode::OK;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from(status(&problem)));
    if let Ok(message) = HeaderValue::try_from(encoded(&format!("{code}: {}", problem.detail()))) {
        headers.insert(MESSAGE, message);
    }
    if let Some(wait) = problem.retry_after() {
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        headers.insert(PUSHBACK, HeaderValue::from(millis.max(1)));
    }
    answer
}

/// A message is plain ASCII, everything else and the percent sign in hex.
fn encoded(message: &str) -> String {
    message.bytes().fold(String::with_capacity(message.len()), |mut text, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            // Writing to a string does not fail.
            _ => write!(text, "%{byte:02X}").unwrap_or_default(),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_plain_ascii() {
        assert_eq!(encoded("100 % für\nalle"), "100 %25 f%C3%BCr%0Aalle");
    }

    #[test]
    fn an_answer_of_the_service_is_its_own() {
        let mut response = Response::new(body::whole(Bytes::from_static(b"tea"), None));
        *response.status_mut() = StatusCode::CONFLICT;

        assert_eq!(told(response).status(), StatusCode::CONFLICT);
    }
}
