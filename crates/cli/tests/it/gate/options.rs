//! Options of a routes file, as clients of a proxy see them.

use super::{Served, exchange, runs};
use crate::database::Database;

/// A proxy with these routes, and the bare service behind it.
fn behind(routes: &str, database: &Database) -> (Served, Served) {
    let (service, file) = (Served::fixture(&["--bare"]), database.folder().join("gate.toml"));
    std::fs::write(&file, routes).unwrap();
    let proxy = Served::proxy(&service.address, database, &["--routes", file.to_str().unwrap()]);
    (proxy, service)
}

/// Sends a request with a wish and these fields.
fn send(proxy: &Served, path: &str, fields: &str, body: &str) -> (u16, String) {
    let text = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-fx-case: case\r\n{fields}\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    exchange(&proxy.address, text.as_bytes())
}

#[test]
fn replays_may_be_marked_by_another_header() {
    let Some(database) = Database::sqlite("replays_may_be_marked") else { return };
    let database = database.migrated();
    let routes = "[[route]]\nprefix = \"/marked\"\nreplay_header = \"Idempotency-Replayed\"\n";
    let (proxy, service) = behind(routes, &database);
    let fields = "idempotency-key: k\r\nidempotency-replayed: true\r\nx-fx: {\"echo\":true}\r\n";

    let (first, again) = (send(&proxy, "/marked", fields, "{}"), send(&proxy, "/marked", fields, "{}"));

    assert_eq!((first.0, again.0, runs(&service.address, "case")), (201, 201, 1));
    assert!(!first.1.contains("idempotency-replayed"), "said by the client only: {}", first.1);
    assert!(again.1.contains("\r\nidempotency-replayed: true\r\n"), "{}", again.1);
    assert!(!again.1.contains("idempotent-replayed"), "{}", again.1);
    let fields = fields.replace(": k\r\n", ": l\r\n");
    assert!(
        send(&proxy, "/", &fields, "{}").1.contains("\nidempotency-replayed: true"),
        "elsewhere it is free"
    );
}

/// Of the reply nothing is in the files of the database, which have it otherwise.
#[test]
fn replies_that_are_not_kept_are_not_at_rest() {
    let Some(database) = Database::sqlite("replies_that_are_not_kept") else { return };
    let database = database.migrated();
    let (proxy, service) = behind("[[route]]\nprefix = \"/secret\"\nkeep_bodies = false\n", &database);
    let order = |path: &str, key: &str, wish: &str| {
        send(&proxy, path, &format!("idempotency-key: {key}\r\nx-fx: {wish}\r\n"), "{}")
    };
    let at_rest = |text: &str| {
        let files = std::fs::read_dir(database.folder()).unwrap().map(|file| file.unwrap().path());
        let is_there = |bytes: Vec<u8>| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        files.filter(|file| file.is_file()).any(|file| is_there(std::fs::read(file).unwrap()))
    };

    let first = order("/secret", "one", r#"{"multi":true}"#);
    let (status, copy) = order("/secret", "one", r#"{"multi":true}"#);
    assert!(first.1.contains("</first>") && first.1.contains(r#"{"n":"#), "{}", first.1);
    assert_eq!((status, runs(&service.address, "case")), (409, 1), "{copy}");
    assert!(copy.contains("response-not-retained") && copy.contains("\r\nlocation: /orders/"), "{copy}");
    assert!(at_rest("/orders/") && !at_rest("</first>") && !at_rest(r#"{"n":"#));

    for _ in 0..2 {
        assert_eq!(order("/secret", "empty", r#"{"empty":true}"#).0, 204, "there is nothing to hide");
    }
    assert_eq!(runs(&service.address, "case"), 2);
    order("/", "kept", r#"{"multi":true}"#);
    assert!(at_rest("</first>") && at_rest(r#"{"n":"#), "where they are kept it is seen");
}

#[test]
fn what_a_pointer_leads_to_may_differ() {
    let Some(database) = Database::sqlite("what_a_pointer_leads_to") else { return };
    let database = database.migrated();
    let routes = "[[route]]\nprefix = \"/orders\"\nexcluded = [\"/meta/traceId\"]\n";
    let (proxy, service) = behind(routes, &database);
    let order = |path: &str, trace: u8| {
        let body = format!("{{\"meta\":{{\"traceId\":{trace}}}}}");
        send(&proxy, path, &format!("idempotency-key: {path}\r\n"), &body).0
    };

    assert_eq!([order("/orders", 1), order("/orders", 2)], [201, 201]);
    assert_eq!(runs(&service.address, "case"), 1);
    assert_eq!([order("/others", 1), order("/others", 2)], [201, 422], "where it is not excluded");
}
