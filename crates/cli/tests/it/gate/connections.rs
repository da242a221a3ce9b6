//! Clients that stay, that dawdle, and that are too many.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Served, exchange, order, runs};
use crate::database::Database;
use crate::process::Process;
use crate::program::{command, eventually};

const PLAIN: &[u8] = b"POST /orders HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";

fn connected(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Whatever comes first.
fn piece(stream: &mut TcpStream) -> String {
    let mut piece = [0; 4096];
    let read = stream.read(&mut piece).unwrap();
    String::from_utf8_lossy(&piece[..read]).into_owned()
}

/// A service that begins a stream of events and never ends it.
fn endless() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _request = stream.read(&mut [0; 4096]);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n").ok();
            open.push(stream);
        }
    });
    address
}

/// A service that says more than anybody reads.
fn talkative() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let _request = stream.read(&mut [0; 4096]);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n").ok();
                while stream.write_all(&[b'x'; 64 << 10]).is_ok() {}
            });
        }
    });
    address
}

#[test]
fn a_client_that_does_not_read_loses_its_place() {
    let Some(database) = Database::sqlite("a_client_that_does_not_read") else { return };
    let database = database.migrated();
    let flags = ["--max-connections", "1", "--stall", "2", "--head-timeout", "2"];
    let proxy = Served::proxy(&talkative(), &database, &flags);
    let ask = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut deaf = connected(&proxy.address);
    deaf.write_all(ask).unwrap();
    assert!(piece(&mut deaf).starts_with("HTTP/1.1 200"));

    let mut other = connected(&proxy.address);
    other.write_all(ask).unwrap();

    assert!(piece(&mut other).starts_with("HTTP/1.1 200"), "there is only room for one");
    drop(deaf);
}

#[test]
fn an_open_stream_of_events_does_not_keep_a_gate_beyond_its_bound() {
    let Some(database) = Database::sqlite("an_open_stream_of_events") else { return };
    let database = database.migrated();
    let proxy = Served::proxy(&endless(), &database, &["--drain", "2"]);
    let mut streams: Vec<_> = (0..2).map(|_| connected(&proxy.address)).collect();
    for stream in &mut streams {
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        assert!(piece(stream).starts_with("HTTP/1.1 200"));
    }
    let idle = connected(&proxy.address);

    proxy.process.signal("-TERM");
    let asked = Instant::now();
    let (code, said) = proxy.process.end();

    assert_eq!(code, Some(0), "{said}");
    assert!(asked.elapsed() >= Duration::from_secs(1), "they had their time: {:?}", asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    assert!(said.contains("connections were still busy") && said.contains("connections=2"), "{said}");
    drop(idle);
}

#[test]
fn a_connection_without_a_whole_request_is_closed_in_time() {
    let Some(database) = Database::sqlite("a_connection_without_a_whole_request") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let proxy = Served::proxy(&service.address, &database, &["--head-timeout", "3"]);
    let (silent, mut half, mut idle) =
        (connected(&proxy.address), connected(&proxy.address), connected(&proxy.address));
    half.write_all(b"POST /orders HTTP/1.1\r\nhost").unwrap();
    idle.write_all(PLAIN).unwrap();
    assert!(piece(&mut idle).starts_with("HTTP/1.1 201"));

    // One that sends a byte now and then gets no further than the others.
    let mut slow = connected(&proxy.address);
    let dawdled = Instant::now();
    slow.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    slow.write_all(b"POST /orders HTTP/1.1\r\nx: ").unwrap();
    while !matches!(slow.read(&mut [0; 16]), Ok(0)) && slow.write_all(b"y").is_ok() {
        assert!(dawdled.elapsed() < Duration::from_secs(20));
    }
    for mut stream in [silent, half, idle] {
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    }
    let (status, answer) = order(&proxy.address, "long", "k", r#"{"sleep":4500}"#);
    assert_eq!(status, 201, "an answer may take its time: {answer}");
}

#[test]
fn more_connections_than_there_is_room_for_wait_for_their_turn() {
    let Some(database) = Database::sqlite("more_connections_than") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let proxy = Served::proxy(&service.address, &database, &["--max-connections", "2"]);
    let mut first = [connected(&proxy.address), connected(&proxy.address)];
    for stream in &mut first {
        stream.write_all(PLAIN).unwrap();
        assert!(piece(stream).starts_with("HTTP/1.1 201"));
    }
    let mut third = connected(&proxy.address);
    third.write_all(PLAIN).unwrap();
    third.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert!(third.read(&mut [0; 16]).is_err(), "there is no room for it");

    let [left, mut stays] = first;
    drop(left);

    third.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(piece(&mut third).starts_with("HTTP/1.1 201"));
    stays.write_all(PLAIN).unwrap();
    assert!(piece(&mut stays).starts_with("HTTP/1.1 201"), "those that are in stay in");
}

#[test]
fn a_gate_without_file_descriptors_pauses_and_goes_on() {
    let service = Served::fixture(&["--bare"]);
    let to = format!("http://{}", service.address);
    let plain =
        command(["gate", "--upstream", &to, "--db", "memory", "--unscoped", "--listen", "127.0.0.1:0"]);
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -n 40 && exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    let process = Process::start(&mut few);
    process.says("listens on http://");
    let errors = process.errors();
    let address = errors.split("listens on http://").nth(1).unwrap().split_whitespace().next().unwrap();

    let crowd: Vec<_> = (0..60).map(|_| connected(address)).collect();
    process.says("no connection can be taken");
    drop(crowd);

    eventually("it goes on", || {
        let text = "POST /orders HTTP/1.1\r\nhost: x\r\nx-fx-case: few\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        exchange(address, text.as_bytes()).0 == 201
    });
    assert!(runs(&service.address, "few") >= 1);
    let complaints = process.errors().matches("no connection can be taken").count();
    assert!(complaints < 50, "it does not spin: {complaints}");
}
