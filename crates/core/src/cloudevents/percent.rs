//! Percent-encoding of attribute values, as the CloudEvents HTTP binding says:
//! everything but visible ASCII, and the double quote and the percent sign.

/// An attribute's value as a line of text.
#[must_use]
pub fn percent_encode(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'"' | b'%' => push(&mut text, byte),
            b'!'..=b'~' => text.push(char::from(byte)),
            _ => push(&mut text, byte),
        }
    }
    text
}

fn push(text: &mut String, byte: u8) {
    text.push('%');
    for digit in [byte >> 4, byte & 15] {
        text.extend(char::from_digit(u32::from(digit), 16).map(|digit| digit.to_ascii_uppercase()));
    }
}

/// The inverse. A percent sign that begins no byte stays what it is; a value in
/// double quotes, which older producers write, loses them; bytes that are no
/// UTF-8 are replaced.
#[must_use]
pub fn percent_decode(text: &str) -> String {
    let unquoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).map(unescape);
    let text = unquoted.as_deref().unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        match (first, byte_of(after)) {
            (b'%', Some((byte, after))) => {
                bytes.push(byte);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn unescape(text: &str) -> String {
    let mut chars = text.chars();
    let mut plain = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    plain
}

/// The byte two hexadecimal digits stand for, and what follows them.
fn byte_of(text: &[u8]) -> Option<(u8, &[u8])> {
    let (pair, rest) = text.split_first_chunk::<2>()?;
    let byte =
        pair.iter().try_fold(0_u32, |byte, digit| Some(byte << 4 | char::from(*digit).to_digit(16)?))?;
    Some((u8::try_from(byte).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_as_the_binding_shows() {
        let cases = [
            ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("a\"b%c", "a%22b%25c"),
            ("x\r\ny: z", "x%0D%0Ay:%20z"),
            ("!~", "!~"),
            ("", ""),
        ];

        for (value, text) in cases {
            assert_eq!(percent_encode(value), text);
            assert_eq!(percent_decode(text), value);
        }
    }

    #[test]
    fn what_others_write_is_read() {
        let cases = [
            ("%e2%82%ac", "€"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("%", "%"),
            ("\"quoted \\\"twice\\\"\"", "quoted \"twice\""),
            ("\"", "\""),
            ("%FF", "\u{fffd}"),
            ("€", "€"),
        ];

        for (text, value) in cases {
            assert_eq!(percent_decode(text), value, "{text}");
        }
    }
}
