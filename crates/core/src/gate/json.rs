//! When two JSON texts say the same: white space, the order of members and the
//! way a string is escaped do not matter, everything else does.
//!
//! Numbers keep their digits. To a reader that makes doubles of them,
//! 9007199254740993 and 9007199254740992 are one number, and one payment would
//! be answered with the receipt of the other.

/// Values inside values; deeper texts are compared byte by byte.
const MAX_DEPTH: usize = 128;

/// Before a text, in the form: its length, so that no text can look like the end of one.
const LENGTH_BYTES: usize = size_of::<u64>();

/// A form in which equal texts are equal, without the top-level members that
/// `excluded` names (in any case). `None` if there is no such form: the text is
/// not JSON, or has a member twice, of which readers see now the first, now
/// the last.
#[must_use]
pub fn canonical(text: &[u8], excluded: &[String]) -> Option<Vec<u8>> {
    let rest = std::str::from_utf8(text).ok()?.as_bytes();
    let form = Vec::with_capacity(rest.len() + rest.len() / 2);
    let mut reader = Reader { rest, form, members: Vec::new(), sorted: Vec::new() };
    reader.value(0, excluded)?;
    reader.space();
    reader.rest.is_empty().then_some(reader.form)
}

/// Reads from `rest` and writes what it has read to `form`, at once: nothing is
/// made of a value but its form.
struct Reader<'t> {
    rest: &'t [u8],
    form: Vec<u8>,
    /// Of all objects that are open, the innermost one's last.
    members: Vec<Member>,
    /// Where members are put in order.
    sorted: Vec<u8>,
}

/// Where a member stands in the form.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    name: usize,
    value: usize,
    end: usize,
}

impl Member {
    fn name_in(self, form: &[u8]) -> &[u8] {
        form.get(self.name..self.value).unwrap_or_default()
    }
}

impl Reader<'_> {
    fn space(&mut self) {
        while let [b' ' | b'\t' | b'\r' | b'\n', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Skips white space, and the character if it is next.
    fn has(&mut self, wanted: u8) -> bool {
        self.space();
        match self.rest {
            [next, rest @ ..] if *next == wanted => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn value(&mut self, depth: usize, excluded: &[String]) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.space();
        match self.rest {
            [b'{', rest @ ..] => {
                self.rest = rest;
                self.object(depth, excluded)
            }
            [b'[', rest @ ..] => {
                self.rest = rest;
                self.array(depth)
            }
            [b'"', ..] => self.string(),
            [b't', ..] => self.word(b"true"),
            [b'f', ..] => self.word(b"false"),
            [b'n', ..] => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize, excluded: &[String]) -> Option<()> {
        let first = self.members.len();
        self.form.push(b'{');
        let inside = self.form.len();
        if !self.has(b'}') {
            loop {
                self.space();
                let start = self.form.len();
                self.string()?;
                let value = self.form.len();
                if !self.has(b':') {
                    return None;
                }
                self.value(depth + 1, &[])?;
                let end = self.form.len();
                self.members.push(Member { start, name: start + 1 + LENGTH_BYTES, value, end });
                if self.has(b'}') {
                    break;
                }
                if !self.has(b',') {
                    return None;
                }
            }
        }
        self.order(first, inside, excluded)?;
        self.members.truncate(first);
        self.form.push(b'}');
        Some(())
    }

    /// Puts the members from `first` on, whose forms begin at `inside`, in the order of their names.
    fn order(&mut self, first: usize, inside: usize, excluded: &[String]) -> Option<()> {
        let Self { form, members, sorted, .. } = self;
        let members = members.get_mut(first..)?;
        let is_ordered = members.is_sorted_by(|one, other| one.name_in(form) < other.name_in(form));
        if is_ordered && excluded.is_empty() {
            return Some(());
        }
        members.sort_unstable_by(|one, other| one.name_in(form).cmp(other.name_in(form)));
        if !members.is_sorted_by(|one, other| one.name_in(form) < other.name_in(form)) {
            return None;
        }
        sorted.clear();
        for member in members {
            let name = member.name_in(form);
            if !excluded.iter().any(|excluded| excluded.as_bytes().eq_ignore_ascii_case(name)) {
                sorted.extend_from_slice(form.get(member.start..member.end)?);
            }
        }
        form.truncate(inside);
        form.extend_from_slice(sorted);
        Some(())
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.form.push(b'[');
        if !self.has(b']') {
            loop {
                self.value(depth + 1, &[])?;
                if self.has(b']') {
                    break;
                }
                if !self.has(b',') {
                    return None;
                }
            }
        }
        self.form.push(b']');
        Some(())
    }

    fn write(&mut self, kind: u8, text: &[u8]) {
        self.form.push(kind);
        self.form.extend_from_slice(&(text.len() as u64).to_be_bytes());
        self.form.extend_from_slice(text);
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        self.write(b'w', word);
        Some(())
    }

    /// What a string says, without its quotes and escapes.
    fn string(&mut self) -> Option<()> {
        let mut rest = self.rest.strip_prefix(b"\"")?;
        self.write(b's', b"");
        let start = self.form.len();
        loop {
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' '))?;
            let (before, after) = rest.split_at_checked(plain)?;
            self.form.extend_from_slice(before);
            match after {
                [b'"', after @ ..] => {
                    self.rest = after;
                    break;
                }
                [b'\\', b'u', ..] => {
                    let (character, read) = unicode(after)?;
                    self.form.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    rest = after.get(read..)?;
                }
                [b'\\', escaped, after @ ..] => {
                    self.form.push(match escaped {
                        b'"' | b'\\' | b'/' => *escaped,
                        b'b' => 8,
                        b'f' => 12,
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        _ => return None,
                    });
                    rest = after;
                }
                _ => return None,
            }
        }
        let length = (self.form.len() - start) as u64;
        self.form.get_mut(start - LENGTH_BYTES..start)?.copy_from_slice(&length.to_be_bytes());
        Some(())
    }

    /// A number as it stands there.
    fn number(&mut self) -> Option<()> {
        let rest = number_end(self.rest)?;
        let (number, _) = self.rest.split_at_checked(self.rest.len() - rest.len())?;
        self.write(b'n', number);
        self.rest = rest;
        Some(())
    }
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

/// What follows a number that stands at the beginning.
fn number_end(text: &[u8]) -> Option<&[u8]> {
    let digits = |text: &'_ [u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let some_digits = |text| Some(digits(text)).filter(|count| *count > 0);
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
        canonical(text.as_bytes(), &[])
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
        assert_eq!(canonical(b"\"\xff\"", &[]), None);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);

        assert!(form(&nested(100)).is_some());
        assert!(form(&nested(10_000)).is_none());
        assert!(form(&"[".repeat(1_000_000)).is_none());
    }

    #[test]
    fn excluded_members_are_left_out_at_the_top_only() {
        let excluded = ["traceId".to_owned()];
        let form = |text: &str| canonical(text.as_bytes(), &excluded);

        assert_eq!(form(r#"{"a":1,"TraceID":"x"}"#), form(r#"{"a":1}"#));
        assert_ne!(form(r#"{"a":{"traceId":1}}"#), form(r#"{"a":{}}"#));
        assert_eq!(form(r#"{"traceId":1,"traceId":2}"#), None);
    }
}
