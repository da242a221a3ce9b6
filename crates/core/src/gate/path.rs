//! The path that policies are looked up by.
//!
//! Most services decode a path and tidy it before they look for a handler, so
//! that `/%70ayments`, `//payments` and `/x/../payments` are all `/payments` to
//! them. If they were something else to the gate, a client could choose its policy.

use std::borrow::Cow;

/// The path as a service that decodes and tidies understands it: escapes decoded once, slashes in a row merged, `.` and
/// `..` resolved. An escaped slash stays as it is, since it is part of a segment.
///
/// Only for looking things up: what is passed on and what is compared is what the client has sent.
///
/// ```
/// use oncebox_core::gate::path::plain;
///
/// assert_eq!(plain("/x/..//%70ayments"), "/payments");
/// ```
#[must_use]
pub fn plain(path: &str) -> Cow<'_, str> {
    if !path.starts_with('/') || is_plain(path) {
        return Cow::Borrowed(path);
    }
    let decoded = decoded(path);
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let mut tidy = String::with_capacity(decoded.len());
    for segment in &segments {
        tidy.push('/');
        tidy.push_str(segment);
    }
    // A folder stays a folder.
    if tidy.is_empty() || matches!(decoded.rsplit('/').next(), Some("" | "." | "..")) {
        tidy.push('/');
    }
    Cow::Owned(tidy)
}

/// Whether some service might see a segment `.` or `..` in it, which some resolve and others do not: escaped or not,
/// beside an escaped slash or a backslash, or with a parameter after a semicolon.
#[must_use]
pub fn has_dots(path: &str) -> bool {
    let is_dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
    let may_have = path.contains("..") || path.contains(['%', '\\', ';']) || !is_plain(path);
    may_have && decoded(path).replace("%2f", "/").replace("%2F", "/").split(['/', '\\']).any(is_dots)
}

/// Whether nothing about it would change; nearly always.
fn is_plain(path: &str) -> bool {
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if (segment.is_empty() && !is_last) || segment == "." || segment == ".." || segment.contains('%') {
            return false;
        }
    }
    true
}

/// Decodes each escape once. What is no text has a character in its place that no prefix has.
fn decoded(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(path.len()), path.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        match (first, escape(after)) {
            (b'%', Some(byte)) if byte != b'/' => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

/// The byte that two hexadecimal digits stand for.
fn escape(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_path_is_not_copied() {
        for path in ["/", "/payments", "/payments/", "/a/b.c/..d/.well-known/e..", "*", "", "/caf\u{e9}"] {
            assert!(matches!(plain(path), Cow::Borrowed(same) if same == path), "{path}");
        }
    }

    #[test]
    fn every_way_to_write_a_path_is_the_same_path() {
        for path in [
            "/%70ayments",
            "//payments",
            "///payments",
            "/./payments",
            "/x/../payments",
            "/x/%2e%2e/payments",
            "/x/.%2E/payments",
            "/%2e/payments",
            "/../payments",
            "/x/y/../..//%70%61%79%6d%65%6E%74%73",
        ] {
            assert_eq!(plain(path), "/payments", "{path}");
        }
    }

    #[test]
    fn dots_are_seen_however_they_are_written() {
        for path in [
            "/..",
            "/a/../b",
            "/a/%2e%2E/b",
            "/./a",
            "/a/.%2e",
            "/a/..;/b",
            "/a/.;x=1/b",
            "/a%2F..%2Fb",
            "/a%5C..%5cb",
        ] {
            assert!(has_dots(path), "{path}");
        }
        for path in ["/", "/a..b", "/.well-known", "//a", "/%70", "/...", "/a%2Fb", "/a;v=../b", "/a..;b"] {
            assert!(!has_dots(path), "{path}");
        }
    }

    #[test]
    fn what_a_folder_is_stays_one() {
        for (path, expected) in [
            ("/a//", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/..", "/"),
            ("//", "/"),
            ("/a/b/../", "/a/"),
            ("/a/%2e", "/a/"),
        ] {
            assert_eq!(plain(path), expected, "{path}");
        }
    }

    #[test]
    fn an_escape_is_decoded_once_and_never_to_a_slash() {
        for (path, expected) in [
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2f..%2fb", "/a%2f..%2fb"),
            ("/%2570ayments", "/%70ayments"),
            ("/a%", "/a%"),
            ("/a%7", "/a%7"),
            ("/a%zz", "/a%zz"),
            ("/a%+1", "/a%+1"),
            ("/caf%C3%A9", "/caf\u{e9}"),
            ("/%ff", "/\u{fffd}"),
            ("/a%3Fb%23", "/a?b#"),
        ] {
            assert_eq!(plain(path), expected, "{path}");
        }
    }
}
