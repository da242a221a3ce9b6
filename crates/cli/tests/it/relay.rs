//! `oncebox relay --to stdout`.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::database::Database;
use crate::program::{Ran, command, eventually, other};

fn once(database: &Database) -> Ran {
    database.run(&["relay", "--to", "stdout", "--once"])
}

fn numbers(lines: &[Value]) -> BTreeSet<u64> {
    lines.iter().map(|line| line["data"]["n"].as_u64().unwrap()).collect()
}

#[test]
fn rows_inserted_by_hand_come_out_as_one_cloudevent_per_line() {
    for database in Database::both("rows_inserted_by_hand_come_out_as_one_cloudevent_per_line") {
        let database = database.migrated();
        database.insert_by_hand(0, 7);

        let run = once(&database).exits(0);

        let lines = run.json_lines();
        assert_eq!(lines.len(), 7);
        assert_eq!(numbers(&lines), (0..7).collect());
        for line in &lines {
            assert_eq!(line["specversion"], "1.0");
            assert_eq!((&line["type"], &line["destination"]), (&"order.placed.v1".into(), &"orders".into()));
            assert_eq!(line["source"], "oncebox");
            assert!(line["id"].as_str().unwrap().len() >= 32 && line["time"].is_string(), "{line}");
        }
        let ids: BTreeSet<_> = lines.iter().map(|line| line["id"].to_string()).collect();
        assert_eq!(ids.len(), 7, "each has an id of its own");
        assert!(run.stderr.contains("relayed 7 messages"), "{run:?}");
        assert_eq!(once(&database).exits(0).stdout, "", "what was settled does not come again");
    }
}

#[test]
fn a_payload_that_is_not_json_travels_as_base64() {
    for database in Database::both("a_payload_that_is_not_json_travels_as_base64") {
        let database = database.migrated();
        let bytes = if database.is_sqlite() { "x'00ff'" } else { "'\\x00ff'" };
        database.sql(&format!(
            "INSERT INTO {{t}}outbox (type, destination, payload) VALUES ('t', 'd', {bytes});"
        ));

        let lines = once(&database).exits(0).json_lines();

        assert_eq!(lines[0]["data_base64"], "AP8=");
    }
}

#[test]
fn another_sink_gets_everything_again() {
    for database in Database::both("another_sink_gets_everything_again") {
        let database = database.migrated();
        database.insert_by_hand(0, 3);
        assert_eq!(once(&database).exits(0).json_lines().len(), 3);

        let other = database.run(&["relay", "--to", "stdout", "--once", "--sink", "audit"]).exits(0);

        assert_eq!(other.json_lines().len(), 3);
    }
}

/// A batch that does not fit into a pipe is not written before its reader goes,
/// so none of it may be settled.
#[test]
fn what_nobody_read_before_the_pipe_closed_comes_out_in_the_next_run() {
    for database in Database::both("what_nobody_read_before_the_pipe_closed_comes_out_in_the_next_run") {
        let database = database.migrated();
        let pad = "x".repeat(4000);
        let rows: Vec<_> =
            (0..200).map(|n| format!("('t', 'd', '{{\"n\": {n}, \"pad\": \"{pad}\"}}')")).collect();
        database
            .sql(&format!("INSERT INTO {{t}}outbox (type, destination, payload) VALUES {};", rows.join(",")));
        let errors = database.folder().join("errors");
        let script =
            format!("\"$@\" 2>{} | head -n 5; echo \"exit ${{PIPESTATUS[0]}}\"", errors.to_str().unwrap());
        let program = env!("CARGO_BIN_EXE_oncebox");
        let args = database.args(&["relay", "--to", "stdout", "--once", "--batch", "100"]);
        let mut shell = vec!["-c", &script, "bash", program];
        shell.extend(args.iter().map(String::as_str));

        let first = other("bash", &shell, "");

        let read: Vec<Value> =
            first.lines().take(5).map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read.len(), 5);
        assert!(first.ends_with("exit 1\n"), "{first:.100}");
        let errors = std::fs::read_to_string(errors).unwrap();
        assert!(errors.contains("OBX1003") && errors.contains("stays in the outbox"), "{errors}");
        let pending = database.run(&["status", "-o", "json"]).exits(3).json()["sinks"][0]["pending"].clone();
        assert_eq!(pending, 200, "nothing was settled");
        let second = once(&database).exits(0).json_lines();
        assert_eq!(numbers(&second), (0..200).collect(), "all of them come, also those that were read");
        assert_eq!(second.len(), 200);
    }
}

/// A relay that runs until it is told to stop.
struct Daemon {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Daemon {
    fn start(database: &Database, more: &[&str]) -> Self {
        let verb: Vec<&str> =
            ["relay", "--to", "stdout", "--poll", "20"].iter().chain(more).copied().collect();
        let mut child =
            command(database.args(&verb)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    fn signal(&self, name: &str) {
        other("kill", &[name, &self.child.id().to_string()], "");
    }

    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status.code(), errors)
    }
}

#[test]
fn a_daemon_relays_what_comes_and_stops_in_good_order() {
    for database in Database::both("a_daemon_relays_what_comes_and_stops_in_good_order") {
        for signal in ["-TERM", "-INT"] {
            let database = match database.is_sqlite() {
                true => Database::sqlite("daemon").unwrap().migrated(),
                false => Database::postgres("daemon").unwrap().migrated(),
            };
            database.insert_by_hand(0, 2);
            let mut daemon = Daemon::start(&database, &[]);
            let mut seen = vec![daemon.next(), daemon.next()];
            database.insert_by_hand(2, 4);
            seen.extend([daemon.next(), daemon.next()]);
            // Written and settled are two steps; wait for the second.
            eventually("all is settled", || {
                let status = database.run(&["status", "-o", "json"]).json();
                status["sinks"][0]["pending"] == 0 && status["sinks"][0]["relays"] == 1
            });

            daemon.signal(signal);
            let (code, errors) = daemon.end();

            assert_eq!(code, Some(0), "{errors}");
            assert!(errors.contains("relayed 4 messages"), "{errors}");
            assert_eq!(numbers(&seen), (0..4).collect());
            let after = database.run(&["status", "-o", "json"]).exits(0).json();
            assert_eq!(after["sinks"][0]["unowned_shards"], 8, "its leases are given back: {after}");
            assert_eq!(once(&database).exits(0).stdout, "", "nothing comes twice after a stop in good order");
        }
    }
}

#[test]
fn a_killed_daemon_loses_nothing_and_its_lease_runs_out_for_the_next() {
    for database in Database::both("a_killed_daemon_loses_nothing") {
        let database = database.migrated();
        database.insert_by_hand(0, 50);
        let mut daemon = Daemon::start(&database, &["--batch", "10"]);
        let first = daemon.next();
        daemon.child.kill().unwrap();
        let mut seen = numbers(&[first]);
        while let Some(Ok(line)) = daemon.lines.next() {
            seen.extend(numbers(&serde_json::from_str::<Value>(&line).ok().into_iter().collect::<Vec<_>>()));
        }
        daemon.child.wait().unwrap();
        // The dead relay's lease of 30 s is taken back by hand: the test has no time to wait.
        let past = if database.is_sqlite() { "1" } else { "now() - interval '1 hour'" };
        database.sql(&format!(
            "UPDATE {{t}}relay_cursor SET lease_until = {past}; UPDATE {{t}}relay_member SET seen_until = {past};"
        ));

        seen.extend(numbers(&once(&database).exits(0).json_lines()));

        assert_eq!(seen, (0..50).collect());
    }
}
