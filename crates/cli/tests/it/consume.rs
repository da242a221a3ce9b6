//! `oncebox consume`, behind a relay, on real brokers.

use serde_json::Value;

use crate::database::Database;
use crate::process::Process;
use crate::program::{Ran, command, eventually, oncebox, ran, service};
use crate::server::Server;

/// A broker with a channel that only this test uses.
struct Channel {
    url: String,
    name: String,
}

impl Channel {
    fn each(case: &str) -> impl Iterator<Item = Self> {
        let channel = |(variable, kind): (&str, &str)| {
            let name = format!("consume{}x{}{kind}", std::process::id(), case.len());
            service(variable, case).map(|url| Self { url, name })
        };
        [("ONCEBOX_TEST_NATS_URL", "n"), ("ONCEBOX_TEST_RABBITMQ_URL", "r")].into_iter().filter_map(channel)
    }

    fn is_nats(&self) -> bool {
        self.url.starts_with("nats")
    }

    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["consume", "--from", &self.url, "--channel", &self.name, "--group", "peek"], more].concat()
    }

    fn consume(&self, more: &[&str]) -> Ran {
        ran(&mut command(self.args(more)))
    }

    /// Consumes until something comes, as a slow broker takes its time.
    fn consume_until(&self, more: &[&str], is_enough: impl Fn(&Ran) -> bool) -> Ran {
        let mut runs = (0..20).map(|_| self.consume(more).exits(0));
        runs.find(is_enough).expect("something comes")
    }

    fn put(&self, database: &Database, from: u32, to: u32) {
        let rows: Vec<_> =
            (from..to).map(|n| format!("('order.placed.v1', '{}', '{{\"n\": {n}}}')", self.name)).collect();
        database.sql(&format!(
            "INSERT INTO {{t}}outbox (type, destination, payload) VALUES {};",
            rows.join(", ")
        ));
    }

    fn relay(&self, database: &Database, sink: &str) {
        database.run(&["relay", "--once", "--to", &self.url, "--sink", sink]).exits(0);
    }
}

/// What the broker keeps for the channel goes with the test.
impl Drop for Channel {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let gone: Result<(), String> = runtime.block_on(async {
            if self.is_nats() {
                let (user, place) = self.url.strip_prefix("nats://").unwrap().rsplit_once('@').unwrap();
                let (user, password) = user.split_once(':').unwrap();
                let options =
                    async_nats::ConnectOptions::with_user_and_password(user.into(), password.into());
                let client = options.connect(place).await.map_err(|e| e.to_string())?;
                let context = async_nats::jetstream::new(client);
                return context
                    .delete_stream(self.name.to_uppercase())
                    .await
                    .map(drop)
                    .map_err(|e| e.to_string());
            }
            let connect = lapin::Connection::connect(&self.url, lapin::ConnectionProperties::default());
            let connection = connect.await.map_err(|e| e.to_string())?;
            let channel = connection.create_channel().await.map_err(|e| e.to_string())?;
            let queue = format!("{}.peek", self.name);
            channel.queue_delete(queue.into(), Default::default()).await.map_err(|e| e.to_string())?;
            let exchange = self.name.clone();
            channel.exchange_delete(exchange.into(), Default::default()).await.map_err(|e| e.to_string())
        });
        // A test that skipped this broker made nothing there.
        if let Err(error) =
            gone.or_else(|error| if error.contains("not found") { Ok(()) } else { Err(error) })
        {
            println!("{} is left behind: {error}", self.name);
        }
    }
}

fn numbers(lines: &[Value]) -> Vec<u64> {
    lines.iter().map(|line| line["data"]["n"].as_u64().unwrap()).collect()
}

#[test]
fn what_a_relay_sends_is_printed_as_cloudevents_and_acknowledged() {
    let case = "what_a_relay_sends_is_printed";
    for channel in Channel::each(case) {
        let Some(database) = Database::sqlite(case) else { return };
        let database = database.migrated();
        let first = channel.consume(&["--idle", "300ms"]).exits(0);
        assert!(first.stdout.is_empty() && first.stderr.contains("markers are kept in memory"), "{first:?}");
        channel.put(&database, 0, 3);
        channel.relay(&database, "s");

        let run = channel.consume(&["--count", "2"]).exits(0);

        let lines = run.json_lines();
        assert_eq!(numbers(&lines), [0, 1], "{run:?}");
        assert_eq!((&lines[0]["type"], &lines[0]["specversion"]), (&"order.placed.v1".into(), &"1.0".into()));
        assert!(lines[0]["headers"].is_null(), "nothing of ours is added: {}", lines[0]);
        assert!(run.stderr.contains("delivered 2, taken 2"), "{run:?}");
        let rest = channel.consume(&["--count", "1", "--idle", "30s", "-o", "json"]).exits(0);
        assert_eq!(numbers(&rest.json_lines()), [2], "what was acknowledged does not come again");
        assert!(channel.consume(&["--idle", "600ms"]).exits(0).stdout.is_empty(), "there is no more");
    }
}

#[test]
fn a_message_that_is_sent_twice_is_printed_once() {
    let case = "a_message_that_is_sent_twice";
    for channel in Channel::each(case).filter(|channel| !channel.is_nats()) {
        let Some(database) = Database::sqlite(case) else { return };
        let database = database.migrated();
        channel.consume(&["--idle", "100ms"]).exits(0);
        channel.put(&database, 0, 2);
        channel.relay(&database, "first");
        channel.relay(&database, "second");
        let url = database.url();

        let run = channel.consume_until(&["--db", &url, "--idle", "3s"], |run| !run.stdout.is_empty());

        assert_eq!(numbers(&run.json_lines()), [0, 1], "{run:?}");
        assert!(run.stderr.contains("delivered 4, taken 2"), "{run:?}");
    }
}

#[test]
fn what_is_not_signed_is_buried_under_its_own_type_and_not_printed() {
    let case = "what_is_not_signed_is_buried";
    for channel in Channel::each(case) {
        let Some(database) = Database::sqlite(case) else { return };
        let database = database.migrated();
        let file = |name: &str, text: &str| {
            let path = database.folder().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let key = file("key", "a secret of many letters\n");
        let (right, wrong) =
            (format!("k1={key}"), format!("k1={}", file("other", "another one of many letters")));
        channel.consume(&["--idle", "100ms"]).exits(0);
        channel.put(&database, 0, 1);
        channel.relay(&database, "unsigned");
        channel.put(&database, 1, 3);
        let config = format!(
            "[[store]]\nurl = \"{}\"\n[[sink]]\nname = \"unsigned\"\nto = \"{}\"\nurl = \"{}\"\n\
             [sink.signing]\nkey_id = \"k1\"\nsecret_file = \"{key}\"\n",
            database.url(),
            if channel.is_nats() { "nats" } else { "rabbitmq" },
            channel.url,
        );
        oncebox(["relay", "--once", "-c", &file("oncebox.toml", &config)]).exits(0);

        let run =
            channel.consume(&["--verify-key", &right, "--count", "1", "--db", &database.url()]).exits(0);

        assert_eq!(numbers(&run.json_lines()), [1], "{run:?}");
        assert!(run.stderr.contains("delivered 2, taken 1, buried 1"), "{run:?}");
        assert!(run.stderr.contains("of type order.placed.v1: forged: the message is not signed"), "{run:?}");
        let letters = database.sql("SELECT code || ' ' || envelope FROM {t}dead_letter;");
        assert!(letters.starts_with("forged ") && letters.contains("order.placed.v1"), "{letters}");
        assert!(letters.lines().count() == 1 && !letters.contains("oncebox.line"), "its own type: {letters}");
        let forged = ["--verify-key", &wrong, "--idle", "1s", "-o", "json"];
        let other = channel.consume_until(&forged, |run| run.stderr.contains("forged"));
        assert!(other.stdout.is_empty(), "{other:?}");
        let report: Value = serde_json::from_str(other.stderr.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&report["buried"], &report["event"]["data"]["n"]),
            (&"forged".into(), &2.into()),
            "{report}"
        );
        assert!(report["reason"].as_str().unwrap().contains("does not match its signature"), "{report}");
        assert!(!format!("{run:?}{other:?}").contains("many letters"), "{other:?}");
    }
}

#[test]
fn what_cannot_be_forwarded_yet_is_forwarded_later() {
    let case = "what_cannot_be_forwarded_yet";
    for channel in Channel::each(case) {
        let Some(database) = Database::sqlite(case) else { return };
        let database = database.migrated();
        let server = Server::start();
        server.answer(503);
        let hook = server.url("/hook");
        let consumer = Process::start(&mut command(channel.args(&["--forward", &hook])));
        consumer.says("listening to");
        channel.put(&database, 0, 1);
        channel.relay(&database, "s");

        eventually("it is tried", || !server.posted().is_empty());
        server.answer(204);
        let tried = server.posted().len();
        eventually("it is tried again", || server.posted().len() > tried);

        consumer.signal("-TERM");
        let (code, errors) = consumer.end();
        assert_eq!(code, Some(0), "{errors}");
        assert!(errors.contains("taken 1"), "{errors}");
        let post = server.posted().pop().unwrap();
        assert_eq!((post.header("ce-type"), post.body.as_str()), (Some("order.placed.v1"), "{\"n\": 0}"));
    }
}

#[test]
fn a_wrong_source_group_or_time_is_exit_2_and_a_broker_that_is_away_exit_7() {
    let base = ["consume", "--channel", "orders"];
    for (more, text) in [
        (["--from", "kafka://h", "--group", "g", "--idle", "1s"], "--from"),
        (["--from", "https://h", "--group", "g", "--idle", "1s"], "--from"),
        (["--from", "nats://h", "--group", "Über", "--idle", "1s"], "a-z 0-9"),
        (["--from", "nats://h", "--group", "g", "--idle", "soon"], "5s"),
        (["--from", "nats://h", "--group", "g", "--verify-key", "hunter2"], "ID=FILE"),
        (["--from", "nats://h", "--group", "g", "--verify-key", "k1=/no/such/file"], "/no/such/file"),
    ] {
        let run = oncebox(base.iter().chain(&more)).exits(2);
        assert!(run.stderr.contains(text) && !run.stderr.contains("hunter2"), "{run:?}");
    }
    for url in ["nats://u:hunter2@127.0.0.1:1", "amqp://u:hunter2@127.0.0.1:1/v"] {
        let run = oncebox(base.iter().chain(&["--from", url, "--group", "g", "-o", "json"])).exits(7);
        assert_eq!(run.json_error()["code"], "OBX7001");
        assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
    }
}
