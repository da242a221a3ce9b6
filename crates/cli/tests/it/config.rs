//! `oncebox.toml`, the environment and flags, as the program reads them.

use crate::database::Database;
use crate::program::{command, ran};

fn written(database: &Database, text: &str) -> String {
    let file = database.folder().join("oncebox.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_file_is_enough_and_is_found_where_the_program_starts() {
    let Some(database) = Database::sqlite("a_file_is_enough") else { return };
    let database = database.migrated();
    database.insert_by_hand(0, 3);
    written(&database, "[[store]]\nurl = \"app.db\"\n[[sink]]\nname = \"lines\"\nto = \"stdout\"\n");

    let run = ran(command(["relay", "--once"]).current_dir(database.folder())).exits(0);

    assert_eq!(run.json_lines().len(), 3, "{run:?}");
    let status = database.run(&["status", "-o", "json"]).exits(0).json();
    assert_eq!(status["sinks"][0]["sink"], "lines");
}

#[test]
fn a_mistake_in_the_file_is_exit_2_with_its_line_and_a_proposal() {
    let Some(database) = Database::sqlite("a_mistake_in_the_file") else { return };
    let file = written(&database, "[[store]]\nurl = \"app.db\"\n\n[[sink]]\nto = \"stdout\"\nbach = 10\n");

    for verb in ["relay", "check"] {
        let run = ran(&mut command([verb, "--config", &file])).exits(2);

        assert!(
            run.stderr.contains("oncebox.toml:6") && run.stderr.contains("did you mean `batch`?"),
            "{run:?}"
        );
    }
    let run = ran(&mut command(["relay", "-c", "/nonexistent/oncebox.toml"])).exits(2);
    assert!(run.stderr.contains("/nonexistent/oncebox.toml"), "{run:?}");
}

#[test]
fn print_config_tells_where_each_value_came_from_and_no_secret() {
    let Some(database) = Database::sqlite("print_config") else { return };
    let file = written(
        &database,
        "[[store]]\nurl_env = \"SHOP_DB\"\n[[sink]]\nto = \"rabbitmq\"\nurl = \"amqp://u:hunter2@mq/v\"\npoll = \"2s\"\n",
    );
    let mut program = command(["relay", "--print-config", "-c", &file, "--batch", "7"]);
    program.env("ONCEBOX_WORKERS", "2").env("SHOP_DB", "postgres://u:hunter2@h/d");

    let run = ran(&mut program).exits(0);

    for (line, origin) in [
        ("url_env = \"SHOP_DB\"", "oncebox.toml:2"),
        ("url = \"amqp://***@mq/v\"", "oncebox.toml:5"),
        ("poll = \"2s\"", "oncebox.toml:6"),
        ("batch = 7", "--batch"),
        ("workers = 2", "ONCEBOX_WORKERS"),
        ("lease = \"30s\"", "default"),
    ] {
        let is_there = run.stdout.lines().any(|l| l.starts_with(line) && l.ends_with(origin));
        assert!(is_there, "{line} # {origin} in\n{}", run.stdout);
    }
    program.args(["-o", "json"]);
    let json = ran(&mut program).exits(0);
    assert_eq!(json.json()["config"][2]["section"], "[[sink]]", "{json:?}");
    assert!(!format!("{run:?}{json:?}").contains("hunter2"));
}

#[test]
fn an_unsafe_set_up_is_refused_before_anything_is_opened() {
    let Some(database) = Database::sqlite("an_unsafe_set_up") else { return };
    let database = database.migrated();
    let text = "[[store]]\nurl = \"URL\"\n[[sink]]\nto = \"stdout\"\nlease = \"5s\"\n";
    let file = written(&database, &text.replace("URL", &database.url()));

    let run = ran(&mut command(["relay", "-c", &file])).exits(5);

    assert!(run.stderr.contains("publish timeout"), "{run:?}");
}

#[test]
fn a_secret_that_is_not_there_is_exit_2_and_named() {
    let Some(database) = Database::sqlite("a_secret_that_is_not_there") else { return };
    let sink = "[[store]]\nurl = \"app.db\"\n[[sink]]\nto = \"stdout\"\n[sink.signing]\nkey_id = \"k\"\n";
    for (key, named) in [
        ("secret_env = \"NO_SUCH_SECRET\"", "NO_SUCH_SECRET"),
        ("secret_file = \"/nonexistent/s\"", "/nonexistent/s"),
    ] {
        let file = written(&database, &format!("{sink}{key}\n"));

        let run = ran(command(["relay", "-c", &file]).current_dir(database.folder())).exits(2);

        assert!(run.stderr.contains(named), "{run:?}");
    }
}
