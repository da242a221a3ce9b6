//! Reading `oncebox.toml`: what it says and on which line. Nothing unknown
//! passes, because a misspelt key would silently mean its default.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{HEALTH, LOG, ROUTE, SIGNING, SINK, STORE, Section};
use super::values::{Origin, Values, unknown};
use crate::fault::{Class, Fault};

/// No configuration is longer than this.
const MAX_BYTES: usize = 1 << 20;

/// What a file says about a sink.
#[derive(Clone)]
pub(crate) struct SinkTable {
    pub(crate) values: Values,
    pub(crate) routes: Vec<Values>,
    pub(crate) signing: Values,
    /// Keys that are accepted but do not sign.
    pub(crate) also: Vec<Values>,
}

impl Default for SinkTable {
    fn default() -> Self {
        let (values, signing) = (Values::new(&SINK), Values::new(&SIGNING));
        Self { values, signing, routes: Vec::new(), also: Vec::new() }
    }
}

/// A file, section by section.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) log: Values,
    pub(crate) health: Values,
    pub(crate) stores: Vec<Values>,
    pub(crate) sinks: Vec<SinkTable>,
}

impl Default for Tables {
    fn default() -> Self {
        Self { log: Values::new(&LOG), health: Values::new(&HEALTH), stores: Vec::new(), sinks: Vec::new() }
    }
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Tables, Fault> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Fault::new(Class::Input, format!("cannot read {name}: {error}")))?;
    parse(&name, &text)
}

/// Reads the text of a file called `path`.
pub(crate) fn parse(path: &str, text: &str) -> Result<Tables, Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault::new(Class::Input, format!("{path} is longer than {MAX_BYTES} bytes")));
    }
    let reader = Reader { path, text };
    let table = DeTable::parse(text).map_err(|error| {
        let line = reader.line(error.span().map_or(0, |span| span.start));
        Fault::new(Class::Input, format!("{path}:{line}: {}", error.message()))
    })?;
    reader.tables(table.get_ref())
}

struct Reader<'a> {
    path: &'a str,
    text: &'a str,
}

type Table<'a> = DeTable<'a>;
type Value<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    fn at(&self, offset: usize) -> Origin {
        Origin::File { path: self.path.to_owned(), line: self.line(offset) }
    }

    fn wrong(&self, value: &Value<'_>, what: &str) -> Fault {
        Fault::new(Class::Input, format!("{}: {what}", self.at(value.span().start)))
    }

    fn tables(&self, table: &Table<'_>) -> Result<Tables, Fault> {
        let mut tables = Tables::default();
        for (name, value) in table {
            match name.get_ref().as_ref() {
                "log" => self.fill(&mut tables.log, self.table(value, "[log]")?, &[])?,
                "health" => self.fill(&mut tables.health, self.table(value, "[health]")?, &[])?,
                "store" => {
                    for table in self.array(value, "[[store]]")? {
                        let mut values = Values::new(&STORE);
                        self.fill(&mut values, table, &[])?;
                        tables.stores.push(values);
                    }
                }
                "sink" => {
                    for table in self.array(value, "[[sink]]")? {
                        tables.sinks.push(self.sink(table)?);
                    }
                }
                other => {
                    let place = format!("{}: the file", self.at(name.span().start));
                    return Err(unknown(other, &place, ["log", "health", "store", "sink"].into_iter()));
                }
            }
        }
        Ok(tables)
    }

    fn sink(&self, table: &Table<'_>) -> Result<SinkTable, Fault> {
        let mut sink = SinkTable::default();
        self.fill(&mut sink.values, table, &["route", "signing"])?;
        if let Some(routes) = table.get("route") {
            sink.routes = self.list(routes, &ROUTE, "[[sink.route]]")?;
        }
        if let Some(signing) = table.get("signing") {
            let table = self.table(signing, "signing")?;
            self.fill(&mut sink.signing, table, &["also"])?;
            if let Some(also) = table.get("also") {
                sink.also = self.list(also, &SIGNING, "also")?;
            }
        }
        Ok(sink)
    }

    fn list(&self, value: &Value<'_>, section: &'static Section, title: &str) -> Result<Vec<Values>, Fault> {
        let fill = |table| {
            let mut values = Values::new(section);
            self.fill(&mut values, table, &[]).map(|()| values)
        };
        self.array(value, title)?.into_iter().map(fill).collect()
    }

    /// Takes every key of a table but those named in `inner`, which are tables themselves.
    fn fill(&self, values: &mut Values, table: &Table<'_>, inner: &[&str]) -> Result<(), Fault> {
        for (name, value) in table {
            let key = name.get_ref().as_ref();
            if inner.contains(&key) {
                continue;
            }
            if key == "secret" {
                let text = format!("{}: a secret does not belong into this file", self.at(name.span().start));
                return Err(Fault::new(Class::Input, text)
                    .help("name a variable with secret_env, or a file with secret_file"));
            }
            if values.section.key(key).is_none() {
                let known = values.section.keys.iter().map(|key| key.name).chain(inner.iter().copied());
                let place = format!("{}: {}", self.at(name.span().start), values.section.title);
                return Err(unknown(key, &place, known));
            }
            values.set(key, &self.scalar(value)?, self.at(value.span().start))?;
        }
        Ok(())
    }

    fn scalar(&self, value: &Value<'_>) -> Result<String, Fault> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            DeValue::Integer(number) => Ok(number.to_string()),
            DeValue::Boolean(flag) => Ok(flag.to_string()),
            DeValue::Array(parts) => {
                let texts: Option<Vec<&str>> = parts.iter().map(|part| part.get_ref().as_str()).collect();
                texts.map(|texts| texts.join(",")).ok_or_else(|| self.wrong(value, "a list must hold texts"))
            }
            other => Err(self.wrong(value, &format!("a {} has no place here", other.type_str()))),
        }
    }

    fn table<'t, 'i>(&self, value: &'t Value<'i>, title: &str) -> Result<&'t Table<'i>, Fault> {
        value.get_ref().as_table().ok_or_else(|| self.wrong(value, &format!("{title} must be a table")))
    }

    fn array<'t, 'i>(&self, value: &'t Value<'i>, title: &str) -> Result<Vec<&'t Table<'i>>, Fault> {
        let refusal =
            || self.wrong(value, &format!("{title} must be a list of tables; mind the double brackets"));
        let parts = value.get_ref().as_array().ok_or_else(refusal)?;
        parts.iter().map(|part| part.get_ref().as_table().ok_or_else(refusal)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        match parse("oncebox.toml", text) {
            Ok(_) => panic!("accepted: {text}"),
            Err(fault) => format!("{fault:?}"),
        }
    }

    #[test]
    fn a_refusal_names_file_line_and_the_nearest_key() {
        let cases = [
            ("[[sink]]\nto = \"stdout\"\npol = \"1s\"\n", "oncebox.toml:3", "`poll`"),
            ("[[sinks]]\n", "oncebox.toml:1", "`sink`"),
            ("[log]\n\nlevel = \"info\"\n", "oncebox.toml:3", "`filter`"),
            ("[[sink]]\n[[sink.route]]\nmesage = \"*\"\n", "oncebox.toml:3", "`message`"),
            ("[[sink]]\n[[sink.rout]]\nmessage = \"*\"\n", "oncebox.toml:2", "`route`"),
            ("[[sink]]\nbatch = 0\n", "oncebox.toml:2", "1 to 10000"),
            ("[[sink]]\npoll = \"fast\"\n", "oncebox.toml:2", "500ms"),
            ("[[sink]]\npoll = 500\n", "oncebox.toml:2", "500ms"),
            ("[[sink]]\nto = \"kafka\"\n", "oncebox.toml:2", "rabbitmq, nats, http, stdout"),
            ("[sink]\nto = \"stdout\"\n", "oncebox.toml:1", "double brackets"),
            ("[[store]]\nurl = \"a\"\nurl_env = \"B\"\n", "oncebox.toml:3", "both"),
            ("[[store]]\nname = {}\n", "oncebox.toml:2", "table"),
            ("\n\n[[store]\n", "oncebox.toml:3", ""),
            ("[[store]]\nname = \"a\"\nname = \"b\"\n", "oncebox.toml:3", "duplicate"),
        ];

        for (text, place, hint) in cases {
            let refusal = refusal(text);
            assert!(refusal.contains(place) && refusal.contains(hint), "{text:?}: {refusal}");
        }
    }

    #[test]
    fn a_secret_in_the_file_is_refused_and_not_quoted() {
        let refusal = refusal("[[sink]]\n[sink.signing]\nkey_id = \"k\"\nsecret = \"hunter2\"\n");

        assert!(refusal.contains("oncebox.toml:4") && refusal.contains("secret_file"), "{refusal}");
        assert!(!refusal.contains("hunter2"), "{refusal}");
    }

    #[test]
    fn nested_tables_are_read() {
        let text = "[[sink]]\nto = \"stdout\"\ndestinations = [\"a\", \"b\"]\n\
            signing = { key_id = \"k2\", secret_env = \"S\", also = [{ key_id = \"k1\", secret_file = \"f\" }] }\n\
            [[sink.route]]\nmessage = \"order.*\"\nto = \"orders\"\nmax_bytes = 10\n";

        let tables = parse("oncebox.toml", text).unwrap();

        let sink = &tables.sinks[0];
        assert_eq!(sink.values.list("destinations"), ["a", "b"]);
        assert_eq!(sink.signing.text("key_id").as_deref(), Some("k2"));
        assert_eq!(sink.also[0].text("secret_file").as_deref(), Some("f"));
        assert_eq!(sink.routes[0].count("max_bytes"), Some(10));
        assert_eq!(sink.routes[0].place("to"), "oncebox.toml:7");
    }
}
