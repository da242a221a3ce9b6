//! Values that are not shown: where they are kept, and what is shown instead.

use std::fmt;
use std::path::PathBuf;

use super::values::Values;
use crate::fault::{Class, Fault};

/// No URL or key is longer than this; a file that is, is something else.
const MAX_BYTES: u64 = 64 << 10;

/// A text that no log, error or debug print shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// The text itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Where a secret is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    Literal(Secret),
    Variable(String),
    File(PathBuf),
}

impl Reference {
    /// The reference of a section, by the keys `{stem}`, `{stem}_env`, `{stem}_file`.
    pub(crate) fn of(values: &Values, stem: &str) -> Option<Self> {
        let literal = values.text(stem).map(|text| Self::Literal(Secret(text)));
        let variable = || values.text(&format!("{stem}_env")).map(Self::Variable);
        let file = || values.text(&format!("{stem}_file")).map(|path| Self::File(path.into()));
        literal.or_else(variable).or_else(file)
    }

    /// Reads it; a file is read afresh each time. Blanks around it are not part of it.
    pub(crate) fn read(&self) -> Result<Secret, Fault> {
        let text = match self {
            Self::Literal(secret) => return Ok(secret.clone()),
            Self::Variable(name) => std::env::var(name).map_err(|_| {
                Fault::new(Class::Input, format!("the environment variable {name} is not set"))
            })?,
            Self::File(path) => read_file(path)?,
        };
        let text = text.trim();
        if text.is_empty() {
            return Err(Fault::new(Class::Input, format!("{self} is empty")));
        }
        Ok(Secret(text.to_owned()))
    }
}

fn read_file(path: &PathBuf) -> Result<String, Fault> {
    let refuse = |what: String| Fault::new(Class::Input, format!("cannot read {}: {what}", path.display()));
    let about = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
    if !about.is_file() || about.len() > MAX_BYTES {
        return Err(refuse(format!("it is not a file of at most {MAX_BYTES} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(_) => f.write_str("the value"),
            Self::Variable(name) => write!(f, "the environment variable {name}"),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

/// A URL without its user, password and parameters; of a web address only the
/// host, because paths of web hooks are often secrets.
pub(crate) fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        // The path of a file; or a URL somebody mistyped.
        return match url.contains('@') {
            true => "***".to_owned(),
            false => url.split('?').next().unwrap_or_default().to_owned(),
        };
    };
    if ["http", "https"].iter().any(|web| scheme.trim().eq_ignore_ascii_case(web)) {
        return host_only(scheme.trim(), rest);
    }
    let (rest, parameters) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, "?***"));
    // A password may hold a slash that should have been escaped, so the last @ counts.
    let rest = rest.rsplit_once('@').map_or_else(|| rest.to_owned(), |(_, place)| format!("***@{place}"));
    format!("{scheme}://{rest}{parameters}")
}

/// A destination as it may be shown: a URL is cut to its host.
pub(crate) fn shown(destination: &str) -> String {
    match destination.split_once("://") {
        Some((scheme, rest)) => host_only(scheme.trim(), rest),
        None => destination.to_owned(),
    }
}

fn host_only(scheme: &str, rest: &str) -> String {
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    // Behind a slash that should have been escaped, the password goes on.
    if path.contains('@') {
        return format!("{scheme}://***");
    }
    let host =
        authority.rsplit_once('@').map_or_else(|| authority.to_owned(), |(_, host)| format!("***@{host}"));
    let path = if path.is_empty() || path == "/" { path } else { "/***" };
    format!("{scheme}://{host}{path}")
}

/// Whether a URL carries a password in plain sight.
pub(crate) fn has_password(url: &str) -> bool {
    let user = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':')) || url.contains("password=")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_url_has_no_secret() {
        let cases = [
            ("amqp://u:hunter2@h:5672/v", "amqp://***@h:5672/v"),
            ("nats://hunter2@h", "nats://***@h"),
            ("postgres://h/db?password=hunter2", "postgres://h/db?***"),
            ("https://h/hunter2?key=hunter2", "https://h/***"),
            (" HTTP://u:hunter2@h:80#hunter2", "HTTP://***@h:80/***"),
            ("https://u:hunter2/@h/x", "https://***"),
            ("https://h:15672/", "https://h:15672/"),
            ("amqp://u:hunter2/@h", "amqp://***@h"),
            ("orders.db", "orders.db"),
            ("u:hunter2@h", "***"),
            ("sqlite:orders.db?key=hunter2", "sqlite:orders.db"),
        ];

        for (url, shown) in cases {
            assert_eq!(masked(url), shown);
        }
        assert_eq!(
            (shown("orders.v1").as_str(), shown("https://h/hunter2").as_str()),
            ("orders.v1", "https://h/***")
        );
        assert!(!format!("{:?}", Secret("hunter2".into())).contains("hunter2"));
    }

    #[test]
    fn a_password_in_plain_sight_is_seen() {
        assert!(has_password("amqp://u:p@h") && has_password("postgres://h/d?password=x"));
        assert!(!has_password("amqp://u@h") && !has_password("amqp://h/a:b") && !has_password("orders.db"));
    }
}
