//! The guide's programs in other languages, run for real; `./dev test` provides
//! their drivers.

use std::path::Path;
use std::process::Command;

use crate::database::Database;
use crate::program::ran;

/// The fenced block under the comment `run: {mark}`.
fn program(mark: &str) -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/4-relay-daemon.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let block =
        guide.split(&format!("<!-- run: {mark} -->\n```")).nth(1).unwrap_or_else(|| panic!("no {mark}"));
    block.split_once('\n').unwrap().1.split("\n```").next().unwrap().to_owned() + "\n"
}

/// Whether the interpreter can run this; says so if not, or panics where
/// skipping is not allowed.
fn can(interpreter: &str, test: &str, case: &str) -> bool {
    let flag = if interpreter == "node" { "-e" } else { "-c" };
    let can = Command::new(interpreter).args([flag, test]).output().is_ok_and(|ran| ran.status.success());
    if !can {
        assert!(
            std::env::var_os("ONCEBOX_NO_SKIP").is_none(),
            "{interpreter} cannot run {test:?} and nothing may be skipped"
        );
        println!("SKIP {case}: {interpreter} cannot run {test:?}");
    }
    can
}

/// Runs a program of the guide on `database`; its message must leave.
#[track_caller]
fn runs(interpreter: &str, mark: &str, database: &Database) {
    let file = database.folder().join("program");
    let text = program(mark).replace("oncebox.outbox", &format!("{}.outbox", database.name));
    // Its own table beside ours, so that it goes with the schema.
    let text = if database.is_sqlite() {
        text
    } else {
        text.replace("orders (id", &format!("{}.orders (id", database.name))
    };
    std::fs::write(&file, text).unwrap();

    ran(Command::new(interpreter).arg(&file).arg(database.url())).exits(0);

    let lines = database.run(&["relay", "--to", "stdout", "--once"]).exits(0).json_lines();
    assert_eq!(lines.len(), 1, "{mark}");
    let line = &lines[0];
    assert_eq!((&line["type"], &line["source"]), (&"order.placed.v1".into(), &"shop".into()), "{line}");
    assert_eq!((&line["partitionkey"], &line["data"]["order_id"]), (&"1".into(), &1.into()), "{line}");
}

#[test]
fn python_puts_a_message_with_sqlite() {
    let case = "python_puts_a_message_with_sqlite";
    if !can("python3", "import sqlite3", case) {
        return;
    }
    let Some(database) = Database::sqlite(case) else { return };
    runs("python3", "python sqlite", &database.migrated());
}

#[test]
fn python_puts_a_message_with_psycopg() {
    let case = "python_puts_a_message_with_psycopg";
    if !can("python3", "import psycopg", case) {
        return;
    }
    let Some(database) = Database::postgres(case) else { return };
    runs("python3", "python postgres", &database.migrated());
}

#[test]
fn node_puts_a_message_with_pg() {
    let case = "node_puts_a_message_with_pg";
    if !can("node", "require('pg')", case) {
        return;
    }
    let Some(database) = Database::postgres(case) else { return };
    runs("node", "node postgres", &database.migrated());
}
