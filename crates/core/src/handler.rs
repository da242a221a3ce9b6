//! How a handler is named, what identifies a message to it, and how it fails.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::digest::bounded_key;
use crate::envelope::Envelope;
use crate::error;

/// A handler's stable key: part of every marker, so renaming a function does
/// not make it handle old messages again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerKey(&'static str);

impl HandlerKey {
    /// A key of 1 to 128 characters from `a-z 0-9 . _ -`. In a `const` a bad key does not compile.
    ///
    /// # Panics
    /// If the key has any other form.
    #[must_use]
    #[expect(
        clippy::panic,
        clippy::indexing_slicing,
        reason = "evaluated in const context: a bad key stops the build"
    )]
    pub const fn new(key: &'static str) -> Self {
        let bytes = key.as_bytes();
        if bytes.is_empty() || bytes.len() > 128 {
            panic!("a handler key has 1 to 128 characters");
        }
        let mut i = 0;
        while i < bytes.len() {
            if !matches!(bytes[i], b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-') {
                panic!("a handler key has only the characters a-z 0-9 . _ -");
            }
            i += 1;
        }
        Self(key)
    }

    /// The key's text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for HandlerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for HandlerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandlerKey({})", self.0)
    }
}

/// Computes a key from an envelope.
pub type SelectKey = dyn Fn(&Envelope) -> Option<String> + Send + Sync;

/// What tells two deliveries of one message from two messages.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum KeySelector {
    /// The message id together with its source. Right for producers that keep the id on a resend.
    #[default]
    MessageId,
    /// A header, for instance `x-idempotency-key`.
    Header(String),
    /// The correlation id. Only for handlers that act once per business operation.
    CorrelationId,
    /// The idempotency key the producer passed on.
    IdempotencyKey,
    /// Several of these, all of which must be present.
    Composite(Vec<KeySelector>),
    /// A key computed from the envelope.
    Custom(Arc<SelectKey>),
}

impl KeySelector {
    /// The key of `envelope`, or `None` if it has none. Keys other than the
    /// message id are the same whoever sends them, so the source is left out.
    #[must_use]
    pub fn select(&self, envelope: &Envelope) -> Option<MessageKey> {
        match self {
            Self::MessageId => non_empty(&envelope.id)
                .map(|id| MessageKey { source: bounded_key(&envelope.source), id: bounded_key(id) }),
            other => other.text(envelope).map(|text| MessageKey::business(&text)),
        }
    }

    /// Whether the key is made of what a [signature](crate::signature) covers.
    /// What a custom function looks at is not known; it is taken to know.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        match self {
            Self::MessageId | Self::Custom(_) => true,
            Self::Header(_) | Self::CorrelationId | Self::IdempotencyKey => false,
            Self::Composite(parts) => parts.iter().all(Self::is_signed),
        }
    }

    fn text(&self, envelope: &Envelope) -> Option<String> {
        match self {
            Self::MessageId => non_empty(&envelope.id).map(|id| format!("{}/{id}", envelope.source)),
            Self::Header(name) => envelope.headers.get(name).and_then(|v| non_empty(v)).map(Into::into),
            Self::CorrelationId => envelope.correlation_id.as_deref().and_then(non_empty).map(Into::into),
            Self::IdempotencyKey => envelope.idempotency_key.as_deref().and_then(non_empty).map(Into::into),
            Self::Composite(parts) => composite(parts, envelope),
            Self::Custom(select) => select(envelope).filter(|text| !text.is_empty()),
        }
    }
}

/// Parts are joined with their lengths, so that ("ab", "c") and ("a", "bc") differ.
fn composite(parts: &[KeySelector], envelope: &Envelope) -> Option<String> {
    let texts: Option<Vec<String>> = parts.iter().map(|part| part.text(envelope)).collect();
    let texts = texts.filter(|texts| !texts.is_empty())?;
    Some(texts.iter().map(|text| format!("{}:{text}", text.len())).collect::<Vec<_>>().join("|"))
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

impl fmt::Debug for KeySelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MessageId => f.write_str("MessageId"),
            Self::Header(name) => write!(f, "Header({name})"),
            Self::CorrelationId => f.write_str("CorrelationId"),
            Self::IdempotencyKey => f.write_str("IdempotencyKey"),
            Self::Composite(parts) => f.debug_tuple("Composite").field(parts).finish(),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// What the key is, for people.
impl fmt::Display for KeySelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MessageId => f.write_str("id"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::CorrelationId => f.write_str("correlation id"),
            Self::IdempotencyKey => f.write_str("idempotency key"),
            Self::Composite(parts) => {
                let names: Vec<String> = parts.iter().map(ToString::to_string).collect();
                f.write_str(&names.join(" and "))
            }
            Self::Custom(_) => f.write_str("key of its own"),
        }
    }
}

/// What a marker is keyed by, beside tenant and handler.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageKey {
    /// The producer, or empty for a business key.
    pub source: String,
    /// The id or business key, at most 255 bytes.
    pub id: String,
}

impl MessageKey {
    /// A key of the user's own making, the same whoever the producer is.
    #[must_use]
    pub fn business(text: &str) -> Self {
        Self { source: String::new(), id: bounded_key(text) }
    }
}

/// What to do with a message that has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingId {
    /// Bury it: it cannot be protected.
    #[default]
    Reject,
    /// Run it unprotected; it is counted.
    AllowUnkeyed,
    /// Use the digest of its body. Two equal messages become one.
    ContentHash,
}

type Cause = Box<dyn StdError + Send + Sync>;

/// How a handler says that it failed. Any error converts to [`Retry`](Self::Retry) with `?`.
#[derive(Debug)]
#[non_exhaustive]
pub enum HandlerError {
    /// It may work later.
    Retry(Cause),
    /// It may work after this long.
    RetryAfter(Duration, Cause),
    /// It will never work; bury the message now.
    Permanent(Cause),
}

impl HandlerError {
    /// A failure that may pass.
    #[must_use]
    pub fn retry(cause: impl Into<Cause>) -> Self {
        Self::Retry(cause.into())
    }

    /// A failure that may pass after `delay`.
    #[must_use]
    pub fn retry_after(delay: Duration, cause: impl Into<Cause>) -> Self {
        Self::RetryAfter(delay, cause.into())
    }

    /// A failure that stays.
    #[must_use]
    pub fn permanent(cause: impl Into<Cause>) -> Self {
        Self::Permanent(cause.into())
    }

    /// The error the handler met.
    #[must_use]
    pub fn cause(&self) -> &(dyn StdError + 'static) {
        match self {
            Self::Retry(cause) | Self::RetryAfter(_, cause) | Self::Permanent(cause) => cause.as_ref(),
        }
    }

    /// The error the handler met, to be passed on.
    #[must_use]
    pub fn into_cause(self) -> Box<dyn StdError + Send + Sync> {
        match self {
            Self::Retry(cause) | Self::RetryAfter(_, cause) | Self::Permanent(cause) => cause,
        }
    }

    /// The error and its causes on one line.
    #[must_use]
    pub fn chain(&self) -> String {
        error::chain(self.cause())
    }
}

// `HandlerError` itself is no `Error`; that is what lets `?` convert every error.
impl<E: StdError + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::Retry(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope() -> Envelope {
        let mut envelope = Envelope { id: "7".into(), source: "shop".into(), ..Envelope::default() };
        envelope.correlation_id = Some("c".into());
        envelope.headers.insert("x-key".into(), "k".into());
        envelope
    }

    #[test]
    fn each_selector_finds_its_key() {
        let composite =
            KeySelector::Composite(vec![KeySelector::CorrelationId, KeySelector::Header("x-key".into())]);
        let custom = KeySelector::Custom(Arc::new(|e| Some(format!("order-{}", e.id))));
        let cases = [
            (KeySelector::MessageId, "shop", "7"),
            (KeySelector::Header("x-key".into()), "", "k"),
            (KeySelector::CorrelationId, "", "c"),
            (composite, "", "1:c|1:k"),
            (custom, "", "order-7"),
        ];

        for (selector, source, id) in cases {
            let key = MessageKey { source: source.into(), id: id.into() };
            assert_eq!(selector.select(&envelope()), Some(key), "{selector:?}");
        }
    }

    #[test]
    fn a_missing_part_means_no_key() {
        let empty = Envelope::default();
        let composite =
            KeySelector::Composite(vec![KeySelector::CorrelationId, KeySelector::Header("nope".into())]);

        assert_eq!(KeySelector::MessageId.select(&empty), None);
        assert_eq!(composite.select(&envelope()), None);
        assert_eq!(KeySelector::Composite(vec![]).select(&envelope()), None);
    }
}
