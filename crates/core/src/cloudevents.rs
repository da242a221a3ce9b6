//! CloudEvents 1.0: an envelope on the wire, in both modes.
//!
//! *Structured*: one JSON object holds everything. *Binary*: the body is the
//! payload, and the attributes travel beside it as headers of the transport.
//! A transport writes [`Parts`] in its own way and reads them back; what they
//! mean is decided here, once for all of them.
//!
//! Attributes that CloudEvents does not name travel as extensions. What a
//! foreign producer adds is kept as a header of the user's own.

mod attributes;
mod base64;
mod headers;
mod percent;
mod structured;

use std::fmt;
use std::str::FromStr;

use crate::envelope::Envelope;
use crate::error::{Error, Kind, Result};

pub use headers::plain;
pub use percent::{percent_decode, percent_encode};
pub use structured::{from_attributes, from_json, to_attributes, to_json};

/// The media type of a structured event.
pub const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";
/// What every media type of a structured event or a batch begins with.
const STRUCTURED_PREFIX: &str = "application/cloudevents";
/// Stands in for a media type that cannot be the transport's own.
const OPAQUE: &str = "application/octet-stream";
/// The media type of a message that does not say.
const BARE: &str = "application/json";

/// How an event travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The body is the payload; attributes are headers of the transport.
    #[default]
    Binary,
    /// The body is one JSON object that holds everything.
    Structured,
}

impl Mode {
    /// The name in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::Structured => "structured",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Binary, Self::Structured].into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
            Error::new(Kind::Config, format!("{text:?} is not a mode: use \"binary\" or \"structured\""))
        })
    }
}

/// An event taken apart for a transport.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Parts {
    /// The media type of the body; empty if the transport should say nothing.
    pub content_type: String,
    /// CloudEvents attributes, without a prefix and not percent-encoded.
    pub attributes: Vec<(String, String)>,
    /// Headers of the user's own.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Sizes and names only, as [`Envelope`] does it.
impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |list: &[(String, String)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        f.debug_struct("Parts")
            .field("content_type", &self.content_type)
            .field("attributes", &names(&self.attributes))
            .field("headers", &self.headers.len())
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

/// Takes an envelope apart for a transport whose headers hold any text.
/// [`decode`] is its inverse, except that `due` stays behind: it is over once a
/// message travels.
#[must_use]
pub fn encode(envelope: &Envelope, mode: Mode) -> Parts {
    match mode {
        Mode::Structured => structured_parts(envelope),
        Mode::Binary => binary_parts(envelope, |name, _| headers::is_free(name), |_| true),
    }
}

/// As [`encode`], for a transport whose headers are lines of text: a header
/// that such a line cannot hold travels in the attribute `headers`. The
/// transport percent-encodes the attributes and nothing else.
#[must_use]
pub fn encode_for_text_headers(envelope: &Envelope, mode: Mode) -> Parts {
    match mode {
        Mode::Structured => structured_parts(envelope),
        Mode::Binary => binary_parts(envelope, plain, headers::is_line),
    }
}

/// Puts an event together again: structured if the media type says so, binary
/// if there is a `specversion`, else [`bare`].
///
/// # Errors
/// [`Kind::Corrupt`] if it claims to be an event and is none.
pub fn decode(parts: Parts) -> Result<Envelope> {
    if is_structured(&parts.content_type) {
        return structured::decode(&parts);
    }
    if !parts.attributes.iter().any(|(name, _)| name.eq_ignore_ascii_case("specversion")) {
        return Ok(bare(parts));
    }
    let mut envelope = attributes::empty();
    envelope.content_type = parts.content_type;
    for (name, value) in parts.attributes {
        attributes::assign(&mut envelope, &name, value)?;
    }
    envelope.headers.extend(parts.headers);
    envelope.payload = parts.body;
    Ok(envelope)
}

/// A message that is no event: its body is the payload, and it has neither id
/// nor source nor type. What becomes of it is up to the inbox. Also the way to
/// bury what [`decode`] refuses.
#[must_use]
pub fn bare(parts: Parts) -> Envelope {
    let mut envelope = attributes::empty();
    envelope.content_type = if parts.content_type.is_empty() { BARE.to_owned() } else { parts.content_type };
    envelope.headers.extend(parts.attributes);
    envelope.headers.extend(parts.headers);
    envelope.payload = parts.body;
    envelope
}

fn structured_parts(envelope: &Envelope) -> Parts {
    Parts { content_type: STRUCTURED.to_owned(), body: structured::encode(envelope), ..Parts::default() }
}

fn binary_parts(
    envelope: &Envelope,
    travels: impl Fn(&str, &str) -> bool,
    is_media_type: impl Fn(&str) -> bool,
) -> Parts {
    let mut parts = Parts { content_type: envelope.content_type.clone(), ..Parts::default() };
    attributes::each(envelope, |name, value| parts.attributes.push((name.to_owned(), value.into_owned())));
    // A payload that is itself an event must not be taken for this event.
    if is_structured(&envelope.content_type) || !is_media_type(&envelope.content_type) {
        parts.attributes.push(("datacontenttype".into(), std::mem::take(&mut parts.content_type)));
        parts.content_type = OPAQUE.into();
    }
    let (plain, others): (Vec<_>, Vec<_>) =
        envelope.headers.iter().partition(|(name, value)| travels(name, value));
    parts.headers = plain.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    if !others.is_empty() {
        parts.attributes.push(("headers".into(), headers::to_text(others)));
    }
    parts.body.clone_from(&envelope.payload);
    parts
}

fn is_structured(content_type: &str) -> bool {
    let head = content_type.trim_start().get(..STRUCTURED_PREFIX.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(STRUCTURED_PREFIX))
}

fn corrupt(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Kind::Corrupt, message)
}

#[cfg(test)]
mod tests;
