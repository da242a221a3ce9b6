//! What goes in comes out, and what others send is understood.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::Timestamp;

/// Texts that a wire might mangle.
const HOSTILE: [&str; 22] = [
    "plain",
    " leading and trailing ",
    "a: b\r\nce-id: other",
    "\t\n",
    "ünï→\u{1F680}",
    "100%",
    "%41%zz",
    "\"quoted\"",
    "\\",
    "null",
    "1",
    "true",
    "{\"a\":1}",
    "[]",
    "'; drop table",
    "\u{7f}\u{1}",
    "\u{feff}",
    "a,b;c=d",
    "%22",
    "\"",
    "v1;kid=a;mac=b",
    "\u{2028}",
];
/// Names that mean something to a transport or to this module.
const NAMES: [&str; 26] = [
    "plain",
    "x-trace",
    "X-Trace",
    "Content-Type",
    "content-type",
    "ce-id",
    "Ce-Id",
    "ce-specversion",
    "cloudEvents:id",
    "cloudevents_type",
    "nats-msg-id",
    "Nats-Expected-Stream",
    "host",
    "CC",
    "bcc",
    "x-death",
    "headers",
    "specversion",
    "id",
    "datacontenttype",
    "oncebox-signature",
    "traceparent",
    "a b",
    "a:b",
    "ünï",
    "line\r\nbreak",
];
const MEDIA: [&str; 12] = [
    "",
    "application/json",
    "Application/JSON; charset=utf-8",
    "application/vnd.thing+json",
    "text/plain",
    "application/octet-stream",
    "application/cloudevents+json",
    "Application/CloudEvents-Batch+json; x=y",
    "text/plain\r\nce-id: other",
    " text/plain ",
    "téxt/plain",
    "application/xml",
];
const BODIES: [&str; 16] = [
    "",
    "{}",
    "{\"b\":1,\"a\":[1.50,1e5,\"\\u00fc\"]}",
    "{\"a\": 1}",
    " {\"a\":1}",
    "{\"a\":1}\n",
    "{\"a\":1,\"a\":2}",
    "null",
    "\"text\"",
    "12345678901234567890123",
    "1e400",
    "{",
    "\"\\ud800\"",
    "plain text",
    "true",
    "[ ]",
];

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        (self.roll() % end as u64) as usize
    }

    fn text(&mut self) -> String {
        let mut text = HOSTILE[self.below(HOSTILE.len())].to_owned();
        if self.below(3) == 0 {
            let random =
                (0..self.below(8)).filter_map(|_| char::from_u32(1 + self.0.rotate_left(9) as u32 % 0x3000));
            text.extend(random);
            text.push_str(HOSTILE[self.below(HOSTILE.len())]);
        }
        text
    }

    fn maybe(&mut self) -> Option<String> {
        (self.below(2) == 0).then(|| self.text())
    }

    fn body(&mut self) -> Vec<u8> {
        match self.below(4) {
            0 => (0..self.below(40)).map(|_| self.roll() as u8).collect(),
            _ => BODIES[self.below(BODIES.len())].into(),
        }
    }

    fn headers(&mut self) -> BTreeMap<String, String> {
        (0..self.below(6))
            .map(|_| {
                let name = match self.below(4) {
                    0 => self.text(),
                    _ => NAMES[self.below(NAMES.len())].to_owned(),
                };
                let value = if self.below(6) == 0 { String::new() } else { self.text() };
                (name, value)
            })
            .collect()
    }

    fn envelope(&mut self) -> Envelope {
        Envelope {
            id: self.text(),
            source: self.text(),
            kind: self.text(),
            schema_version: self.roll() as u32,
            tenant: self.maybe().unwrap_or_default(),
            key: self.maybe(),
            destination: self.text(),
            subject: self.maybe(),
            aggregate_type: self.maybe(),
            content_type: MEDIA[self.below(MEDIA.len())].into(),
            data_schema: self.maybe(),
            correlation_id: self.maybe(),
            causation_id: self.maybe(),
            idempotency_key: self.maybe(),
            traceparent: self.maybe(),
            tracestate: self.maybe(),
            baggage: self.maybe(),
            time: (self.below(2) == 0).then(|| Timestamp::from_micros(self.roll() as i64 - (1 << 52))),
            due: None,
            headers: self.headers(),
            payload: self.body(),
        }
    }
}

/// A transport whose headers are one table of any text, like AMQP's.
fn over_a_table(parts: Parts) -> Parts {
    let mut table: BTreeMap<String, String> = parts.headers.into_iter().collect();
    for (name, value) in parts.attributes {
        assert!(table.insert(format!("cloudEvents:{name}"), value).is_none(), "a header hides {name}");
    }
    let mut read = Parts { content_type: parts.content_type, body: parts.body, ..Parts::default() };
    for (name, value) in table {
        match name.strip_prefix("cloudEvents:") {
            Some(name) => read.attributes.push((name.to_owned(), value)),
            None => read.headers.push((name, value)),
        }
    }
    read
}

/// A transport whose headers are lines, like those of HTTP and NATS: names lose
/// their case, values lose what surrounds them, a line break ends a header.
fn over_lines(parts: Parts) -> Parts {
    let mut lines = String::new();
    let mut write = |name: &str, value: &str| lines.push_str(&format!("{name}: {value}\r\n"));
    if !parts.content_type.is_empty() {
        write("Content-Type", &parts.content_type);
    }
    parts.attributes.iter().for_each(|(name, value)| write(&format!("CE-{name}"), &percent_encode(value)));
    parts.headers.iter().for_each(|(name, value)| write(name, value));
    assert!(lines.is_ascii(), "{lines}");

    let mut read = Parts { body: parts.body, ..Parts::default() };
    for line in lines.split_terminator("\r\n") {
        let (name, value) = line.split_once(':').unwrap();
        let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
        match name.strip_prefix("ce-") {
            Some(name) => read.attributes.push((name.to_ascii_uppercase(), percent_decode(&value))),
            None if name == "content-type" => read.content_type = value,
            None => read.headers.push((name, value)),
        }
    }
    read
}

#[test]
fn every_envelope_survives_every_way_of_travelling() {
    let given = std::env::var("ONCEBOX_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_micros() as u64)
    });
    println!("every_envelope_survives_every_way_of_travelling: ONCEBOX_SEED={seed}");
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);

    for round in 0..3_000 {
        let sent = dice.envelope();
        for mode in [Mode::Binary, Mode::Structured] {
            let ways = [
                ("as it is", encode(&sent, mode)),
                ("over a table", over_a_table(encode(&sent, mode))),
                ("over lines", over_lines(encode_for_text_headers(&sent, mode))),
            ];
            for (way, parts) in ways {
                assert_same(&decode(parts).unwrap(), &sent, &format!("{way}, {mode}, round {round}"));
            }
        }
    }
}

fn assert_same(got: &Envelope, sent: &Envelope, when: &str) {
    assert_eq!(got.headers, sent.headers, "{when}");
    assert_eq!(String::from_utf8_lossy(&got.payload), String::from_utf8_lossy(&sent.payload), "{when}");
    assert_eq!(to_json(got), to_json(sent), "{when}");
    assert!(got == sent, "{when}: {got:?} {sent:?}");
}

fn structured(event: &Value) -> Result<Envelope> {
    decode(Parts {
        content_type: "application/cloudevents+json".into(),
        body: event.to_string().into_bytes(),
        ..Parts::default()
    })
}

fn binary(attributes: &[(&str, &str)], content_type: &str, body: &str) -> Result<Envelope> {
    decode(Parts {
        content_type: content_type.into(),
        attributes: attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        headers: vec![("x-own".into(), "1".into())],
        body: body.into(),
    })
}

#[test]
fn a_structured_event_is_one_json_object() {
    let mut envelope = Envelope {
        id: "1".into(),
        source: "/shop".into(),
        kind: "order.placed".into(),
        schema_version: 2,
        content_type: "application/json".into(),
        time: Some(Timestamp::from_micros(1_700_000_000_123_456)),
        payload: b"{\"total\": 1.50}".to_vec(),
        ..Envelope::default()
    };
    envelope.headers.insert("X-Own".into(), "ü".into());

    let parts = encode(&envelope, Mode::Structured);

    assert_eq!(parts.content_type, "application/cloudevents+json; charset=utf-8");
    assert!(parts.attributes.is_empty() && parts.headers.is_empty());
    assert_eq!(
        String::from_utf8(parts.body).unwrap(),
        r#"{"specversion":"1.0","id":"1","source":"/shop","type":"order.placed","time":"2023-11-14T22:13:20.123456Z","schemaversion":2,"datacontenttype":"application/json","headers":"{\"X-Own\":\"ü\"}","data":{"total": 1.50}}"#
    );
}

#[test]
fn a_binary_event_is_the_payload_with_attributes_beside_it() {
    let mut envelope = Envelope {
        id: "1".into(),
        source: "/shop".into(),
        kind: "order.placed".into(),
        schema_version: 2,
        key: Some("cart 7".into()),
        content_type: "application/json".into(),
        payload: b"{}".to_vec(),
        ..Envelope::default()
    };
    envelope.headers.extend([("x-own", "v"), ("X-Odd", "ü")].map(|(n, v)| (n.to_owned(), v.to_owned())));

    let (table, lines) = (encode(&envelope, Mode::Binary), encode_for_text_headers(&envelope, Mode::Binary));

    let own = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let attributes = [
        ("specversion", "1.0"),
        ("id", "1"),
        ("source", "/shop"),
        ("type", "order.placed"),
        ("partitionkey", "cart 7"),
        ("schemaversion", "2"),
    ];
    assert_eq!((&table.content_type[..], &table.body[..]), ("application/json", &b"{}"[..]));
    assert_eq!(table.attributes, own(&attributes));
    assert_eq!(table.headers, own(&[("X-Odd", "ü"), ("x-own", "v")]));
    assert_eq!(lines.attributes, own(&[&attributes[..], &[("headers", "{\"X-Odd\":\"ü\"}")]].concat()));
    assert_eq!(lines.headers, own(&[("x-own", "v")]));
}

#[test]
fn structured_events_of_others_are_understood() {
    let event = structured(&json!({
        "specversion": "1.0", "ID": "1", "source": "/else", "type": "t", "time": "2023-11-14T23:13:20+01:00",
        "schemaversion": "7", "comexampleflag": true, "comexamplecount": 3, "nothing": null,
        "headers": {"a": "b", "n": 1}, "data": {"x": 1},
    }))
    .unwrap();

    assert_eq!((&event.id[..], &event.source[..], &event.kind[..]), ("1", "/else", "t"));
    assert_eq!(event.time, Some(Timestamp::from_micros(1_700_000_000_000_000)));
    assert_eq!((event.schema_version, &event.payload[..]), (7, &b"{\"x\":1}"[..]));
    let headers = [("a", "b"), ("comexamplecount", "3"), ("comexampleflag", "true"), ("n", "1")];
    assert!(event.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).eq(headers), "{:?}", event.headers);
}

#[test]
fn the_payload_is_what_data_stands_for() {
    let base = json!({"specversion": "1.0", "id": "1", "source": "s", "type": "t"});
    let with = |members: Value| {
        let mut event = base.clone();
        event.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        structured(&event).map(|event| String::from_utf8(event.payload).unwrap())
    };
    let cases = [
        (json!({}), ""),
        (json!({"data": null}), ""),
        (json!({"data": "text"}), "\"text\""),
        (json!({"data": "text", "datacontenttype": "application/json"}), "\"text\""),
        (json!({"data": "text\n", "datacontenttype": "text/plain"}), "text\n"),
        (json!({"data": "<a/>", "datacontenttype": "application/xml"}), "<a/>"),
        (json!({"data": [1], "datacontenttype": "text/plain"}), "[1]"),
        (json!({"data_base64": "Zm9v"}), "foo"),
        (json!({"data_base64": "Zm9vYg", "datacontenttype": "application/json"}), "foob"),
    ];

    for (members, payload) in cases {
        assert_eq!(with(members.clone()).unwrap(), payload, "{members}");
    }
}

#[test]
fn an_event_without_optional_attributes_is_understood() {
    let of = |event: Envelope| (event.id, event.schema_version, event.time, event.content_type);

    assert_eq!(
        of(structured(&json!({"specversion": "1.0"})).unwrap()),
        (String::new(), 1, None, String::new())
    );
    let event = binary(&[("specversion", "1.0"), ("ID", "1"), ("time", "")], "", "x").unwrap();
    assert_eq!(of(event), ("1".into(), 1, None, String::new()));
}

#[test]
fn binary_events_of_others_are_understood() {
    let attributes = [
        ("SpecVersion", "1.0"),
        ("Id", "1"),
        ("Type", "t"),
        ("comExample", "x"),
        ("schemaversion", "2.1"),
        ("headers", "not an object"),
        ("x-own", "an attribute does not replace a header"),
    ];

    let event = binary(&attributes, "text/plain", "body").unwrap();

    assert_eq!((&event.id[..], &event.kind[..], &event.payload[..]), ("1", "t", &b"body"[..]));
    assert_eq!((&event.content_type[..], event.schema_version), ("text/plain", 1));
    let headers =
        [("comexample", "x"), ("headers", "not an object"), ("schemaversion", "2.1"), ("x-own", "1")];
    assert!(event.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).eq(headers), "{:?}", event.headers);
}

#[test]
fn what_is_no_event_is_bare() {
    let bare = binary(&[("id", "1")], "", "{\"a\":1}").unwrap();

    assert_eq!((&bare.id[..], &bare.source[..], &bare.kind[..]), ("", "", ""));
    assert_eq!((&bare.content_type[..], &bare.payload[..]), ("application/json", &b"{\"a\":1}"[..]));
    assert_eq!(bare.headers.get("id").map(String::as_str), Some("1"), "kept, but not believed");
    assert_eq!(binary(&[], "text/csv", "a,b").unwrap().content_type, "text/csv");
}

#[test]
fn what_claims_to_be_an_event_and_is_none_is_corrupt() {
    let body = |content_type: &str, body: &str| {
        decode(Parts { content_type: content_type.into(), body: body.into(), ..Parts::default() })
    };
    let cloud = "application/cloudevents+json";
    let cases = [
        (body(cloud, ""), "the event is not a JSON object"),
        (body(cloud, "[]"), "the event is not a JSON object"),
        (body(cloud, "{\"specversion\":\"1.0\"} x"), "the event is not a JSON object"),
        (body("application/cloudevents-batch+json", "[]"), "application/cloudevents-batch+json are not"),
        (body("application/cloudevents+avro", ""), "application/cloudevents+avro are not"),
        (structured(&json!({"specversion": "0.3"})), "CloudEvents version \"0.3\" is not supported"),
        (structured(&json!({"data_base64": "Zm9v!"})), "data_base64 is not base64"),
        (structured(&json!({"data_base64": 1})), "data_base64 is not a text"),
        (structured(&json!({"data_base64": "", "data": 1})), "both data and data_base64"),
        (structured(&json!({"time": "yesterday"})), "the attribute time is wrong"),
        (binary(&[("specversion", "2.0")], "", ""), "CloudEvents version \"2.0\" is not supported"),
        (binary(&[("specversion", "1.0"), ("time", "0")], "", ""), "the attribute time is wrong"),
        (from_json(&json!("text")), "the event is not a JSON object"),
    ];

    for (result, text) in cases {
        let error = result.err().unwrap_or_else(|| panic!("no error: {text}"));
        assert_eq!(error.kind(), Kind::Corrupt, "{text}");
        assert!(error.to_string().contains(text), "{error}: {text}");
    }
}

#[test]
fn a_json_value_is_read_back() {
    let envelope = Envelope {
        id: "1".into(),
        schema_version: 3,
        key: Some("k".into()),
        content_type: "application/json".into(),
        headers: [("A b".to_owned(), "ü".to_owned())].into(),
        payload: b"{\"b\":1,\"a\":2}".to_vec(),
        ..Envelope::default()
    };

    assert!(from_json(&to_json(&envelope)).unwrap() == envelope);
}

#[test]
fn a_payload_that_only_claims_to_be_json_travels_as_bytes() {
    let json = Envelope {
        payload: b"{\"a\":1}".to_vec(),
        content_type: "application/json".into(),
        ..Envelope::default()
    };
    let broken = Envelope { payload: b"{".to_vec(), ..json.clone() };

    assert_eq!(to_json(&json).pointer("/data/a"), Some(&Value::from(1)));
    assert_eq!(to_json(&broken).get("data_base64"), Some(&Value::from("ew==")));
}

#[test]
fn a_mode_is_read_as_it_is_written_and_debug_hides_what_travels() {
    for mode in [Mode::Binary, Mode::Structured] {
        assert_eq!(mode.to_string().parse::<Mode>().ok(), Some(mode));
    }
    assert_eq!("Binary".parse::<Mode>().err().map(|error| error.kind()), Some(Kind::Config));

    let secret = Envelope { id: "SECRET".into(), payload: b"SECRET".to_vec(), ..Envelope::default() };
    assert!(!format!("{:?}", encode(&secret, Mode::Binary)).contains("SECRET"));
}

#[test]
fn a_stored_message_comes_back_as_it_was() {
    let mut whole = Envelope {
        id: "a\0b".into(),
        source: "s".into(),
        kind: "k".into(),
        schema_version: 7,
        tenant: "t".into(),
        key: Some("key".into()),
        destination: "d".into(),
        content_type: "application/json".into(),
        time: Some(Timestamp::from_micros(1_700_000_000_123_456)),
        payload: b" {\"x\" : 1} ".to_vec(),
        ..Envelope::default()
    };
    whole.headers.insert("Ünusual\0".into(), "\"v\"\n".into());

    let text = to_attributes(&whole).to_string();

    assert!(!text.contains('\0'), "{text}");
    assert_eq!(from_attributes(&text, whole.payload.clone()).unwrap(), whole);
    assert_eq!(from_attributes("[", Vec::new()).unwrap_err().kind(), Kind::Corrupt);
}
