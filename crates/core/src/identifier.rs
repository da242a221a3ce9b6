//! Names that end up inside SQL text: schemas, table prefixes, channels of NOTIFY.
//!
//! Statements take values as parameters; only these names are ever spliced in,
//! and only after passing here.

use std::fmt;

use crate::error::{Error, Kind, Result};

/// A lower-case SQL identifier: a letter or underscore, then letters, digits or
/// underscores, at most 63 bytes (PostgreSQL's own limit).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identifier(String);

impl Identifier {
    /// Checks `name`.
    ///
    /// # Errors
    /// [`Kind::Config`] if it is anything but a plain lower-case identifier.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let head_is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        let body_is_plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if head_is_plain && body_is_plain && name.len() <= 63 {
            return Ok(Self(name));
        }
        Err(Error::new(
            Kind::Config,
            format!(
                "{name:?} is not a name oncebox accepts: use a-z, 0-9 and _, at most 63 characters, not starting with a digit"
            ),
        ))
    }

    /// The name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_lower_case_names_pass() {
        let long = "a".repeat(64);

        for good in ["oncebox", "_x", "a1_b2"] {
            assert!(Identifier::new(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "A", "a b", "a\"; DROP TABLE x; --", "a.b", "ä", "a\0", long.as_str()] {
            assert!(Identifier::new(bad).is_err(), "{bad:?}");
        }
    }
}
