//! Texts that stay for long, on sheets of one size.
//!
//! Replies stay for a day, among all that requests allocate for a moment. Each
//! in an allocation of its own, they end up in the middle of what was free, and
//! every request is given other memory than the one before: memory that no
//! cache knows, a page fault now and then. Here they stand side by side, and
//! what is given back fits whoever comes next.

/// What fits on one.
const ROOM: usize = 120;
/// What follows the last sheet of a text.
const END: usize = usize::MAX;

/// A part of a text, and where it goes on; blank, where the next blank one is.
struct Sheet {
    part: [u8; ROOM],
    next: usize,
}

/// All of them.
pub(super) struct Sheets {
    all: Vec<Sheet>,
    /// The first blank one.
    blank: usize,
    used: usize,
}

impl Default for Sheets {
    fn default() -> Self {
        Self { all: Vec::new(), blank: END, used: 0 }
    }
}

/// A text, to be read or erased where it was written.
pub(super) struct Written {
    first: usize,
    length: usize,
}

impl Written {
    /// How much room it takes.
    pub(super) const fn size(&self) -> usize {
        self.length.div_ceil(ROOM) * size_of::<Sheet>()
    }
}

impl Sheets {
    /// Writes these one after the other, as one text.
    pub(super) fn write(&mut self, texts: &[&[u8]]) -> Written {
        let length = texts.iter().map(|text| text.len()).sum();
        let (mut first, mut latest, mut room) = (END, END, 0);
        for mut text in texts.iter().copied() {
            while !text.is_empty() {
                if room == 0 {
                    let next = self.take();
                    match self.all.get_mut(latest) {
                        Some(sheet) => sheet.next = next,
                        None => first = next,
                    }
                    (latest, room) = (next, ROOM);
                }
                let (part, rest) = text.split_at(text.len().min(room));
                let target = self.all.get_mut(latest).and_then(|sheet| {
                    let start = ROOM - room;
                    sheet.part.get_mut(start..start + part.len())
                });
                if let Some(target) = target {
                    target.copy_from_slice(part);
                }
                room -= part.len();
                text = rest;
            }
        }
        Written { first, length }
    }

    /// A sheet, after which there is none.
    fn take(&mut self) -> usize {
        self.used += 1;
        if let Some(sheet) = self.all.get_mut(self.blank) {
            return std::mem::replace(&mut self.blank, std::mem::replace(&mut sheet.next, END));
        }
        self.all.push(Sheet { part: [0; ROOM], next: END });
        self.all.len() - 1
    }

    /// The text, part by part.
    fn parts<'s>(&'s self, written: &Written) -> impl Iterator<Item = &'s [u8]> {
        let (mut next, mut left) = (written.first, written.length);
        std::iter::from_fn(move || {
            let sheet = self.all.get(next)?;
            let part = sheet.part.get(..left.min(ROOM))?;
            (next, left) = (sheet.next, left - part.len());
            Some(part)
        })
    }

    /// The text.
    pub(super) fn read(&self, written: &Written) -> Vec<u8> {
        let mut text = Vec::with_capacity(written.length);
        self.parts(written).for_each(|part| text.extend_from_slice(part));
        text
    }

    /// Gives back what the text was written on.
    #[expect(clippy::needless_pass_by_value, reason = "it cannot be read any more")]
    pub(super) fn erase(&mut self, written: Written) {
        let mut next = written.first;
        while let Some(sheet) = self.all.get_mut(next) {
            (self.blank, next) = (next, std::mem::replace(&mut sheet.next, self.blank));
            self.used -= 1;
        }
        if self.used == 0 {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_any_length_come_back_as_they_were() {
        let mut sheets = Sheets::default();
        let lengths = [0, 1, ROOM - 1, ROOM, ROOM + 1, 3 * ROOM, 10_000];
        let texts: Vec<Vec<u8>> = lengths.map(|length| (0..length).map(|n| n as u8).collect()).into();

        for cut in [0, 1, 100, ROOM] {
            let written: Vec<Written> = texts
                .iter()
                .map(|text| text.split_at(cut.min(text.len())))
                .map(|(start, rest)| sheets.write(&[start, b"", rest]))
                .collect();

            for (text, written) in texts.iter().zip(&written) {
                assert_eq!(sheets.read(written), *text);
                assert!(written.size() >= text.len());
            }
            written.into_iter().for_each(|written| sheets.erase(written));
            assert!(sheets.all.is_empty());
        }
    }

    #[test]
    fn what_is_erased_is_written_on_again() {
        let mut sheets = Sheets::default();
        let stays = sheets.write(&[b"stays"]);
        for length in (1..2_000).chain((1..2_000).rev()) {
            let text = vec![b'x'; length];
            let (one, other) = (sheets.write(&[&text]), sheets.write(&[b"other"]));
            sheets.erase(one);
            assert_eq!(sheets.read(&other), b"other");
            sheets.erase(other);
        }

        assert!(sheets.all.len() <= 2_000 / ROOM + 3, "{}", sheets.all.len());
        assert_eq!(sheets.read(&stays), b"stays");
    }
}
