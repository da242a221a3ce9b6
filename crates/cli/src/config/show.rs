//! `--print-config`: each value that counts, and where it came from.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::file::Tables;
use super::keys::Shape;
use super::values::Values;

/// Sections in the order of the file.
fn sections(tables: &Tables) -> Vec<(&'static str, &Values)> {
    let mut all = vec![("[log]", &tables.log), ("[health]", &tables.health)];
    all.extend(tables.stores.iter().map(|store| ("[[store]]", store)));
    for sink in &tables.sinks {
        all.push(("[[sink]]", &sink.values));
        all.push(("[sink.signing]", &sink.signing));
        all.extend(sink.also.iter().map(|key| ("[[sink.signing.also]]", key)));
        all.extend(sink.routes.iter().map(|route| ("[[sink.route]]", route)));
    }
    all
}

pub(super) fn text(tables: &Tables) -> String {
    let mut text = String::new();
    for (title, values) in sections(tables) {
        let lines: Vec<_> = values.shown().collect();
        if lines.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{title}");
        for (key, value, origin) in lines {
            let line = format!("{} = {}", key.name, literal(key.shape, &value));
            let _ = writeln!(text, "{line:<48} # {origin}");
        }
        text.push('\n');
    }
    text
}

/// As it is written in the file.
fn literal(shape: Shape, value: &str) -> String {
    let quoted = |text: &str| json!(text).to_string();
    match shape {
        Shape::Count(..) | Shape::Flag => value.to_owned(),
        Shape::List => {
            format!("[{}]", value.split(',').map(|part| quoted(part.trim())).collect::<Vec<_>>().join(", "))
        }
        _ => quoted(value),
    }
}

pub(super) fn json(tables: &Tables) -> String {
    let section = |(title, values): (&str, &Values)| {
        let keys: Map<String, Value> = values
            .shown()
            .map(|(key, value, origin)| {
                (
                    key.name.to_owned(),
                    json!({ "value": value, "origin": origin.to_string(), "meaning": key.help }),
                )
            })
            .collect();
        (!keys.is_empty()).then(|| json!({ "section": title, "keys": keys }))
    };
    let all: Vec<Value> = sections(tables).into_iter().filter_map(section).collect();
    json!({ "v": 1, "config": all }).to_string()
}
