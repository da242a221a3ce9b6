//! Columns to envelopes and back.
//!
//! Columns are read by index in the order the statements list them, without
//! name lookups or type checks: this runs once per message relayed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use oncebox_core::log::Row;
use oncebox_core::timestamp::micros;
use oncebox_core::{Envelope, Error, Kind, Result, Timestamp};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Row as _, Type};

/// Where a statement that reads log rows puts a column of its own.
pub(super) const AFTER_ENVELOPE: usize = 22;

/// Microseconds from 1970 to 2000, where PostgreSQL starts to count.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;
/// The ends of `timestamptz`, in its own count.
const EARLIEST: i64 = -211_813_488_000_000_000;
const LATEST: i64 = 9_223_371_331_199_999_999;
/// Durations stop here (1000 years), so that adding one to any plausible time stays in range.
const LONGEST: i64 = 31_556_952_000_000_000;

/// A point in time as a `timestamptz`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time(pub(super) Timestamp);

impl Type<Postgres> for Time {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for Time {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for Time {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let count = count_from_epoch(self.0);
        <i64 as Encode<'_, Postgres>>::encode_by_ref(&count, buf)
    }
}

impl<'r> Decode<'r, Postgres> for Time {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let count = <i64 as Decode<'r, Postgres>>::decode(value)?;
        Ok(Self(Timestamp::from_micros(count.saturating_add(POSTGRES_EPOCH))))
    }
}

/// Microseconds from 2000, as far as `timestamptz` goes.
pub(super) fn count_from_epoch(time: Timestamp) -> i64 {
    time.micros().saturating_sub(POSTGRES_EPOCH).clamp(EARLIEST, LATEST)
}

/// `now` as statements take it: null asks the database.
pub(super) fn clock(now: Option<Timestamp>) -> Option<Time> {
    now.map(Time)
}

/// A duration as statements take it.
pub(super) fn span(duration: Duration) -> i64 {
    micros(duration).min(LONGEST)
}

/// A limit as statements take it.
pub(super) fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// A count as an `integer` column holds it.
pub(super) fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The version of a payload's schema as an `integer` column holds it.
pub(super) fn schema_version(envelope: &Envelope) -> Result<i32> {
    i32::try_from(envelope.schema_version).map_err(|_| {
        Error::new(Kind::Invalid, format!("the schema version {} is too large", envelope.schema_version))
    })
}

/// Text that PostgreSQL can hold: it has no U+0000, and error texts of others may.
pub(super) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Headers as JSON text.
pub(super) fn headers_text(headers: &BTreeMap<String, String>) -> Result<Cow<'static, str>> {
    if headers.is_empty() {
        return Ok(Cow::Borrowed("{}"));
    }
    serde_json::to_string(headers)
        .map(Cow::Owned)
        .map_err(|error| Error::new(Kind::Invalid, "cannot encode the headers").because(error))
}

/// Headers from JSON text. Other languages insert rows too: what is not a
/// string is kept as its JSON text.
fn headers(text: &str) -> Result<BTreeMap<String, String>, String> {
    if text == "{}" {
        return Ok(BTreeMap::new());
    }
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| format!("the headers are not an object: {error}"))?;
    let plain = |value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(object.into_iter().map(|(name, value)| (name, plain(value))).collect())
}

/// A log row. Only its place must be readable; an envelope that is not is
/// reported inside the row.
pub(super) fn row(columns: &PgRow) -> Result<Row, sqlx::Error> {
    Ok(Row {
        position: columns.try_get_unchecked(0)?,
        shard: columns.try_get_unchecked(1)?,
        envelope: envelope(columns),
    })
}

fn envelope(columns: &PgRow) -> Result<Envelope, String> {
    let version: i32 = read(columns, 5)?;
    Ok(Envelope {
        id: read(columns, 2)?,
        source: read(columns, 3)?,
        kind: read(columns, 4)?,
        schema_version: u32::try_from(version)
            .map_err(|_| format!("the schema version {version} is negative"))?,
        tenant: read(columns, 6)?,
        key: read(columns, 7)?,
        destination: read(columns, 8)?,
        subject: read(columns, 9)?,
        aggregate_type: read(columns, 10)?,
        content_type: read(columns, 11)?,
        data_schema: read(columns, 12)?,
        correlation_id: read(columns, 13)?,
        causation_id: read(columns, 14)?,
        idempotency_key: read(columns, 15)?,
        traceparent: read(columns, 16)?,
        tracestate: read(columns, 17)?,
        baggage: read(columns, 18)?,
        headers: headers(read(columns, 19)?)?,
        time: Some(read::<Time>(columns, 20)?.0),
        due: None,
        payload: read(columns, 21)?,
    })
}

fn read<'r, T: Decode<'r, Postgres>>(columns: &'r PgRow, index: usize) -> Result<T, String> {
    columns.try_get_unchecked(index).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_round_trip() {
        let plain = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "\"x\\".to_owned())]);

        let text = headers_text(&plain).unwrap();

        assert_eq!(headers(&text), Ok(plain));
        assert_eq!(headers_text(&BTreeMap::new()).unwrap(), "{}");
    }

    #[test]
    fn foreign_header_values_keep_their_json_text() {
        let read = headers(r#"{"n": 1, "o": {"x": null}, "s": "t"}"#).unwrap();

        assert_eq!(read.get("n").map(String::as_str), Some("1"));
        assert_eq!(read.get("o").map(String::as_str), Some(r#"{"x":null}"#));
        assert_eq!(read.get("s").map(String::as_str), Some("t"));
        assert!(headers("[]").is_err());
    }

    #[test]
    fn durations_and_counts_stop_at_what_a_column_holds() {
        assert_eq!(span(Duration::MAX), LONGEST);
        assert_eq!(span(Duration::from_micros(7)), 7);
        assert_eq!(count(u32::MAX), i32::MAX);
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
    }
}
