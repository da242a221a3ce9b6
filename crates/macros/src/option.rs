//! What may stand in a macro's brackets, read into checked values.
//!
//! Each error points at the text that is wrong and says what would be right.

use std::time::Duration;

use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::{Error, LitStr, Result};

/// The longest name the tables and the wire take, in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Longer than anything a marker is kept for, and short enough to be counted in microseconds.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Remembers an option, which may be given once.
pub(crate) fn set<T>(place: &mut Option<T>, meta: &ParseNestedMeta<'_>, value: T) -> Result<()> {
    if place.replace(value).is_some() {
        return Err(meta.error("this option is given twice"));
    }
    Ok(())
}

/// The error for an option nobody knows.
pub(crate) fn unknown(meta: &ParseNestedMeta<'_>, known: &str) -> Error {
    meta.error(format!("unknown option: expected one of {known}"))
}

/// A name that ends up in the tables and on the wire.
pub(crate) fn name(meta: &ParseNestedMeta<'_>, what: &str) -> Result<LitStr> {
    let text: LitStr = meta.value()?.parse()?;
    let value = text.value();
    let complaint = if value.is_empty() {
        "is empty".to_owned()
    } else if value.len() > MAX_NAME_BYTES {
        format!("has {} bytes, the limit is {MAX_NAME_BYTES}", value.len())
    } else if value.chars().any(char::is_control) {
        "contains a control character".to_owned()
    } else {
        return Ok(text);
    };
    Err(Error::new(text.span(), format!("the {what} {complaint}")))
}

/// A length of time such as `90s`, `15m`, `12h` or `7d`.
pub(crate) fn duration(meta: &ParseNestedMeta<'_>) -> Result<Duration> {
    let text: LitStr = meta.value()?.parse()?;
    parse_duration(&text.value()).map_err(|complaint| Error::new(text.span(), complaint))
}

fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let form = || format!("{text:?} is not a duration: use a number and one of s m h d, for instance \"7d\"");
    let unit = text.chars().next_back().ok_or_else(form)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(form()),
    };
    let number = text.trim_end_matches(unit);
    let is_plain = number.len() + 1 == text.len() && number.chars().all(|digit| digit.is_ascii_digit());
    if !is_plain || number.is_empty() {
        return Err(form());
    }
    // Digits that do not fit a u64 are too long a time, like those that do but exceed the limit.
    let length = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    match length.map(Duration::from_secs) {
        Some(Duration::ZERO) => Err("a duration of zero".to_owned()),
        Some(length) if length <= LONGEST => Ok(length),
        _ => Err(format!("{text:?} is longer than 36500d")),
    }
}

/// One of a few words.
pub(crate) fn word(meta: &ParseNestedMeta<'_>) -> Result<(String, Span)> {
    let text: LitStr = meta.value()?.parse()?;
    Ok((text.value(), text.span()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        let cases = [("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("36500d", 3_153_600_000)];

        for (text, seconds) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_duration() {
        let huge = format!("{}0s", u64::MAX);
        let bad =
            ["", "s", "7", "7 d", "7dd", "d7d", "-1s", "1.5h", "7w", "7ö", "0s", "36501d", huge.as_str()];

        for text in bad {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }
}
