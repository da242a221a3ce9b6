//! Columns to envelopes and back. The order of columns here is the order in
//! every statement that reads or writes them.

use std::collections::BTreeMap;

use oncebox_core::log::{Position, Row, Shard};
use oncebox_core::{Envelope, Error, Kind, Result, Timestamp};
use serde_json::Value;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Decode, Row as _, SqlStr, Sqlite, Type};

/// The place of the first column behind those of [`log_row`].
pub(super) const AFTER_ROW: usize = 13;

/// The attributes most messages go without. They are read as one JSON array, or
/// as nothing at all: the driver copies every column of every row, even an empty
/// one, and that was a third of the cost of reading.
type Extras = [Option<String>; 10];

type Query = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// A statement that stores `envelope`, ready for the one parameter after its columns.
pub(super) fn store(sql: SqlStr, envelope: &Envelope) -> Query {
    sqlx::query(sql)
        .bind(envelope.id.as_str())
        .bind(envelope.source.as_str())
        .bind(envelope.kind.as_str())
        .bind(i64::from(envelope.schema_version))
        .bind(envelope.tenant.as_str())
        .bind(envelope.key.as_deref())
        .bind(envelope.destination.as_str())
        .bind(envelope.subject.as_deref())
        .bind(envelope.aggregate_type.as_deref())
        .bind(envelope.content_type.as_str())
        .bind(envelope.data_schema.as_deref())
        .bind(envelope.correlation_id.as_deref())
        .bind(envelope.causation_id.as_deref())
        .bind(envelope.idempotency_key.as_deref())
        .bind(envelope.traceparent.as_deref())
        .bind(envelope.tracestate.as_deref())
        .bind(envelope.baggage.as_deref())
        .bind(headers_text(&envelope.headers))
        .bind(envelope.payload.as_slice())
}

/// A row of the log. Only its place must be readable; the rest may be an error of its own.
pub(super) fn log_row(row: &SqliteRow) -> sqlx::Result<Row> {
    let position: Position = row.try_get(0)?;
    let shard: Shard = row.try_get(1)?;
    Ok(Row { position, shard, envelope: envelope(row).map_err(|error| error.to_string()) })
}

fn envelope(row: &SqliteRow) -> Result<Envelope> {
    let mut envelope = Envelope {
        id: column(row, 2)?,
        source: column(row, 3)?,
        kind: column(row, 4)?,
        schema_version: column(row, 5)?,
        tenant: column(row, 6)?,
        key: column(row, 7)?,
        destination: column(row, 8)?,
        content_type: column(row, 9)?,
        time: Some(Timestamp::from_micros(column(row, 10)?)),
        payload: column(row, 11)?,
        ..Envelope::default()
    };
    if let Some(extras) = column(row, 12)? {
        add(&mut envelope, extras)?;
    }
    Ok(envelope)
}

fn add(envelope: &mut Envelope, extras: &str) -> Result<()> {
    let extras: Extras = serde_json::from_str(extras).map_err(|error| {
        Error::new(Kind::Corrupt, format!("the stored attributes cannot be read: {error}"))
    })?;
    let [subject, aggregate_type, data_schema, correlation_id, causation_id, rest @ ..] = extras;
    let [idempotency_key, traceparent, tracestate, baggage, text] = rest;
    envelope.subject = subject;
    envelope.aggregate_type = aggregate_type;
    envelope.data_schema = data_schema;
    envelope.correlation_id = correlation_id;
    envelope.causation_id = causation_id;
    envelope.idempotency_key = idempotency_key;
    envelope.traceparent = traceparent;
    envelope.tracestate = tracestate;
    envelope.baggage = baggage;
    envelope.headers = headers(text.as_deref().unwrap_or("{}"))?;
    Ok(())
}

fn column<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(row: &'r SqliteRow, index: usize) -> Result<T> {
    row.try_get(index)
        .map_err(|error| Error::new(Kind::Corrupt, format!("the stored row cannot be read: {error}")))
}

fn headers_text(headers: &BTreeMap<String, String>) -> String {
    if headers.is_empty() {
        return "{}".to_owned();
    }
    let object = headers.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
    Value::Object(object.collect()).to_string()
}

/// Rows inserted by hand may have headers that are not texts; these keep their JSON form.
fn headers(text: &str) -> Result<BTreeMap<String, String>> {
    if text == "{}" {
        return Ok(BTreeMap::new());
    }
    let object: BTreeMap<String, Value> = serde_json::from_str(text)
        .map_err(|error| Error::new(Kind::Corrupt, format!("the stored headers cannot be read: {error}")))?;
    let texts = object.into_iter().map(|(name, value)| match value {
        Value::String(text) => (name, text),
        other => (name, other.to_string()),
    });
    Ok(texts.collect())
}

/// Positions as the JSON list they are stored as.
pub(super) fn positions_text(positions: &[Position]) -> String {
    if positions.is_empty() { "[]".to_owned() } else { Value::from(positions).to_string() }
}

/// The list that [`positions_text`] made.
pub(super) fn positions(text: &str) -> Result<Vec<Position>> {
    if text == "[]" {
        return Ok(Vec::new());
    }
    serde_json::from_str(text)
        .map_err(|error| Error::new(Kind::Corrupt, "the holes of a cursor cannot be read").because(error))
}

/// One bit for each shard.
pub(super) fn shard_bits(shards: &[Shard]) -> i64 {
    shards.iter().filter(|shard| (0..64).contains(*shard)).fold(0, |bits, shard| bits | 1 << shard)
}

/// A count as SQLite takes it.
pub(super) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_way_through_json() {
        let map = BTreeMap::from([("a".to_owned(), "\"x\"\n".to_owned()), ("ü".to_owned(), String::new())]);

        assert_eq!(headers(&headers_text(&map)).ok(), Some(map));
        assert_eq!(headers_text(&BTreeMap::new()), "{}");
    }

    #[test]
    fn foreign_headers_keep_their_json_form() {
        let map = headers(r#"{"n": 1, "o": {"p": [true]}, "s": "t", "z": null}"#).unwrap();

        let pairs: Vec<_> = map.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("n", "1"), ("o", r#"{"p":[true]}"#), ("s", "t"), ("z", "null")]);
        assert!(headers("[]").is_err());
    }

    #[test]
    fn positions_and_shards_have_their_stored_form() {
        assert_eq!(positions(&positions_text(&[3, 9])).ok(), Some(vec![3, 9]));
        assert_eq!(positions("[]").ok(), Some(vec![]));
        assert!(positions("x").is_err());
        assert_eq!(shard_bits(&[0, 2, 7]), 0b1000_0101);
        assert_eq!(shard_bits(&[-1]), 0);
    }
}
