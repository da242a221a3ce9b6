//! `oncebox dead` and `oncebox replay` on the inbox: what a handler gave up, a
//! person decides about, and a worker sees the effect.

use std::process::Stdio;

use oncebox_core::Envelope;
use serde_json::Value;

use crate::database::Database;
use crate::program::{Ran, command, ran};
use crate::shop::{Shop, order};

fn listed(database: &Database, more: &[&str]) -> Vec<Value> {
    let run = database.run(&[&["dead", "list", "-o", "json"], more].concat()).exits(0);
    run.json()["letters"].as_array().unwrap().clone()
}

/// The names of all dead letters of the inbox.
fn names(database: &Database) -> Vec<String> {
    listed(database, &[]).iter().map(|letter| letter["letter"].as_str().unwrap().to_owned()).collect()
}

/// The one dead letter of the inbox.
fn only(database: &Database) -> String {
    let names = names(database);
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].clone()
}

/// Lets everything in the inbox have come 30 days ago.
fn age(database: &Database) {
    let earlier = match database.is_sqlite() {
        true => "received_at - 2592000000000",
        false => "received_at - interval '30 days'",
    };
    database.sql(&format!("UPDATE {{t}}message SET received_at = {earlier};"));
}

#[test]
fn dead_letters_of_the_inbox_are_listed_and_chosen_by_handler_channel_and_code() {
    for database in Database::both("dead_letters_of_the_inbox_are_listed") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.work([order(1, -5, "ann"), order(2, 0, "ben"), order(3, 100, "cid")]);

        let all = listed(&database, &[]);
        let text = database.run(&["dead", "list"]).exits(0);

        assert_eq!(shop.shipped(), [3]);
        let codes: Vec<_> = all.iter().map(|letter| letter["code"].as_str().unwrap()).collect();
        assert_eq!(codes, ["permanent", "attempts_exhausted"]);
        assert_eq!((&all[0]["id"], &all[0]["handler"]), (&"m-1".into(), &"ship-order".into()));
        assert_eq!((&all[1]["attempts"], &all[1]["channel"]), (&2.into(), &"orders".into()));
        assert_eq!(text.stdout.lines().count(), 2, "{text:?}");
        assert!(text.stdout.contains("permanent: a negative price"), "{text:?}");
        let counts = [
            (&["--handler", "ship-order"][..], 2),
            (&["--handler", "bill-order"], 0),
            (&["--channel", "orders"], 2),
            (&["--channel", "refunds"], 0),
            (&["--code", "permanent"], 1),
            (&["--handler", "ship-order", "--code", "attempts_exhausted"], 1),
            (&["--limit", "1"], 1),
            (&["--sink", "hook"], 0),
        ];
        for (filter, count) in counts {
            assert_eq!(listed(&database, filter).len(), count, "{filter:?}");
        }
        for wrong in [&["--limit", "0"][..], &["--limit", "1001"], &["--sink", "s", "--handler", "h"]] {
            database.run(&[&["dead", "list"], wrong].concat()).exits(2);
        }
    }
}

#[test]
fn a_dead_letter_of_the_inbox_tells_its_story_without_secrets() {
    for database in Database::both("a_dead_letter_of_the_inbox_tells_its_story") {
        let database = database.migrated();
        Shop::on(&database).work([order(1, 0, "ann"), order(2, 100, "ann"), order(3, 100, "ann")]);
        let name = only(&database);

        let all = database.run(&["dead", "show", &name, "-o", "json"]).exits(0);
        let text = database.run(&["dead", "show", &name]).exits(0);
        let list = database.run(&["dead", "list"]).exits(0);

        let letter = &all.json()["letter"];
        assert_eq!((&letter["letter"], &letter["attempts"]), (&name.clone().into(), &2.into()), "{letter}");
        assert_eq!(letter["blocks"], 2, "{letter}");
        let history = letter["history"].as_array().unwrap();
        assert_eq!(history.len(), 2, "{letter}");
        assert!(history[0]["at"].as_str().unwrap() <= history[1]["at"].as_str().unwrap(), "{letter}");
        assert!(history[0]["reason"].as_str().unwrap().contains("no stock at https://…@stock"), "{letter}");
        let message = &letter["message"];
        assert_eq!(message["payload"]["customer"], "ann", "{message}");
        assert_eq!((&message["headers"]["region"], &message["key"]), (&"north".into(), &"ann".into()));
        for line in ["2 later deliveries", "1. 20", "2. 20", "header region: north", "\"customer\": \"ann\""]
        {
            assert!(text.stdout.contains(line), "{line}: {}", text.stdout);
        }
        for run in [&all, &text, &list] {
            assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
        }
    }
}

#[test]
fn a_payload_that_is_not_json_is_shown_as_hex() {
    for database in Database::both("a_payload_that_is_not_json_is_shown_as_hex") {
        let database = database.migrated();
        Shop::on(&database).work([Envelope { payload: vec![0, 0xff, 0x1b], ..order(1, 1, "ann") }]);
        let name = only(&database);

        let json = database.run(&["dead", "show", &name, "-o", "json"]).exits(0).json();
        let text = database.run(&["dead", "show", &name]).exits(0).stdout;

        assert_eq!(json["letter"]["message"]["payload_hex"], "00ff1b", "{json}");
        assert_eq!(json["letter"]["code"], "undecodable", "{json}");
        assert!(text.contains("3 bytes, as hex\n  00ff1b"), "{text}");
    }
}

#[test]
fn a_requeued_letter_runs_again_and_frees_its_lane() {
    for database in Database::both("a_requeued_letter_runs_again") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.work([order(1, -5, "ann"), order(2, 100, "ann")]);
        let name = only(&database);
        assert!(shop.shipped().is_empty(), "the second waits behind the first");
        database.run(&["dead", "requeue", &name, "d999999"]).exits(4);
        database.run(&["dead", "requeue", &name, "--dry-run"]).exits(0);
        assert_eq!(only(&database), name, "nothing was changed");

        let run = database.run(&["dead", "requeue", &name, "-o", "json"]).exits(0).json();
        let again = database.run(&["dead", "requeue", &name, "-o", "json"]).exits(4);
        shop.mend();
        shop.work([]);

        assert_eq!((&run["changed"], &run["letters"][0]), (&1.into(), &name.clone().into()));
        assert!(again.json_error()["message"].as_str().unwrap().contains("no dead letter d"), "{again:?}");
        assert_eq!(shop.shipped(), [1, 2]);
        assert!(names(&database).is_empty());
    }
}

#[test]
fn all_letters_of_a_handler_and_code_are_requeued_together() {
    for database in Database::both("all_letters_of_a_handler_and_code_are_requeued") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.work([order(1, 0, "ann"), order(2, 0, "ben"), order(3, -5, "cid")]);
        let chosen = ["dead", "requeue", "--all", "--handler", "ship-order", "--code", "attempts_exhausted"];

        let unasked = database.run(&chosen).exits(5);
        let would = database.run(&[&chosen[..], &["--dry-run", "-o", "json"]].concat()).exits(0).json();
        let run = database.run(&[&chosen[..], &["--yes", "-o", "json"]].concat()).exits(0).json();
        shop.mend();
        shop.work([]);

        assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
        assert_eq!(would["would_change"].as_array().unwrap().len(), 2, "{would}");
        assert_eq!(run["changed"], 2, "{run}");
        assert_eq!(shop.shipped(), [1, 2]);
        assert_eq!(listed(&database, &[])[0]["code"], "permanent");
        database.run(&["dead", "requeue", "--all", "--yes"]).exits(2);
        database.run(&["dead", "discard", "d1", "--handler", "ship-order", "--yes"]).exits(2);
    }
}

#[test]
fn a_letter_older_than_the_markers_is_requeued_only_by_force() {
    for database in Database::both("a_letter_older_than_the_markers") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.work([order(1, -5, "ann")]);
        let name = only(&database);
        age(&database);

        let refused = database.run(&["dead", "requeue", &name, "-o", "json"]).exits(5);
        let text = database.run(&["dead", "requeue", &name]).exits(5);
        database.run(&["dead", "requeue", &name, "--window", "soon"]).exits(2);
        assert_eq!(only(&database), name, "nothing was changed");
        database.run(&["dead", "requeue", &name, "--force"]).exits(0);
        shop.mend();
        shop.work([]);

        assert_eq!(refused.json()["refused"][0]["why"], "too_old", "{refused:?}");
        let message = refused.json_error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("more than 7 d ago") && message.contains("done twice"), "{message}");
        assert!(text.stderr.contains("--force") && text.stderr.contains("--window"), "{text:?}");
        assert_eq!(shop.shipped(), [1]);
        shop.work([order(2, 100, "ben")]);
    }
}

#[test]
fn a_longer_window_lets_an_older_letter_pass() {
    for database in Database::both("a_longer_window_lets_an_older_letter_pass") {
        let database = database.migrated();
        Shop::on(&database).work([order(1, -5, "ann")]);
        age(&database);

        database.run(&["dead", "requeue", &only(&database), "--window", "31d"]).exits(0);

        assert!(names(&database).is_empty());
    }
}

#[test]
fn a_discarded_letter_never_runs_and_frees_its_lane() {
    for database in Database::both("a_discarded_letter_never_runs") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.work([order(1, -5, "ann"), order(2, 100, "ann")]);
        let name = only(&database);

        database.run(&["dead", "discard", &name]).exits(5);
        assert_eq!(only(&database), name, "nothing was changed");
        let run = database.run(&["dead", "discard", &name, "--yes"]).exits(0);
        database.run(&["dead", "discard", &name, "--yes"]).exits(4);
        shop.mend();
        shop.work([]);

        assert_eq!(run.stdout, "changed 1\n");
        assert_eq!(shop.shipped(), [2]);
    }
}

/// Edits with an editor that is this shell command.
fn edit_with(database: &Database, name: &str, editor: &str) -> Ran {
    let mut command = command(database.args(&["dead", "edit", name, "-o", "json"]));
    ran(command.env_remove("VISUAL").env("EDITOR", editor).env("TMPDIR", database.folder()))
}

fn drafts(database: &Database) -> Vec<String> {
    let files = std::fs::read_dir(database.folder()).unwrap();
    let files = files.map(|file| file.unwrap().path().display().to_string());
    files.filter(|file| file.contains("oncebox-") && file.ends_with(".json")).collect()
}

#[test]
fn an_edited_letter_goes_back_as_a_new_message_that_names_the_old_one() {
    for database in Database::both("an_edited_letter_goes_back") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.work([order(1, -5, "ann"), order(2, 100, "ann")]);
        let name = only(&database);

        let run = edit_with(&database, &name, "sed -i -e s/-5/5/").exits(0).json();
        let again = edit_with(&database, &name, "sed -i -e s/-5/5/").exits(4);
        shop.work([]);

        let id = run["id"].as_str().unwrap();
        assert_eq!((&run["letter"], &run["causation_id"]), (&name.into(), &"m-1".into()), "{run}");
        assert!(id.len() == 36 && run["delivery"].as_str().unwrap().starts_with('d'), "{run}");
        assert!(again.json_error()["help"].as_str().unwrap().contains("dead list"), "{again:?}");
        assert_eq!(shop.shipped(), [1, 2], "in the place of the old one");
        assert!(names(&database).is_empty());
        let stored = format!("SELECT attributes FROM {{t}}message WHERE id = '{id}';");
        assert!(database.sql(&stored).contains("m-1"), "the cause is stored");
        assert_eq!(drafts(&database), [""; 0]);
    }
}

#[test]
fn a_payload_comes_from_a_file_or_from_standard_input() {
    for database in Database::both("a_payload_comes_from_a_file") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.work([order(1, -5, "ann"), order(2, -5, "ben")]);
        let (names, file) = (names(&database), database.folder().join("mended.json"));
        std::fs::write(&file, r#"{"number": 10, "cents": 1, "customer": "ann"}"#).unwrap();
        let piped = database.folder().join("piped.json");
        std::fs::write(&piped, r#"{"number": 20, "cents": 1, "customer": "ben"}"#).unwrap();

        let text = database.run(&["dead", "edit", &names[0], "--payload", file.to_str().unwrap()]).exits(0);
        let mut piping = command(database.args(&["dead", "edit", &names[1], "--payload", "-"]));
        ran(piping.stdin(Stdio::from(std::fs::File::open(&piped).unwrap()))).exits(0);
        shop.work([]);

        assert!(text.stdout.contains(&format!("takes the place of {}: message ", names[0])), "{text:?}");
        assert!(text.stdout.ends_with("caused by m-1\n"), "{text:?}");
        assert_eq!(shop.shipped(), [10, 20]);
    }
}

#[test]
fn an_edit_that_cannot_be_used_changes_nothing() {
    for database in Database::both("an_edit_that_cannot_be_used") {
        let database = database.migrated();
        Shop::on(&database).work([order(1, -5, "ann")]);
        let name = only(&database);

        let same = edit_with(&database, &name, "true").exits(5);
        let failed = edit_with(&database, &name, "false").exits(1);
        let none = edit_with(&database, &name, "").exits(2);
        assert_eq!(drafts(&database), [""; 0], "no draft is left behind");
        let broken = edit_with(&database, &name, "sed -i -e s/}//").exits(2);
        let missing = database.run(&["dead", "edit", &name, "--payload", "/nonexistent"]).exits(2);

        for (run, text) in [(&same, "same as before"), (&failed, "editor failed"), (&none, "no editor")] {
            assert!(run.json_error()["message"].as_str().unwrap().contains(text), "{run:?}");
        }
        assert!(broken.json_error()["message"].as_str().unwrap().contains("must be JSON"), "{broken:?}");
        let kept = drafts(&database);
        assert!(kept.len() == 1 && broken.stderr.contains(&kept[0]), "work is not lost: {broken:?}");
        assert!(missing.stderr.contains("/nonexistent"), "{missing:?}");
        assert_eq!(only(&database), name);
    }
}

#[test]
fn a_replayed_delivery_runs_once_more() {
    for database in Database::both("a_replayed_delivery_runs_once_more") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.work([order(1, 100, "ann"), order(2, -5, "ben")]);
        let number = database.sql(match database.is_sqlite() {
            true => "SELECT number FROM {t}delivery WHERE state = 'done';",
            false => "SELECT number FROM {t}finished;",
        });
        let (done, dead) = (format!("d{}", number.trim()), only(&database));

        let unasked = database.run(&["replay", &done]).exits(5);
        let run = database.run(&["replay", &done, "--yes", "-o", "json"]).exits(0).json();
        let twice = database.run(&["replay", &done, "--yes"]).exits(4);
        let of_dead = database.run(&["replay", &dead, "--yes"]).exits(5);
        shop.work([order(1, 100, "ann")]);

        assert!(unasked.stderr.contains("does everything again"), "{unasked:?}");
        assert_eq!(run["replayed"][0], done.as_str());
        assert!(twice.stderr.contains("under way"), "{twice:?}");
        assert!(of_dead.stderr.contains(&format!("oncebox dead requeue {dead}")), "{of_dead:?}");
        assert_eq!(shop.shipped(), [1, 1], "a copy does nothing");
        let received = database.run(&["replay", "r1", "--yes"]).exits(2);
        assert!(received.stderr.contains("receiver mode"), "{received:?}");
    }
}

#[test]
fn a_letter_of_receiver_mode_is_requeued_to_a_worker_if_a_handler_was_asked() {
    for database in Database::both("a_letter_of_receiver_mode") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.receive([order(1, -5, "ann"), Envelope { kind: "nobody.knows".into(), ..order(2, 1, "ben") }]);
        let letters = listed(&database, &[]);
        let name_of = |code: &str| {
            let letter = letters.iter().find(|letter| letter["code"] == code).unwrap();
            letter["letter"].as_str().unwrap().to_owned()
        };
        let (given_up, unknown) = (name_of("permanent"), name_of("unknown_type"));
        assert!(given_up.starts_with('r') && unknown.starts_with('r'), "{letters:?}");

        let run = database.run(&["dead", "requeue", &unknown, &given_up, "-o", "json"]).exits(5);
        let shown = database.run(&["dead", "show", &unknown]).exits(0);
        database.run(&["dead", "edit", &unknown, "--payload", "/nonexistent"]).exits(5);
        shop.mend();
        shop.work([]);

        assert_eq!(run.json()["changed"], 1, "{run:?}");
        assert_eq!(run.json()["refused"][0]["why"], "no_handler", "{run:?}");
        assert!(run.json_error()["message"].as_str().unwrap().contains("no handler was ever asked"));
        assert!(shown.stdout.contains("none was asked"), "{shown:?}");
        assert_eq!(shop.shipped(), [1]);
        database.run(&["dead", "discard", &unknown, "--yes"]).exits(0);
        assert!(names(&database).is_empty());
    }
}

#[test]
fn what_names_no_letter_is_refused_with_what_would() {
    for database in Database::both("what_names_no_letter_is_refused") {
        let database = database.migrated();
        let lines: [(&[&str], i32, &str); 9] = [
            (&["dead", "show", "d1"], 4, "there is no dead letter d1"),
            (&["dead", "show", "r1"], 4, "there is no dead letter r1"),
            (&["dead", "show", "x1"], 2, "look like d42 or r17"),
            (&["dead", "show", "7"], 2, "position of a relay's dead letter"),
            (&["dead", "requeue", "7"], 2, "position of a relay's dead letter"),
            (&["dead", "requeue", "d7", "--sink", "hook"], 2, "--sink is for those of a relay"),
            (&["dead", "edit", "d1", "--payload", "-"], 4, "there is no dead letter d1"),
            (&["replay", "d1", "--yes"], 4, "there is no finished delivery d1"),
            (&["replay", "42", "--yes"], 2, "d42"),
        ];
        for (line, exit, text) in lines {
            let error = database.run(&[line, &["-o", "json"]].concat()).exits(exit).json_error();
            assert!(error["message"].as_str().unwrap().contains(text), "{line:?}: {error}");
        }
    }
}

#[test]
fn tables_that_are_missing_or_old_name_the_command() {
    for database in Database::both("tables_that_are_missing_or_old") {
        let lines: [&[&str]; 5] = [
            &["dead", "list"],
            &["dead", "show", "d1"],
            &["dead", "requeue", "d1"],
            &["dead", "edit", "d1", "--payload", "-"],
            &["replay", "d1", "--yes"],
        ];
        let refused = |line: &[&str]| {
            let run = database.run(line).exits(6);
            assert!(run.stderr.contains("oncebox migrate up --db"), "{run:?}");
        };
        if database.is_sqlite() {
            database.sql("PRAGMA journal_mode = WAL; CREATE TABLE orders (id INTEGER);");
        }
        for line in lines {
            refused(line);
        }

        database.run(&["migrate", "up"]).exits(0);
        database.sql("DELETE FROM {t}migration WHERE version > 2;");

        for line in lines {
            refused(line);
        }
    }
}
