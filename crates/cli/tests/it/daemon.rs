//! `oncebox relay` as a daemon: several stores and sinks, health, signals.

use std::time::{Duration, Instant};

use oncebox_conformance::server::free_port;

use crate::database::Database;
use crate::process::{Process, get, readiness};
use crate::program::{command, eventually};
use crate::server::Server;

pub(crate) fn start(database: &Database, config: &str) -> Process {
    let file = database.folder().join("oncebox.toml");
    std::fs::write(&file, config).unwrap();
    Process::start(&mut command(["relay", "--log", "info", "-c", file.to_str().unwrap()]))
}

pub(crate) fn store(name: &str, database: &Database) -> String {
    format!("[[store]]\nname = \"{name}\"\nurl = \"{}\"\nschema = \"{}\"\n", database.url(), database.name)
}

#[test]
fn several_stores_and_sinks_run_in_one_process_each_with_its_own_progress() {
    let case = "several_stores_and_sinks_run_in_one_process";
    for other in Database::both(case) {
        let Some(lines) = Database::sqlite(case) else { return };
        let (lines, other) = (lines.migrated(), other.migrated());
        let server = Server::start();
        let config = format!(
            "[health]\nlisten = \"127.0.0.1:0\"\n{}{}\
             [[sink]]\nname = \"lines\"\nstore = \"a\"\nto = \"stdout\"\npoll = \"20ms\"\n\
             [[sink]]\nname = \"hook\"\nstore = \"b\"\nto = \"http\"\nurl = \"{}\"\npoll = \"20ms\"\n\
             [[sink]]\nname = \"odd\"\nstore = \"b\"\nto = \"http\"\npoll = \"20ms\"\n\
             [[sink.route]]\nmessage = \"order.*\"\nto = \"{}\"\n[[sink.route]]\nmessage = \"*\"\nskip = true\n",
            store("a", &lines),
            store("b", &other),
            server.url("/all"),
            server.url("/orders"),
        );
        let daemon = start(&lines, &config);
        lines.insert_by_hand(0, 3);
        other.insert_by_hand(0, 2);
        other.sql("INSERT INTO {t}outbox (type, destination, payload) VALUES ('audit.x', 'd', '{}');");

        let at = |path: &str| server.posted().iter().filter(|posted| posted.path == path).count();
        eventually("all sinks are served", || {
            daemon.lines().len() == 3 && at("/all") == 3 && at("/orders") == 2
        });

        let (status, body) = readiness(&daemon.health());
        assert_eq!((status, body["ready"].as_bool()), (200, Some(true)), "{body}");
        assert_eq!(
            (body["stores"].as_array().unwrap().len(), body["sinks"][2]["name"].as_str()),
            (2, Some("odd"))
        );
        let post = server.posted().into_iter().find(|posted| posted.path == "/orders").unwrap();
        assert_eq!(post.header("ce-type"), Some("order.placed.v1"));
        assert_eq!(post.header("ce-id"), post.header("idempotency-key").map(|key| key.trim_matches('"')));
        eventually("the skipped message is settled, too", || {
            let status = other.run(&["status", "-o", "json"]).json();
            status["sinks"].as_array().unwrap().iter().all(|sink| sink["pending"] == 0)
        });
        daemon.signal("-TERM");
        let (code, errors) = daemon.end();
        assert_eq!(code, Some(0), "{errors}");
        assert!(errors.contains("sink hook: relayed 3 messages"), "{errors}");
    }
}

#[test]
fn a_destination_that_is_down_does_not_stop_the_start_nor_the_others() {
    let Some(database) = Database::sqlite("a_destination_that_is_down") else { return };
    let database = database.migrated();
    database.insert_by_hand(0, 2);
    let free = format!("127.0.0.1:{}", free_port());
    let config = format!(
        "[health]\nlisten = \"127.0.0.1:0\"\n{}\
         [[sink]]\nname = \"lines\"\nto = \"stdout\"\npoll = \"20ms\"\n\
         [[sink]]\nname = \"down\"\nto = \"http\"\nurl = \"http://{free}/hook\"\npoll = \"20ms\"\n\
         [[sink]]\nname = \"nats\"\nto = \"nats\"\nurl = \"nats://u:hunter2@127.0.0.1:1\"\ndestinations = [\"orders\"]\n\
         [[sink]]\nname = \"rabbit\"\nto = \"rabbitmq\"\nurl = \"amqp://u:hunter2@127.0.0.1:1/v\"\ndestinations = [\"orders\"]\n",
        store("a", &database),
    );

    let daemon = start(&database, &config);

    eventually("the healthy sink is served", || daemon.lines().len() == 2);
    let health = daemon.health();
    eventually("each trouble has its reason", || {
        let (status, body) = readiness(&health);
        let reason = |sink: usize| body["sinks"][sink]["reason"].as_str().unwrap_or_default().to_owned();
        status == 503
            && reason(1).contains(&free)
            && reason(2).contains("127.0.0.1:1")
            && reason(3).contains("127.0.0.1:1")
    });
    assert_eq!(get(&health, "/livez"), (200, "alive\n".into()), "restarting would not help");
    assert_eq!(readiness(&health).1["sinks"][0]["state"], "ready");
    let server = Server::start_at(&free);
    eventually("the destination that came back is served", || server.posted().len() == 2);
    eventually("and ready", || readiness(&health).1["sinks"][1]["state"] == "ready");
    daemon.signal("-TERM");
    let (code, errors) = daemon.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(!errors.contains("hunter2"), "{errors}");
}

#[test]
fn a_hangup_reads_credential_files_again() {
    let Some(database) = Database::sqlite("a_hangup_reads_credential_files_again") else { return };
    let database = database.migrated();
    let (first, second) = (Server::start(), Server::start());
    let file = |name: &str| database.folder().join(name).to_str().unwrap().to_owned();
    std::fs::write(file("url"), first.url("/hook?key=hunter2\n")).unwrap();
    std::fs::write(file("secret"), "a secret of many letters\n").unwrap();
    let config = format!(
        "{}[[sink]]\nto = \"http\"\nurl_file = \"{}\"\npoll = \"20ms\"\n\
         [sink.signing]\nkey_id = \"k1\"\nsecret_file = \"{}\"\n",
        store("a", &database),
        file("url"),
        file("secret"),
    );
    let mut daemon = start(&database, &config);
    database.insert_by_hand(0, 1);
    eventually("the first address gets it", || first.posted().len() == 1);
    let signature = first.posted()[0].header("oncebox-signature").unwrap().to_owned();
    assert!(signature.starts_with("v1;kid=k1;mac="), "{signature}");

    std::fs::write(file("url"), second.url("/hook?key=hunter2")).unwrap();
    daemon.signal("-HUP");
    daemon.says("reload.sink");
    database.insert_by_hand(1, 2);

    eventually("the second address gets the next", || second.posted().len() == 1);
    assert_eq!(first.posted().len(), 1);
    // A file that cannot be read changes nothing, not even what the others say.
    std::fs::write(file("url"), first.url("/hook?key=hunter2")).unwrap();
    std::fs::remove_file(file("secret")).unwrap();
    daemon.signal("-HUP");
    daemon.says("reload.failed");
    database.insert_by_hand(2, 3);
    eventually("the second address gets that, too", || second.posted().len() == 2);
    assert!(daemon.is_running());
    daemon.signal("-INT");
    let (code, errors) = daemon.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(!errors.contains("hunter2") && !errors.contains("many letters"), "{errors}");
}

#[test]
fn a_second_signal_does_not_wait_for_what_is_in_flight() {
    let Some(database) = Database::sqlite("a_second_signal_does_not_wait") else { return };
    let database = database.migrated();
    let server = Server::start();
    server.answer(0);
    let config = format!(
        "[health]\nlisten = \"127.0.0.1:0\"\n{}[[sink]]\nto = \"http\"\nurl = \"{}\"\npoll = \"20ms\"\nlease = \"120s\"\npublish_timeout = \"60s\"\n",
        store("a", &database),
        server.url("/")
    );
    let mut daemon = start(&database, &config);
    database.insert_by_hand(0, 1);
    eventually("a request hangs", || server.posted().len() == 1);
    let health = daemon.health();

    daemon.signal("-TERM");
    eventually("it says that it is stopping", || readiness(&health).1["stopping"] == true);
    assert!(daemon.is_running(), "it waits for the answer");
    let asked = Instant::now();
    daemon.signal("-TERM");
    let (code, errors) = daemon.end();

    assert_eq!(code, Some(130), "{errors}");
    assert!(asked.elapsed() < Duration::from_secs(20));
}

#[test]
fn an_address_for_health_checks_that_is_taken_ends_the_start() {
    let Some(database) = Database::sqlite("an_address_for_health_checks") else { return };
    let database = database.migrated();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();

    let run = database.run(&["relay", "--to", "stdout", "--health", &address]).exits(5);

    assert!(run.stderr.contains(&address), "{run:?}");
}
