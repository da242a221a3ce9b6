//! How the command line fails: a code to look up, an exit code for scripts, and
//! what to do about it.

use std::fmt::Write as _;

use oncebox_core::{Error, Kind};

use crate::output::{Format, plain};

/// Listed in `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  it worked
  1  it failed
  2  the command line was not understood
  3  unhealthy (status)
  5  refused
  6  the schema is missing, behind or ahead
  7  the database or destination cannot be reached
  130  interrupted";

/// The class of a fault: its code, its name and its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Failed,
    Input,
    DemoFailed,
    Schema,
    Config,
    Unreachable,
    Output,
}

impl Class {
    /// Every class; each has an entry in `docs/reference/errors.md`.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 7] = [
        Self::Failed,
        Self::Input,
        Self::DemoFailed,
        Self::Schema,
        Self::Config,
        Self::Unreachable,
        Self::Output,
    ];

    pub(crate) const fn describe(self) -> (&'static str, &'static str, u8) {
        match self {
            Self::Failed => ("OBX1001", "oncebox::failed", 1),
            Self::DemoFailed => ("OBX1002", "oncebox::demo::disproved", 1),
            Self::Output => ("OBX1003", "oncebox::output", 1),
            Self::Input => ("OBX2001", "oncebox::input", 2),
            Self::Config => ("OBX5001", "oncebox::refused", 5),
            Self::Schema => ("OBX6001", "oncebox::schema", 6),
            Self::Unreachable => ("OBX7001", "oncebox::unreachable", 7),
        }
    }
}

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) struct Fault {
    class: Class,
    message: String,
    help: Option<String>,
}

impl Fault {
    pub(crate) fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), help: None }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The fault of a store's start-up check: what is wrong with its tables.
    pub(crate) fn schema(error: &Error) -> Self {
        match error.kind() {
            Kind::Config => Self::new(Class::Schema, error.chain()),
            _ => Self::from(error),
        }
    }

    /// The fault of opening a database, whoever is to blame that it does not open.
    pub(crate) fn unreachable(error: &Error) -> Self {
        match error.kind() {
            Kind::Config => Self::new(Class::Unreachable, error.chain()),
            _ => Self::from(error),
        }
    }

    pub(crate) const fn exit(&self) -> u8 {
        self.class.describe().2
    }

    pub(crate) fn print(&self, format: Format) {
        eprintln!("{}", self.render(format));
    }

    fn render(&self, format: Format) -> String {
        let (code, name, exit) = self.class.describe();
        let docs = format!("docs/reference/errors.md#{}", code.to_lowercase());
        if format == Format::Json {
            let error = serde_json::json!({
                "code": code, "name": name, "message": self.message,
                "help": self.help, "docs": docs, "exit": exit,
            });
            return serde_json::json!({ "v": 1, "error": error }).to_string();
        }
        let mut text = format!("Error: {name}  ({code}, exit {exit})\n  x {}\n", plain(&self.message));
        if let Some(help) = &self.help {
            let _ = writeln!(text, "  help: {}", plain(help));
        }
        text + "  docs: " + &docs
    }
}

impl From<&Error> for Fault {
    fn from(error: &Error) -> Self {
        let class = match error.kind() {
            Kind::Invalid => Class::Input,
            Kind::Config => Class::Config,
            Kind::Unavailable | Kind::Busy => Class::Unreachable,
            _ => Class::Failed,
        };
        Self::new(class, error.chain())
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        Self::new(Class::Failed, error.to_string())
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::new(Class::Output, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_unique_and_has_its_page() {
        let pages = include_str!("../../../docs/reference/errors.md");
        let mut seen = std::collections::BTreeSet::new();

        for class in Class::ALL {
            let (code, name, _) = class.describe();
            assert!(seen.insert(code), "{code} is used twice");
            assert!(
                pages.contains(&format!("## {code}")) && pages.contains(name),
                "{code} is not documented"
            );
        }
    }

    #[test]
    fn the_json_form_is_one_object_on_one_line() {
        let text = Fault::new(Class::Schema, "behind\nby two").help("migrate").render(Format::Json);

        assert!(!text.contains('\n'));
        assert!(text.contains("\"exit\":6") && text.contains("\"code\":\"OBX6001\""));
    }
}
