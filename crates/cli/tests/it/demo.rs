//! `oncebox demo`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use crate::program::{has, oncebox, other};

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn demo(more: &[&str]) -> crate::program::Ran {
    oncebox(["demo", "--orders", "60", "--seed", "1", "-o", "json"].iter().chain(more))
}

#[test]
fn the_demo_proves_itself_with_the_documented_keys() {
    let proof = demo(&[]).exits(0).json();

    let expected = ["faults", "naive", "oncebox", "orders", "pass", "seconds", "seed", "v"];
    assert_eq!(keys(&proof), expected.into());
    assert_eq!(keys(&proof["faults"]), ["duplicates", "kills", "outages", "reordered"].into());
    for lane in ["naive", "oncebox"] {
        assert_eq!(keys(&proof[lane]), ["doubled", "effects", "lost"].into());
    }
    assert_eq!((&proof["v"], &proof["seed"], &proof["orders"]), (&1.into(), &1.into(), &60.into()));
    assert_eq!(proof["pass"], true);
    assert_eq!(proof["oncebox"], serde_json::json!({ "effects": 60, "lost": 0, "doubled": 0 }));
    for (name, least) in [("kills", 3), ("duplicates", 1), ("outages", 2)] {
        assert!(proof["faults"][name].as_u64().unwrap() >= least, "{proof}");
    }
    for name in ["lost", "doubled"] {
        assert!(proof["naive"][name].as_u64().unwrap() > 0, "the naive lane really breaks: {proof}");
    }
}

#[test]
fn a_kept_run_with_the_same_seed_has_the_same_faults_and_files_to_query() {
    if !has("sqlite3", "a_kept_run_with_the_same_seed_has_the_same_faults_and_files_to_query") {
        return;
    }
    let picture = std::env::temp_dir().join(format!("oncebox-demo-{}.svg", std::process::id()));
    let first = demo(&[]).exits(0).json();

    let again = demo(&["--keep", "--svg", picture.to_str().unwrap()]).exits(0);

    for name in ["kills", "duplicates", "outages"] {
        assert_eq!(first["faults"][name], again.json()["faults"][name], "{name}");
    }
    let kept =
        again.stderr.lines().find_map(|line| line.strip_prefix("kept: ")).expect("says where they are");
    let kept = PathBuf::from(kept);
    let query = "SELECT count(*), count(DISTINCT order_id) FROM ledger;";
    let file = kept.join("oncebox.db");
    assert_eq!(other("sqlite3", &[file.to_str().unwrap()], query).trim(), "60|60");
    assert!(kept.join("naive.db").exists());
    std::fs::remove_dir_all(&kept).unwrap();
    let svg = std::fs::read_to_string(&picture).unwrap();
    std::fs::remove_file(&picture).unwrap();
    assert_eq!(complaint(&svg), None);
    assert!(svg.starts_with("<svg ") && svg.contains("xmlns=\"http://www.w3.org/2000/svg\""));
}

#[test]
fn a_run_without_markers_is_disproved() {
    let run = oncebox(["demo", "--orders", "60", "--seed", "1", "--sabotage"]).exits(1);

    assert!(run.stderr.contains("OBX1002"), "{}", run.stderr);
    assert!(!run.stderr.contains("kept:"), "nothing is left behind unless asked for");
}

#[test]
fn a_demo_too_small_for_its_faults_is_refused() {
    let run = oncebox(["demo", "--orders", "5"]).exits(2);

    assert!(run.stderr.contains("60"), "{}", run.stderr);
}

/// What is wrong with a text as XML, as far as tags, quotes and entities go.
fn complaint(xml: &str) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml.trim();
    while !rest.is_empty() {
        let Some(text) = rest.strip_prefix('<') else {
            let end = rest.find('<').unwrap_or(rest.len());
            let text = &rest[..end];
            let bare = text.match_indices('&').any(|(at, _)| !is_entity(&text[at..]));
            if bare || text.contains('>') || (open.is_empty() && !text.trim().is_empty()) {
                return Some(format!("bad text {text:?}"));
            }
            rest = &rest[end..];
            continue;
        };
        let end = tag_end(text)?;
        let tag = &text[..end];
        rest = &text[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Some(format!("</{name}> closes nothing"));
            }
        } else if !tag.starts_with(['?', '!']) && !tag.ends_with('/') {
            open.push(tag.split([' ', '\n']).next().unwrap_or_default());
        }
        if tag.contains('<') || tag.matches('"').count() % 2 != 0 {
            return Some(format!("bad tag <{tag}>"));
        }
    }
    open.last().map(|name| format!("<{name}> is never closed"))
}

/// The end of a tag: the first `>` outside of quotes.
fn tag_end(text: &str) -> Option<usize> {
    let mut is_quoted = false;
    text.char_indices().find_map(|(at, c)| {
        is_quoted ^= c == '"';
        (c == '>' && !is_quoted).then_some(at)
    })
}

fn is_entity(text: &str) -> bool {
    ["&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&#"].iter().any(|entity| text.starts_with(entity))
}

#[test]
fn the_svg_check_notices_what_is_not_well_formed() {
    assert_eq!(complaint("<svg a=\"x>y\"><g><path d=\"M0\"/></g><text>a &amp; b</text></svg>"), None);
    for broken in ["<svg><g></svg>", "<svg>a & b</svg>", "<svg></svg>x", "<svg>", "<svg a=\"></svg>"] {
        assert!(complaint(broken).is_some() || tag_end(&broken[1..]).is_none(), "{broken}");
    }
}
