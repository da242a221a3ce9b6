//! The rules of style that a machine can check, and the walk over the repository they share.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What a newcomer needs, and nothing else.
const ROOT: [&str; 18] = [
    ".ci",
    ".config",
    ".git",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "clippy.toml",
    "crates",
    "dev",
    "docs",
    "rustfmt.toml",
];
/// Also allowed, if it is there: what builds leave behind, and files that deployments need.
const ROOT_OPTIONAL: [&str; 3] = ["target", "deploy", ".cargo"];

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file of the repository with one of these endings, as a path relative
/// to the root with its text. What git ignores is left out.
pub(crate) fn files(endings: &[&str]) -> BTreeMap<String, String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_string_lossy().into_owned();
            if entry.is_dir() {
                if !["target", ".git", ".cargo", "tmp"].contains(&name.as_str()) {
                    walk(&entry, found);
                }
            } else {
                found.push(entry);
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    walk(&root, &mut found);
    found
        .into_iter()
        .filter(|path| endings.iter().any(|ending| path.to_string_lossy().ends_with(ending)))
        .map(|path| {
            let relative = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{relative}: {error}"));
            (relative, text)
        })
        .collect()
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs")
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

/// All complaints at once, so that one run shows them all.
fn assert_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn no_file_is_too_long_to_read_in_one_go() {
    let limit = |path: &str| match path {
        sql if sql.ends_with(".sql") => 60,
        test if is_test(test) => 800,
        _ => 500,
    };

    let long = files(&[".rs", ".sql"])
        .into_iter()
        // The one migration is the whole schema; it is read table by table.
        .filter(|(path, _)| !path.contains("/migrations/"))
        .map(|(path, text)| (text.lines().count(), path))
        .filter(|(lines, path)| *lines > limit(path))
        .map(|(lines, path)| format!("{path} has {lines} lines, the limit is {}", limit(&path)));
    assert_none(long.collect());
}

#[test]
fn no_file_is_named_after_nothing() {
    let banned = ["util", "utils", "common", "helper", "helpers", "misc"];

    let named = files(&[".rs", ".sql", ".md"]).into_keys().filter(|path| {
        path.split('/').any(|part| banned.contains(&part.split('.').next().unwrap_or_default()))
    });
    assert_none(named.collect());
}

#[test]
fn no_type_is_named_after_nothing() {
    let banned = ["Manager", "Helper", "Util", "Utils", "Impl", "Data", "Info"];
    let items = ["struct ", "enum ", "trait ", "type "];
    // The name is `http_body::Body`'s.
    let is_ours = |line: &&str| *line != "type Data = Bytes;";

    let mut named = Vec::new();
    for (path, text) in files(&[".rs"]) {
        for line in text.lines().map(str::trim_start).filter(is_ours) {
            let line =
                line.split_once("pub").filter(|(before, _)| before.is_empty()).map_or(line, |(_, l)| l);
            let line = line.trim_start_matches("(crate)").trim_start_matches("(super)").trim_start();
            let Some(rest) = items.iter().find_map(|item| line.strip_prefix(item)) else { continue };
            let ident = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
            if banned.iter().any(|word| ident.ends_with(word)) {
                named.push(format!("{path}: {ident}"));
            }
        }
    }
    assert_none(named);
}

#[test]
fn features_are_decided_in_lib_rs() {
    let elsewhere = files(&[".rs"])
        .into_iter()
        .filter(|(path, text)| !is_test(path) && name(path) != "lib.rs" && text.contains("cfg(feature"));
    assert_none(elsewhere.map(|(path, _)| path).collect());
}

/// The statement without comments and quoted text.
fn bare(sql: &str) -> String {
    let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split('\'').step_by(2).collect()
}

#[test]
fn every_sql_file_is_used_and_holds_one_statement() {
    let sources = files(&[".rs"]);
    let mut complaints = Vec::new();
    for (path, sql) in
        files(&[".sql"]).iter().filter(|(path, _)| path.contains("/src/") && path.contains("/sql/"))
    {
        let (backend, file) = path.split_once("/sql/").unwrap();
        let call = format!("sql/{file}\")");
        let is_used =
            sources.iter().any(|(source, text)| source.starts_with(backend) && text.contains(&call));
        if !is_used {
            complaints.push(format!("{path} is not used"));
        }
        let bare = bare(sql);
        let statements = bare.split(';').filter(|statement| !statement.trim().is_empty()).count();
        if statements != 1 {
            complaints.push(format!("{path} holds {statements} statements"));
        }
    }
    assert_none(complaints);
}

#[test]
fn stores_have_the_same_files() {
    // Only PostgreSQL has many writers at once, so only it has positions that
    // are missing for a while, and only it can wake a relay in another process.
    // It is also the one whose round trips are worth saving. SQLite has one writer, whose commits requests share.
    let only_one = ["call.rs", "claim.rs", "clerk.rs", "holes.rs", "hotline.rs", "rank.rs", "wakeup.rs"];
    let sources = files(&[".rs"]);
    let of = |store: &str| -> BTreeSet<String> {
        let folder = format!("crates/stores/src/{store}/");
        let inside = sources.keys().filter_map(|path| path.strip_prefix(&folder));
        inside.filter(|file| !only_one.contains(file)).map(str::to_owned).collect()
    };

    assert_eq!(of("sqlite"), of("postgres"));
    let has = |store: &str, file: &str| sources.contains_key(&format!("crates/stores/src/{store}/{file}"));
    let is_exception = |file: &str| has("sqlite", file) != has("postgres", file);
    assert!(only_one.iter().all(|file| is_exception(file)), "an exception that became the rule");
}

#[test]
fn decisions_have_numbers_of_their_own_and_fit_on_a_page() {
    let mut numbers = BTreeSet::new();
    let mut complaints = Vec::new();
    for (path, text) in files(&[".md"]).iter().filter(|(path, _)| path.starts_with("docs/adr/")) {
        let number: String = name(path).chars().take_while(char::is_ascii_digit).collect();
        if number.len() != 4 || !numbers.insert(number.clone()) {
            complaints.push(format!("{path} has no number of its own"));
        }
        if !text.starts_with(&format!("# {number} ")) {
            complaints.push(format!("{path} does not start with its number and title"));
        }
        for part in ["## Context", "## Decision", "## Consequences"] {
            if !text.contains(part) {
                complaints.push(format!("{path} has no {part}"));
            }
        }
        let lines = text.lines().count();
        if lines > 60 {
            complaints.push(format!("{path} has {lines} lines; a page has 60"));
        }
    }
    assert_none(complaints);
    assert!(!numbers.is_empty());
}

#[test]
fn nothing_is_left_to_be_done_later() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

    let left = files(&[".rs", ".sql", ".md", ".toml", "/dev"]).into_iter().flat_map(|(path, text)| {
        let marked = |line: &&str| marks.iter().any(|mark| line.contains(mark));
        text.lines().filter(marked).map(|line| format!("{path}: {}", line.trim())).collect::<Vec<_>>()
    });
    assert_none(left.collect());
}

#[test]
fn the_root_holds_only_what_a_newcomer_needs() {
    let strange = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !ROOT.contains(&name.as_str()) && !ROOT_OPTIONAL.contains(&name.as_str()));
    assert_none(strange.collect());
}

#[test]
fn no_path_of_somebodys_machine_is_in_the_repository() {
    let folders =
        [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

    let endings = [".rs", ".sql", ".md", ".toml", ".snapshot", ".stderr", ".lock"];
    let found = files(&endings).into_iter().flat_map(|(path, text)| {
        let names = |line: &&str| folders.iter().any(|folder| line.contains(folder));
        text.lines().filter(names).map(|line| format!("{path}: {}", line.trim())).collect::<Vec<_>>()
    });
    assert_none(found.collect());
}

#[test]
fn nobody_promises_what_no_network_can_keep() {
    let promise = concat!("exactly-once ", "delivery");

    let promised = files(&[".rs", ".md", ".toml", ".sql"])
        .into_iter()
        .filter(|(_, text)| text.to_lowercase().replace("exactly once", "exactly-once").contains(promise));
    assert_none(promised.map(|(path, _)| path).collect());
}
