//! Base64 as RFC 4648 defines it, for payloads inside JSON.

const TABLE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of `bytes`, padded.
#[expect(clippy::indexing_slicing, reason = "the index is six bits wide, the table has 64 entries")]
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let six = (word >> (18 - 6 * place)) & 63;
            text.push(if place <= chunk.len() { char::from(TABLE[six as usize]) } else { '=' });
        }
    }
    text
}

/// The bytes of `text`, or `None` if it is no base64. Padding may be left out.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    if padding > 2 || (padding > 0 && !text.len().is_multiple_of(4)) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for chunk in digits.as_bytes().chunks(4) {
        let word = chunk.iter().try_fold(0_u32, |word, digit| Some(word << 6 | value(*digit)?))?;
        let [_, first, second, third] = (word << (6 * (4 - chunk.len()))).to_be_bytes();
        match chunk.len() {
            4 => bytes.extend([first, second, third]),
            3 => bytes.extend([first, second]),
            2 => bytes.push(first),
            _ => return None,
        }
    }
    Some(bytes)
}

const fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_rfc_4648_says() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];

        for (plain, coded) in cases {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
            assert_eq!(decode(coded.trim_end_matches('=')).as_deref(), Some(plain.as_bytes()));
        }
    }

    #[test]
    fn every_byte_survives() {
        let bytes: Vec<u8> = (0..=255).collect();

        for length in [253, 254, 255, 256] {
            let part = bytes.get(..length).unwrap_or_default();
            assert_eq!(decode(&encode(part)).as_deref(), Some(part));
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Z", "Zg=", "Zg===", "====", "Zm9v=", "Zm 9v", "Zm9v\n", "Z-9_", "Zm=v", "é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
