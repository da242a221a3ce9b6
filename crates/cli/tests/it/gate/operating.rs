//! What operators see of a proxy, and what they can tell it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::{Served, exchange, order, runs};
use crate::database::Database;
use crate::program::{eventually, oncebox};

fn get(address: &str, path: &str) -> (u16, String) {
    exchange(address, format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
}

impl Served {
    /// Where operators come in.
    fn admin(&self) -> String {
        let errors = self.process.errors();
        let rest = errors.split("admin answers on http://").nth(1).unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    }
}

#[test]
fn a_gate_is_ready_while_its_store_takes_writes_and_until_it_drains() {
    for database in Database::both("a_gate_is_ready") {
        let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
        let proxy = Served::proxy(&service.address, &database, &["--admin", "127.0.0.1:0"]);
        let admin = proxy.admin();
        let says = |text: &str| eventually(text, || get(&admin, "/readyz").1.contains(text));

        says("200 OK");
        assert_eq!(get(&proxy.address, "/readyz").0, 201, "that port is the service's");
        let prefix = if database.is_sqlite() { "{t}" } else { "" };
        database.sql(&format!("ALTER TABLE {{t}}receipt RENAME TO {prefix}away;"));
        says("503 Service Unavailable");
        assert_eq!(get(&admin, "/livez").0, 200, "a restart would not help");
        database.sql(&format!("ALTER TABLE {{t}}away RENAME TO {prefix}receipt;"));
        says("200 OK");

        let address = proxy.address.clone();
        let last = std::thread::spawn(move || order(&address, "drain", "k", r#"{"sleep":2000}"#));
        eventually("the service runs", || runs(&service.address, "drain") == 1);
        proxy.process.signal("-TERM");
        says("draining");
        assert_eq!(last.join().unwrap().0, 201);
    }
}

#[test]
fn a_gate_counts_what_it_does() {
    let Some(database) = Database::sqlite("a_gate_counts") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    for (cache, hits) in [("1000000", true), ("0", false)] {
        let proxy = Served::proxy(&service.address, &database, &["--admin", "127.0.0.1:0", "--cache", cache]);
        for _ in 0..3 {
            assert_eq!(order(&proxy.address, "count", cache, "{}").0, 201);
        }

        let (status, metrics) = get(&proxy.admin(), "/metrics");

        assert_eq!(status, 200);
        assert!(metrics.contains("oncebox_gate_admitted_total 1\n"), "{metrics}");
        assert!(metrics.contains("oncebox_gate_replayed_total 2\n"), "{metrics}");
        assert_eq!(metrics.contains("oncebox_gate_cache_hits_total 2\n"), hits, "{metrics}");
    }
}

/// Sends a body of `pieces` bytes, one at a time.
fn trickle(address: &str, key: &str, pieces: usize, pause: Duration) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: x\r\n{key}x-fx-case: slow\r\ncontent-length: {pieces}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..pieces {
        std::thread::sleep(pause);
        stream.write_all(b"x").ok();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok();
    (answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), answer)
}

/// A service that answers when it has read a request of so many bytes to its end.
fn attentive(bytes: usize) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), Vec::new());
            let is_whole = |request: &[u8]| {
                let head = request.windows(4).position(|window| window == b"\r\n\r\n");
                head.is_some_and(|head| request.len() >= head + 4 + bytes)
            };
            let mut piece = [0; 4096];
            while let Ok(1..) = stream.peek(&mut piece) {
                let read = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..read]);
                if is_whole(&request) {
                    let answer = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
                    stream.write_all(answer.as_bytes()).unwrap();
                    break;
                }
            }
        }
    });
    address
}

#[test]
fn a_slow_upload_is_waited_for_as_long_as_something_comes() {
    let Some(database) = Database::sqlite("a_slow_upload") else { return };
    let database = database.migrated();
    let limits = ["--timeout", "1", "--stall", "2"];
    let proxy = Served::proxy(&attentive(6), &database, &limits);

    for key in ["", "idempotency-key: k\r\n"] {
        // Longer than the service may take for its answer, and never still for long.
        assert_eq!(trickle(&proxy.address, key, 6, Duration::from_millis(400)).0, 201, "{key:?}");
    }
    for (key, expected) in [("", 408), ("idempotency-key: still\r\n", 400)] {
        let (status, answer) = trickle(&proxy.address, key, 2, Duration::from_secs(3));
        assert_eq!(status, expected, "{answer}");
    }
}

#[test]
fn a_service_that_has_the_whole_request_must_answer_in_time() {
    let Some(database) = Database::sqlite("a_service_that_has_the_whole_request") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let proxy = Served::proxy(&service.address, &database, &["--timeout", "1"]);

    let (status, answer) = order(&proxy.address, "late", "late", r#"{"sleep":3000}"#);

    assert_eq!(status, 504, "{answer}");
    assert!(answer.contains("outcome-unknown"), "{answer}");
}

#[test]
fn keys_are_made_and_checked() {
    let says = |args: &[&str], code: i32| oncebox([&["gate", "key"], args].concat()).exits(code).stdout;

    for made in [
        says(&["new"], 0),
        says(&["new", "--kind", "ulid"], 0),
        says(&["new", "--kind", "step", "--operation", "order-7", "--step", "3"], 0),
    ] {
        assert!(says(&["check", made.trim()], 0).starts_with("a key of "), "{made}");
    }
    let atp = says(&["new", "--kind", "atp", "--tenant", "acme", "--app", "shop"], 0);
    assert!(atp.starts_with("acme:shop:"), "{atp}");
    let report =
        oncebox(["gate", "key", "check", "--profile", "atp", "-o", "json", atp.trim()]).exits(0).json();
    assert_eq!(
        (report["valid"].as_bool(), report["tenant"].as_str()),
        (Some(true), Some("acme")),
        "{report}"
    );
    assert!(says(&["check", "--profile", "atp", "plain"], 1).contains("tenant:app:unique"));
    assert!(says(&["check", "--quoted", "plain"], 1).contains("quoted"));
    assert!(says(&["check", ""], 1).contains("empty"));
    assert!(says(&["check", &"k".repeat(256)], 1).contains("255"));
    oncebox(["gate", "key", "new", "--kind", "atp", "--tenant", "a:b", "--app", "x"]).exits(2);
    oncebox(["gate", "key", "new", "--kind", "content"]).exits(2);
}

#[test]
fn the_key_of_a_content_is_that_of_its_bytes() {
    let Some(database) = Database::sqlite("the_key_of_a_content") else { return };
    let file = database.folder().join("body.json");
    std::fs::write(&file, "abc").unwrap();

    let made =
        oncebox(["gate", "key", "new", "--kind", "content", "--body", file.to_str().unwrap()]).exits(0);

    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(made.stdout.trim(), format!("content:{hash}"));
}
