//! Environment and flags, laid over what a file says. They speak of one store
//! and one sink; with several it would not be clear which.

use std::collections::BTreeMap;

use super::Kind;
use super::file::{SinkTable, Tables};
use super::keys::{Key, SIGNING, SINK, STORE, Section};
use super::values::{Origin, Values};
use crate::fault::{Class, Fault};

/// What the command line says, by flag.
pub(crate) type Flags = BTreeMap<&'static str, String>;

/// Lays variables and flags over `tables`.
pub(super) fn over(
    mut tables: Tables,
    flags: &Flags,
    variable: impl Fn(&'static str) -> Option<String>,
) -> Result<Tables, Fault> {
    let over = Over { flags, variable: &|name| variable(name).filter(|text| !text.is_empty()) };
    over.lay(&mut tables.log)?;
    over.lay(&mut tables.health)?;
    if tables.stores.is_empty() {
        tables.stores.push(Values::new(&STORE));
    }
    match tables.stores.as_mut_slice() {
        [store] => {
            over.lay(store)?;
            over.lay_database_url(store)?;
        }
        _ => over.refuse(&STORE, "stores")?,
    }
    if tables.sinks.is_empty() {
        tables.sinks.push(SinkTable::default());
    }
    match tables.sinks.as_mut_slice() {
        [sink] => {
            over.lay(&mut sink.values)?;
            over.lay(&mut sink.signing)?;
        }
        _ => {
            over.refuse(&SINK, "sinks")?;
            over.refuse(&SIGNING, "sinks")?;
        }
    }
    Ok(tables)
}

struct Over<'a> {
    flags: &'a Flags,
    variable: &'a dyn Fn(&'static str) -> Option<String>,
}

impl Over<'_> {
    /// What flag and variable say about a key, the stronger first.
    fn given(&self, key: &Key) -> Vec<(String, Origin)> {
        let flag = self.flags.get(key.flag).map(|text| (text.clone(), Origin::Flag(key.flag)));
        let variable = Some(key.env).filter(|name| !name.is_empty());
        let variable = variable.and_then(|name| Some(((self.variable)(name)?, Origin::Variable(name))));
        flag.into_iter().chain(variable).collect()
    }

    fn lay(&self, values: &mut Values) -> Result<(), Fault> {
        for key in values.section.keys {
            for (text, origin) in self.given(key) {
                match key.name {
                    "to" => lay_destination(values, &text, origin)?,
                    name => values.set(name, &text, origin)?,
                }
            }
        }
        Ok(())
    }

    /// Other programs' variable: it fills a gap but overrides nothing.
    fn lay_database_url(&self, store: &mut Values) -> Result<(), Fault> {
        let is_open = ["url", "url_env", "url_file"].iter().all(|name| store.get(name).is_none());
        match (self.variable)("DATABASE_URL") {
            Some(url) if is_open => store.set("url", &url, Origin::Variable("DATABASE_URL")),
            _ => Ok(()),
        }
    }

    fn refuse(&self, section: &Section, what: &str) -> Result<(), Fault> {
        match section.keys.iter().find_map(|key| self.given(key).into_iter().next()) {
            None => Ok(()),
            Some((_, origin)) => {
                let text = format!("{origin} speaks of one of the {what}, but the file has several");
                Err(Fault::new(Class::Input, text).help("set it in the file"))
            }
        }
    }
}

/// A kind of destination, or a URL that says which.
fn lay_destination(values: &mut Values, text: &str, origin: Origin) -> Result<(), Fault> {
    if !text.contains("://") {
        return values.set("to", text, origin);
    }
    let Some(kind) = Kind::of_url(text) else {
        let text = format!("{origin}: oncebox does not know destinations of this kind");
        return Err(Fault::new(Class::Input, text).help("use amqp(s)://, nats://, http(s):// or stdout"));
    };
    values.set("to", kind.name(), origin.clone())?;
    values.set("url", text, origin)
}
