//! A prepared statement that is called by text, for messages that hold several.

use std::fmt::Write as _;

use oncebox_core::Timestamp;

use super::row::count_from_epoch;

/// A call with the arguments so far. Whatever is put in becomes digits.
pub(super) struct Call(String);

impl Call {
    pub(super) fn new(name: &str) -> Self {
        Self(format!("EXECUTE {name}("))
    }

    fn separate(&mut self) {
        if !self.0.ends_with('(') {
            self.0.push(',');
        }
    }

    fn argument(mut self, text: &str) -> Self {
        self.separate();
        self.0.push_str(text);
        self
    }

    pub(super) fn null(self) -> Self {
        self.argument("NULL")
    }

    pub(super) fn truth(self, is_true: bool) -> Self {
        self.argument(if is_true { "true" } else { "false" })
    }

    /// In quotes: without, the least of all numbers would be one too large, with a sign before it.
    pub(super) fn number(self, number: i64) -> Self {
        self.argument(&format!("'{number}'"))
    }

    /// Whatever a backslash means to the server otherwise, in such quotes it takes two.
    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.separate();
        self.0.reserve(2 * bytes.len() + 8);
        self.0.push_str("E'\\\\x");
        let digit = |half: u8| DIGITS.get(usize::from(half)).copied().map_or('0', char::from);
        for byte in bytes {
            self.0.push(digit(byte >> 4));
            self.0.push(digit(byte & 15));
        }
        self.0.push('\'');
        self
    }

    pub(super) fn time(mut self, time: Option<Timestamp>) -> Self {
        let Some(time) = time else { return self.null() };
        self.separate();
        let micros = count_from_epoch(time);
        let start = "timestamptz '2000-01-01 00:00:00+00'";
        write!(self.0, "{start} + '{micros}'::bigint * interval '1 microsecond'").ok();
        self
    }

    pub(super) fn text(mut self) -> String {
        self.0.push(')');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_digits() {
        let call = Call::new("a").number(i64::MIN).bytes(b"'\\\0").truth(true).null().text();

        assert_eq!(call, "EXECUTE a('-9223372036854775808',E'\\\\x275c00',true,NULL)");
    }
    #[test]
    fn a_time_is_counted_from_where_the_server_counts() {
        let late = Timestamp::from_micros(1_800_000_000_000_001);

        let times = [Some(late), None].map(|time| Call::new("a").time(time).text());

        let count =
            "timestamptz '2000-01-01 00:00:00+00' + '853315200000001'::bigint * interval '1 microsecond'";
        assert_eq!(times, [format!("EXECUTE a({count})"), "EXECUTE a(NULL)".to_owned()]);
    }
}
