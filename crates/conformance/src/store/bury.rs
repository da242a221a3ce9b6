//! Dead letters are kept once, whatever is in them.

use std::sync::Arc;

use oncebox_core::inspect::Inspect;
use oncebox_core::store::Burial;
use oncebox_core::{Dedup, Envelope};

use crate::fixture::StoreFixture;
use crate::sample::{at, full, plain};

fn burial(envelope: &Envelope) -> Burial<'_> {
    Burial { channel: "c", handler: "h", code: "permanent", reason: "no good", attempts: 3, envelope }
}

async fn letters<S: Inspect>(store: &S) -> i64 {
    store.status().await.unwrap().dead_letters
}

pub async fn burying_the_same_letter_twice_keeps_one<F: StoreFixture>(fixture: Arc<F>) {
    let (store, envelope) = (fixture.store(), full("a"));

    store.bury(&burial(&envelope), at(0)).await.unwrap();
    let later = Burial { code: "other", reason: "other", attempts: 9, ..burial(&envelope) };
    store.bury(&later, at(1)).await.unwrap();

    assert_eq!(letters(&store).await, 1);
}

pub async fn another_body_handler_channel_or_tenant_is_another_letter<F: StoreFixture>(fixture: Arc<F>) {
    let (store, envelope) = (fixture.store(), plain("a"));
    let changed = [
        Envelope { payload: b"other".to_vec(), ..plain("a") },
        Envelope { tenant: "t".into(), ..plain("a") },
        Envelope { source: "other".into(), ..plain("a") },
        plain("A"),
    ];

    store.bury(&burial(&envelope), at(0)).await.unwrap();
    store.bury(&Burial { handler: "other", ..burial(&envelope) }, at(0)).await.unwrap();
    store.bury(&Burial { handler: "", ..burial(&envelope) }, at(0)).await.unwrap();
    store.bury(&Burial { channel: "other", ..burial(&envelope) }, at(0)).await.unwrap();
    for envelope in &changed {
        store.bury(&burial(envelope), at(0)).await.unwrap();
    }

    assert_eq!(letters(&store).await, 8);
}

pub async fn a_letter_with_characters_no_column_takes_is_still_buried<F: StoreFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let foreign = Envelope {
        id: "i\0d".repeat(2_000),
        source: "\0".into(),
        kind: String::new(),
        tenant: "t\0".into(),
        subject: Some("\0".into()),
        content_type: "application/json".into(),
        headers: [("a\0b".to_owned(), "c\0d".to_owned())].into(),
        payload: b"\"\\u0000\"".to_vec(),
        ..plain("a")
    };
    let reason = "r\0eason".repeat(10_000);
    let burial = Burial { reason: &reason, ..burial(&foreign) };

    store.bury(&burial, at(0)).await.unwrap();
    store.bury(&burial, at(1)).await.unwrap();

    assert_eq!(letters(&store).await, 1);
}
