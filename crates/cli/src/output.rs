//! What goes where: data to standard output, everything else to standard error.

use std::io::IsTerminal;
use std::time::Duration;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// The form of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// One JSON object with `"v": 1`
    Json,
}

pub(crate) fn log_to_stderr(filter: &str, format: Format) {
    // The brokers' clients repeat, for every attempt, what oncebox says once; and lapin logs messages
    // that nobody could be found for whole, with their payload.
    let with = |filter: &str| {
        EnvFilter::try_new(format!("lapin=off,async_nats=off,{filter},lapin::returned_messages=off"))
    };
    let filter = with(filter).or_else(|_| with("warn")).unwrap_or_default();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        Format::Text => builder.with_ansi(std::io::stderr().is_terminal() && colour_wanted()).init(),
        Format::Json => builder.json().init(),
    }
}

/// Colour unless the environment says no.
pub(crate) fn colour_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var("TERM").map_or(true, |term| term != "dumb")
}

/// Text with control characters made visible: what comes out of a database
/// must not move a terminal's cursor.
pub(crate) fn plain(text: &str) -> String {
    let is_hostile = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_hostile(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// A length of time for people.
pub(crate) fn span(span: Duration) -> String {
    match span.as_secs() {
        0 => format!("{} ms", span.as_millis()),
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidi_characters_do_not_reach_a_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\r\nc\u{202e}"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c\u{fffd}");
        assert_eq!(plain("grün 注文"), "grün 注文");
    }
}
