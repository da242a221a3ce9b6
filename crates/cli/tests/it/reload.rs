//! Credentials that change while `oncebox relay` runs: the old ones are
//! revoked, SIGHUP reads the new ones, and nothing is lost in between.

use std::path::PathBuf;

use serde_json::Value;

use crate::daemon::{start, store};
use crate::database::Database;
use crate::private::{NatsServer, PostgresServer};
use crate::process::readiness;
use crate::program::eventually;
use crate::server::Server;
use crate::virtual_host::{VirtualHost, arrived, arrived_all};

fn file(database: &Database, name: &str, text: &str) -> PathBuf {
    let file = database.folder().join(name);
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn after_a_hangup_brokers_are_served_with_the_new_password_and_nothing_is_lost() {
    let case = "after_a_hangup_brokers_are_served";
    let Some(database) = Database::postgres(case) else { return };
    let Some(rabbit) = VirtualHost::fresh(case) else { return };
    let Some(nats) = NatsServer::start(case, "first-secret", "", "") else { return };
    let database = database.migrated();
    let rabbit_file = file(&database, "rabbit", &rabbit.user("first-secret"));
    let nats_file = file(&database, "nats", &nats.url("first-secret"));
    let config = format!(
        "[health]\nlisten = \"127.0.0.1:0\"\n{}\
         [[sink]]\nname = \"rabbit\"\nto = \"rabbitmq\"\nurl_file = \"{}\"\npoll = \"20ms\"\n\
         [[sink]]\nname = \"nats\"\nto = \"nats\"\nurl_file = \"{}\"\npoll = \"20ms\"\n",
        store("a", &database),
        rabbit_file.display(),
        nats_file.display(),
    );
    assert!(arrived(&rabbit.url(), "orders").is_empty());
    let daemon = start(&database, &config);
    let sinks = || database.run(&["status", "-o", "json"]).json()["sinks"].clone();
    let is_served = || {
        let sinks = sinks();
        let is_served = |sink: &Value| sink["pending"] == 0 && sink["waiting"] == 0;
        sinks.as_array().unwrap().len() == 2 && sinks.as_array().unwrap().iter().all(is_served)
    };
    database.insert_by_hand(0, 5);
    eventually("both brokers have the first messages", is_served);

    rabbit.user("second-secret");
    nats.change_password("second-secret");
    rabbit.throw_out();
    database.insert_by_hand(5, 10);
    eventually("the status has a reason for each broker", || {
        let reason = |sink: usize| sinks()[sink]["outage"].as_str().unwrap_or_default().to_lowercase();
        let both = [reason(0), reason(1)];
        both.iter().any(|reason| reason.contains("nats") && reason.contains("authorization"))
            && both.iter().any(|reason| reason.contains("login was refused"))
    });
    let stuck = sinks();
    file(&database, "rabbit", &rabbit.user("second-secret"));
    file(&database, "nats", &nats.url("second-secret"));
    daemon.signal("-HUP");
    eventually("both brokers have the others, too", is_served);

    database.insert_by_hand(10, 12);
    eventually("and what comes next", is_served);
    eventually("and all is well", || readiness(&daemon.health()).0 == 200);
    daemon.signal("-TERM");
    let (code, errors) = daemon.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(
        stuck.as_array().unwrap().iter().all(|sink| sink["pending"] == 5 && sink["dead"] == 0),
        "{stuck}"
    );
    assert!(!format!("{errors}{stuck}").contains("-secret"), "{errors}{stuck}");
    for url in [rabbit.url(), nats.url("second-secret")] {
        assert_eq!(arrived_all(&url, "orders", 12), (0..12).collect::<Vec<_>>(), "{errors}");
    }
}

#[test]
fn after_a_hangup_a_database_is_read_with_the_new_password_and_nothing_is_lost() {
    let case = "after_a_hangup_a_database_is_read";
    let Some(postgres) = PostgresServer::start(case) else { return };
    let database = Database::at(postgres.url("admin", "secret")).migrated();
    let schema = &database.name;
    database.sql(&format!(
        "CREATE ROLE relay LOGIN PASSWORD 'first-secret'; GRANT USAGE ON SCHEMA {schema} TO relay; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO relay; \
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO relay;"
    ));
    let url = file(&database, "url", &postgres.url("relay", "first-secret"));
    let server = Server::start();
    let config = format!(
        "[health]\nlisten = \"127.0.0.1:0\"\n[[store]]\nname = \"a\"\nurl_file = \"{}\"\nschema = \"{schema}\"\n\
         [[sink]]\nto = \"http\"\nurl = \"{}\"\npoll = \"20ms\"\nlease = \"10s\"\npublish_timeout = \"5s\"\n",
        url.display(),
        server.url("/hook"),
    );
    let daemon = start(&database, &config);
    database.insert_by_hand(0, 3);
    eventually("the first messages arrive", || server.posted().len() == 3);

    database.sql("ALTER ROLE relay PASSWORD 'second-secret'");
    let health = daemon.health();
    eventually("it says why it is not ready", || {
        // Again and again: a login that was under way is not in the list yet.
        database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'");
        let (status, body) = readiness(&health);
        let reason = body["stores"][0]["reason"].as_str().unwrap_or_default();
        status == 503 && reason.contains("password authentication failed")
    });
    database.insert_by_hand(3, 6);
    eventually("the status shows that nobody relays", || {
        database.run(&["status", "-o", "json"]).json()["troubles"].to_string().contains("no relay is alive")
    });
    assert_eq!(server.posted().len(), 3);
    file(&database, "url", &postgres.url("relay", "second-secret"));
    daemon.signal("-HUP");

    eventually("the others arrive", || server.posted().len() == 6);
    eventually("and all is well", || readiness(&health).0 == 200);
    daemon.signal("-TERM");
    let (code, errors) = daemon.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(!errors.contains("-secret"), "{errors}");
    let mut bodies: Vec<String> = server.posted().into_iter().map(|posted| posted.body).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..6).map(|n| format!("{{\"n\": {n}}}")).collect::<Vec<_>>());
}
