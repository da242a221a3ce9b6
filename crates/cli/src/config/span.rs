//! Lengths of time as people write them.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// `500ms`, `30s`, `5m`, `24h` or `7d`.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..)?;
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    digits.parse::<u64>().ok()?.checked_mul(*millis).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_a_unit() {
        assert_eq!(parse("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse("7d"), Some(Duration::from_secs(7 * 86_400)));
        for text in
            ["", "5", "s", "1.5s", "-1s", "5 s", "5w", "99999999999999999999d", "18446744073709551615d"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
