//! Points in time as the database tells them: microseconds since 1970, UTC.
//!
//! Leases, due times and retention are decided by the database's clock, so this
//! type has no `now()`. Statements take `Option<Timestamp>`; `None` means "ask
//! the database", `Some` is how a test owns time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Kind};

/// Microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The point `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// This point moved later, stopping at the end of time.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }

    /// This point moved earlier, stopping at the start of time.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }

    /// The time from `earlier` to here, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// A duration in whole microseconds, as statements take it.
#[must_use]
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// RFC 3339 in UTC with microseconds, the form CloudEvents asks for.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(86_400_000_000);
        let rest = self.0.rem_euclid(86_400_000_000);
        let (year, month, day) = civil(days);
        let (seconds, fraction) = (rest / 1_000_000, rest % 1_000_000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
    }
}

/// RFC 3339 with any offset. Digits beyond microseconds are cut off.
impl FromStr for Timestamp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text)
            .map(Self)
            .ok_or_else(|| Error::new(Kind::Invalid, format!("{text:?} is not a time as RFC 3339 writes it")))
    }
}

fn parse(text: &str) -> Option<i64> {
    let (date, clock) = text.split_once(['T', 't', ' '])?;
    let (year_and_month, day) = date.rsplit_once('-')?;
    let (year, month) = year_and_month.rsplit_once('-')?;
    let (clock, offset) = split_offset(clock)?;
    let (clock, fraction) = clock.split_once('.').map_or((clock, None), |(c, f)| (c, Some(f)));
    let mut parts = clock.split(':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next()?);
    // Nothing earlier or later can be written by a `Timestamp`.
    let year = year.strip_prefix('-').map_or_else(|| digits(year, 4..=6), |y| Some(-digits(y, 3..=6)?))?;
    let (month, day) = (two(month, 1..=12)?, two(day, 1..=31)?);
    let days = days_since_1970(year, month, day);
    if parts.next().is_some() || civil(days) != (year, month, day) {
        return None;
    }
    let (hour, minute, second) = (two(hour, 0..=23)?, two(minute, 0..=59)?, two(second, 0..=60)?);
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
    seconds.checked_mul(1_000_000)?.checked_add(micros_of(fraction)?)
}

/// A time of day and its distance from UTC in seconds.
fn split_offset(clock: &str) -> Option<(&str, i64)> {
    if let Some(clock) = clock.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let at = clock.rfind(['+', '-'])?;
    let (clock, offset) = clock.split_at(at);
    let (hour, minute) = offset.get(1..)?.split_once(':')?;
    let seconds = two(hour, 0..=23)? * 3600 + two(minute, 0..=59)? * 60;
    Some((clock, if offset.starts_with('-') { -seconds } else { seconds }))
}

fn micros_of(fraction: Option<&str>) -> Option<i64> {
    let Some(fraction) = fraction else { return Some(0) };
    digits(fraction.get(..18).unwrap_or(fraction), 1..=18)?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let kept: String = fraction.chars().chain(std::iter::repeat('0')).take(6).collect();
    kept.parse().ok()
}

fn two(text: &str, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
    digits(text, 2..=2).filter(|number| range.contains(number))
}

fn digits(text: &str, length: std::ops::RangeInclusive<usize>) -> Option<i64> {
    let is_number = length.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The inverse of [`civil`].
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let march_month = (month + 9) % 12;
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a count of days since 1970-01-01. Months are counted
/// from March, so that the leap day is the last day of a year.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_prints_as_rfc_3339() {
        let cases = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ];

        for (micros, text) in cases {
            assert_eq!(Timestamp::from_micros(micros).to_string(), text);
        }
    }

    #[test]
    fn a_printed_timestamp_is_read_back() {
        let year = 31_556_952_000_000;
        let edges = [0, 1, -1, i64::MAX, i64::MIN / 2, 253_402_300_799_999_999, -62_167_219_200_000_001];

        for micros in edges.into_iter().chain((-3000..3000).map(|n| n * year * 7 / 3 + n)) {
            let time = Timestamp::from_micros(micros);
            assert_eq!(time.to_string().parse::<Timestamp>().ok(), Some(time), "{time}");
        }
    }

    #[test]
    fn times_of_other_clocks_are_read() {
        let cases = [
            ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
            ("2023-11-14t22:13:20.5z", 1_700_000_000_500_000),
            ("2023-11-15T00:13:20.123456789+02:00", 1_700_000_000_123_456),
            ("2023-11-14T17:43:20-04:30", 1_700_000_000_000_000),
            ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
        ];

        for (text, micros) in cases {
            assert_eq!(text.parse::<Timestamp>().ok().map(Timestamp::micros), Some(micros), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        let cases = [
            "",
            "now",
            "2023-11-14",
            "2023-11-14T22:13:20",
            "2023-02-29T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-11-14T24:00:00Z",
            "2023-11-14T22:13Z",
            "2023-11-14T22:13:20.Z",
            "2023-11-14T22:13:20.1x2Z",
            "2023-11-14T22:13:20+2:00",
            "23-11-14T22:13:20Z",
            "2023-11-14T22:13:20:00Z",
            "+023-11-14T22:13:20Z",
            "999999-11-14T22:13:20Z",
            "2023-11-14T22:13:20.12345678901234567é9Z",
        ];

        for text in cases {
            let kind = text.parse::<Timestamp>().err().map(|error| error.kind());
            assert_eq!(kind, Some(Kind::Invalid), "{text}");
        }
    }

    #[test]
    fn arithmetic_stops_at_the_ends_of_time() {
        let end = Timestamp::from_micros(i64::MAX);

        assert_eq!(end.plus(Duration::from_secs(1)), end);
        assert_eq!(Timestamp::from_micros(5).since(end), Duration::ZERO);
    }
}
