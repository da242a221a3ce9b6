//! Services that answer with something else than one whole reply. Their client
//! sees a reply, a 502 or a reply that is visibly cut off, and nobody else sees anything of it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use super::{Served, exchange};
use crate::database::Database;

/// An answer to a request that nobody has made.
const POISON: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nx-poison: yes\r\n\r\npoison";

/// What a client makes of an answer.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Reply(u16, String),
    CutOff,
}

impl Seen {
    fn status(&self) -> u16 {
        match self {
            Self::Reply(status, _) => *status,
            Self::CutOff => 0,
        }
    }
}

/// Goes by the framing, and by nothing else; whatever follows the reply is a mistake.
fn seen(answer: &str) -> Seen {
    let Some((head, mut rest)) = answer.split_once("\r\n\r\n") else { return Seen::CutOff };
    let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
    let field = |name: &str| {
        let values = head.lines().filter_map(|line| line.split_once(": "));
        let values: Vec<_> =
            values.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect();
        assert!(values.len() <= 1, "{name} more than once: {head}");
        values.first().map(|value| (*value).to_owned())
    };
    let mut body = String::new();
    match (field("content-length"), field("transfer-encoding")) {
        _ if [204, 304].contains(&status) => {}
        (Some(_), Some(_)) => panic!("an ambiguous reply: {head}"),
        (Some(length), None) => {
            let Some((own, after)) = rest.split_at_checked(length.parse().unwrap()) else {
                return Seen::CutOff;
            };
            (body, rest) = (own.to_owned(), after);
        }
        (None, Some(coding)) => {
            assert_eq!(coding, "chunked");
            loop {
                let Some((size, after)) = rest.split_once("\r\n") else { return Seen::CutOff };
                let size = usize::from_str_radix(size, 16).unwrap();
                let Some((chunk, after)) = after.split_at_checked(size) else { return Seen::CutOff };
                let Some(after) = after.strip_prefix("\r\n") else { return Seen::CutOff };
                rest = after;
                if size == 0 {
                    break;
                }
                body.push_str(chunk);
            }
        }
        (None, None) => panic!("a reply without an end: {answer}"),
    }
    assert_eq!(rest, "", "something follows the reply: {answer}");
    Seen::Reply(status, body)
}

/// Reads a request to its end; tells its path.
fn request(stream: &mut TcpStream) -> Option<String> {
    let (mut all, mut byte) = (Vec::new(), [0]);
    while !all.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        all.push(byte[0]);
    }
    let head = String::from_utf8(all).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).ok()?;
    head.split(' ').nth(1).map(str::to_owned)
}

/// A service that answers `/evil` with these bytes and everything else with its path, on as
/// few connections as its client likes.
fn service(reply: Vec<u8>, hangs_up: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, reply) = (stream.unwrap(), reply.clone());
            std::thread::spawn(move || {
                while let Some(path) = request(&mut stream) {
                    if path == "/evil" {
                        stream.write_all(&reply).ok();
                        if hangs_up {
                            stream.shutdown(Shutdown::Both).ok();
                        }
                    } else {
                        let own = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len());
                        stream.write_all(own.as_bytes()).ok();
                    }
                }
            });
        }
    });
    address
}

enum Expected {
    Reply(u16, &'static str),
    Refused,
    CutOff,
}
use Expected::{CutOff, Refused, Reply};

struct Case {
    name: &'static str,
    reply: Vec<u8>,
    hangs_up: bool,
    expected: Expected,
}

/// A service that says this, and goes on.
fn says(name: &'static str, reply: impl Into<Vec<u8>>, expected: Expected) -> Case {
    Case { name, reply: reply.into(), hangs_up: false, expected }
}

/// One that hangs up afterwards.
fn ends(name: &'static str, reply: impl Into<Vec<u8>>, expected: Expected) -> Case {
    Case { hangs_up: true, ..says(name, reply, expected) }
}

/// A reply with these fields, and this after its head.
fn with(fields: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}")
}

fn lengths() -> Vec<Case> {
    let (length, chunked) = ("content-length: 2\r\n", "transfer-encoding: chunked\r\n");
    let chunks = "2\r\nok\r\n0\r\n\r\n";
    let ok = || Reply(200, "ok");
    vec![
        says("a plain reply", with(length, "ok"), ok()),
        says(
            "a shorter length beside chunks",
            with(&format!("content-length: 1\r\n{chunked}"), chunks),
            ok(),
        ),
        says("a longer length beside chunks", with(&format!("{chunked}content-length: 9\r\n"), chunks), ok()),
        says("two different lengths", with(&format!("{length}content-length: 3\r\n"), "okk"), Refused),
        says("two equal lengths", with(&format!("{length}{length}"), "ok"), ok()),
        says("a list of equal lengths", with("content-length: 2, 2\r\n", "ok"), ok()),
        says("a negative length", with("content-length: -2\r\n", "ok"), Refused),
        says("a length with a sign", with("content-length: +2\r\n", "ok"), Refused),
        says("a length that is too large", with("content-length: 99999999999999999999\r\n", "ok"), Refused),
        ends("a body shorter than its length", with("content-length: 9\r\n", "ok"), CutOff),
        ends("a body without a length", with("", "ok"), ok()),
        ends("an encoding that is none", with("transfer-encoding: identity\r\n", "ok"), ok()),
        ends("chunks that are cut off", with(chunked, "2\r\nok\r\n"), CutOff),
        ends("a chunk that is cut off", with(chunked, "9\r\nok"), CutOff),
        says("a chunk of no size", with(chunked, "2\r\nok\r\nzz\r\n"), CutOff),
        says("a chunk that is too large", with(chunked, "2\r\nok\r\nffffffffffffffff1\r\n"), CutOff),
        says("a chunk longer than its size", with(chunked, "2\r\nokay\r\n0\r\n\r\n"), CutOff),
        says("a chunk with an extension", with(chunked, "2;a=\"b\"\r\nok\r\n0\r\n\r\n"), ok()),
        says("a length in the trailer", with(chunked, "2\r\nok\r\n0\r\ncontent-length: 9\r\n\r\n"), ok()),
        says("chunks of HTTP/1.0", format!("HTTP/1.0 200 OK\r\n{chunked}\r\n{chunks}"), Refused),
    ]
}

fn heads() -> Vec<Case> {
    let field = |field: &str| with(&format!("{field}content-length: 2\r\n"), "ok");
    let many = "x-a: b\r\n".repeat(300);
    let large = format!("x-a: {}\r\n", "b".repeat(900_000));
    vec![
        says("a folded field", field("x-a: b\r\n c\r\n"), Refused),
        says("a carriage return in a value", field("x-a: b\rset-cookie: c\r\n"), Refused),
        says("a line feed in a value", field("x-a: b\nc\r\n"), Refused),
        says("a zero in a value", field("x-a: b\0c\r\n"), Refused),
        says("a space in a name", field("x a: b\r\n"), Refused),
        says("a space after a name", field("x-a : b\r\n"), Refused),
        says("no name", field(": b\r\n"), Refused),
        says("lines that end in line feeds", "HTTP/1.1 200 OK\ncontent-length: 2\n\nok", Reply(200, "ok")),
        ends("a head that is too large", field(&large), Refused),
        says("too many fields", field(&many), Refused),
        ends("a head that is cut off", "HTTP/1.1 200 OK\r\ncontent-le", Refused),
        ends("nothing", "", Refused),
        ends("HTTP/0.9", "hello\r\n", Refused),
        ends("another protocol", "SSH-2.0-OpenSSH_9.2\r\n", Refused),
        says("HTTP/2 in the words of HTTP/1", "HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nok", Refused),
        says("a status that is none", "HTTP/1.1 20 OK\r\ncontent-length: 2\r\n\r\nok", Refused),
    ]
}

fn sequences() -> Vec<Case> {
    let plain = with("content-length: 2\r\n", "ok");
    let after = |head: &str| format!("{head}{POISON}");
    let old = "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok";
    vec![
        says("a second reply", after(&plain), Reply(200, "ok")),
        says("a body longer than its length", format!("{plain}poison"), Reply(200, "ok")),
        says(
            "a second reply after chunks",
            after(&with("transfer-encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n")),
            Reply(200, "ok"),
        ),
        says("a second reply after one of HTTP/1.0", after(old), Reply(200, "ok")),
        says("a reply of HTTP/1.0 that stays", old, Reply(200, "ok")),
        ends("a reply of HTTP/1.0 that ends", "HTTP/1.0 200 OK\r\n\r\nok", Reply(200, "ok")),
        says("a 204 with a body", "HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\nok", Reply(204, "")),
        says("a 204 with a reply in its body", after("HTTP/1.1 204 No Content\r\n\r\n"), Reply(204, "")),
        says("a 304 with a body", "HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\nok", Reply(304, "")),
        says("a 100 before the reply", format!("HTTP/1.1 100 Continue\r\n\r\n{plain}"), Reply(200, "ok")),
        says(
            "hints before the reply",
            format!("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n{plain}"),
            Reply(200, "ok"),
        ),
        ends("hints and no reply", "HTTP/1.1 103 Early Hints\r\n\r\n", Refused),
        says(
            "another protocol that nobody has asked for",
            after("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
            Refused,
        ),
    ]
}

fn post(path: &str, key: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\n{key}content-length: 2\r\nconnection: close\r\n\r\n{{}}")
}

#[test]
fn a_reply_that_is_none_is_nobody_else_s_reply() {
    let Some(database) = Database::sqlite("a_reply_that_is_none") else { return };
    let database = database.migrated();
    let cases: Vec<Case> = [lengths(), heads(), sequences()].into_iter().flatten().collect();
    assert!(cases.len() >= 40, "{}", cases.len());

    for (n, case) in cases.into_iter().enumerate() {
        let name = case.name;
        let proxy = Served::proxy(&service(case.reply, case.hangs_up), &database, &["--timeout", "5"]);
        for key in [String::new(), format!("idempotency-key: evil-{n}\r\n")] {
            // So that there is a connection to spoil.
            assert_eq!(seen(&exchange(&proxy.address, post("/warm", "").as_bytes()).1).status(), 200);

            let (_, answer) = exchange(&proxy.address, post("/evil", &key).as_bytes());

            assert!(!answer.contains("poison"), "{name}: {answer}");
            match (&case.expected, seen(&answer)) {
                (Reply(status, body), found) => {
                    assert_eq!(found, Seen::Reply(*status, (*body).to_owned()), "{name}: {answer}");
                }
                (Refused, found) => {
                    assert_eq!(found.status(), 502, "{name}: {answer}");
                    assert!(answer.contains("outcome-unknown"), "{name}: {answer}");
                }
                // With a key, the whole of a reply that says how small it is is waited for.
                (CutOff, found) if key.is_empty() => assert_eq!(found, Seen::CutOff, "{name}: {answer}"),
                (CutOff, found) => assert!([0, 502].contains(&found.status()), "{name}: {answer}"),
            }
            for next in 0..3 {
                let path = format!("/mine/{n}/{next}");
                let (_, answer) = exchange(&proxy.address, post(&path, "").as_bytes());
                assert_eq!(seen(&answer), Seen::Reply(200, path), "after {name}: {answer}");
            }
        }
    }
}

#[test]
fn a_redirect_is_passed_on_and_not_followed() {
    let Some(database) = Database::sqlite("a_redirect_is_passed_on") else { return };
    let database = database.migrated();
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    for status in [301, 302, 303, 307, 308] {
        let place = format!("http://{}/secrets", elsewhere.local_addr().unwrap());
        let reply = format!("HTTP/1.1 {status} Go\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n");
        let proxy = Served::proxy(&service(reply.into_bytes(), false), &database, &[]);

        for key in [String::new(), format!("idempotency-key: to-{status}\r\n")] {
            let (found, answer) = exchange(&proxy.address, post("/evil", &key).as_bytes());

            assert_eq!(found, status, "{answer}");
            assert!(answer.contains(&format!("location: {place}\r\n")), "{answer}");
            assert!(elsewhere.accept().is_err(), "{status}");
        }
    }
}

#[test]
fn what_a_reply_without_a_body_says_of_its_length_is_passed_on() {
    let Some(database) = Database::sqlite("what_a_reply_without_a_body_says") else { return };
    let database = database.migrated();
    for (status, fields, says) in [
        (200, "content-length: 7\r\n", Some("content-length: 7\r\n")),
        (304, "content-length: 7\r\netag: \"a\"\r\n", Some("etag: \"a\"\r\n")),
        (200, "content-length: 7\r\ntransfer-encoding: chunked\r\n", None),
    ] {
        let reply = format!("HTTP/1.1 {status} Fine\r\n{fields}\r\n");
        let proxy = Served::proxy(&service(reply.into_bytes(), false), &database, &[]);

        for next in ["/evil", "/evil", "/mine"] {
            let text = format!("HEAD {next} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            let (found, answer) = exchange(&proxy.address, text.as_bytes());

            assert!(answer.ends_with("\r\n\r\n") && answer.matches("\r\n\r\n").count() == 1, "{answer}");
            assert_eq!(found, if next == "/evil" { status } else { 200 }, "{answer}");
            if next == "/evil" {
                assert!(says.is_none_or(|says| answer.contains(says)), "{answer}");
            }
        }
    }
}

/// A service that answers, twice, before it has read the body of `/evil`.
fn hasty() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut piece) {
                    let text = String::from_utf8_lossy(&piece[..read]).into_owned();
                    let Some(path) = text.strip_prefix("POST ").and_then(|rest| rest.split(' ').next())
                    else {
                        continue;
                    };
                    let after = if path == "/evil" { POISON } else { "" };
                    let own =
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}{after}", path.len());
                    stream.write_all(own.as_bytes()).ok();
                }
            });
        }
    });
    address
}

#[test]
fn a_second_reply_before_the_end_of_an_upload_is_nobody_s() {
    let Some(database) = Database::sqlite("a_second_reply_before_the_end") else { return };
    let database = database.migrated();
    let proxy = Served::proxy(&hasty(), &database, &[]);

    for round in 0..10 {
        let mut client = TcpStream::connect(&proxy.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.write_all(b"POST /evil HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nab").unwrap();
        let (mut answer, mut piece) = (String::new(), [0; 4096]);
        while !answer.ends_with("/evil") {
            let read = client.read(&mut piece).unwrap();
            assert!(read > 0, "{answer}");
            answer.push_str(std::str::from_utf8(&piece[..read]).unwrap());
        }
        client.write_all(b"cd").ok();
        for next in 0..3 {
            let path = format!("/mine/{round}/{next}");
            let (_, answer) = exchange(&proxy.address, post(&path, "").as_bytes());
            assert_eq!(seen(&answer), Seen::Reply(200, path), "{answer}");
        }
    }
}
