//! `oncebox dead show`: the whole story of one dead letter.

use std::fmt::Write as _;
use std::process::ExitCode;

use oncebox_core::{DeadLetter, Envelope};
use serde_json::{Map, Value, json};

use super::{One, list, read};
use crate::fault::{Fault, without_userinfo};
use crate::output::{Format, plain};

/// Of a payload, this much is shown to people; JSON output has all of it.
const SHOWN_BYTES: usize = 16 << 10;
const HEX_PER_LINE: usize = 32;
/// A header whose name has one of these may carry a credential.
const SECRETIVE: [&str; 9] =
    ["auth", "cookie", "credential", "key", "passw", "secret", "session", "signature", "token"];
const HIDDEN: &str = "(hidden)";

pub(super) async fn run(args: One, format: Format) -> Result<ExitCode, Fault> {
    let id = args.letter.letter()?;
    let database = args.database.open_verified().await?;
    let letter = read(&database, id).await?;
    match format {
        Format::Json => println!("{}", as_json(&letter)),
        Format::Text => print!("{}", as_text(&letter)),
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(letter: &DeadLetter) -> Value {
    let history: Vec<_> = letter
        .history
        .iter()
        .map(|attempt| {
            json!({ "attempt": attempt.attempt, "at": attempt.at.to_string(), "code": attempt.code,
                    "reason": without_userinfo(&attempt.reason) })
        })
        .collect();
    let mut all = list::summary(letter);
    if let Some(all) = all.as_object_mut() {
        all.insert("history".into(), history.into());
        all.insert("message".into(), message_json(&letter.envelope));
    }
    json!({ "v": 1, "letter": all })
}

fn message_json(envelope: &Envelope) -> Value {
    let mut message: Map<String, Value> = attributes(envelope)
        .into_iter()
        .map(|(name, value)| (name.replace(' ', "_"), value.into()))
        .collect();
    let headers: Map<String, Value> =
        headers(envelope).map(|(name, value)| (name.to_owned(), value.into())).collect();
    message.insert("schema_version".into(), envelope.schema_version.into());
    message.insert("headers".into(), headers.into());
    message.insert("payload_bytes".into(), envelope.payload.len().into());
    let (name, payload) = match Payload::of(&envelope.payload) {
        Payload::Json(value) => ("payload", value),
        Payload::Text(text) => ("payload_text", text.into()),
        Payload::Bytes(bytes) => ("payload_hex", hex(bytes).into()),
    };
    message.insert(name.into(), payload);
    message.into()
}

fn as_text(letter: &DeadLetter) -> String {
    let mut text = String::new();
    let handler = if letter.handler.is_empty() { "none was asked" } else { letter.handler.as_str() };
    let blocks = match letter.blocks {
        0 => "nothing waits behind it".to_owned(),
        1 => "1 later delivery of its lane waits behind it".to_owned(),
        n => format!("{n} later deliveries of its lane wait behind it"),
    };
    let facts = [
        ("letter", letter.id.to_string()),
        ("scope", letter.scope.clone()),
        ("channel", letter.channel.clone()),
        ("handler", handler.to_owned()),
        ("code", letter.code.clone()),
        ("reason", without_userinfo(&letter.reason)),
        ("attempts", letter.attempts.to_string()),
        ("accepted", letter.received_at.to_string()),
        ("died", letter.died_at.to_string()),
        ("blocks", blocks),
    ];
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "{name:<10} {}", plain(value));
    }
    for (at, attempt) in letter.history.iter().enumerate() {
        let name = if at == 0 { "history" } else { "" };
        let (code, reason) = (plain(&attempt.code), plain(&without_userinfo(&attempt.reason)));
        let _ = writeln!(text, "{name:<10} {}. {}  {code}: {reason}", attempt.attempt, attempt.at);
    }
    text.push_str("message\n");
    for (name, value) in attributes(&letter.envelope) {
        let _ = writeln!(text, "  {name:<16} {}", plain(&value));
    }
    for (name, value) in headers(&letter.envelope) {
        let _ = writeln!(text, "  header {}: {}", plain(name), plain(value));
    }
    text + &payload_text(&letter.envelope.payload)
}

fn payload_text(payload: &[u8]) -> String {
    let (form, shown) = match Payload::of(payload) {
        Payload::Json(value) => ("JSON", serde_json::to_string_pretty(&value).unwrap_or_default()),
        Payload::Text(text) => ("text", text.to_owned()),
        Payload::Bytes(bytes) => {
            let lines = bytes.chunks(HEX_PER_LINE).take(SHOWN_BYTES / HEX_PER_LINE).map(hex);
            ("hex", lines.collect::<Vec<_>>().join("\n"))
        }
    };
    let mut text = format!("payload    {} bytes, as {form}\n", payload.len());
    let mut left = SHOWN_BYTES * 3;
    for line in shown.lines() {
        if line.len() > left {
            text.push_str("  … -o json shows the rest\n");
            return text;
        }
        left -= line.len();
        let _ = writeln!(text, "  {}", plain(line));
    }
    if form == "hex" && payload.len() > SHOWN_BYTES {
        text.push_str("  … -o json shows the rest\n");
    }
    text
}

/// The attributes that are there.
fn attributes(envelope: &Envelope) -> Vec<(&'static str, String)> {
    let text = |value: &str| Some(value).filter(|value| !value.is_empty()).map(str::to_owned);
    let all = [
        ("id", text(&envelope.id)),
        ("source", text(&envelope.source)),
        ("type", text(&envelope.kind)),
        ("schema version", Some(envelope.schema_version.to_string())),
        ("tenant", text(&envelope.tenant)),
        ("key", envelope.key.clone()),
        ("destination", text(&envelope.destination)),
        ("subject", envelope.subject.clone()),
        ("aggregate type", envelope.aggregate_type.clone()),
        ("content type", text(&envelope.content_type)),
        ("data schema", envelope.data_schema.as_deref().map(without_userinfo)),
        ("correlation id", envelope.correlation_id.clone()),
        ("causation id", envelope.causation_id.clone()),
        ("idempotency key", envelope.idempotency_key.clone()),
        ("traceparent", envelope.traceparent.clone()),
        ("time", envelope.time.map(|time| time.to_string())),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Headers without what may be a credential.
fn headers(envelope: &Envelope) -> impl Iterator<Item = (&str, &str)> {
    envelope.headers.iter().map(|(name, value)| {
        let lower = name.to_ascii_lowercase();
        let is_secretive = SECRETIVE.iter().any(|word| lower.contains(word));
        (name.as_str(), if is_secretive { HIDDEN } else { value.as_str() })
    })
}

/// A payload in the form that says most.
enum Payload<'a> {
    Json(Value),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Payload<'a> {
    fn of(payload: &'a [u8]) -> Self {
        if let Ok(value) = serde_json::from_slice(payload) {
            return Self::Json(value);
        }
        let is_readable = |text: &&str| !text.chars().any(|c| c.is_control() && !"\t\r\n".contains(c));
        match std::str::from_utf8(payload).ok().filter(is_readable) {
            Some(text) => Self::Text(text),
            None => Self::Bytes(payload),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_header_that_may_carry_a_credential_is_hidden() {
        let names = ["Authorization", "x-api-key", "set-cookie", "X-Auth", "oncebox-signature", "region"];
        let all: BTreeMap<_, _> = names.map(|name| (name.to_owned(), "hunter2".to_owned())).into();
        let envelope = Envelope { headers: all, ..Envelope::default() };

        let shown: Vec<_> = headers(&envelope).filter(|(_, value)| *value == "hunter2").collect();

        assert_eq!(shown, [("region", "hunter2")]);
    }

    #[test]
    fn a_payload_is_shown_in_the_form_that_says_most() {
        assert!(payload_text(b"{\"a\":1}").contains("7 bytes, as JSON\n  {\n    \"a\": 1\n  }\n"));
        assert!(payload_text("grün".as_bytes()).contains("as text\n  grün\n"));
        assert!(payload_text(&[0, 0xff, 0x1b]).contains("3 bytes, as hex\n  00ff1b\n"));
        let long = payload_text(&[0xff; 1 << 20]);
        assert!(long.len() < 4 * SHOWN_BYTES && long.ends_with("-o json shows the rest\n"), "{}", long.len());
    }
}
