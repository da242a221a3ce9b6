//! What tells a stored message from others.

use oncebox_core::digest::bounded_key;
use oncebox_core::handler::MessageKey;
use oncebox_core::{Digest, Envelope};

/// What makes a message the same message.
#[derive(Debug)]
pub(super) struct Identity<'a> {
    pub(super) scope: &'a str,
    pub(super) channel: &'a str,
    pub(super) tenant: &'a str,
    pub(super) key: MessageKey,
}

impl<'a> Identity<'a> {
    /// A message without an id is told from others by its digest.
    pub(super) fn of(scope: &'a str, channel: &'a str, envelope: &'a Envelope, digest: Digest) -> Self {
        let id = match envelope.id.as_str() {
            "" => format!("digest:{digest}"),
            id => bounded_key(id),
        };
        let key = MessageKey { source: bounded_key(&envelope.source), id };
        Self { scope, channel, tenant: &envelope.tenant, key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_an_id_is_known_by_its_body() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let bare = Envelope::default();
        let identity = |digest| Identity::of("", "", &bare, digest).key.id;

        assert_eq!(identity(a), format!("digest:{a}"));
        assert_ne!(identity(a), identity(b));
    }
}
