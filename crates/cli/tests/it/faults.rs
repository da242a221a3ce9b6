//! What goes wrong, and what is said about it: exit codes, texts, no secrets.

use crate::database::Database;
use crate::program::{command, oncebox};

const VERBS: [&[&str]; 4] =
    [&["status"], &["relay", "--to", "stdout", "--once"], &["migrate", "status"], &["migrate", "up"]];

#[test]
fn every_verb_explains_itself() {
    let verbs: [&[&str]; 16] = [
        &[],
        &["demo"],
        &["migrate"],
        &["migrate", "up"],
        &["migrate", "status"],
        &["migrate", "sql"],
        &["status"],
        &["relay"],
        &["check"],
        &["consume"],
        &["dead", "list"],
        &["dead", "requeue"],
        &["dead", "discard"],
        &["dead", "show"],
        &["dead", "edit"],
        &["replay"],
    ];
    for verb in verbs {
        let run = oncebox(verb.iter().chain(&["--help"])).exits(0);
        assert!(run.stdout.contains("Usage: oncebox"), "{verb:?}: {run:?}");
        assert!(run.stderr.is_empty(), "{run:?}");
    }
    let top = oncebox(["--help"]).exits(0).stdout;
    for text in ["Exit codes:", "demo", "migrate", "status", "relay", "check", "consume", "dead", "replay"] {
        assert!(top.contains(text), "{text} is missing in\n{top}");
    }
    assert!(!top.contains("demo-worker"), "hidden");
    assert!(oncebox(["--version"]).exits(0).stdout.starts_with("oncebox "));
}

#[test]
fn a_command_line_that_is_not_understood_is_exit_2() {
    for args in
        [vec!["nonsense"], vec!["relay"], vec!["status", "--max-lag", "soon"], vec!["-o", "xml", "status"]]
    {
        oncebox(args).exits(2);
    }
    let run = oncebox(["status"]).exits(2);
    assert!(run.stderr.contains("no database was named") && run.stderr.contains("ONCEBOX_DB"), "{run:?}");
}

#[test]
fn a_command_line_that_is_not_understood_is_a_json_error_if_json_is_asked_for() {
    let lines: [&[&str]; 5] = [
        &["-o", "json", "nonsense"],
        &["relay", "--no-such", "--output=json"],
        &["status", "--max-lag", "soon", "-ojson"],
        &["migrate", "-o", "json"],
        &["-o", "json"],
    ];
    for args in lines {
        let run = oncebox(args).exits(2);

        let error = run.json_error();
        assert_eq!(
            (&error["code"], &error["name"]),
            (&"OBX2001".into(), &"oncebox::input".into()),
            "{args:?}"
        );
        assert!(!error["message"].as_str().unwrap().is_empty(), "{run:?}");
        assert_eq!(run.stdout, "");
    }
    let helped = oncebox(["-o", "json", "--help"]).exits(0);
    assert!(helped.stdout.contains("Usage:"), "a call for help is no error: {helped:?}");
}

#[test]
fn a_url_in_the_wrong_place_is_quoted_without_its_password() {
    for format in ["text", "json"] {
        let run = oncebox(["status", "postgres://joe:hunter2@h/db", "-o", format]).exits(2);

        assert!(!run.stderr.contains("hunter2") && run.stderr.contains("@h/db"), "{run:?}");
    }
}

#[test]
fn an_unknown_kind_of_database_is_exit_2_and_not_quoted() {
    for url in ["mysql://u:hunter2@h/db", "nosuch://u:hunter2@h", "POSTGRES://u:hunter2@h/db"] {
        for verb in VERBS {
            let run = oncebox(verb.iter().chain(&["--db", url, "-o", "json"])).exits(2);
            let error = run.json_error();
            assert_eq!(error["code"], "OBX2001");
            assert!(
                error["message"].as_str().unwrap().contains("does not know databases of the kind"),
                "{error}"
            );
            assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
        }
    }
}

#[test]
fn a_malformed_postgres_url_is_exit_2_and_not_quoted() {
    for url in ["postgres://u:hunter2@h:port/db", "postgres:u:hunter2@h/db", "postgresql:hunter2"] {
        let run = oncebox(["status", "--db", url, "-o", "json"]).exits(2);
        assert!(run.json_error()["message"].as_str().unwrap().contains("PostgreSQL URL"), "{run:?}");
        assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
    }
}

#[test]
fn a_missing_file_is_exit_7_and_names_the_command() {
    for verb in [VERBS[0], VERBS[1], VERBS[2]] {
        let run = oncebox(verb.iter().chain(&["--db", "/nonexistent/app.db"])).exits(7);
        assert!(run.stderr.contains("/nonexistent/app.db does not exist"), "{run:?}");
        assert!(run.stderr.contains("oncebox migrate up --db /nonexistent/app.db"), "{run:?}");
        assert_eq!(run.stdout, "");
    }
    let run = oncebox(["migrate", "up", "--db", "/nonexistent/app.db"]).exits(7);
    assert!(run.stderr.contains("cannot open the SQLite database"), "{run:?}");
}

#[test]
fn a_server_that_does_not_answer_is_exit_7() {
    for verb in VERBS {
        let run = oncebox(verb.iter().chain(&["--db", "postgres://u:hunter2@127.0.0.1:1/app", "-o", "json"]));
        let run = run.exits(7);
        let error = run.json_error();
        assert_eq!(error["code"], "OBX7001");
        assert!(error["message"].as_str().unwrap().contains("database app at 127.0.0.1:1"), "{error}");
        assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
    }
}

#[test]
fn missing_tables_are_exit_6_and_name_the_command() {
    for database in Database::both("missing_tables_are_exit_6_and_name_the_command") {
        if database.is_sqlite() {
            database.sql("CREATE TABLE orders (id INTEGER);");
        }
        for verb in [VERBS[0], VERBS[1]] {
            let run = database.run(&[verb, &["-o", "json"]].concat()).exits(6);
            let error = run.json_error();
            assert_eq!(error["code"], "OBX6001");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains("tables are missing") && message.contains("oncebox migrate up --db"),
                "{message}"
            );
        }
        database.run(&["migrate", "up"]).exits(0);
        database.run(&["status"]).exits(0);
    }
}

#[test]
fn tables_changed_by_hand_are_exit_6_and_named() {
    for database in Database::both("tables_changed_by_hand_are_exit_6_and_named") {
        let database = database.migrated();
        database.sql("ALTER TABLE {t}outbox ADD COLUMN surprise integer;");

        let run = database.run(&["status"]).exits(6);

        assert!(run.stderr.contains("changed by hand") && run.stderr.contains("surprise"), "{run:?}");
        database.sql("ALTER TABLE {t}outbox DROP COLUMN surprise;");
        database.run(&["status"]).exits(0);
    }
}

#[test]
fn a_read_only_database_is_exit_5() {
    for database in Database::both("a_read_only_database_is_exit_5") {
        let database = database.migrated();
        database.insert_by_hand(0, 2);
        let (url, name) = (database.url(), database.name.clone());
        let read_only = match database.is_sqlite() {
            true => format!("sqlite:{url}?mode=ro"),
            false => format!("{url}?options=-c%20default_transaction_read_only%3Don"),
        };

        let args = ["relay", "--to", "stdout", "--once", "-o", "json", "--db", &read_only, "--schema", &name];
        let run = oncebox(args).exits(5);

        assert!(run.json_error()["message"].as_str().unwrap().contains("read-only"), "{run:?}");
        assert_eq!(run.stdout, "", "nothing was sent");
        assert_eq!(database.run(&["relay", "--to", "stdout", "--once"]).exits(0).json_lines().len(), 2);
    }
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let Some(database) = Database::sqlite("a_file_that_is_no_database_is_refused_and_left_alone") else {
        return;
    };
    std::fs::write(
        database.file(),
        "this is a letter, not a database, and long enough to look like one\n".repeat(99),
    )
    .unwrap();
    let before = std::fs::read(database.file()).unwrap();

    for verb in VERBS {
        let run = database.run(verb);
        assert!(run.code.is_some_and(|code| code != 0), "{run:?}");
        assert!(run.stderr.contains("not a database"), "{run:?}");
    }

    assert_eq!(std::fs::read(database.file()).unwrap(), before);
}

#[test]
fn names_that_try_to_inject_are_refused() {
    for database in Database::both("names_that_try_to_inject_are_refused") {
        let url = database.url();
        for name in
            ["x; DROP TABLE orders", "x\"", "x'--", "Oncebox", "1x", "", "a.b", "pg x", "ü", &"x".repeat(64)]
        {
            for verb in [VERBS[0], VERBS[3], &["migrate", "sql"]] {
                let run =
                    oncebox(verb.iter().chain(&["--db", &url, "--schema", name, "-o", "json"])).exits(5);
                let message = run.json_error()["message"].as_str().unwrap().to_owned();
                assert!(message.contains("is not a name oncebox accepts"), "{message}");
            }
        }
        assert!(!database.is_sqlite() || !database.file().exists(), "nothing was even opened");
    }
}

#[test]
fn no_output_ever_shows_a_password() {
    let Some(database) = Database::postgres("no_output_ever_shows_a_password") else { return };
    let url = database.url();
    let password = url.split_once("://").unwrap().1.split_once('@').unwrap().0.split_once(':').unwrap().1;
    let name = database.name.as_str();
    let wrong = url.replace(password, "hunter2hunter2");
    let elsewhere = format!("{}/nosuchdatabase", url.rsplit_once('/').unwrap().0);

    let mut runs = Vec::new();
    for db in [&url, &wrong, &elsewhere] {
        for verb in VERBS.iter().chain([&["migrate", "sql"].as_slice()]) {
            for format in ["text", "json"] {
                let args = ["--db", db, "--schema", name, "-o", format, "--log", "trace"];
                runs.push((db, oncebox(verb.iter().chain(&args))));
            }
        }
    }
    runs.push((&url, crate::program::ran(command(["status"]).env("ONCEBOX_DB", &wrong).args(["--help"]))));

    for (db, run) in &runs {
        let text = format!("{run:?}");
        assert!(!text.contains(password) && !text.contains("hunter2"), "{text:.2000}");
        let is_sql = run.stdout.contains("CREATE TABLE");
        if *db != &url && !is_sql {
            assert_eq!(run.code, Some(7), "{text:.2000}");
        }
    }
}
