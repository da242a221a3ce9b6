//! Digests: how a body is compared with the body first seen under its id.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// The SHA-256 of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of several texts, told apart from all other ways to cut them.
    #[must_use]
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// A digest that was stored.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest's bytes, as they are stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// A text as a marker key of at most 255 bytes: itself if it fits, else its
/// digest. Truncating would let two ids collide; refusing would lose a message
/// whose producer chose the id.
#[must_use]
pub fn bounded_key(text: &str) -> String {
    if text.len() <= crate::limits::MAX_NAME_BYTES && !text.contains('\0') {
        return text.to_owned();
    }
    format!("sha256:{}", Digest::of(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_texts_are_cut_matters() {
        let parts: [&[&[u8]]; 5] =
            [&[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"], &[b"abc", b""], &[b"", b"abc"]];
        let digests: std::collections::HashSet<Digest> = parts.into_iter().map(Digest::of_parts).collect();

        assert_eq!(digests.len(), 5);
    }

    #[test]
    fn long_keys_stay_distinct_and_short_ones_stay_themselves() {
        let (a, b) = ("x".repeat(3000) + "a", "x".repeat(3000) + "b");

        assert_eq!(bounded_key("Order-1 "), "Order-1 ");
        assert_ne!(bounded_key(&a), bounded_key(&b));
        assert_eq!(bounded_key(&a).len(), 71);
    }
}
