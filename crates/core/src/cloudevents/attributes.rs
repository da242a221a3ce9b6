//! The attributes of an event and the fields of an envelope they stand for.
//!
//! Both modes write and read this one list.

use std::borrow::Cow;

use super::{corrupt, headers};
use crate::envelope::Envelope;
use crate::error::Result;

/// An envelope before its attributes are known. A message that does not say
/// which version of its schema it follows follows the first.
pub(super) fn empty() -> Envelope {
    Envelope { schema_version: 1, ..Envelope::default() }
}

/// Hands every attribute that is set to `take`, except for the media type and
/// the user's headers, whose place depends on the mode.
pub(super) fn each<'e>(envelope: &'e Envelope, mut take: impl FnMut(&'static str, Cow<'e, str>)) {
    let texts: [(&'static str, Option<&'e str>); 15] = [
        ("id", Some(&envelope.id)),
        ("source", Some(&envelope.source)),
        ("type", Some(&envelope.kind)),
        ("subject", envelope.subject.as_deref()),
        ("dataschema", envelope.data_schema.as_deref()),
        ("tenant", Some(&envelope.tenant)),
        ("partitionkey", envelope.key.as_deref()),
        ("destination", Some(&envelope.destination)),
        ("aggregatetype", envelope.aggregate_type.as_deref()),
        ("correlationid", envelope.correlation_id.as_deref()),
        ("causationid", envelope.causation_id.as_deref()),
        ("idempotencykey", envelope.idempotency_key.as_deref()),
        ("traceparent", envelope.traceparent.as_deref()),
        ("tracestate", envelope.tracestate.as_deref()),
        ("baggage", envelope.baggage.as_deref()),
    ];
    take("specversion", Cow::Borrowed("1.0"));
    for (name, value) in texts {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            take(name, Cow::Borrowed(value));
        }
    }
    if let Some(time) = envelope.time {
        take("time", Cow::Owned(time.to_string()));
    }
    take("schemaversion", Cow::Owned(envelope.schema_version.to_string()));
}

/// Sets the field that `name` stands for. A name that stands for none is kept
/// among the headers.
///
/// # Errors
/// [`Kind::Corrupt`](crate::Kind::Corrupt) if the value cannot be what it should be.
pub(super) fn assign(envelope: &mut Envelope, name: &str, value: String) -> Result<()> {
    let name = name.to_ascii_lowercase();
    let field = match name.as_str() {
        "id" => &mut envelope.id,
        "source" => &mut envelope.source,
        "type" => &mut envelope.kind,
        "tenant" => &mut envelope.tenant,
        "destination" => &mut envelope.destination,
        "datacontenttype" => &mut envelope.content_type,
        "specversion" => return check_version(&value),
        "time" => return assign_time(envelope, &value),
        "schemaversion" => {
            assign_version(envelope, value);
            return Ok(());
        }
        "headers" => {
            headers::merge(&mut envelope.headers, value);
            return Ok(());
        }
        _ => {
            assign_optional(envelope, name, value);
            return Ok(());
        }
    };
    *field = value;
    Ok(())
}

fn assign_optional(envelope: &mut Envelope, name: String, value: String) {
    let field = match name.as_str() {
        "subject" => &mut envelope.subject,
        "dataschema" => &mut envelope.data_schema,
        "partitionkey" => &mut envelope.key,
        "aggregatetype" => &mut envelope.aggregate_type,
        "correlationid" => &mut envelope.correlation_id,
        "causationid" => &mut envelope.causation_id,
        "idempotencykey" => &mut envelope.idempotency_key,
        "traceparent" => &mut envelope.traceparent,
        "tracestate" => &mut envelope.tracestate,
        "baggage" => &mut envelope.baggage,
        _ => {
            envelope.headers.entry(name).or_insert(value);
            return;
        }
    };
    *field = Some(value).filter(|value| !value.is_empty());
}

fn check_version(version: &str) -> Result<()> {
    if version == "1" || version.starts_with("1.") {
        return Ok(());
    }
    Err(corrupt(format!("CloudEvents version {version:?} is not supported")))
}

fn assign_time(envelope: &mut Envelope, value: &str) -> Result<()> {
    if value.is_empty() {
        return Ok(());
    }
    // Without a time a message would pass the inbox's age gate, so a wrong one is not ignored.
    envelope.time =
        Some(value.parse().map_err(|error| corrupt("the attribute time is wrong").because(error))?);
    Ok(())
}

/// The name is oncebox's own; a foreign producer may mean something else by it.
fn assign_version(envelope: &mut Envelope, value: String) {
    match value.parse() {
        Ok(version) => envelope.schema_version = version,
        Err(_) => drop(envelope.headers.entry("schemaversion".into()).or_insert(value)),
    }
}
