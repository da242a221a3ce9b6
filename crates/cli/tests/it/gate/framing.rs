//! Requests whose end two parsers see in two places, and addresses that lead
//! elsewhere: none of them may reach the service as something else than what
//! the gate has seen.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Served, exchange, runs};
use crate::database::Database;

/// What must never be a request of its own.
const HIDDEN: &str = "POST /hidden HTTP/1.1\r\nhost: x\r\nx-fx-case: hidden\r\ncontent-length: 0\r\n\r\n";

/// A service that believes everything: it keeps what it reads, and answers each connection once.
fn lax() -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, seen) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Vec::new())));
    let kept = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, kept) = (stream.unwrap(), Arc::clone(&kept));
            std::thread::spawn(move || {
                stream.set_read_timeout(Some(Duration::from_millis(60))).unwrap();
                let (mut all, mut piece) = (Vec::new(), [0; 8192]);
                while let Ok(read) = stream.read(&mut piece) {
                    if read == 0 {
                        break;
                    }
                    all.extend_from_slice(&piece[..read]);
                }
                // Before the answer: whoever has that may look.
                kept.lock().unwrap().push(all);
                stream
                    .write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .ok();
            });
        }
    });
    (address, seen)
}

/// The requests in a stream, as one sees them who goes by this header alone.
fn request_lines(stream: &[u8], by_length: bool) -> Vec<String> {
    let (mut rest, mut lines) = (stream, Vec::new());
    while let Some(end) = rest.windows(4).position(|window| window == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
        lines.push(head.lines().next().unwrap_or_default().to_owned());
        rest = &rest[end + 4..];
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let is_chunked =
            head.lines().any(|line| line.starts_with("transfer-encoding:") && line.contains("chunked"));
        let body = match (length, is_chunked) {
            (Some(length), false) => length,
            (Some(length), true) if by_length => length,
            (_, true) => {
                rest.windows(5).position(|window| window == b"0\r\n\r\n").map_or(rest.len(), |at| at + 5)
            }
            (None, false) => 0,
        };
        rest = &rest[body.min(rest.len())..];
    }
    lines
}

const LENGTHS: [&str; 13] =
    ["0", "4", "+4", "-1", "4, 4", "4,5", " 4", "4 ", "0x4", "04", "4;", "99999999999999999999", ""];
const CODINGS: [&str; 14] = [
    "chunked",
    "Chunked",
    "chunked, identity",
    "identity, chunked",
    "gzip, chunked",
    "xchunked",
    " chunked",
    "chunked ",
    "\"chunked\"",
    "chunked;q=1",
    "identity",
    "chunked, chunked",
    "\x0bchunked",
    "",
];
const NAMES: [&str; 5] = [
    "transfer-encoding",
    "Transfer-Encoding",
    "transfer-encoding ",
    " transfer-encoding",
    "transfer_encoding",
];
const CHUNKS: [&str; 12] = [
    "0\r\n\r\n",
    "0\n\n",
    "00\r\n\r\n",
    "0;x=\r\n\r\n",
    "0 \r\n\r\n",
    "g\r\n\r\n",
    "-1\r\n\r\n",
    "0x0\r\n\r\n",
    "ffffffffffffffff1\r\n",
    "1\r\nab\r\n0\r\n\r\n",
    "\r\n0\r\n\r\n",
    "0\r\nx: y\r\n\r\n",
];
const ODD: [&str; 10] = [
    "content-length: 0\r\ncontent-length: 66\r\n",
    "content-length: 66\r\ncontent-length: 0\r\n",
    "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    "x: y\r\n content-length: 0\r\n",
    "content-length: 0\n",
    "x: y\rcontent-length: 66\r\n",
    "connection: content-length\r\ncontent-length: 0\r\n",
    "upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 0\r\n",
    "expect: 100-continue\r\ncontent-length: 0\r\n",
    "content-length\x00: 0\r\n",
];

/// Heads with an ambiguous or broken end, each followed by a body that hides a request.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let mut cases = Vec::new();
    let mut add = |name: String, fields: &str, body: &str| {
        let head = format!(
            "POST /orders HTTP/1.1\r\nhost: x\r\nx-fx-case: seen\r\nidempotency-key: {name}\r\n{fields}\r\n"
        );
        cases.push((name, [head.as_bytes(), body.as_bytes()].concat()));
    };
    let (chunk, ended) =
        (format!("{:x}\r\n{HIDDEN}\r\n0\r\n\r\n", HIDDEN.len()), format!("0\r\n\r\n{HIDDEN}"));
    for (n, length) in LENGTHS.iter().enumerate() {
        let field = format!("content-length: {length}\r\n");
        add(format!("length-{n}"), &field, HIDDEN);
        add(format!("both-{n}"), &format!("{field}transfer-encoding: chunked\r\n"), &ended);
    }
    for (n, coding) in CODINGS.iter().enumerate() {
        add(format!("coding-{n}"), &format!("transfer-encoding: {coding}\r\n"), &chunk);
    }
    for (n, name) in NAMES.iter().enumerate() {
        add(format!("name-{n}"), &format!("content-length: 4\r\n{name}: chunked\r\n"), &ended);
    }
    for (n, body) in CHUNKS.iter().enumerate() {
        add(format!("chunk-{n}"), "transfer-encoding: chunked\r\n", &format!("{body}{HIDDEN}"));
    }
    for (n, fields) in ODD.iter().enumerate() {
        add(format!("odd-{n}"), fields, HIDDEN);
    }
    cases
}

/// What follows a whole request on its connection is a request of its own, and the gate's to judge.
fn send(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
    stream.write_all(bytes).ok();
    stream.read_to_end(&mut Vec::new()).ok();
}

#[test]
fn no_request_is_hidden_in_another_from_a_service_that_believes_everything() {
    let Some(database) = Database::sqlite("no_request_is_hidden") else { return };
    let database = database.migrated();
    let (service, seen) = lax();
    let proxy = Served::proxy(&service, &database, &[]);
    let cases = corpus();
    assert!(cases.len() >= 60, "{}", cases.len());

    for (name, bytes) in &cases {
        seen.lock().unwrap().clear();
        send(&proxy.address, bytes);
        std::thread::sleep(Duration::from_millis(80));
        for stream in seen.lock().unwrap().iter() {
            let (by_length, by_coding) = (request_lines(stream, true), request_lines(stream, false));
            let text = String::from_utf8_lossy(stream);
            assert_eq!(by_length, by_coding, "{name}: {text}");
            assert!(by_length.len() <= 1, "{name}: {text}");
        }
    }
}

/// Everything that comes until the connection is closed, or until so many requests have run.
fn heard(address: &str, bytes: &[u8], enough: usize) -> (String, bool) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(bytes).unwrap();
    let (mut all, mut piece) = (String::new(), [0; 4096]);
    let is_closed = loop {
        match stream.read(&mut piece) {
            Ok(0) => break true,
            Ok(read) => all.push_str(std::str::from_utf8(&piece[..read]).unwrap()),
            Err(error) => break error.kind() != std::io::ErrorKind::WouldBlock,
        }
        if all.matches("HTTP/1.1 201").count() == enough {
            break false;
        }
    };
    (all, is_closed)
}

/// Heads that the gate itself refuses; hyper would tidy them.
const AMBIGUOUS: [&str; 11] = [
    "content-length: 5\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
    "Content-Length: 5\r\nx: y\r\nTransfer-Encoding: chunked\r\n",
    "content-length: 5\r\ncontent-length: 5\r\n",
    "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding: gzip, chunked\r\n",
    "content-length: 5\n",
    "x: y\ncontent-length: 5\r\n",
    "x: y\ntransfer-encoding: chunked\r\n",
    "content-length: 5\r\nconnection: content-length\r\ncontent-length: 5\r\n",
];
/// Those that hyper refuses.
const BROKEN: [&str; 8] = [
    "content-length: 5\r\ncontent-length: 6\r\n",
    "content-length: 5, 5\r\n",
    "transfer-encoding: identity\r\n",
    "transfer-encoding: chunked, identity\r\n",
    "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    "x: y\r\n content-length: 5\r\n",
    "x: y\r\n\tz\r\n",
    "content-length : 5\r\n",
];

#[test]
fn a_request_whose_end_is_ambiguous_is_refused_and_the_connection_closed() {
    let Some(database) = Database::sqlite("a_request_whose_end_is_ambiguous") else { return };
    let database = database.migrated();
    let (service, seen) = lax();
    let proxy = Served::proxy(&service, &database, &[]);
    let plain = "POST /good HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";

    for (fields, is_ours) in
        AMBIGUOUS.iter().map(|fields| (fields, true)).chain(BROKEN.iter().map(|fields| (fields, false)))
    {
        let bad = format!("POST /bad HTTP/1.1\r\nhost: x\r\n{fields}\r\n0\r\n\r\n{HIDDEN}");
        // Alone, and as the second on its connection.
        for (before, first) in [("", "HTTP/1.1 400"), (plain, "HTTP/1.1 201")] {
            let (answer, is_closed) = heard(&proxy.address, format!("{before}{bad}").as_bytes(), usize::MAX);

            assert!(is_closed, "{fields:?}: {answer}");
            assert!(answer.starts_with(first), "{fields:?}: {answer}");
            let last = answer.split("HTTP/1.1 ").last().unwrap();
            assert!(last.starts_with("400") && last.contains("connection: close"), "{fields:?}: {answer}");
            let is_told = last.contains("application/problem+json") && last.contains("request-ambiguous");
            assert_eq!(is_told, is_ours, "{fields:?}: {answer}");
        }
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), AMBIGUOUS.len() + BROKEN.len(), "only the good ones");
    assert!(seen.iter().all(|stream| request_lines(stream, true) == ["post /good http/1.1"]));
}

#[test]
fn a_chunked_request_is_the_last_on_its_connection_and_others_are_not() {
    let Some(database) = Database::sqlite("a_chunked_request_is_the_last") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let proxy = Served::proxy(&service.address, &database, &[]);
    let request = |case: &str, fields: &str, body: &str| {
        format!("POST /orders HTTP/1.1\r\nhost: x\r\nx-fx-case: {case}\r\n{fields}\r\n{body}")
    };
    let plain = request("plain", "content-length: 2\r\n", "{}");
    let chunked = request("chunked", "transfer-encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n");

    let (answer, is_closed) = heard(&proxy.address, plain.repeat(3).as_bytes(), 3);
    assert_eq!((answer.matches("HTTP/1.1 201").count(), is_closed), (3, false), "{answer}");
    assert_eq!(runs(&service.address, "plain"), 3);

    let (answer, is_closed) =
        heard(&proxy.address, format!("{plain}{chunked}{plain}").as_bytes(), usize::MAX);
    assert_eq!((answer.matches("HTTP/1.1 201").count(), is_closed), (2, true), "{answer}");
    assert_eq!((runs(&service.address, "plain"), runs(&service.address, "chunked")), (4, 1));
}

#[test]
fn no_request_is_hidden_in_another_from_a_strict_service() {
    let Some(database) = Database::sqlite("no_request_is_hidden_strict") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let proxy = Served::proxy(&service.address, &database, &["--require", "/"]);

    for (name, bytes) in corpus() {
        send(&proxy.address, &bytes);
        // It has no key, so that what the gate sees as a request it refuses.
        assert_eq!(runs(&service.address, "hidden"), 0, "{name}");
    }
}

#[test]
fn no_address_of_a_client_s_choice_is_reached() {
    let Some(database) = Database::sqlite("no_address_of_a_client_s_choice") else { return };
    let (database, service) = (database.migrated(), Served::fixture(&["--bare"]));
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    let proxy = Served::proxy(&service.address, &database, &[]);
    let hosts =
        ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "0x7f000001", "127.1", "user@127.0.0.1"];
    let mut requests: Vec<String> = Vec::new();
    for host in hosts {
        let place = format!("{host}:{port}");
        requests.push(format!("POST http://{place}/orders HTTP/1.1\r\nhost: x\r\n"));
        requests.push(format!("POST /orders HTTP/1.1\r\nhost: {place}\r\n"));
        requests.push(format!("POST //{place}/orders HTTP/1.1\r\nhost: x\r\n"));
        requests.push(format!("POST /orders HTTP/1.1\r\nhost: x\r\nx-forwarded-host: {place}\r\n"));
    }
    requests.push(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nhost: x\r\n"));
    requests.push(format!("POST /@127.0.0.1:{port}/ HTTP/1.1\r\nhost: x\r\n"));
    requests.push(format!("POST /orders HTTP/1.1\r\nhost: x\r\nforwarded: host=127.0.0.1:{port}\r\n"));
    assert!(requests.len() >= 30, "{}", requests.len());

    for request in requests {
        let text = format!(
            "{request}idempotency-key: {}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            request.len()
        );
        exchange(&proxy.address, text.as_bytes());
        assert!(elsewhere.accept().is_err(), "{request}");
    }
}
