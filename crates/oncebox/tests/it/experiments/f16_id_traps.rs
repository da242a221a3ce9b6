//! F16 id-traps: ids that a careless column type, collation or length would
//! take for one another. Every store gives the same verdicts, and no two
//! messages are ever taken for one.
//!
//! Sabotage: ids are trimmed and lower-cased on their way into the store.

use std::sync::{Arc, Mutex};

use oncebox::{
    Context, Envelope, Failure, Handler, HandlerError, HandlerKey, Inbox, Outbox, Outcome, Publisher, Relay,
    Store,
};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::Posted;
use oncebox_conformance::{MemoryFixture, StoreFixture};

use super::bodies::{HANDLER, arriving, effect, tireless};
use super::sabotaged::{Mode, Sabotaged};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

/// (tenant, source, id), each of them a message of its own.
type Identity = (String, String, String);

fn plain(id: &str) -> Identity {
    (String::new(), "shop".into(), id.into())
}

/// Ids a producer may use.
fn traps() -> Vec<Identity> {
    let long = |last: &str| "x".repeat(255 - last.len()) + last;
    let mut traps: Vec<Identity> = [
        "order-1",
        "Order-1",
        "ORDER-1",
        "order-1 ",
        "order-1  ",
        " order-1",
        "order-1\t",
        "order-1\n",
        "order-01",
        "1",
        "01",
        "1.0",
        "1e0",
        "0x1",
        "true",
        "null",
        "NULL",
        "-",
        "%",
        "_",
        "a%",
        "a_",
        "ab",
        "'",
        "''",
        "a'; DROP TABLE ledger; --",
        "\\",
        "\\\\",
        "\"",
        "caf\u{e9}",
        "cafe\u{301}",
        "CAFÉ",
        "cafe",
        "stra\u{df}e",
        "strasse",
        "STRASSE",
        "\u{fb01}n",
        "fin",
        "I",
        "i",
        "\u{131}",
        "\u{130}",
        "\u{200d}",
        "\u{200b}",
        "\u{feff}",
        "a\u{200b}",
        "a",
        "\u{1F680}",
        "\u{1F681}",
        "\u{7f}",
        "\u{1}",
    ]
    .map(plain)
    .into();
    traps.extend([plain(&long("")), plain(&long("y")), plain(&long("\u{e9}")), plain(&long(" "))]);
    for tenant in ["t1", "t2", "T1", "t1 "] {
        traps.push((tenant.into(), "shop".into(), "order-1".into()));
    }
    for source in ["SHOP", "shop ", "s", "sho"] {
        traps.push((String::new(), source.into(), "order-1".into()));
    }
    traps.push((String::new(), "sho".into(), "porder-1".into()));
    traps
}

/// Ids a producer may not use, but a foreign one may have used.
fn foreign() -> Vec<Identity> {
    let mut ids: Vec<String> = vec!["x".repeat(256), "x".repeat(3000), "x".repeat(2999) + "y"];
    ids.extend(["a\0b".into(), "a\0c".into(), "\0".into(), "é".repeat(128), "x".repeat(255) + " "]);
    ids.iter().map(|id| plain(id)).collect()
}

fn envelope((tenant, source, id): &Identity) -> Envelope {
    // One body for all: only the identity tells them apart.
    Envelope { tenant: tenant.clone(), source: source.clone(), ..arriving(id, &Posted::unkeyed(1)) }
}

fn identity(envelope: &Envelope) -> Identity {
    (envelope.tenant.clone(), envelope.source.clone(), envelope.id.clone())
}

#[derive(Clone, Default)]
struct Caught(Arc<Mutex<Vec<Envelope>>>);

impl Publisher for Caught {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        self.0.lock().unwrap().extend_from_slice(batch);
        vec![Ok(()); batch.len()]
    }
}

struct Booker<F>(Arc<F>);

impl<F: StoreFixture> Handler<<F::Store as Store>::Tx> for Booker<F> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        // Escaped: the ledger's own column must not be what is tested.
        let id = format!("{:?}", identity(cx.envelope()));
        self.0.effect(cx.tx(), &effect(&id, &message)).await
    }
}

/// What happened to each message, in words that every store must agree on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Transcript {
    lines: Vec<String>,
    collisions: Vec<String>,
}

impl Transcript {
    fn note(&mut self, identity: &Identity, what: &str) {
        self.lines.push(format!("{identity:.40?}: {what}"));
    }

    fn expect(&mut self, identity: &Identity, what: String, expected: &str) {
        if what != expected {
            self.collisions.push(format!("{identity:.40?}: {what}, not {expected}"));
        }
        self.note(identity, &what);
    }

    fn check(&self) -> Result<(), String> {
        if self.collisions.is_empty() {
            return Ok(());
        }
        Err(format!("{} collisions:\n{}", self.collisions.len(), self.collisions.join("\n")))
    }
}

async fn transcript<F: StoreFixture>(fixture: &Arc<F>, mode: Mode) -> Transcript {
    let store = Sabotaged::new(fixture.store(), mode);
    let mut transcript = Transcript::default();
    let outbox = Outbox::new(store.clone());
    for identity in traps().iter().chain(&foreign()).chain([&plain("")]) {
        let mut tx = store.begin().await.unwrap();
        let put = outbox.put_envelopes(&mut tx, vec![envelope(identity)]).await;
        store.commit(tx).await.unwrap();
        let is_trap = traps().contains(identity);
        match put {
            Ok(_) => transcript.expect(identity, "put".into(), if is_trap { "put" } else { "refused" }),
            Err(error) if is_trap => transcript.expect(identity, error.to_string(), "put"),
            Err(error) => transcript.note(identity, &error.to_string()),
        }
    }
    let caught = Caught::default();
    let mut relay = Relay::builder(store.clone(), caught.clone()).build().unwrap();
    while relay.step().await.unwrap().moved() {}
    let arrived = std::mem::take(&mut *caught.0.lock().unwrap());
    for trap in traps() {
        let times = arrived.iter().filter(|envelope| identity(envelope) == trap).count();
        transcript.expect(&trap, format!("arrived {times} times"), "arrived 1 times");
    }
    let inbox = Inbox::builder(store, "bookings").handler(Booker(Arc::clone(fixture)));
    let inbox = inbox.retry(tireless()).build().unwrap();
    for identity in traps().iter().chain(&foreign()) {
        for expected in ["done", "duplicate"] {
            let outcome = inbox.receive(envelope(identity), 1).await.single().unwrap();
            transcript.expect(identity, name(outcome), expected);
        }
    }
    let other_body = Envelope {
        payload: Vec::from(br#"{"account":null,"sequence":2,"amount":2}"#),
        ..envelope(&plain("order-1"))
    };
    let outcome = inbox.receive(other_body, 1).await.single().unwrap();
    transcript.expect(&plain("order-1"), name(outcome), "refused: id_conflict");
    let effects = fixture.effects().await;
    for identity in traps().iter().chain(&foreign()) {
        let times = effects.iter().filter(|entry| entry.id == format!("{identity:?}")).count();
        transcript.expect(identity, format!("took effect {times} times"), "took effect 1 times");
    }
    transcript
}

fn name(outcome: Outcome) -> String {
    match outcome {
        Outcome::Done { .. } => "done".into(),
        Outcome::Duplicate { .. } => "duplicate".into(),
        Outcome::Refused { code, .. } => format!("refused: {code}"),
        other => format!("{other:?}"),
    }
}

fn holds<F: StoreFixture>() {
    on_store::<F, _, _>(|fixture| async move {
        let here = transcript(&fixture, Mode::Honest).await;
        let memory = Arc::new(MemoryFixture::default());
        let there = transcript(&memory, Mode::Honest).await;

        here.check().unwrap();
        assert_eq!(here.lines, there.lines, "every store gives the same verdicts");
        let refusals = here.lines.join("\n");
        for text in ["has 256 bytes, the limit is 255", "has 3000 bytes", "contains a NUL", "the id is empty"]
        {
            assert!(refusals.contains(text), "{text} is missing in\n{refusals}");
        }
    });
}

fn is_noticed<F: StoreFixture>() {
    on_store::<F, _, _>(|fixture| async move {
        let complaint = transcript(&fixture, Mode::FoldIds).await.check().unwrap_err();
        assert!(complaint.contains("Order-1"), "{complaint}");
        assert!(complaint.contains("duplicate, not done"), "{complaint}");
    });
}

#[test]
fn no_two_ids_are_taken_for_one_in_memory() {
    holds::<MemoryFixture>();
}

#[test]
fn no_two_ids_are_taken_for_one_on_sqlite() {
    holds::<SqliteFixture>();
}

#[test]
fn no_two_ids_are_taken_for_one_on_postgres() {
    holds::<PostgresFixture>();
}

#[test]
fn folded_ids_are_noticed_in_memory() {
    is_noticed::<MemoryFixture>();
}

#[test]
fn folded_ids_are_noticed_on_sqlite() {
    is_noticed::<SqliteFixture>();
}

#[test]
fn folded_ids_are_noticed_on_postgres() {
    is_noticed::<PostgresFixture>();
}
