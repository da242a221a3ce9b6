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
