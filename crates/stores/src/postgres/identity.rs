//! What tells a stored message from others.

use oncebox_core::digest::bounded_key;
use oncebox_core::{Digest, Envelope};

/// What makes a message the same message, within its scope and channel.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) tenant: String,
    pub(super) source: String,
    pub(super) id: String,
}

impl Identity {
    /// A message without an id is told from others by its digest.
    pub(super) fn of(envelope: &Envelope, digest: Digest) -> Self {
        let id = match envelope.id.as_str() {
            "" => format!("digest:{digest}"),
            id => bounded_key(id),
        };
        Self { tenant: bounded_key(&envelope.tenant), source: bounded_key(&envelope.source), id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_an_id_is_known_by_its_body() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let identity = |digest| Identity::of(&Envelope::default(), digest).id;

        assert_eq!(identity(a), format!("digest:{a}"));
        assert_ne!(identity(a), identity(b));
    }
}
