//! How the command line fails: a code to look up, an exit code for scripts, and
//! what to do about it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use oncebox_core::{Error, Kind};

use crate::output::{Format, plain};

/// Listed in `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  it worked
  1  it failed
  2  the command line was not understood
  3  unhealthy (status)
  4  there is no such thing
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
    NotFound,
    Schema,
    Config,
    Unreachable,
    Output,
}

impl Class {
    /// Every class; each has an entry in `docs/reference/errors.md`.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 8] = [
        Self::Failed,
        Self::Input,
        Self::DemoFailed,
        Self::NotFound,
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
            Self::NotFound => ("OBX4001", "oncebox::not_found", 4),
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

    /// The same with more to say.
    pub(crate) fn and(mut self, more: impl AsRef<str>) -> Self {
        self.message.push_str(more.as_ref());
        self
    }

    /// The fault of a command line, from what clap would print about it.
    fn usage(text: &str) -> Self {
        let mut paragraphs = text.split("\n\n");
        let first = paragraphs.next().unwrap_or_default();
        let lines = first.trim_start_matches("error: ").lines().map(str::trim);
        let message = lines.collect::<Vec<_>>().join(" ");
        let usage = text.lines().find(|line| line.starts_with("Usage: "));
        Self::new(Class::Input, message).help(usage.unwrap_or("see oncebox --help"))
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

    pub(crate) fn message(&self) -> &str {
        &self.message
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

/// Ends a run whose command line was not understood, or was a call for help.
pub(crate) fn misunderstood(error: &clap::Error) -> ExitCode {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let text = error.render().to_string();
    let masked = without_userinfo(&text);
    if !is_help && wants_json(std::env::args_os().skip(1)) {
        let fault = match error.kind() {
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Fault::usage("a command is missing"),
            _ => Fault::usage(&masked),
        };
        fault.print(Format::Json);
    } else if masked == text {
        // In colour, where there is any.
        error.print().ok();
    } else {
        eprint!("{masked}");
    }
    ExitCode::from(if is_help { 0 } else { Class::Input.describe().2 })
}

/// Whether the arguments ask for JSON, although they cannot be understood as a whole.
fn wants_json(args: impl Iterator<Item = OsString>) -> bool {
    let args: Vec<_> =
        args.take_while(|arg| arg != "--").map(|arg| arg.to_string_lossy().into_owned()).collect();
    let is_joined = |arg: &String| ["-ojson", "-o=json", "--output=json"].contains(&arg.as_str());
    let is_apart =
        |pair: &[String]| matches!(pair, [o, json] if (o == "-o" || o == "--output") && json == "json");
    args.iter().any(is_joined) || args.windows(2).any(is_apart)
}

/// The text without what stands before the host of a URL: what is quoted, an argument
/// in the wrong place or a handler's error, may name a URL with a password.
pub(crate) fn without_userinfo(text: &str) -> String {
    let mut parts = text.split("://");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || c == '\'').unwrap_or(part.len());
        let host = part.get(..end).and_then(|word| word.rfind('@')).map_or(0, |at| at + 1);
        let mask = if host > 0 { "…@" } else { "" };
        let _ = write!(masked, "://{mask}{}", part.get(host..).unwrap_or_default());
    }
    masked
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
    fn a_quoted_url_loses_its_userinfo_and_nothing_else() {
        let text = "unexpected argument 'postgres://joe:hunter2@h:1/db' found, see https://x.y/a";

        assert_eq!(
            without_userinfo(text),
            "unexpected argument 'postgres://…@h:1/db' found, see https://x.y/a"
        );
        assert_eq!(without_userinfo("a://b:p@s@c/d?e=f@g"), "a://…@g", "rather too much than too little");
        assert_eq!(without_userinfo("plain"), "plain");
    }

    #[test]
    fn json_is_wanted_if_any_form_of_the_option_says_so() {
        let wants = |args: &[&str]| wants_json(args.iter().map(OsString::from));

        for args in [&["x", "-o", "json"][..], &["-ojson"], &["--output=json", "x"], &["--output", "json"]] {
            assert!(wants(args), "{args:?}");
        }
        assert!(!wants(&["-o", "text"]) && !wants(&["json"]) && !wants(&["--", "-o", "json"]));
    }

    #[test]
    fn the_json_form_is_one_object_on_one_line() {
        let text = Fault::new(Class::Schema, "behind\nby two").help("migrate").render(Format::Json);

        assert!(!text.contains('\n'));
        assert!(text.contains("\"exit\":6") && text.contains("\"code\":\"OBX6001\""));
    }
}
