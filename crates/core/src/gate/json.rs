//! When two JSON texts say the same: white space, the order of members and the
//! way a string is escaped do not matter, everything else does.
//!
//! Numbers keep their digits. To a reader that makes doubles of them,
//! 9007199254740993 and 9007199254740992 are one number, and one payment would
//! be answered with the receipt of the other.

/// Values inside values; deeper texts are compared byte by byte.
const MAX_DEPTH: usize = 128;

/// A form in which equal texts are equal, without the top-level members that
/// `excluded` names (in any case). `None` if there is no such form: the text is
/// not JSON, or has a member twice, of which readers see now the first, now
/// the last.
#[must_use]
pub fn canonical(text: &[u8], excluded: &[String]) -> Option<Vec<u8>> {
    let mut reader = Reader { rest: std::str::from_utf8(text).ok()?, form: Vec::with_capacity(text.len()) };
    reader.value(0, excluded)?;
    reader.space();
    reader.rest.is_empty().then_some(reader.form)
}

/// Reads from `rest` and writes what it has read to `form`.
struct Reader<'t> {
    rest: &'t str,
    form: Vec<u8>,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    /// Skips white space, and the character if it is next.
    fn has(&mut self, wanted: char) -> bool {
        self.space();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize, excluded: &[String]) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        if self.has('{') {
            return self.object(depth, excluded);
        }
        if self.has('[') {
            return self.array(depth);
        }
        if self.rest.starts_with('"') {
            let text = self.string()?;
            self.write(b's', text.as_bytes());
            return Some(());
        }
        for word in ["true", "false", "null"] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                self.write(b'w', word.as_bytes());
                return Some(());
            }
        }
        let number = self.number()?;
        self.write(b'n', number.as_bytes());
        Some(())
    }

    fn object(&mut self, depth: usize, excluded: &[String]) -> Option<()> {
        let mut members: Vec<(String, Vec<u8>)> = Vec::new();
        if !self.has('}') {
            loop {
                self.space();
                let name = self.string()?;
                if !self.has(':') {
                    return None;
                }
                let form = std::mem::take(&mut self.form);
                self.value(depth + 1, &[])?;
                let value = std::mem::replace(&mut self.form, form);
                members.push((name, value));
                if self.has('}') {
                    break;
                }
                if !self.has(',') {
                    return None;
                }
            }
        }
        members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        if members.windows(2).any(|pair| matches!(pair, [(one, _), (other, _)] if one == other)) {
            return None;
        }
        let is_excluded = |name: &str| excluded.iter().any(|excluded| excluded.eq_ignore_ascii_case(name));
        members.retain(|(name, _)| !is_excluded(name));
        self.form.push(b'{');
        for (name, value) in members {
            self.write(b's', name.as_bytes());
            self.form.extend_from_slice(&value);
        }
        self.form.push(b'}');
        Some(())
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.form.push(b'[');
        if !self.has(']') {
            loop {
                self.value(depth + 1, &[])?;
                if self.has(']') {
                    break;
                }
                if !self.has(',') {
                    return None;
                }
            }
        }
        self.form.push(b']');
        Some(())
    }

    /// Its length goes first, so that no text can look like the end of one.
    fn write(&mut self, kind: u8, text: &[u8]) {
        self.form.push(kind);
        self.form.extend_from_slice(&(text.len() as u64).to_be_bytes());
        self.form.extend_from_slice(text);
    }

    /// What a string says, without its quotes and escapes.
    fn string(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut rest = self.rest.strip_prefix('"')?;
        loop {
            let plain = rest.find(['"', '\\']).unwrap_or(rest.len());
            let (before, after) = rest.split_at(plain);
            if before.contains(|character: char| character < ' ') {
                return None;
            }
            text.push_str(before);
            let mut characters = after.chars();
            match (characters.next()?, characters.next()) {
                ('"', _) => {
                    self.rest = after.get(1..)?;
                    return Some(text);
                }
                (_, Some('u')) => {
                    let (character, read) = unicode(after)?;
                    text.push(character);
                    rest = after.get(read..)?;
                }
                (_, Some(escaped)) => {
                    text.push(match escaped {
                        '"' | '\\' | '/' => escaped,
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        _ => return None,
                    });
                    rest = after.get(2..)?;
                }
                (_, None) => return None,
            }
        }
    }

    /// A number as it stands there.
    fn number(&mut self) -> Option<String> {
        let end = self.rest.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'));
        let (number, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        if !is_number(number) {
            return None;
        }
        self.rest = rest;
        Some(number.to_owned())
    }
}

/// The character that `\u` and four digits stand for, or two of these, and how
/// many bytes that took. Half of a pair stands for nothing.
fn unicode(text: &str) -> Option<(char, usize)> {
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
    };
    let first = unit(text)?;
    if let Some(character) = char::from_u32(u32::from(first)) {
        return Some((character, 6));
    }
    let pair = [first, unit(text.get(6..)?)?];
    let character = char::decode_utf16(pair).next()?.ok()?;
    Some((character, 12))
}

fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)))
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
