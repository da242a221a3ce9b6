//! Messages that exceed a limit, that nobody knows, or that cannot be decoded.

use std::sync::Arc;

use oncebox::inspect::Inspect;
use oncebox::{Envelope, Inbox, Kind, Outbox, Outcome, Relay, Store, Verdict};
use oncebox_conformance::run::on_store;
use oncebox_conformance::{MemoryFixture, StoreFixture};

use super::ground::{Caught, Reader, drain, note};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

type Spoil = fn(&mut Envelope);

fn limits() -> Vec<(Spoil, &'static str)> {
    vec![
        (|e| e.id = String::new(), "the id is empty"),
        (|e| e.id = "x".repeat(256), "the id has 256 bytes, the limit is 255"),
        (|e| e.id = "é".repeat(128), "the id has 256 bytes, the limit is 255"),
        (|e| e.id = "a\0b".into(), "the id contains a NUL character"),
        (|e| e.source = "x".repeat(256), "the source has 256 bytes, the limit is 255"),
        (|e| e.kind = String::new(), "the type is empty"),
        (|e| e.kind = "x".repeat(256), "the type has 256 bytes, the limit is 255"),
        (|e| e.destination = String::new(), "the destination is empty"),
        (|e| e.tenant = "t".repeat(256), "the tenant has 256 bytes, the limit is 255"),
        (|e| e.tenant = "\0".into(), "the tenant contains a NUL character"),
        (|e| e.key = Some(String::new()), "the key is empty"),
        (|e| e.key = Some("k".repeat(256)), "the key has 256 bytes, the limit is 255"),
        (|e| e.correlation_id = Some("c\0".into()), "the correlation id contains a NUL character"),
        (|e| e.baggage = Some("b".repeat(8193)), "the baggage has 8193 bytes, the limit is 8192"),
        (|e| e.payload = vec![b'x'; (1 << 20) + 1], "the payload has 1048577 bytes, the limit is 1048576"),
        (
            |e| e.headers = (0..65).map(|n| (n.to_string(), String::new())).collect(),
            "the message has 65 headers, the limit is 64",
        ),
        (
            |e| e.headers = [("h".into(), "v".repeat(4097))].into(),
            "the header value has 4097 bytes, the limit is 4096",
        ),
        (|e| e.headers = [(String::new(), "v".into())].into(), "the header name is empty"),
        (|e| e.headers = [("h\0".into(), "v".into())].into(), "the header name contains a NUL character"),
        (|e| e.headers = [("h".into(), "\0".into())].into(), "the header value contains a NUL character"),
    ]
}

fn good(id: &str) -> Envelope {
    Envelope { source: "shop".into(), ..Envelope::of(id, &note("good")).unwrap() }
}

/// The caller may catch the error and commit the rest of its transaction.
async fn refused_at_put<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let outbox = Outbox::new(store.clone());
    let mut tx = store.begin().await.unwrap();
    outbox.put_envelopes(&mut tx, vec![good("before")]).await.unwrap();

    for (number, (spoil, text)) in limits().into_iter().enumerate() {
        let mut bad = good(&format!("bad-{number}"));
        spoil(&mut bad);
        let batch = vec![good(&format!("with-{number}")), bad];
        let error = outbox.put_envelopes(&mut tx, batch).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Invalid, text));
    }
    outbox.put_envelopes(&mut tx, vec![good("after")]).await.unwrap();
    store.commit(tx).await.unwrap();

    let caught = Caught::default();
    drain(&mut Relay::builder(store.clone(), caught.clone()).build().unwrap()).await;
    let mut ids = caught.ids();
    ids.sort();
    assert_eq!(ids, ["after", "before"], "a batch with one bad message is refused as a whole");
}

/// The same id twice: the second is refused, whatever its body.
async fn a_taken_id<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let outbox = Outbox::new(store.clone());
    let mut tx = store.begin().await.unwrap();
    outbox.put_envelopes(&mut tx, vec![good("one")]).await.unwrap();

    let error = outbox.put_envelopes(&mut tx, vec![good("one")]).await.unwrap_err();

    assert_eq!(error.kind(), Kind::Conflict);
    assert!(error.to_string().contains("\"one\" of source \"shop\" is already in the outbox"), "{error}");
    outbox.put_envelopes(&mut tx, vec![good("two")]).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(store.status().await.unwrap().logged, 2);
}

/// What no handler can take is buried whole, and the next message is handled.
async fn buried<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let inbox = Inbox::builder(store.clone(), "notes").handler(Reader).build().unwrap();
    let unknown = Envelope { kind: "nobody.knows".into(), ..good("unknown") };
    let undecodable = |id: &str, body: &[u8]| Envelope { payload: body.to_vec(), ..good(id) };
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let cases = [
        (undecodable("empty", b""), "undecodable", "cannot decode message note.v1"),
        (undecodable("truncated", b"{\"text\": \"ab"), "undecodable", "cannot decode message note.v1"),
        (undecodable("bytes", b"\xff\xfe\0"), "undecodable", "cannot decode message note.v1"),
        (undecodable("other", b"{\"texts\": 1}"), "undecodable", "missing field `text`"),
        (undecodable("deep", &deep), "undecodable", "cannot decode message note.v1"),
        (Envelope { id: String::new(), ..good("") }, "missing_id", "no id to tell it from others"),
    ];

    assert!(inbox.receive(unknown.clone(), 1).await.outcomes.is_empty());
    assert_eq!(inbox.deliver(unknown.clone(), 1).await, Verdict::Done);
    for (envelope, code, text) in &cases {
        let id = &envelope.id;
        match inbox.receive(envelope.clone(), 1).await.single().unwrap() {
            Outcome::Refused { code: found, reason } => {
                assert_eq!(found, *code, "{id}");
                assert!(reason.contains(text), "{id}: {reason}");
            }
            other => panic!("{id}: {other:?}"),
        }
        // The first delivery settles it, the second finds it settled.
        assert_eq!(inbox.deliver(envelope.clone(), 1).await, Verdict::Done, "{id}");
        assert_eq!(inbox.deliver(envelope.clone(), 2).await, Verdict::Done, "{id}");
    }

    let status = store.status().await.unwrap();
    assert_eq!((status.dead_letters, status.markers), (1 + cases.len() as i64, 0), "buried once, not marked");
    let outcome = inbox.receive(good("next"), 1).await.single().unwrap();
    assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
    // Mended, the same id is handled: what was refused left no marker.
    let outcome = inbox.receive(good("truncated"), 1).await.single().unwrap();
    assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
}

#[test]
fn what_exceeds_a_limit_is_refused_at_put_and_the_transaction_goes_on() {
    on_store::<MemoryFixture, _, _>(refused_at_put);
    on_store::<SqliteFixture, _, _>(refused_at_put);
}

#[test]
fn what_exceeds_a_limit_is_refused_at_put_and_the_transaction_goes_on_on_postgres() {
    on_store::<PostgresFixture, _, _>(refused_at_put);
}

#[test]
fn an_id_that_is_taken_is_refused_and_the_transaction_goes_on() {
    on_store::<MemoryFixture, _, _>(a_taken_id);
    on_store::<SqliteFixture, _, _>(a_taken_id);
}

#[test]
fn an_id_that_is_taken_is_refused_and_the_transaction_goes_on_on_postgres() {
    on_store::<PostgresFixture, _, _>(a_taken_id);
}

#[test]
fn what_no_handler_can_take_is_buried_and_the_next_message_is_handled() {
    on_store::<MemoryFixture, _, _>(buried);
    on_store::<SqliteFixture, _, _>(buried);
}

#[test]
fn what_no_handler_can_take_is_buried_and_the_next_message_is_handled_on_postgres() {
    on_store::<PostgresFixture, _, _>(buried);
}
