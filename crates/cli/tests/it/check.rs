//! `oncebox check`, and what a relay makes of grades.

use crate::database::Database;
use crate::process::Process;
use crate::program::{command, eventually, oncebox, ran, service};
use crate::server::Server;

/// A sink to a host that nothing in its configuration allows.
fn unsafe_config(database: &Database, require: &str) -> String {
    let server = Server::start();
    let text = format!(
        "[[store]]\nurl = \"{}\"\n[[sink]]\nto = \"http\"\nrequire = \"{require}\"\nurl = \"{}\"\n\
         destinations = [\"https://elsewhere.example/hunter2\"]\n",
        database.url(),
        server.url("/hook"),
    );
    let file = database.folder().join("oncebox.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_destination_below_require_is_exit_1_with_reason_and_advice() {
    let Some(database) = Database::sqlite("a_destination_below_require") else { return };
    let file = unsafe_config(&database, "C");

    let run = oncebox(["check", "-c", &file]).exits(1);

    assert!(run.stdout.contains("! https://elsewhere.example/***  F"), "{run:?}");
    assert!(run.stdout.contains("configure the destination"), "{run:?}");
    let json = oncebox(["check", "-c", &file, "-o", "json"]).exits(1).json();
    let sink = &json["sinks"][0];
    assert_eq!((&json["passes"], &sink["require"]), (&false.into(), &"C".into()), "{json}");
    assert_eq!(sink["destinations"][0]["grade"], "F");
    assert!(sink["destinations"][0]["findings"][0]["advice"].is_string(), "{json}");
    assert!(!run.stdout.contains("hunter2") && !json.to_string().contains("hunter2"), "{json}");
}

#[test]
fn a_relay_refuses_to_start_below_require_and_starts_when_told_to() {
    let Some(database) = Database::sqlite("a_relay_refuses_to_start_below_require") else { return };
    let database = database.migrated();
    let file = unsafe_config(&database, "A");

    for more in [&[][..], &["--once"]] {
        let run = ran(command(["relay", "-c", &file, "-o", "json"]).args(more)).exits(5);
        let error: serde_json::Value = serde_json::from_str(run.stderr.lines().last().unwrap()).unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("elsewhere.example") && message.contains("grade F"), "{run:?}");
        assert!(!run.stderr.contains("hunter2"), "{run:?}");
    }
    let daemon = Process::start(&mut command(["relay", "-c", &file, "--require", "F"]));
    daemon.says("relaying to");
    daemon.signal("-TERM");
    assert_eq!(daemon.end().0, Some(0));
}

#[test]
fn a_broker_that_cannot_be_asked_is_exit_1_and_said() {
    let Some(database) = Database::sqlite("a_broker_that_cannot_be_asked") else { return };
    for url in ["nats://u:hunter2@127.0.0.1:1", "amqp://u:hunter2@127.0.0.1:1/v"] {
        let run =
            oncebox(["check", "--db", &database.url(), "--to", url, "--destinations", "orders"]).exits(1);

        assert!(run.stdout.contains("cannot be inspected") && run.stdout.contains("127.0.0.1:1"), "{run:?}");
        assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
    }
}

#[test]
fn a_stream_or_exchange_that_is_not_there_is_found_by_a_relay_that_must_not_make_it() {
    let case = "a_stream_or_exchange_that_is_not_there";
    let Some(database) = Database::sqlite(case) else { return };
    let database = database.migrated();
    for variable in ["ONCEBOX_TEST_NATS_URL", "ONCEBOX_TEST_RABBITMQ_URL"] {
        let Some(url) = service(variable, case) else { continue };
        let name = format!("absent{}", std::process::id());
        let args = ["--db", &database.url(), "--to", &url, "--topology", "check", "--destinations", &name];

        let run = ran(command(["check"]).args(args)).exits(1);
        let relay = ran(command(["relay"]).args(args)).exits(5);

        assert!(run.stdout.contains(&format!("! {name}  F")), "{run:?}");
        assert!(relay.stderr.contains(&name), "{relay:?}");
    }
}

#[test]
fn messages_to_an_unsafe_destination_wait_with_their_reason_and_others_flow() {
    let Some(database) = Database::sqlite("messages_to_an_unsafe_destination_wait") else { return };
    let database = database.migrated();
    let server = Server::start();
    let text = format!(
        "[[store]]\nurl = \"{}\"\n[[sink]]\nto = \"http\"\npoll = \"20ms\"\n\
         [[sink.route]]\nmessage = \"order.*\"\nto = \"{}\"\n",
        database.url(),
        server.url("/orders"),
    );
    let file = database.folder().join("oncebox.toml");
    std::fs::write(&file, text).unwrap();
    let daemon = Process::start(&mut command(["relay", "-c", file.to_str().unwrap()]));
    daemon.says("relaying to");

    database.sql("INSERT INTO {t}outbox (type, destination, payload) VALUES ('stray', 'https://elsewhere.example/x', '{}');");
    database.insert_by_hand(0, 2);

    eventually("the others flow", || server.posted().len() == 2);
    eventually("the reason is in the status", || {
        let status = database.run(&["status", "-o", "json"]).json();
        let parked = status["parked"][0].clone();
        parked["reason"].as_str().is_some_and(|reason| reason.contains("elsewhere.example"))
            && parked["attempts"] == 0
    });
}
