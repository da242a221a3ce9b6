//! `oncebox gate`: processes that are killed, services that are gone; and, in
//! `suite`, every case of the checker.

mod connections;
mod framing;
mod operating;
mod options;
mod splitting;
mod suite;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::database::Database;
use crate::process::Process;
use crate::program::{Ran, command, eventually, oncebox};

/// A gate or a fixture, and where it listens.
struct Served {
    process: Process,
    address: String,
}

impl Served {
    fn start(args: &[&str]) -> Self {
        let listen = ["gate"].into_iter().chain(args.iter().copied()).chain(["--listen", "127.0.0.1:0"]);
        let process = Process::start(&mut command(listen));
        process.says("listens on http://");
        let errors = process.errors();
        let rest = errors.split("listens on http://").nth(1).unwrap();
        let address = rest.split_whitespace().next().unwrap().to_owned();
        Self { process, address }
    }

    fn fixture(args: &[&str]) -> Self {
        Self::start(&[&["fixture"], args].concat())
    }

    /// A proxy in front of a service.
    fn proxy(upstream: &str, database: &Database, args: &[&str]) -> Self {
        let (url, to) = (database.url(), format!("http://{upstream}"));
        let own = ["--upstream", &to, "--db", &url, "--schema", &database.name, "--anonymous"];
        Self::start(&[&own, args].concat())
    }

    fn check(&self, args: &[&str]) -> Ran {
        let target = format!("http://{}", self.address);
        oncebox([&["gate", "check", "--target", &target, "-o", "json"], args].concat())
    }
}

/// Sends an order, and reads the answer to its end.
fn order(address: &str, case: &str, key: &str, wish: &str) -> (u16, String) {
    let text = format!(
        "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\nx-fx-case: {case}\r\nx-fx: {wish}\r\n\
         content-length: 2\r\nconnection: close\r\n\r\n{{}}"
    );
    exchange(address, text.as_bytes())
}

fn exchange(address: &str, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(bytes).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer)
}

/// How often the service ran for a case.
fn runs(fixture: &str, case: &str) -> u32 {
    let question = format!("GET /_fx/count/{case} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let (_, answer) = exchange(fixture, question.as_bytes());
    answer.rsplit("\r\n").next().unwrap().trim().parse().unwrap()
}

#[test]
fn a_killed_gate_frees_its_keys_when_their_lease_is_over() {
    for database in Database::both("a_killed_gate_frees_its_keys") {
        let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
        let proxy = Served::proxy(&service.address, &database, &["--lease", "4"]);
        let address = proxy.address.clone();
        let first = std::thread::spawn(move || order(&address, "kill", "k", r#"{"sleep":60000}"#));
        eventually("the service runs", || runs(&service.address, "kill") == 1);
        let killed = Instant::now();
        proxy.process.signal("-KILL");
        assert_eq!(first.join().unwrap().0, 0, "nobody answers for the dead");

        let proxy = Served::proxy(&service.address, &database, &["--lease", "4"]);
        let (status, answer) = order(&proxy.address, "kill", "k", "{}");
        // On a busy machine the lease may be over before this gate has started.
        if killed.elapsed() < Duration::from_secs(2) {
            assert_eq!(status, 409, "{answer}");
            assert!(answer.contains("retry-after: "), "{answer}");
        }
        eventually("the key is free", || order(&proxy.address, "kill", "k", "{}").0 == 201);
        assert_eq!(runs(&service.address, "kill"), 2, "once by each gate");
    }
}

#[test]
fn a_reply_survives_a_restart() {
    for database in Database::both("a_reply_survives_a_restart") {
        let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
        let first = order(&Served::proxy(&service.address, &database, &[]).address, "restart", "k", "{}");
        let proxy = Served::proxy(&service.address, &database, &[]);

        let second = order(&proxy.address, "restart", "k", "{}");

        assert_eq!((first.0, second.0), (201, 201));
        assert!(second.1.contains("idempotent-replayed: true"), "{}", second.1);
        assert_eq!(first.1.rsplit("\r\n").next(), second.1.rsplit("\r\n").next());
        assert_eq!(runs(&service.address, "restart"), 1);
    }
}

#[test]
fn a_key_of_somebody_unknown_is_refused() {
    let Some(database) = Database::sqlite("a_key_of_somebody_unknown") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let (url, to) = (database.url(), format!("http://{}", service.address));
    let proxy = Served::start(&["--upstream", &to, "--db", &url, "--schema", &database.name]);
    let send = |fields: &str| {
        let text = format!(
            "POST /orders HTTP/1.1\r\nhost: x\r\n{fields}content-length: 0\r\nconnection: close\r\n\r\n"
        );
        exchange(&proxy.address, text.as_bytes())
    };

    let (status, answer) = send("idempotency-key: k\r\n");
    assert_eq!(status, 401, "{answer}");
    assert!(answer.contains("idempotency-caller-unknown"), "{answer}");
    assert_eq!(send("idempotency-key: k\r\nauthorization: Bearer a\r\n").0, 201);
    assert_eq!(send("").0, 201, "without a key there is nothing to protect");
}

#[test]
fn a_request_that_offers_another_protocol_is_no_exception() {
    let Some(database) = Database::sqlite("a_request_that_offers_another_protocol") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let proxy = Served::proxy(&service.address, &database, &[]);
    let text = "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\nx-fx-case: h2c\r\nupgrade: h2c\r\n\
                http2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\nconnection: close, upgrade, http2-settings\r\n\
                content-length: 0\r\n\r\n";

    for _ in 0..2 {
        assert_eq!(exchange(&proxy.address, text.as_bytes()).0, 201);
    }

    assert_eq!(runs(&service.address, "h2c"), 1);
}

#[test]
fn a_request_whose_client_has_gone_is_finished_before_the_gate_ends() {
    let Some(database) = Database::sqlite("a_request_whose_client_has_gone") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let proxy = Served::proxy(&service.address, &database, &[]);
    let mut client = TcpStream::connect(&proxy.address).unwrap();
    let text = "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\nx-fx-case: left\r\n\
                x-fx: {\"sleep\":1500}\r\ncontent-length: 2\r\n\r\n{}";
    client.write_all(text.as_bytes()).unwrap();
    eventually("the service runs", || runs(&service.address, "left") == 1);
    drop(client);

    proxy.process.signal("-TERM");
    assert_eq!(proxy.process.end().0, Some(0));

    let (status, answer) = order(&Served::proxy(&service.address, &database, &[]).address, "left", "k", "{}");
    assert_eq!(status, 201);
    assert!(answer.contains("idempotent-replayed: true"), "{answer}");
}

#[test]
fn with_another_secret_nothing_is_recognised() {
    let Some(database) = Database::sqlite("with_another_secret") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    for secret in ["one", "two"] {
        let proxy = Served::proxy(&service.address, &database, &["--secret", secret]);
        assert_eq!(order(&proxy.address, "secret", "k", "{}").0, 201);
    }
    assert_eq!(runs(&service.address, "secret"), 2);
}

#[test]
fn two_gates_on_one_database_run_a_request_once() {
    for database in Database::both("two_gates_on_one_database") {
        let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
        let gates = [(); 2].map(|()| Served::proxy(&service.address, &database, &[]));
        let clients: Vec<_> = (0..40)
            .map(|n| {
                let address = gates[n % 2].address.clone();
                std::thread::spawn(move || order(&address, "two", "k", r#"{"sleep":300}"#))
            })
            .collect();
        let answers: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();

        assert_eq!(runs(&service.address, "two"), 1);
        let firsts =
            answers.iter().filter(|(status, text)| *status == 201 && !text.contains("replayed: true"));
        assert_eq!(firsts.count(), 1);
        assert!(answers.iter().all(|(status, _)| [201, 409].contains(status)), "{answers:?}");
    }
}

#[test]
fn a_service_that_cannot_be_reached_costs_nothing() {
    let Some(database) = Database::sqlite("a_service_that_cannot_be_reached") else { return };
    let database = database.migrated();
    let port = oncebox_conformance::server::free_port();
    let proxy = Served::proxy(&format!("127.0.0.1:{port}"), &database, &[]);

    let (status, answer) = order(&proxy.address, "gone", "k", "{}");
    assert_eq!(status, 502, "{answer}");
    assert!(answer.contains("upstream-unreachable"), "{answer}");

    let service =
        Process::start(&mut command(["gate", "fixture", "--bare", "--listen", &format!("127.0.0.1:{port}")]));
    service.says("listens on");
    assert_eq!(order(&proxy.address, "gone", "k", "{}").0, 201, "at once");
}

#[test]
fn a_service_that_hangs_up_leaves_a_doubt_that_is_retried_or_blocks() {
    for (policy, later) in [("retry", 502), ("block", 409)] {
        let Some(database) = Database::sqlite("a_service_that_hangs_up") else { return };
        let (database, listener) = (database.migrated(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let upstream = listener.local_addr().unwrap().to_string();
        // Reads a request, and says nothing.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _read = stream.unwrap().read(&mut [0; 4096]);
            }
        });
        let proxy = Served::proxy(&upstream, &database, &["--on-doubt", policy]);

        let (status, answer) = order(&proxy.address, "doubt", "k", "{}");
        assert_eq!(status, 502, "{answer}");
        let (status, answer) = order(&proxy.address, "doubt", "k", "{}");

        assert_eq!(status, later, "{policy}: {answer}");
        assert!(answer.contains("outcome-unknown"), "{answer}");
    }
}

#[test]
fn a_request_that_runs_is_finished_before_the_gate_ends() {
    let Some(database) = Database::sqlite("a_request_that_runs_is_finished") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let proxy = Served::proxy(&service.address, &database, &[]);
    let address = proxy.address.clone();
    let first = std::thread::spawn(move || order(&address, "drain", "k", r#"{"sleep":1500}"#));
    eventually("the service runs", || runs(&service.address, "drain") == 1);

    proxy.process.signal("-TERM");

    assert_eq!(first.join().unwrap().0, 201);
    assert_eq!(proxy.process.end().0, Some(0));
}

#[test]
fn a_file_says_what_holds_for_which_path() {
    let Some(database) = Database::sqlite("a_file_says") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let file = database.folder().join("gate.toml");
    std::fs::write(&file, "[[route]]\nprefix = \"/orders\"\nrequired = true\nkeep = \"success\"\n").unwrap();
    let proxy = Served::proxy(&service.address, &database, &["--routes", file.to_str().unwrap()]);
    let post = |path: &str| {
        let text =
            format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        exchange(&proxy.address, text.as_bytes()).0
    };

    assert_eq!((post("/orders"), post("/others")), (400, 201));
    for _ in 0..2 {
        assert_eq!(order(&proxy.address, "file", "k", r#"{"status":404}"#).0, 404);
    }
    assert_eq!(runs(&service.address, "file"), 2, "only successes are kept");

    std::fs::write(&file, "[[route]]\nprefix = \"/orders\"\nrequird = true\n").unwrap();
    let wrong = ["gate", "--listen", "127.0.0.1:0", "--upstream", "http://x", "--db", "memory", "--routes"];
    let ran = oncebox([&wrong[..], &[file.to_str().unwrap()]].concat()).exits(5);
    assert!(ran.stderr.contains("requird"), "{}", ran.stderr);
}

#[test]
fn a_path_has_its_policy_however_it_is_written() {
    let Some(database) = Database::sqlite("a_path_has_its_policy") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let file = database.folder().join("gate.toml");
    std::fs::write(&file, "[[route]]\nprefix = \"/orders\"\nkeep = \"success\"\n").unwrap();
    let flags = ["--routes", file.to_str().unwrap(), "--require", "/orders", "--require", "/other/%74hings"];
    let proxy = Served::proxy(&service.address, &database, &flags);

    for path in [
        "/orders",
        "/%6frders",
        "//orders",
        "/x/../orders",
        "/x/%2e%2e/orders",
        "/./orders/7",
        "/other/things",
        "/other/%74hings",
    ] {
        let text =
            format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let (status, answer) = exchange(&proxy.address, text.as_bytes());
        assert_eq!(status, 400, "{path}: {answer}");
        assert!(answer.contains("idempotency-key-missing"), "{path}: {answer}");
    }
    let text = "POST /others HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(&proxy.address, text.as_bytes()).0, 201);
    for path in ["/orders/../others", "/orders/%2E%2e/others", "/../others"] {
        let text = text.replace("/others", path);
        let (status, answer) = exchange(&proxy.address, text.as_bytes());
        assert_eq!(status, 400, "{path}: some services resolve this, and others do not");
        assert!(answer.contains("request-misaddressed"), "{path}: {answer}");
    }
    for _ in 0..2 {
        assert_eq!(order(&proxy.address, "both", "k", r#"{"status":404}"#).0, 404);
    }
    assert_eq!(runs(&service.address, "both"), 2, "the flag takes nothing from the file");
}

#[test]
fn what_makes_no_sense_is_refused_at_the_start() {
    let Some(database) = Database::sqlite("what_makes_no_sense") else { return };
    let unmigrated = database.url();
    let refused = |args: &[&str], code: i32, says: &str| {
        let base = ["gate", "--listen", "127.0.0.1:0"];
        let ran = oncebox([&base, args].concat()).exits(code);
        assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
        assert!(!ran.stderr.contains("listens on"), "{says}: {}", ran.stderr);
    };
    let to = ["--upstream", "http://127.0.0.1:9"];
    refused(&[&to[..], &["--db", &unmigrated]].concat(), 7, "does not exist");
    refused(&[&to[..], &["--db", "memory", "--lease", "0"]].concat(), 5, "lease");
    refused(&[&to[..], &["--db", "memory", "--ttl", "10"]].concat(), 5, "longer than");
    let hasty = ["--db", "memory", "--reserve-durability", "relaxed", "--on-doubt", "block"];
    refused(&[&to[..], &hasty].concat(), 5, "needs a full one");
    refused(&["--upstream", "https://x", "--db", "memory"], 2, "http://");
    refused(&["--upstream", "http://u:p@x", "--db", "memory"], 2, "password");
    refused(&["--upstream", "nonsense", "--db", "memory"], 2, "--upstream");
    for host in ["169.254.169.254", "169.254.1.1:8080", "[fe80::1]:80", "[fd00:ec2::254]"] {
        refused(&["--upstream", &format!("http://{host}/"), "--db", "memory"], 2, "--allow-link-local");
    }
    refused(&[&to[..], &["--db", "memory", "--require", "orders"]].concat(), 2, "begins with /");
    refused(&[&to[..], &["--db", "memory", "--max-connections", "0"]].concat(), 2, "--max-connections");
    // Allowed, it fails only for the lease.
    let odd = ["--upstream", "http://169.254.169.254", "--allow-link-local"];
    refused(&[&odd[..], &["--db", "memory", "--lease", "0"]].concat(), 5, "lease");
    let check = ["gate", "check", "--target", "http://127.0.0.1:9"];
    for (ability, flag) in [("multi", "--second"), ("persist", "--restart")] {
        let ran = oncebox([&check[..], &["--with", ability]].concat()).exits(2);
        assert!(ran.stderr.contains(flag), "{}", ran.stderr);
    }
    let ran = oncebox(check).exits(7);
    assert!(ran.stderr.contains("gate fixture"), "{}", ran.stderr);
}
