//! `oncebox migrate`.

use crate::database::Database;
use crate::program::oncebox;

#[test]
fn up_makes_the_tables_once_and_status_tells() {
    for database in Database::both("up_makes_the_tables_once_and_status_tells") {
        if database.is_sqlite() {
            // There is no file to look at before `up` has made it.
            database.run(&["migrate", "status"]).exits(7);
        } else {
            let before = database.run(&["migrate", "status", "-o", "json"]).exits(6).json();
            assert_eq!(before["current"], false);
            assert_eq!(before["migrations"][0]["state"], "pending");
        }

        let first = database.run(&["migrate", "up", "-o", "json"]).exits(0).json();
        let second = database.run(&["migrate", "up"]).exits(0);
        let after = database.run(&["migrate", "status", "-o", "json"]).exits(0).json();
        let text = database.run(&["migrate", "status"]).exits(0);

        let versions: Vec<_> =
            first["applied"].as_array().unwrap().iter().map(|one| &one["version"]).collect();
        assert_eq!(versions, [1, 2, 3, 4, 5, 6]);
        assert!(second.stdout.contains("nothing to do"), "{second:?}");
        assert_eq!(after["current"], true);
        assert!(after["migrations"].as_array().unwrap().iter().all(|m| m["state"] == "applied"), "{after}");
        assert!(text.stdout.contains("0001  applied") && text.stdout.contains("0002  applied"), "{text:?}");
    }
}

#[test]
fn the_printed_sql_gives_the_same_tables_through_the_databases_own_program() {
    for database in Database::both("the_printed_sql_gives_the_same_tables") {
        let script = database.run(&["migrate", "sql"]).exits(0).stdout;
        if database.is_sqlite() {
            assert!(!database.file().exists(), "printing makes no file");
            // As oncebox opens it; a database made by hand starts without.
            database.sql("PRAGMA journal_mode = WAL;");
        }

        database.sql(&script);

        database.run(&["migrate", "status"]).exits(0);
        database.run(&["status"]).exits(0);
        assert!(database.run(&["migrate", "up"]).exits(0).stdout.contains("nothing to do"));
    }
}

#[test]
fn sql_from_the_newest_version_changes_nothing() {
    for database in Database::both("sql_from_the_newest_version_changes_nothing") {
        let database = database.migrated();
        let newest = database.run(&["migrate", "status", "-o", "json"]).exits(0).json()["migrations"]
            .as_array()
            .unwrap()
            .len()
            .to_string();
        let script = database.run(&["migrate", "sql", "--from", &newest]).exits(0).stdout;

        assert!(!script.contains("outbox"), "{script}");
        database.sql(&script);
        database.run(&["status"]).exits(0);
    }
}

#[test]
fn sql_needs_no_database_to_talk_to() {
    let script = oncebox(["migrate", "sql", "--db", "postgres://u@127.0.0.1:1/none"]).exits(0).stdout;

    assert!(script.contains("CREATE TABLE oncebox.outbox"), "{script}");
}

#[test]
fn a_newer_database_is_refused_with_what_to_do() {
    for database in Database::both("a_newer_database_is_refused_with_what_to_do") {
        let database = database.migrated();
        let applied_at = if database.is_sqlite() { "0" } else { "now()" };
        database.sql(&format!(
            "INSERT INTO {{t}}migration (version, name, checksum, applied_at) VALUES (99, 'later', 'x', {applied_at});"
        ));

        for verb in [vec!["status"], vec!["relay", "--to", "stdout", "--once"], vec!["migrate", "up"]] {
            let run = database.run(&verb).exits(6);
            assert!(run.stderr.contains("99") && run.stderr.contains("upgrade oncebox"), "{run:?}");
        }
        let status = database.run(&["migrate", "status"]).exits(6);
        assert!(status.stdout.contains("0099  unknown"), "{status:?}");

        database.sql("DELETE FROM {t}migration WHERE version = 99;");
        database.run(&["status"]).exits(0);
    }
}

#[test]
fn two_migrators_at_once_are_both_right() {
    for database in Database::both("two_migrators_at_once_are_both_right") {
        std::thread::scope(|scope| {
            let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| database.run(&["migrate", "up"]))).collect();
            for run in runs {
                run.join().unwrap().exits(0);
            }
        });

        database.run(&["status"]).exits(0);
    }
}
