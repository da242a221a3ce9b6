//! What the client's errors mean to the relay and to a consumer: one table.

use std::io;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::{ConnectError, ConnectErrorKind, jetstream};
use oncebox_core::error::chain;
use oncebox_core::{Error, Failure, Kind};

/// What a publish that was not confirmed says, and about whom.
pub(super) fn refused(subject: &str, error: &PublishError) -> Failure {
    let text = chain(error);
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            Failure::destination(format!("no stream takes the subject {subject}"))
        }
        PublishErrorKind::MaxPayloadExceeded => {
            Failure::message(format!("{subject}: too large for the NATS server: {text}")).permanently()
        }
        PublishErrorKind::MaxAckPending => Failure::destination(format!("{subject}: {text}")),
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => {
            Failure::unknown(format!("no confirm for {subject}: {text}"))
        }
        PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => {
            Failure::message(format!("{subject}: {text}"))
        }
        PublishErrorKind::Other => match cause(error) {
            Some(cause) => answered(subject, cause.error_code(), cause.code(), &text),
            // Neither a confirm nor a refusal: whatever answered is no stream.
            None => Failure::unknown(format!("the confirm for {subject} was not understood: {text}")),
        },
    }
}

/// The stream's own answer.
fn answered(subject: &str, code: ErrorCode, status: usize, text: &str) -> Failure {
    match code {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
            Failure::message(format!("too large for the stream of {subject}: {text}")).permanently()
        }
        // Full with `discard new`, sealed, out of disk or memory, without a leader: all of
        // them refuse whatever comes next, too.
        ErrorCode::STREAM_STORE_FAILED
        | ErrorCode::STREAM_SEALED
        | ErrorCode::STREAM_NOT_FOUND
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::INSUFFICIENT_RESOURCES => {
            Failure::destination(format!("the stream of {subject} takes no messages: {text}"))
        }
        _ if status == 400 => Failure::message(format!("the stream of {subject} refused it: {text}")),
        _ => Failure::destination(format!("the stream of {subject} cannot take messages: {text}")),
    }
}

fn cause(error: &PublishError) -> Option<&jetstream::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Why no connection was made.
pub(super) fn not_connected(hosts: &str, error: ConnectError) -> Error {
    let kind = match error.kind() {
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation
        | ConnectErrorKind::Tls => Kind::Config,
        // What TLS objects to comes as data that cannot be read.
        ConnectErrorKind::Io if io_kind(&error) == Some(io::ErrorKind::InvalidData) => Kind::Config,
        ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => Kind::Unavailable,
    };
    Error::new(kind, format!("cannot connect to NATS at {hosts}")).because(error)
}

fn io_kind(error: &ConnectError) -> Option<io::ErrorKind> {
    std::error::Error::source(error)?.downcast_ref().map(io::Error::kind)
}

/// A request to the server that failed.
pub(super) fn unavailable(
    what: impl Into<String>,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(Kind::Unavailable, what.into()).because(error)
}

#[cfg(test)]
mod tests {
    use oncebox_core::transport::Class;

    use super::*;

    fn api(status: usize, code: u64, description: &str) -> PublishError {
        let text = format!(r#"{{"code":{status},"err_code":{code},"description":"{description}"}}"#);
        let error: jetstream::Error = serde_json::from_str(&text).unwrap();
        PublishError::with_source(PublishErrorKind::Other, error)
    }

    #[test]
    fn every_refusal_has_its_class() {
        use PublishErrorKind as P;
        let of = PublishError::new;
        let table: [(PublishError, Class, bool); 17] = [
            (of(P::StreamNotFound), Class::Destination, false),
            (of(P::TimedOut), Class::Unknown, false),
            (of(P::BrokenPipe), Class::Unknown, false),
            (of(P::MaxPayloadExceeded), Class::Message, true),
            (of(P::MaxAckPending), Class::Destination, false),
            (of(P::WrongLastMessageId), Class::Message, false),
            (of(P::WrongLastSequence), Class::Message, false),
            (of(P::Other), Class::Unknown, false),
            (api(400, 10054, "message size exceeds maximum allowed"), Class::Message, true),
            (api(400, 10097, "header size exceeds maximum allowed of 64k"), Class::Message, true),
            (api(503, 10077, "maximum messages exceeded"), Class::Destination, false),
            (api(503, 10077, "maximum bytes exceeded"), Class::Destination, false),
            (api(400, 10109, "invalid operation on sealed stream"), Class::Destination, false),
            (api(500, 10047, "insufficient storage resources available"), Class::Destination, false),
            (api(503, 10023, "insufficient resources"), Class::Destination, false),
            (api(503, 10008, "JetStream system temporarily unavailable"), Class::Destination, false),
            (api(400, 10060, "expected stream does not match"), Class::Message, false),
        ];

        for (error, class, permanent) in table {
            let failure = refused("orders.eu", &error);
            assert_eq!((failure.class, failure.permanent), (class, permanent), "{error}");
            assert!(failure.reason.contains("orders.eu"), "{}", failure.reason);
        }
    }

    #[test]
    fn what_a_person_must_mend_is_configuration() {
        let kind = |kind| not_connected("h:4222", ConnectError::new(kind)).kind();

        assert_eq!(kind(ConnectErrorKind::AuthorizationViolation), Kind::Config);
        assert_eq!(kind(ConnectErrorKind::Tls), Kind::Config);
        let objection = io::Error::new(io::ErrorKind::InvalidData, "certificate not valid for name");
        let objection = ConnectError::with_source(ConnectErrorKind::Io, objection);
        assert_eq!(not_connected("h:4222", objection).kind(), Kind::Config);
        assert_eq!(kind(ConnectErrorKind::Io), Kind::Unavailable);
        assert_eq!(kind(ConnectErrorKind::TimedOut), Kind::Unavailable);
    }
}
