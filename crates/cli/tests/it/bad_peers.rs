//! Brokers that are ill or do not fit: the reason is in `oncebox status`, names
//! the destination and no secret; other destinations flow; nothing is lost.

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use serde_json::Value;

use crate::daemon::{start, store};
use crate::database::Database;
use crate::private::{NatsServer, RabbitNode, TlsListener, make_certificate};
use crate::process::{Process, get, readiness};
use crate::program::eventually;
use crate::virtual_host::{VirtualHost, arrived, arrived_all};

fn status(database: &Database) -> Value {
    database.run(&["status", "-o", "json"]).json()
}

fn sink(database: &Database, name: &str) -> Value {
    let status = status(database);
    let all = status["sinks"].as_array().unwrap();
    all.iter().find(|sink| sink["sink"] == name).cloned().unwrap_or_default()
}

/// Whether nothing waits for a sink, neither in the log nor beside it.
fn is_served(database: &Database, name: &str) -> bool {
    let sink = sink(database, name);
    sink["pending"] == 0 && sink["waiting"] == 0
}

/// Why a sink cannot use its destination.
fn outage(database: &Database, name: &str) -> String {
    sink(database, name)["outage"].as_str().unwrap_or_default().to_owned()
}

/// The reasons of messages beside the log, in order.
fn reasons(database: &Database) -> Vec<String> {
    let status = status(database);
    let parked = status["parked"].as_array().unwrap().iter();
    let mut reasons: Vec<_> =
        parked.map(|row| row["reason"].as_str().unwrap_or_default().to_owned()).collect();
    reasons.sort_unstable();
    reasons
}

#[track_caller]
fn end(daemon: Process) -> String {
    daemon.signal("-TERM");
    let (code, errors) = daemon.end();
    assert_eq!(code, Some(0), "{errors}");
    errors
}

fn numbers(from: u64, to: u64) -> Vec<u64> {
    (from..to).collect()
}

#[test]
fn messages_to_a_queue_that_is_deleted_wait_with_the_reason_and_arrive_when_it_is_back() {
    let case = "messages_to_a_queue_that_is_deleted_wait";
    let Some(database) = Database::postgres(case) else { return };
    let Some(rabbit) = VirtualHost::fresh(case) else { return };
    let database = database.migrated();
    let config = format!(
        "{}[[sink]]\nname = \"mq\"\nto = \"rabbitmq\"\nurl = \"{}\"\npoll = \"20ms\"\n",
        store("a", &database),
        rabbit.url(),
    );
    assert!(arrived(&rabbit.url(), "orders").is_empty() && arrived(&rabbit.url(), "bills").is_empty());
    let daemon = start(&database, &config);
    database.insert_to("orders", 0, 2);
    eventually("the first are sent", || is_served(&database, "mq"));
    assert_eq!(arrived_all(&rabbit.url(), "orders", 2), [0, 1]);

    rabbit.delete_queue("orders.peek");
    database.insert_to("orders", 2, 5);
    database.insert_to("bills", 0, 3);
    eventually("they wait with the reason, and the others flow", || {
        let reasons = reasons(&database);
        reasons.len() == 3 && reasons.iter().all(|reason| reason.starts_with("orders: unroutable"))
    });
    assert_eq!(arrived_all(&rabbit.url(), "bills", 3), numbers(0, 3));
    let waiting = status(&database);
    // Whoever consumes makes the queue again, and may see the first of them already.
    let mut late = arrived(&rabbit.url(), "orders");
    eventually("they are sent when it is back", || is_served(&database, "mq"));

    let errors = end(daemon);
    late.extend(arrived_all(&rabbit.url(), "orders", 3 - late.len()));
    late.sort_unstable();
    assert_eq!(late, numbers(2, 5), "{errors}");
    let parked = waiting["parked"].as_array().unwrap();
    assert!(parked.iter().all(|row| row["state"] == "waiting" && row["attempts"] == 0), "{waiting}");
    assert!(status(&database)["parked"].as_array().unwrap().is_empty());
}

#[test]
fn a_certificate_for_another_name_is_a_clear_reason_for_each_broker_and_others_flow() {
    let case = "a_certificate_for_another_name";
    let Some(database) = Database::sqlite(case) else { return };
    let database = database.migrated();
    if !make_certificate(database.folder(), case) {
        return;
    }
    let path = |name: &str| database.folder().join(name).to_str().unwrap().to_owned();
    let tls = format!("tls {{ cert_file: \"{}\", key_file: \"{}\" }}", path("cert.pem"), path("key.pem"));
    let Some(nats) = NatsServer::start(case, "hunter2", "", &tls) else { return };
    let amqps = TlsListener::start(database.folder());
    let of = |name: &str, to: &str, url: &str| {
        let ca = path("cert.pem");
        format!(
            "[[sink]]\nname = \"{name}\"\nto = \"{to}\"\nurl = \"{url}\"\nca_file = \"{ca}\"\npoll = \"20ms\"\n"
        )
    };
    let config = format!(
        "[health]\nlisten = \"127.0.0.1:0\"\n{}{}{}{}",
        store("a", &database),
        of("right", "nats", &format!("tls://app:hunter2@localhost:{}", nats.port)),
        of("wrong", "nats", &format!("tls://app:hunter2@127.0.0.1:{}", nats.port)),
        of("rabbit", "rabbitmq", &format!("amqps://app:hunter2@127.0.0.1:{}/v", amqps.port)),
    );
    let daemon = start(&database, &config);
    database.insert_by_hand(0, 2);

    eventually("the name that fits is served", || {
        let right = sink(&database, "right");
        right["pending"] == 0 && right["outage"].is_null()
    });
    for (name, port) in [("wrong", nats.port), ("rabbit", amqps.port)] {
        let place = format!("127.0.0.1:{port}");
        eventually("the others have a reason", || {
            let reason = outage(&database, name);
            reason.contains(&place) && reason.contains("certificate") && reason.contains("name")
        });
        let sink = sink(&database, name);
        assert_eq!((&sink["pending"], &sink["dead"]), (&2.into(), &0.into()), "{sink}");
    }
    let (ready, body) = readiness(&daemon.health());
    assert_eq!(ready, 503);
    assert_eq!(get(&daemon.health(), "/livez").0, 200, "a restart would not help");
    let shown = format!("{body}{}{}", status(&database), end(daemon));
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_rabbitmq_without_disk_space_is_waited_for() {
    let case = "a_rabbitmq_without_disk_space";
    let Some(database) = Database::sqlite(case) else { return };
    let Some(node) = RabbitNode::start(case) else { return };
    let database = database.migrated();
    let config = format!(
        "{}[[sink]]\nname = \"mq\"\nto = \"rabbitmq\"\nurl = \"{}\"\npoll = \"20ms\"\n\
         [[sink]]\nname = \"lines\"\nto = \"stdout\"\npoll = \"20ms\"\n",
        store("a", &database),
        node.url(),
    );
    assert!(arrived(&node.url(), "orders").is_empty());
    let daemon = start(&database, &config);
    database.insert_by_hand(0, 1);
    eventually("the first is sent", || is_served(&database, "mq"));

    // The alarm of a full disk.
    node.ctl(&["set_disk_free_limit", "900000GB"]);
    database.insert_by_hand(1, 6);
    eventually("the others are printed", || daemon.lines().len() == 6);
    eventually("the status has the reason", || outage(&database, "mq").contains("disk"));
    let blocked = sink(&database, "mq");
    node.ctl(&["set_disk_free_limit", "1MB"]);

    eventually("they are sent when there is space", || is_served(&database, "mq"));
    let errors = end(daemon);
    assert_eq!(arrived_all(&node.url(), "orders", 6), numbers(0, 6), "{errors}");
    assert_eq!(blocked["dead"], 0, "{blocked}");
    assert!(blocked["pending"].as_u64() > Some(0), "{blocked}");
}

#[test]
fn a_full_stream_holds_up_only_its_own_and_a_full_server_is_waited_for() {
    let case = "a_full_stream_holds_up_only_its_own";
    let Some(database) = Database::sqlite(case) else { return };
    let Some(nats) = NatsServer::start(case, "secret", "max_file_store: 4MB", "") else { return };
    let database = database.migrated();
    let small = |max_bytes| Config {
        name: "SMALL".into(),
        subjects: vec!["small".into(), "small.>".into()],
        discard: DiscardPolicy::New,
        max_bytes,
        ..Config::default()
    };
    let filler = Config { name: "FILLER".into(), subjects: vec!["filler".into()], ..Config::default() };
    nats.manage("secret", async |context| {
        context.create_stream(small(600)).await.unwrap();
        context.create_stream(filler).await.unwrap();
    });
    let config = format!(
        "{}[[sink]]\nname = \"js\"\nto = \"nats\"\nurl = \"{}\"\npoll = \"20ms\"\n",
        store("a", &database),
        nats.url("secret"),
    );
    let daemon = start(&database, &config);
    database.insert_to("small", 0, 20);
    database.insert_to("orders", 0, 3);
    eventually("what does not fit waits with the reason", || {
        let reasons = [reasons(&database), vec![outage(&database, "js")]].concat();
        reasons.iter().any(|reason| reason.contains("small") && reason.contains("maximum bytes exceeded"))
    });
    let mut flown = Vec::new();
    eventually("the other destination flows", || {
        flown.extend(arrived(&nats.url("secret"), "orders"));
        flown.len() == 3
    });
    assert!(!is_served(&database, "js"), "{}", status(&database));
    nats.manage("secret", async |context| context.update_stream(small(100_000)).await.map(drop).unwrap());
    eventually("it is sent when there is room", || is_served(&database, "js"));
    assert_eq!(arrived_all(&nats.url("secret"), "small", 20), numbers(0, 20));

    nats.manage("secret", async |context| {
        // Until the server has nothing left.
        while context.publish("filler", vec![0; 500_000].into()).await.unwrap().await.is_ok() {}
        while context.publish("filler", vec![0; 1_000].into()).await.unwrap().await.is_ok() {}
    });
    database.insert_to("orders", 3, 8);
    eventually("the status has the reason", || outage(&database, "js").contains("orders"));
    let (full, reason) = (sink(&database, "js"), outage(&database, "js"));
    nats.manage("secret", async |context| context.delete_stream("FILLER").await.map(drop).unwrap());
    eventually("all is sent when there is space", || is_served(&database, "js"));

    let errors = end(daemon);
    assert!(reason.contains("resource") || reason.contains("storage"), "{reason}");
    assert_eq!(full["dead"], 0, "{full}");
    assert_eq!(arrived_all(&nats.url("secret"), "orders", 5), numbers(3, 8), "{errors}");
}

#[test]
fn what_is_too_large_or_has_no_place_to_go_is_named_and_the_others_flow() {
    let case = "what_is_too_large_or_has_no_place_to_go";
    let Some(database) = Database::sqlite(case) else { return };
    let Some(nats) = NatsServer::start(case, "secret", "", "max_payload: 64KB") else { return };
    let Some(rabbit) = VirtualHost::fresh(case) else { return };
    let database = database.migrated();
    let config = format!(
        "{}[[sink]]\nname = \"js\"\nto = \"nats\"\nurl = \"{}\"\npoll = \"20ms\"\n\
         [[sink]]\nname = \"mq\"\nto = \"rabbitmq\"\nurl = \"{}\"\npoll = \"20ms\"\n\
         [[sink.route]]\nmessage = \"*\"\nto = \"{{destination}}\"\nmax_bytes = 65536\n",
        store("a", &database),
        nats.url("secret"),
        rabbit.url(),
    );
    assert!(arrived(&rabbit.url(), "orders").is_empty());
    // With a blank, which no subject may have; and where no queue is bound.
    database.insert_to("orders", 0, 1);
    database.insert_to("no where", 1, 2);
    database.sql(&format!(
        "INSERT INTO {{t}}outbox (id, type, destination, payload) VALUES ('large', 'bulk', 'orders', '\"{}\"');",
        "y".repeat(100_000)
    ));
    database.insert_to("orders", 2, 4);
    let daemon = start(&database, &config);

    eventually("what fits is sent, and the rest is beside the log", || {
        let status = status(&database);
        let sinks = status["sinks"].as_array().unwrap();
        let dead = sinks.iter().all(|sink| sink["dead"].as_u64() >= Some(1));
        sinks.len() == 2 && dead && status["parked"].as_array().unwrap().len() == 4
    });

    let parked = status(&database)["parked"].clone();
    for row in parked.as_array().unwrap() {
        let reason = row["reason"].as_str().unwrap();
        match row["id"] == "large" {
            true => assert!(reason.starts_with("orders: ") && row["state"] == "dead", "{row}"),
            false => assert!(reason.contains("no where"), "{row}"),
        }
    }
    end(daemon);
    for url in [rabbit.url(), nats.url("secret")] {
        assert_eq!(arrived_all(&url, "orders", 3), [0, 2, 3]);
    }
}
