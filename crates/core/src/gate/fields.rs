//! Fields of a reply, in their order; a name may come more than once.

use std::fmt;

/// Names and values in one piece of memory, as they are stored: each after its
/// length. A reply has a few of them, and an allocation for every text would
/// take longer than all else that is done with it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Fields {
    count: usize,
    text: Vec<u8>,
}

impl Fields {
    /// None, with room for names and values of so many bytes.
    #[must_use]
    pub fn with_capacity(fields: usize, bytes: usize) -> Self {
        Self { count: 0, text: Vec::with_capacity(bytes + 8 * fields) }
    }

    /// Adds one.
    pub fn push(&mut self, name: &str, value: &[u8]) {
        self.count += 1;
        for text in [name.as_bytes(), value] {
            write_number(&mut self.text, text.len());
            self.text.extend_from_slice(text);
        }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = self.text.as_slice();
        std::iter::from_fn(move || read_field(&mut rest))
    }

    /// How many bytes they take.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.text.len()
    }

    /// As they are stored.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        write_number(to, self.count);
        to.extend_from_slice(&self.text);
    }

    /// Those that [`write`](Self::write) wrote; `None` if they are damaged.
    pub(super) fn read(rest: &mut &[u8]) -> Option<Self> {
        let count = read_number(rest)?;
        let text = *rest;
        for _ in 0..count {
            read_field(rest)?;
        }
        let text = text.get(..text.len() - rest.len())?.to_vec();
        Some(Self { count, text })
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.iter().map(|(name, value)| (name, value.escape_ascii().to_string()));
        f.debug_map().entries(fields).finish()
    }
}

impl<'f> FromIterator<(&'f str, &'f [u8])> for Fields {
    fn from_iter<I: IntoIterator<Item = (&'f str, &'f [u8])>>(all: I) -> Self {
        let mut fields = Self::default();
        all.into_iter().for_each(|(name, value)| fields.push(name, value));
        fields
    }
}

fn write_number(to: &mut Vec<u8>, number: usize) {
    // Fields are bounded by what an HTTP server takes, far below this.
    to.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
}

fn read_number(rest: &mut &[u8]) -> Option<usize> {
    let (number, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*number)).ok()
}

fn read_text<'t>(rest: &mut &'t [u8]) -> Option<&'t [u8]> {
    let length = read_number(rest)?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(text)
}

fn read_field<'t>(rest: &mut &'t [u8]) -> Option<(&'t str, &'t [u8])> {
    let name = std::str::from_utf8(read_text(rest)?).ok()?;
    Some((name, read_text(rest)?))
}
