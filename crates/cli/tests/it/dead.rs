//! `oncebox dead`: a person decides about what was refused.

use crate::database::Database;
use crate::process::Process;
use crate::program::{command, eventually};
use crate::server::Server;

/// Two messages of one key, the first of which its destination refuses for good.
fn refused(database: &Database, server: &Server) -> Process {
    let text = format!(
        "[[store]]\nurl = \"{}\"\nschema = \"{}\"\n[[sink]]\nname = \"hook\"\nto = \"http\"\nurl = \"{}\"\npoll = \"20ms\"\nmax_attempts = 1\n",
        database.url(),
        database.name,
        server.url("/"),
    );
    let file = database.folder().join("oncebox.toml");
    std::fs::write(&file, text).unwrap();
    server.answer(422);
    let daemon = Process::start(&mut command(["relay", "-c", file.to_str().unwrap()]));
    database.sql(
        "INSERT INTO {t}outbox (id, type, destination, ordering_key, payload) VALUES ('m-1', 't', 'd', 'k', '1'), ('m-2', 't', 'd', 'k', '2');",
    );
    eventually("the first is dead", || {
        let dead = database.run(&["dead", "list", "-o", "json"]).exits(0).json();
        dead["dead"].as_array().is_some_and(|dead| dead.len() == 1)
    });
    server.answer(204);
    daemon
}

#[test]
fn a_dead_letter_is_listed_with_its_reason_and_tried_again() {
    for database in Database::both("a_dead_letter_is_listed") {
        let (database, server) = (database.migrated(), Server::start());
        let _daemon = refused(&database, &server);
        let listed = database.run(&["dead", "list", "-o", "json"]).json()["dead"][0].clone();
        assert_eq!((&listed["id"], &listed["sink"]), (&"m-1".into(), &"hook".into()), "{listed}");
        assert!(listed["reason"].as_str().unwrap().contains("422"), "{listed}");
        let position = listed["position"].to_string();

        database.run(&["dead", "requeue", &position, "--sink", "hook"]).exits(5);
        database.run(&["dead", "requeue", &position, "--sink", "hook", "--dry-run"]).exits(0);
        database.run(&["dead", "requeue", "999999", "--sink", "hook", "--yes"]).exits(4);
        database.run(&["dead", "requeue", &position, "--sink", "other", "--yes"]).exits(4);
        assert_eq!(server.posted().len(), 1, "nothing was changed");
        database.run(&["dead", "requeue", &position, "--sink", "hook", "--yes"]).exits(0);

        eventually("both leave, in order", || server.posted().len() == 3);
        let ids: Vec<_> = server.posted().iter().map(|p| p.header("ce-id").unwrap().to_owned()).collect();
        assert_eq!(ids, ["m-1", "m-1", "m-2"]);
        assert_eq!(database.run(&["dead", "list"]).exits(0).stdout, "");
    }
}

#[test]
fn a_dead_letter_that_is_given_up_frees_its_key() {
    for database in Database::both("a_dead_letter_that_is_given_up") {
        let (database, server) = (database.migrated(), Server::start());
        let _daemon = refused(&database, &server);

        let run =
            database.run(&["dead", "discard", "--all", "--sink", "hook", "--yes", "-o", "json"]).exits(0);

        assert_eq!(run.json()["changed"], 1, "{run:?}");
        eventually("the next of its key leaves", || server.posted().len() == 2);
        assert_eq!(server.posted()[1].header("ce-id"), Some("m-2"));
    }
}

#[test]
fn a_dead_letter_is_found_behind_any_number_of_messages_that_wait() {
    let Some(database) = Database::sqlite("a_dead_letter_is_found_behind") else { return };
    let database = database.migrated();
    database.sql(
        "INSERT INTO {t}parked (sink, position, shard, state, next_at, parked_at) \
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001) \
         SELECT 'hook', i, 0, 'waiting', 1, 1 FROM n; \
         INSERT INTO {t}parked (sink, position, shard, state, parked_at) \
         VALUES ('hook', 20000, 0, 'dead', 2), ('other', 20000, 0, 'dead', 2);",
    );

    let all = database.run(&["dead", "list", "-o", "json"]).exits(0).json();
    let one = database.run(&["dead", "list", "--sink", "hook", "-o", "json"]).exits(0).json();

    assert_eq!((all["dead"].as_array().unwrap().len(), one["dead"].as_array().unwrap().len()), (2, 1));
    assert_eq!((&one["dead"][0]["sink"], &one["dead"][0]["position"]), (&"hook".into(), &20_000.into()));
}
