//! The values of one section: what was given, and who gave it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::keys::{Key, Section, Shape, nearest};
use super::secret::{masked, shown};
use super::span;
use crate::fault::{Class, Fault};

/// Keys of which a section has one at most; a higher layer's takes the place of
/// a lower one's.
const ALTERNATIVES: [&[&str]; 5] = [
    &["url", "url_env", "url_file"],
    &["secret_env", "secret_file"],
    &["management_url", "management_url_env", "management_url_file"],
    &["authorization_env", "authorization_file"],
    &["webhook_secret_env", "webhook_secret_file"],
];

/// Who gave a value. Later ones win.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File { path: String, line: usize },
    Variable(&'static str),
    Flag(&'static str),
}

impl Origin {
    const fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File { .. } => 1,
            Self::Variable(_) => 2,
            Self::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A value as text; a list is separated by commas.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// The values of one section.
#[derive(Clone)]
pub(crate) struct Values {
    pub(crate) section: &'static Section,
    given: BTreeMap<&'static str, Given>,
}

impl Values {
    pub(crate) const fn new(section: &'static Section) -> Self {
        Self { section, given: BTreeMap::new() }
    }

    /// Takes a value unless a higher layer has given one.
    pub(crate) fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), Fault> {
        let key = self.key(name, &origin)?;
        if let Some(wanted) = refusal(key, text) {
            let shown = if key.shape == Shape::Url { String::new() } else { format!(", not {text:?}") };
            let text = format!("{origin}: `{name}` in {} {wanted}{shown}", self.section.title);
            return Err(Fault::new(Class::Input, text));
        }
        let rivals = ALTERNATIVES.iter().find(|group| group.contains(&key.name)).copied().unwrap_or(&[]);
        for rival in rivals.iter().filter(|rival| **rival != key.name) {
            match self.given.get(rival).map(|given| given.origin.rank()) {
                Some(rank) if rank == origin.rank() => {
                    let text = format!("{origin}: {} has both `{name}` and `{rival}`", self.section.title);
                    return Err(Fault::new(Class::Input, text).help("keep one of them"));
                }
                Some(rank) if rank > origin.rank() => return Ok(()),
                Some(_) => drop(self.given.remove(rival)),
                None => {}
            }
        }
        let is_lower = self.given.get(key.name).is_some_and(|given| given.origin.rank() > origin.rank());
        if !is_lower {
            self.given.insert(key.name, Given { text: text.to_owned(), origin });
        }
        Ok(())
    }

    fn key(&self, name: &str, origin: &Origin) -> Result<&'static Key, Fault> {
        self.section.key(name).ok_or_else(|| {
            unknown(
                name,
                &format!("{origin}: {}", self.section.title),
                self.section.keys.iter().map(|key| key.name),
            )
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// A value that was given although it is for another kind of destination.
    pub(crate) fn misplaced(&self, kind: &str) -> Option<(&'static Key, &Origin)> {
        self.section.keys.iter().find_map(|key| {
            let is_misplaced = !key.only.is_empty() && key.only != kind;
            self.given.get(key.name).filter(|_| is_misplaced).map(|given| (key, &given.origin))
        })
    }

    /// What was given for `name`, or its default.
    pub(crate) fn get(&self, name: &str) -> Option<Given> {
        let key = self.section.key(name)?;
        self.given.get(name).cloned().or_else(|| {
            (!key.default.is_empty()).then(|| Given { text: key.default.to_owned(), origin: Origin::Default })
        })
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(|given| given.text)
    }

    /// A value that has a default and a shape, both of which were checked.
    pub(crate) fn word(&self, name: &str) -> String {
        self.text(name).unwrap_or_default()
    }

    pub(crate) fn span(&self, name: &str) -> Option<Duration> {
        self.text(name).and_then(|text| span::parse(&text))
    }

    pub(crate) fn count(&self, name: &str) -> Option<usize> {
        self.text(name).and_then(|text| text.parse().ok())
    }

    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        let text = self.word(name);
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    /// Where a value came from, to begin a message with.
    pub(crate) fn place(&self, name: &str) -> String {
        self.get(name).map_or_else(|| self.section.title.to_owned(), |given| given.origin.to_string())
    }

    /// Every value with its key, as it may be shown.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&'static Key, String, Origin)> + '_ {
        self.section.keys.iter().filter_map(|key| {
            let Given { text, origin } = self.get(key.name)?;
            let text = match key.shape {
                Shape::Url => masked(&text),
                Shape::List => text.split(',').map(shown).collect::<Vec<_>>().join(","),
                _ => text,
            };
            Some((key, text, origin))
        })
    }
}

/// The fault of a key or table nobody knows.
pub(crate) fn unknown<'a>(name: &str, place: &str, known: impl Iterator<Item = &'a str> + Clone) -> Fault {
    let fault = Fault::new(Class::Input, format!("{place} has no key `{name}`"));
    match nearest(name, known.clone()) {
        Some(near) => fault.help(format!("did you mean `{near}`?")),
        None => fault
            .help(format!("it has {}", known.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))),
    }
}

/// What a value must be, if it is not that.
fn refusal(key: &Key, text: &str) -> Option<String> {
    let is_off = key.name == "keep" && text == "off";
    let accepted = match key.shape {
        Shape::Text | Shape::Url => !text.is_empty(),
        Shape::List => true,
        Shape::Span => is_off || span::parse(text).is_some(),
        Shape::Count(least, most) => text.parse().is_ok_and(|count: u64| (least..=most).contains(&count)),
        Shape::Choice(words) => words.contains(&text),
        Shape::Flag => ["true", "false"].contains(&text),
    };
    if accepted {
        return None;
    }
    Some(match key.shape {
        Shape::Text | Shape::Url | Shape::List => "must not be empty".into(),
        Shape::Span => "must be a time such as 500ms, 30s, 5m, 24h or 7d".into(),
        Shape::Count(least, most) => format!("must be a number from {least} to {most}"),
        Shape::Choice(words) => format!("must be one of {}", words.join(", ")),
        Shape::Flag => "must be true or false".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::keys::SINK;
    use super::*;

    const FLAG: Origin = Origin::Flag("--x");
    const VARIABLE: Origin = Origin::Variable("X");

    #[test]
    fn the_higher_layer_wins_whatever_comes_first() {
        let mut values = Values::new(&SINK);
        values.set("batch", "1", FLAG).unwrap();
        values.set("batch", "2", VARIABLE).unwrap();

        assert_eq!(values.count("batch"), Some(1));
        assert_eq!(values.get("poll").unwrap().origin, Origin::Default);
    }

    #[test]
    fn an_alternative_of_a_higher_layer_takes_the_place_of_a_lower_one() {
        let mut values = Values::new(&SINK);
        values.set("url_file", "/run/url", VARIABLE).unwrap();
        values.set("url", "amqp://h", FLAG).unwrap();
        values.set("url_env", "URL", VARIABLE).unwrap();

        assert_eq!(values.text("url").as_deref(), Some("amqp://h"));
        assert!(values.get("url_file").is_none() && values.get("url_env").is_none());
        assert!(values.set("url_file", "/run/url", FLAG).is_err(), "two of one layer");
    }

    #[test]
    fn a_refused_url_is_not_quoted() {
        let mut values = Values::new(&SINK);

        let fault = values.set("poll", "5 parsecs", FLAG).unwrap_err();

        assert!(format!("{fault:?}").contains("5 parsecs"));
        assert!(values.set("url", "", FLAG).is_err());
    }
}
