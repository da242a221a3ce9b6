//! `Idempotency-Key` as clients write it.
//!
//! The draft of the IETF wants a quoted string; most clients send a bare UUID,
//! which is not even a token if it begins with a digit. So both are taken for
//! the same key, unless a route insists.

use std::fmt;
use std::sync::Arc;

/// The longest key.
pub const MAX_KEY_BYTES: usize = 255;
/// The longest key of the form `{tenant}:{app}:{unique}`.
pub const MAX_ATP_KEY_BYTES: usize = 128;

/// What a route takes for a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeySyntax {
    /// A quoted string, or anything printable without quotes.
    #[default]
    Lenient,
    /// A quoted string and nothing else (RFC 9651, 3.3.3).
    QuotedString,
    /// `{tenant}:{app}:{unique}` in letters, digits, `_` and `-`.
    Atp,
}

/// A key, without its quotes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestKey(Arc<str>);

impl RequestKey {
    /// Reads the values of all `Idempotency-Key` fields of a request; `None`
    /// if there is none.
    ///
    /// # Errors
    /// Why what is there is no key.
    pub fn parse<'a>(
        values: impl IntoIterator<Item = &'a [u8]>,
        syntax: KeySyntax,
    ) -> Result<Option<Self>, KeyError> {
        let mut values = values.into_iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(KeyError::Repeated);
        }
        let value = value.trim_ascii();
        // A quoted string may hold twice its length in escapes, and the quotes.
        if value.len() > 2 * MAX_KEY_BYTES + 2 {
            return Err(KeyError::TooLong { limit: MAX_KEY_BYTES });
        }
        let key: Arc<str> = match (value, syntax) {
            ([b'"', ..], KeySyntax::Lenient | KeySyntax::QuotedString) => unquoted(value)?.into(),
            (_, KeySyntax::QuotedString) => return Err(KeyError::NotQuoted),
            (_, KeySyntax::Lenient | KeySyntax::Atp) => bare(value)?.into(),
        };
        let limit = if syntax == KeySyntax::Atp { MAX_ATP_KEY_BYTES } else { MAX_KEY_BYTES };
        match key.len() {
            0 => Err(KeyError::Empty),
            length if length > limit => Err(KeyError::TooLong { limit }),
            _ if syntax == KeySyntax::Atp && !is_atp(&key) => Err(KeyError::NotAtp),
            _ => Ok(Some(Self(key))),
        }
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hash that a key claims its body has: `content:{hash}`, or `{tenant}:content:{hash}`.
    #[must_use]
    pub fn content(&self) -> Option<&str> {
        let rest = self.0.strip_prefix("content:");
        rest.or_else(|| self.0.split_once(':')?.1.strip_prefix("content:"))
    }

    /// The tenant that a key of the form `{tenant}:{app}:{unique}` names.
    #[must_use]
    pub fn atp_tenant(&self) -> Option<&str> {
        is_atp(&self.0).then(|| self.0.split(':').next()).flatten()
    }
}

/// Whoever knows a key may be answered in its name, so logs do not have it.
impl fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestKey({} bytes)", self.0.len())
    }
}

/// Why a field is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is nothing in it.
    #[error("the key is empty")]
    Empty,
    /// There are several.
    #[error("there is more than one Idempotency-Key field")]
    Repeated,
    /// It does not end, or goes on after its end.
    #[error("the key is not a whole quoted string")]
    Malformed,
    /// It must be quoted.
    #[error("the key is not a quoted string, as in Idempotency-Key: \"8e03978e\"")]
    NotQuoted,
    /// It has a byte that cannot be printed.
    #[error("the key has a character other than printable ASCII")]
    NotPrintable,
    /// It is too long.
    #[error("the key is longer than {limit} bytes")]
    TooLong {
        /// The most there may be.
        limit: usize,
    },
    /// It is not of the form a route insists on.
    #[error("the key is not of the form tenant:app:unique in letters, digits, '_' and '-'")]
    NotAtp,
}

fn bare(value: &[u8]) -> Result<&str, KeyError> {
    match std::str::from_utf8(value) {
        Ok(text) if text.bytes().all(is_printable) => Ok(text),
        _ => Err(KeyError::NotPrintable),
    }
}

/// The inside of a quoted string, of which only `"` and `\` are escaped.
fn unquoted(value: &[u8]) -> Result<String, KeyError> {
    let mut text = String::with_capacity(value.len());
    let mut bytes = value.iter().copied().skip(1);
    loop {
        match bytes.next() {
            Some(b'"') => break,
            Some(b'\\') => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => text.push(char::from(escaped)),
                _ => return Err(KeyError::Malformed),
            },
            Some(byte) if is_printable(byte) => text.push(char::from(byte)),
            Some(_) => return Err(KeyError::NotPrintable),
            None => return Err(KeyError::Malformed),
        }
    }
    // Parameters say nothing about a key, and two keys with different ones would be the same.
    bytes.next().map_or(Ok(text), |_more| Err(KeyError::Malformed))
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

fn is_atp(key: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    key.split(':').count() == 3 && key.split(':').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &[u8], syntax: KeySyntax) -> Result<String, KeyError> {
        RequestKey::parse([value], syntax).map(|key| key.unwrap().as_str().to_owned())
    }

    #[test]
    fn a_key_is_the_same_with_and_without_quotes() {
        for value in
            [&b"8e03978e-40d5-43dd-bc93-6894a57f9324"[..], b"\"8e03978e-40d5-43dd-bc93-6894a57f9324\""]
        {
            assert_eq!(parse(value, KeySyntax::Lenient).unwrap(), "8e03978e-40d5-43dd-bc93-6894a57f9324");
        }
        assert_eq!(parse(b" \"a \\\"b\\\\\" ", KeySyntax::Lenient).unwrap(), "a \"b\\");
        assert_eq!(parse(b"a, b; c=\"d\"", KeySyntax::Lenient).unwrap(), "a, b; c=\"d\"");
        assert_eq!(RequestKey::parse([], KeySyntax::Lenient), Ok(None));
    }

    #[test]
    fn what_is_no_key_is_refused_with_its_reason() {
        let cases: [(&[u8], KeyError); 12] = [
            (b"", KeyError::Empty),
            (b"\"\"", KeyError::Empty),
            (b"  ", KeyError::Empty),
            (b"\"open", KeyError::Malformed),
            (b"\"closed\" more", KeyError::Malformed),
            (b"\"a\";p=1", KeyError::Malformed),
            (b"\"bad \\n escape\"", KeyError::Malformed),
            (b"\"ends in \\", KeyError::Malformed),
            (b"a\x01b", KeyError::NotPrintable),
            (b"\"a\x7fb\"", KeyError::NotPrintable),
            (b"\xff", KeyError::NotPrintable),
            ("schlüssel".as_bytes(), KeyError::NotPrintable),
        ];

        for (value, error) in cases {
            assert_eq!(parse(value, KeySyntax::Lenient), Err(error), "{value:?}");
        }
        let twice = RequestKey::parse([&b"a"[..], b"a"], KeySyntax::Lenient);
        assert_eq!(twice, Err(KeyError::Repeated));
    }

    #[test]
    fn a_key_has_a_greatest_length() {
        let (longest, longer) = ("k".repeat(MAX_KEY_BYTES), "k".repeat(MAX_KEY_BYTES + 1));
        let too_long = Err(KeyError::TooLong { limit: MAX_KEY_BYTES });

        assert_eq!(parse(longest.as_bytes(), KeySyntax::Lenient).unwrap(), longest);
        assert_eq!(parse(format!("\"{longest}\"").as_bytes(), KeySyntax::Lenient).unwrap(), longest);
        assert_eq!(parse(longer.as_bytes(), KeySyntax::Lenient), too_long);
        assert_eq!(parse(&[b'k'; 4096], KeySyntax::Lenient), too_long);
        assert_eq!(
            parse("\\\"".repeat(MAX_KEY_BYTES).as_bytes(), KeySyntax::Atp).unwrap_err(),
            KeyError::TooLong { limit: MAX_ATP_KEY_BYTES }
        );
    }

    #[test]
    fn a_route_may_insist_on_a_form() {
        assert_eq!(parse(b"bare", KeySyntax::QuotedString), Err(KeyError::NotQuoted));
        assert_eq!(parse(b"\"quoted\"", KeySyntax::QuotedString).unwrap(), "quoted");
        assert_eq!(parse(b"acme:shop:order-1_a", KeySyntax::Atp).unwrap(), "acme:shop:order-1_a");
        for bad in ["acme:shop", "acme:shop:a:b", "acme::a", "acme:shop:a b", "\"acme:shop:a\""] {
            assert_eq!(parse(bad.as_bytes(), KeySyntax::Atp), Err(KeyError::NotAtp), "{bad}");
        }
        let key = RequestKey::parse([&b"acme:shop:1"[..]], KeySyntax::Atp).unwrap().unwrap();
        assert_eq!(key.atp_tenant(), Some("acme"));
        assert_eq!(format!("{key:?}"), "RequestKey(11 bytes)");
    }
}
