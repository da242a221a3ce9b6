//! When two JSON texts say the same: white space, the order of members and the
//! way a string is escaped do not matter, everything else does.
//!
//! Numbers keep their digits. To a reader that makes doubles of them,
//! 9007199254740993 and 9007199254740992 are one number, and one payment would
//! be answered with the receipt of the other.

use std::cmp::Ordering;

use super::excluded::{Excluded, Part};

/// Values inside values; deeper texts are compared byte by byte.
pub(super) const MAX_DEPTH: usize = 128;
/// Stands for an element that is excluded, as no value does.
const LEFT_OUT: u8 = b'~';

/// A form in which equal texts are equal, without what is `excluded`: JSON
/// without white space, its members in the order of their names, each character
/// written in one way. `None` if there is no such form: the text is not JSON, or
/// has a member twice, of which readers see now the first, now the last.
#[must_use]
pub fn canonical(text: &[u8], excluded: &Excluded) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?.as_bytes();
    let (form, sorted) = (Vec::with_capacity(text.len()), Vec::with_capacity(text.len()));
    let mut reader = Reader { pending: text, form, members: Vec::with_capacity(16), sorted };
    let after = reader.value(text, 0, excluded.top())?;
    let end = reader.space(after);
    reader.flush(end);
    end.is_empty().then_some(reader.form)
}

/// Reads a text, each step from where the one before has ended. What is in its form already is copied in long runs.
/// How far it has come is handed on rather than kept here, where each character would be a store and a load.
struct Reader<'t> {
    /// From what is read and not yet copied on.
    pending: &'t [u8],
    form: Vec<u8>,
    /// Of all objects that are open, the innermost one's last.
    members: Vec<Member>,
    /// Where members are put in order.
    sorted: Vec<u8>,
}

/// Where a member stands in the form: from its name's first quote on, past
/// its last one, and to the end of its value.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
    /// How its name begins.
    beginning: u64,
}

impl Member {
    /// With its quotes: they are the same for all.
    fn name(self, form: &[u8]) -> &[u8] {
        form.get(self.start..self.name_end).unwrap_or_default()
    }

    fn order(&self, other: &Self, form: &[u8]) -> Ordering {
        let beginnings = self.beginning.cmp(&other.beginning);
        beginnings.then_with(|| self.name(form).cmp(other.name(form)))
    }
}

/// The first eight bytes of a name, by which most are told apart.
fn beginning(text: &[u8], length: usize) -> u64 {
    match (text.first_chunk::<8>(), length) {
        (Some(bytes), 8..) => u64::from_be_bytes(*bytes),
        // What follows the name does not count.
        (Some(bytes), _) => u64::from_be_bytes(*bytes) & !(u64::MAX >> (8 * length)),
        (None, _) => {
            let padded = text.iter().take(length).chain(&[0; 8]).take(8);
            padded.fold(0, |beginning, byte| beginning << 8 | u64::from(*byte))
        }
    }
}

/// How many bytes stand before the next quote, backslash or control character;
/// `None` if there is none. Eight at a time: most of a text is this.
fn plain(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    /// In each byte that is below `n`, which is at most 128, and perhaps in some after it, the highest bit.
    /// All other bits are noise.
    const fn below(bytes: u64, n: u64) -> u64 {
        bytes.wrapping_sub(ONES * n) & !bytes
    }
    let mut rest = text;
    while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
        let bytes = u64::from_le_bytes(*chunk);
        let quote = below(bytes ^ (ONES * b'"' as u64), 1);
        let backslash = below(bytes ^ (ONES * b'\\' as u64), 1);
        let found = (quote | backslash | below(bytes, b' ' as u64)) & (ONES << 7);
        if found != 0 {
            return Some(text.len() - rest.len() + found.trailing_zeros() as usize / 8);
        }
        rest = after;
    }
    let found = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' '))?;
    Some(text.len() - rest.len() + found)
}

impl<'t> Reader<'t> {
    /// The length that the form will have when all before `rest` is copied.
    const fn position(&self, rest: &[u8]) -> usize {
        self.form.len() + self.pending.len() - rest.len()
    }

    /// Copies what stands before `rest`.
    fn flush(&mut self, rest: &'t [u8]) {
        let read = self.pending.len() - rest.len();
        self.form.extend_from_slice(self.pending.get(..read).unwrap_or_default());
        self.pending = rest;
    }

    /// What the form has from there on, up to `rest`.
    #[cold]
    fn written(&mut self, start: usize, rest: &'t [u8]) -> &[u8] {
        self.flush(rest);
        self.form.get(start..).unwrap_or_default()
    }

    /// What follows white space, which is left out.
    fn space(&mut self, text: &'t [u8]) -> &'t [u8] {
        match text {
            [..=b' ', ..] => self.leave_out(text),
            _ => text,
        }
    }

    #[cold]
    fn leave_out(&mut self, text: &'t [u8]) -> &'t [u8] {
        self.flush(text);
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        let end = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
        self.pending = text.get(end..).unwrap_or_default();
        self.pending
    }

    fn value(&mut self, text: &'t [u8], depth: usize, excluded: Option<&Part>) -> Option<&'t [u8]> {
        if depth > MAX_DEPTH {
            return None;
        }
        let text = self.space(text);
        match text {
            [b'"', inside @ ..] => self.string(inside),
            [b'{', inside @ ..] => self.object(inside, depth, excluded),
            [b'[', inside @ ..] => self.array(inside, depth, excluded),
            [b't', ..] => text.strip_prefix(b"true"),
            [b'f', ..] => text.strip_prefix(b"false"),
            [b'n', ..] => text.strip_prefix(b"null"),
            _ => after_number(text),
        }
    }

    fn object(&mut self, text: &'t [u8], depth: usize, excluded: Option<&Part>) -> Option<&'t [u8]> {
        let (first, inside) = (self.members.len(), self.position(text));
        let mut text = self.space(text);
        if let [b'}', after @ ..] = text {
            return Some(after);
        }
        let after = loop {
            let (start, pending) = (self.position(text), self.pending.len());
            let after_name = self.string(text.strip_prefix(b"\"")?)?;
            let name_end = self.position(after_name);
            let beginning = if pending == self.pending.len() {
                beginning(text, name_end - start)
            } else {
                // Some of it was copied, as it had escapes: it stands in the form only.
                beginning(self.written(start, after_name), name_end - start)
            };
            let below = match excluded {
                Some(part) if part.has_below() => part.member(self.written(start, after_name)),
                _ => None,
            };
            let value = self.space(after_name).strip_prefix(b":")?;
            let after_value = self.value(value, depth + 1, below)?;
            let end = self.position(after_value);
            self.members.push(Member { start, name_end, end, beginning });
            match self.space(after_value) {
                [b',', next @ ..] => text = self.space(next),
                [b'}', after @ ..] => break after,
                _ => return None,
            }
        };
        self.flush(after);
        self.order(first, inside, excluded)?;
        self.members.truncate(first);
        Some(after)
    }

    /// Puts the members from `first` on, which stand from `inside` on, in the order of their names.
    fn order(&mut self, first: usize, inside: usize, excluded: Option<&Part>) -> Option<()> {
        let Self { form, members, sorted, .. } = self;
        let members = members.get_mut(first..)?;
        let is_ordered =
            |members: &[Member]| members.is_sorted_by(|one, other| one.order(other, form).is_lt());
        if excluded.is_none() && is_ordered(members) {
            return Some(());
        }
        members.sort_unstable_by(|one, other| one.order(other, form));
        if !is_ordered(members) {
            return None;
        }
        sorted.clear();
        for member in members {
            let name = member.name(form);
            if !excluded.is_some_and(|part| part.leaves_out(name)) {
                sorted.extend_from_slice(form.get(member.start..member.end)?);
                sorted.push(b',');
            }
        }
        sorted.pop();
        form.truncate(inside);
        form.extend_from_slice(sorted);
        form.push(b'}');
        Some(())
    }

    fn array(&mut self, text: &'t [u8], depth: usize, excluded: Option<&Part>) -> Option<&'t [u8]> {
        let mut text = self.space(text);
        if let [b']', after @ ..] = text {
            return Some(after);
        }
        if let Some(part) = excluded {
            return self.elements(text, depth, part);
        }
        loop {
            let after_value = self.value(text, depth + 1, None)?;
            match self.space(after_value) {
                [b',', next @ ..] => text = next,
                [b']', after @ ..] => return Some(after),
                _ => return None,
            }
        }
    }

    /// The rest of an array of which something may be excluded, from its first element on.
    #[cold]
    fn elements(&mut self, mut text: &'t [u8], depth: usize, excluded: &Part) -> Option<&'t [u8]> {
        let mut index = 0;
        loop {
            let (start, part) = (self.position(text), excluded.element(index));
            let after_value = self.value(text, depth + 1, part)?;
            if part.is_some_and(Part::is_excluded) {
                self.flush(after_value);
                self.form.truncate(start);
                self.form.push(LEFT_OUT);
            }
            match self.space(after_value) {
                [b',', next @ ..] => text = next,
                [b']', after @ ..] => return Some(after),
                _ => return None,
            }
            index += 1;
        }
    }

    /// The rest of a string, from behind its first quote on.
    fn string(&mut self, inside: &'t [u8]) -> Option<&'t [u8]> {
        match inside.get(plain(inside)?..)? {
            [b'"', after @ ..] => Some(after),
            escaped => self.escaped(escaped),
        }
    }

    /// The rest of a string, from its first escape on.
    #[cold]
    fn escaped(&mut self, mut text: &'t [u8]) -> Option<&'t [u8]> {
        self.flush(text);
        loop {
            text = match text {
                [b'"', after @ ..] => {
                    self.pending = text;
                    return Some(after);
                }
                [b'\\', b'u', ..] => {
                    let (character, read) = unicode(text)?;
                    write_character(character, &mut self.form);
                    text.get(read..)?
                }
                [b'\\', escaped, after @ ..] => {
                    let character = match escaped {
                        b'"' | b'\\' | b'/' => char::from(*escaped),
                        b'b' => '\u{8}',
                        b'f' => '\u{c}',
                        b'n' => '\n',
                        b'r' => '\r',
                        b't' => '\t',
                        _ => return None,
                    };
                    write_character(character, &mut self.form);
                    after
                }
                _ => {
                    let end = plain(text).filter(|end| *end > 0)?;
                    self.form.extend_from_slice(text.get(..end)?);
                    text.get(end..)?
                }
            };
        }
    }
}

/// The one way in which a character is written.
fn write_character(character: char, form: &mut Vec<u8>) {
    match character {
        '"' | '\\' => form.extend_from_slice(&[b'\\', character as u8]),
        ..' ' => form.extend_from_slice(format!("\\u{:04x}", u32::from(character)).as_bytes()),
        _ => form.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// A name as it stands in a form.
pub(super) fn quoted(name: &str) -> Vec<u8> {
    let mut form = vec![b'"'];
    name.chars().for_each(|character| write_character(character, &mut form));
    form.push(b'"');
    form
}

/// The character that `\u` and four digits stand for, or two of these, and how
/// many bytes that took. Half of a pair stands for nothing.
fn unicode(text: &[u8]) -> Option<(char, usize)> {
    let unit = |text: &[u8]| {
        let digits = text.strip_prefix(b"\\u")?.get(..4)?;
        digits.iter().try_fold(0_u16, |unit, digit| {
            let digit = char::from(*digit).to_digit(16)?;
            Some(unit << 4 | u16::try_from(digit).ok()?)
        })
    };
    let first = unit(text)?;
    if let Some(character) = char::from_u32(u32::from(first)) {
        return Some((character, 6));
    }
    let pair = [first, unit(text.get(6..)?)?];
    let character = char::decode_utf16(pair).next()?.ok()?;
    Some((character, 12))
}

/// What follows a number that stands at the beginning. It is kept as it stands there.
fn after_number(text: &[u8]) -> Option<&[u8]> {
    let some_digits = |text: &[u8]| {
        let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        Some(count).filter(|count| *count > 0)
    };
    let unsigned = text.strip_prefix(b"-").unwrap_or(text);
    let mut rest = match unsigned {
        [b'0', rest @ ..] => rest,
        _ => unsigned.get(some_digits(unsigned)?..)?,
    };
    if let [b'.', fraction @ ..] = rest {
        rest = fraction.get(some_digits(fraction)?..)?;
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = match exponent {
            [b'+' | b'-', unsigned @ ..] => unsigned,
            _ => exponent,
        };
        rest = exponent.get(some_digits(exponent)?..)?;
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Option<Vec<u8>> {
        canonical(text.as_bytes(), &Excluded::default())
    }

    #[test]
    fn space_order_and_escapes_do_not_matter() {
        let same = [
            r#"{"a":1,"b":[true,null,"x\n"],"c":{"d":"é/","e":{}}}"#,
            " {\n\t\"c\" : { \"e\" : { } , \"d\" : \"\\u00e9\\/\" },\r\"b\":[ true,null , \"x\\u000a\"], \"a\" :1 } ",
        ];
        assert_eq!(form(same[0]), form(same[1]));
        assert!(form(same[0]).is_some());
        assert_eq!(form(r#""😀""#), form(r#""\ud83d\ude00""#));
    }

    /// As many bytes with its escapes as without them: one grows by as much as the other shrinks.
    #[test]
    fn the_way_a_name_is_escaped_does_not_matter() {
        let same = [r#"{"\n\u00e9":1,"\u000a":2,"a":3}"#, r#"{"a":3,"\u000A":2,"\u000aé":1}"#];
        assert_eq!(form(same[0]), form(same[1]));
        assert!(form(same[0]).is_some());
        assert_eq!(form(r#"{"\n\u00e9":1,"\u000aé":1}"#), None, "one name twice");
        assert_eq!(form(r#"{"\u0062":1,"a":2}"#), form(r#"{"a":2,"b":1}"#));
    }

    #[test]
    fn everything_else_matters() {
        let texts = [
            "{}",
            "[]",
            "null",
            "\"\"",
            "0",
            "-0",
            "1",
            "1.0",
            "1e0",
            "10",
            "\"1\"",
            "\"null\"",
            "[1]",
            "[1,2]",
            "[2,1]",
            "[[1],2]",
            "[12]",
            r#"{"a":null}"#,
            r#"{"a":1}"#,
            r#"{"A":1}"#,
            r#"{"a":"1"}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":{},"b":1}"#,
            "9007199254740992",
            "9007199254740993",
            r#"["a","b"]"#,
            r#"["ab"]"#,
            r#"["a\u0000b"]"#,
        ];
        let forms: std::collections::HashSet<Vec<u8>> =
            texts.iter().map(|text| form(text).expect(text)).collect();
        assert_eq!(forms.len(), texts.len());
    }

    #[test]
    fn what_is_not_json_or_says_two_things_has_no_form() {
        let texts = [
            "",
            " ",
            "{",
            "}",
            "[",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "'a'",
            "\"a",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u+123\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\n\"",
            "tru",
            "nul",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "--1",
            "1 2",
            "NaN",
            "{} {}",
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
        ];
        for text in texts {
            assert_eq!(form(text), None, "{text:?}");
        }
        assert_eq!(canonical(b"\"\xff\"", &Excluded::default()), None);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);

        assert!(form(&nested(100)).is_some());
        assert!(form(&nested(10_000)).is_none());
        assert!(form(&"[".repeat(1_000_000)).is_none());
    }
}
