//! `oncebox status`.

use std::collections::BTreeSet;

use oncebox_conformance::server::free_port;

use crate::database::Database;
use crate::process::Process;
use crate::program::{command, eventually};
use crate::server::Server;
use crate::shop::{Shop, order};

#[test]
fn a_quiet_database_is_healthy_in_both_forms() {
    for database in Database::both("a_quiet_database_is_healthy_in_both_forms") {
        let database = database.migrated();
        database.insert_by_hand(0, 3);
        database.run(&["relay", "--to", "stdout", "--once"]).exits(0);

        let text = database.run(&["status"]).exits(0);
        let json = database.run(&["status", "-o", "json"]).exits(0).json();

        assert!(text.stdout.contains("3 logged") && text.stdout.contains("sink     stdout"), "{text:?}");
        let keys: BTreeSet<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "count_cap",
            "dead_letters",
            "handlers",
            "healthy",
            "logged",
            "markers",
            "parked",
            "scheduled",
            "sinks",
            "troubles",
            "v",
        ];
        assert_eq!(keys, expected.into());
        assert_eq!((&json["healthy"], &json["logged"]), (&true.into(), &3.into()));
        assert_eq!(json["sinks"][0]["pending"], 0);
    }
}

#[test]
fn messages_that_nobody_relays_are_unhealthy() {
    for database in Database::both("messages_that_nobody_relays_are_unhealthy") {
        let database = database.migrated();
        database.run(&["status"]).exits(0);
        database.insert_by_hand(0, 1);

        let never = database.run(&["status"]).exits(3);
        database.run(&["relay", "--to", "stdout", "--once"]).exits(0);
        database.run(&["status"]).exits(0);
        database.insert_by_hand(1, 2);
        let no_more = database.run(&["status", "-o", "json"]).exits(3).json();

        assert!(never.stdout.contains("! messages wait and no relay has run yet"), "{never:?}");
        assert_eq!(no_more["healthy"], false);
        assert!(no_more["troubles"][0].as_str().unwrap().contains("no relay is alive"), "{no_more}");
    }
}

#[test]
fn a_message_that_waits_too_long_is_unhealthy() {
    for database in Database::both("a_message_that_waits_too_long_is_unhealthy") {
        let database = database.migrated();
        database.run(&["relay", "--to", "stdout", "--once"]).exits(0);
        let ago = match database.is_sqlite() {
            true => "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER) - 300000000",
            false => "now() - interval '5 minutes'",
        };
        database.sql(&format!(
            "INSERT INTO {{t}}outbox (type, destination, payload, created_at) VALUES ('t', 'd', '1', {ago});"
        ));

        let late = database.run(&["status"]).exits(3);
        let patient = database.run(&["status", "-o", "json", "--max-lag", "3600"]).exits(3).json();
        database.run(&["relay", "--to", "stdout", "--once"]).exits(0);

        assert!(late.stdout.contains("the oldest message waits since"), "{late:?}");
        assert!(!patient["troubles"].to_string().contains("oldest"), "{patient}");
        database.run(&["status"]).exits(0);
    }
}

#[test]
fn a_dead_message_is_unhealthy_and_shown_with_its_reason() {
    for database in Database::both("a_dead_message_is_unhealthy_and_shown_with_its_reason") {
        let database = database.migrated();
        // What only a row made by hand can be: no such version, and a name that would move a cursor.
        database.sql(
            "INSERT INTO {t}outbox (id, type, destination, payload, schema_version) \
             VALUES ('evil' || chr(27) || '[2J', 't', 'd', '1', -7);"
                .replace("chr(27)", if database.is_sqlite() { "char(27)" } else { "chr(27)" })
                .as_str(),
        );
        database.insert_by_hand(0, 2);

        let run = database.run(&["relay", "--to", "stdout", "--once"]).exits(0);
        let text = database.run(&["status"]).exits(3);
        let json = database.run(&["status", "-o", "json"]).exits(3).json();

        assert_eq!(run.json_lines().len(), 2, "the others flow: {run:?}");
        assert!(text.stdout.contains("dead") && text.stdout.contains("! sink stdout: 1 dead"), "{text:?}");
        assert!(!text.stdout.contains('\u{1b}'), "no control character reaches a terminal");
        assert_eq!(json["sinks"][0]["dead"], 1);
        assert_eq!(json["parked"][0]["state"], "dead");
        assert!(!json["parked"][0]["reason"].as_str().unwrap().is_empty(), "{json}");
    }
}

fn relay(database: &Database, to: &str) -> Process {
    Process::start(&mut command(database.args(&["relay", "--to", to])))
}

#[test]
fn a_broker_that_cannot_be_reached_is_shown_with_its_reason() {
    for database in Database::both("a_broker_that_cannot_be_reached") {
        let database = database.migrated();
        database.insert_by_hand(0, 2);

        let daemon = relay(&database, "amqp://u:hunter2@127.0.0.1:1");
        eventually("the reason is in the status", || {
            let json = database.run(&["status", "-o", "json"]).json();
            json["sinks"][0]["outage"].as_str().is_some_and(|reason| reason.contains("127.0.0.1:1"))
        });
        let json = database.run(&["status", "-o", "json"]).exits(0).json();
        let text = database.run(&["status"]).exits(0);
        daemon.signal("-TERM");
        let (code, errors) = daemon.end();
        let after = database.run(&["status", "-o", "json"]).exits(3).json();

        assert_eq!((&json["sinks"][0]["pending"], &json["parked"]), (&2.into(), &serde_json::json!([])));
        let line = text.stdout.lines().find(|line| line.contains("outage: ")).unwrap_or_default();
        assert!(line.contains("127.0.0.1:1"), "{text:?}");
        assert!(!format!("{text:?}{json}").contains("hunter2"), "{text:?}");
        assert_eq!(code, Some(0), "{errors}");
        assert_eq!(after["sinks"][0]["outage"], serde_json::Value::Null, "nobody is there to tell: {after}");
    }
}

#[test]
fn an_outage_that_is_over_is_no_longer_shown() {
    for database in Database::both("an_outage_that_is_over_is_no_longer_shown") {
        let database = database.migrated();
        database.insert_by_hand(0, 1);
        let free = format!("127.0.0.1:{}", free_port());
        let outage = || database.run(&["status", "-o", "json"]).json()["sinks"][0]["outage"].clone();

        let daemon = relay(&database, &format!("http://{free}/hook"));
        eventually("the reason is in the status", || outage().is_string());
        let server = Server::start_at(&free);
        eventually("the message arrives", || server.posted().len() == 1);
        eventually("the outage is over", || outage().is_null());

        daemon.signal("-TERM");
        assert_eq!(daemon.end().0, Some(0));
    }
}

#[test]
fn the_handlers_of_the_durable_inbox_are_shown_with_what_waits_for_them() {
    for database in Database::both("the_handlers_of_the_durable_inbox_are_shown") {
        let database = database.migrated();
        let shop = Shop::on(&database);
        shop.work([order(1, 100, "ann")]);
        let quiet = database.run(&["status", "-o", "json"]).exits(0).json();
        shop.work([order(2, -5, "ben"), order(3, 100, "ben"), order(4, 100, "ben")]);

        let json = database.run(&["status", "-o", "json"]).exits(3).json();
        let text = database.run(&["status"]).exits(3).stdout;

        assert!(quiet["handlers"].as_array().unwrap().is_empty(), "all is done: {quiet}");
        let handler = &json["handlers"][0];
        let counts = ["ready", "running", "behind", "parked", "dead"].map(|name| handler[name].as_i64());
        assert_eq!(counts, [0, 0, 2, 0, 1].map(Some), "{handler}");
        assert_eq!((&handler["handler"], &handler["scope"]), (&"ship-order".into(), &"".into()));
        assert!(handler["oldest_s"].is_number(), "{handler}");
        let table: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let head = ["scope", "handler", "ready", "running", "behind", "parked", "dead", "oldest"];
        let at = table.iter().position(|line| *line == head).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(table[at + 1][..7], ["-", "ship-order", "0", "0", "2", "0", "1"], "{text}");
        assert!(text.contains("! inbox: 1 dead letters"), "{text}");
    }
}

#[test]
fn deliveries_that_wait_too_long_or_for_an_unknown_handler_are_unhealthy() {
    for database in Database::both("deliveries_that_wait_too_long") {
        let database = database.migrated();
        Shop::on(&database).work([order(1, 100, "ann")]);
        let ago = match database.is_sqlite() {
            true => "received_at - 300000000",
            false => "received_at - interval '5 minutes'",
        };
        database.sql(&format!("UPDATE {{t}}message SET received_at = {ago};"));
        database.sql(match database.is_sqlite() {
            true => "UPDATE {t}delivery SET state = 'ready', ended_at = NULL;",
            false => {
                "WITH done AS (DELETE FROM {t}finished RETURNING *) \
                 INSERT INTO {t}delivery \
                 (message, scope, handler, tenant, key_source, key_id, digest, state, due_at) \
                 SELECT message, scope, handler, tenant, key_source, key_id, digest, 'ready', ended_at FROM done;"
            }
        });

        let late = database.run(&["status"]).exits(3);
        database.run(&["status", "--max-lag", "3600"]).exits(0);
        database.sql("UPDATE {t}delivery SET state = 'parked';");
        let parked = database.run(&["status", "--max-lag", "3600"]).exits(3);

        let line = "! handler ship-order: the oldest delivery waits since 5 min";
        assert!(late.stdout.contains(line), "{late:?}");
        assert!(parked.stdout.contains("! handler ship-order: 1 parked"), "{parked:?}");
    }
}
