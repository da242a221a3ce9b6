//! When two deliveries are one message.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oncebox_core::{Envelope, KeySelector, Message, MissingId, Outcome};
use oncebox_flow::{HandlerOptions, Inbox};
use tokio::task::JoinSet;

use super::carrier::Carrier;
use super::scene::{HANDLER, Scene, arrived};
use crate::fixture::StoreFixture;
use crate::sample::Posted;

/// What came of a delivery, in a word.
async fn outcome<F: StoreFixture>(inbox: &Inbox<F::Store>, envelope: Envelope) -> &'static str {
    match inbox.receive(envelope, 1).await.single().unwrap() {
        Outcome::Done { .. } => "done",
        Outcome::Duplicate { .. } => "duplicate",
        Outcome::Busy => "busy",
        Outcome::Unavailable { .. } => "unavailable",
        Outcome::Failed { .. } => "failed",
        Outcome::Refused { code, .. } => code,
    }
}

fn inbox_of<F: StoreFixture, T: Carrier>(
    scene: &Scene<F, T>,
    selector: KeySelector,
    missing_id: MissingId,
) -> Inbox<F::Store> {
    let options = HandlerOptions { selector, missing_id, ..HandlerOptions::default() };
    scene.inbox().handler(scene.booker(HANDLER).options(options)).build().unwrap()
}

pub async fn another_body_under_a_handled_id_is_refused<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let inbox = inbox_of(&scene, KeySelector::MessageId, MissingId::Reject);

    assert_eq!(outcome::<F>(&inbox, arrived("1", &Posted::unkeyed(1))).await, "done");
    assert_eq!(outcome::<F>(&inbox, arrived("1", &Posted::unkeyed(1))).await, "duplicate");
    assert_eq!(outcome::<F>(&inbox, arrived("1", &Posted::unkeyed(2))).await, "id_conflict");
    inbox.deliver(arrived("1", &Posted::unkeyed(2)), 1).await;

    assert_eq!(scene.sequences().await, [1]);
    assert_eq!(scene.status().await.dead_letters, 1);
}

pub async fn a_message_without_id_is_treated_as_chosen<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let cases = [
        (MissingId::Reject, ["missing_id", "missing_id", "missing_id"]),
        (MissingId::AllowUnkeyed, ["done", "done", "done"]),
        (MissingId::ContentHash, ["done", "duplicate", "done"]),
    ];

    for (policy, expected) in cases {
        let inbox = inbox_of(&scene, KeySelector::MessageId, policy);
        let bodies = [Posted::unkeyed(1), Posted::unkeyed(1), Posted::unkeyed(2)];
        for (body, expected) in bodies.iter().zip(expected) {
            assert_eq!(outcome::<F>(&inbox, arrived("", body)).await, expected, "{policy:?}");
        }
    }
    assert_eq!(scene.sequences().await, [1, 1, 2, 1, 2]);
}

pub async fn a_selector_tells_messages_apart<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let with = |id: &str, key: &str| Envelope {
        headers: [("x-key".to_owned(), key.to_owned())].into(),
        correlation_id: Some(key.into()),
        idempotency_key: Some(key.into()),
        ..arrived(id, &Posted::unkeyed(1))
    };
    let custom = KeySelector::Custom(Arc::new(|envelope| envelope.correlation_id.clone()));
    let selectors = [
        ("by-header", KeySelector::Header("x-key".into())),
        ("by-correlation", KeySelector::CorrelationId),
        ("by-idempotency-key", KeySelector::IdempotencyKey),
        (
            "by-both",
            KeySelector::Composite(vec![KeySelector::CorrelationId, KeySelector::Header("x-key".into())]),
        ),
        ("by-own", custom),
    ];

    for (handler, selector) in selectors {
        let options = HandlerOptions { selector, ..HandlerOptions::default() };
        let inbox = scene.inbox().handler(scene.booker(handler).options(options)).build().unwrap();
        assert_eq!(outcome::<F>(&inbox, with("1", "a")).await, "done", "{handler}");
        assert_eq!(outcome::<F>(&inbox, with("2", "a")).await, "duplicate", "{handler}");
        assert_eq!(outcome::<F>(&inbox, with("2", "b")).await, "done", "{handler}");
        assert_eq!(outcome::<F>(&inbox, arrived("3", &Posted::unkeyed(1))).await, "missing_id", "{handler}");
    }
}

pub async fn a_business_key_tells_messages_apart<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let mut booker = scene.booker(HANDLER);
    booker.keyed_by_account = true;
    let inbox = scene.inbox().handler(booker).build().unwrap();

    assert_eq!(outcome::<F>(&inbox, arrived("1", &Posted::on("red", 1))).await, "done");
    assert_eq!(outcome::<F>(&inbox, arrived("2", &Posted::on("red", 1))).await, "duplicate");
    assert_eq!(outcome::<F>(&inbox, arrived("3", &Posted::on("red", 2))).await, "id_conflict");
    assert_eq!(outcome::<F>(&inbox, arrived("1", &Posted::on("blue", 1))).await, "done");
    assert_eq!(
        outcome::<F>(&inbox, arrived("4", &Posted::unkeyed(1))).await,
        "done",
        "the id, if there is none"
    );
}

pub async fn tenants_and_sources_have_ids_of_their_own<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let inbox = inbox_of(&scene, KeySelector::MessageId, MissingId::Reject);
    let plain = arrived("1", &Posted::unkeyed(1));
    let of_tenant = Envelope { tenant: "t".into(), ..plain.clone() };
    let of_source = Envelope { source: "another".into(), ..plain.clone() };
    let long = Envelope { id: "x".repeat(3_000), ..plain.clone() };
    let longer = Envelope { id: "x".repeat(3_001), ..plain.clone() };

    for envelope in [plain, of_tenant, of_source, long, longer] {
        assert_eq!(outcome::<F>(&inbox, envelope.clone()).await, "done", "{envelope:?}");
        assert_eq!(outcome::<F>(&inbox, envelope.clone()).await, "duplicate", "{envelope:?}");
    }
}

pub async fn a_duplicate_gets_the_stored_reply<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let inbox = inbox_of(&scene, KeySelector::MessageId, MissingId::Reject);
    let message = Posted::on("red", 7);

    let first = inbox.receive(arrived("1", &message), 1).await.single();
    let again = inbox.receive(arrived("1", &message), 2).await.single();

    let result = Some(message.encode().unwrap());
    assert_eq!(first, Some(Outcome::Done { result: result.clone() }));
    assert_eq!(again, Some(Outcome::Duplicate { result }));
}

pub async fn copies_at_the_same_moment_run_once<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let mut tasks = JoinSet::new();
    let mut runs = Vec::new();
    // Two inboxes are two processes to each other: only the marker stands between them.
    for _ in 0..2 {
        let booker = scene.booker(HANDLER);
        runs.push(booker.runs());
        let inbox = scene.inbox().handler(booker).build().unwrap();
        for _ in 0..6 {
            let inbox = inbox.clone();
            tasks.spawn(async move { outcome::<F>(&inbox, arrived("1", &Posted::unkeyed(1))).await });
        }
    }
    let outcomes = tasks.join_all().await;

    let done = outcomes.iter().filter(|outcome| **outcome == "done").count();
    assert_eq!(done, 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| ["done", "duplicate", "busy"].contains(outcome)), "{outcomes:?}");
    assert_eq!(runs.iter().map(|runs| runs.load(Ordering::SeqCst)).sum::<usize>(), 1);
    assert_eq!(scene.fixture.effects().await.len(), 1);
}

pub async fn tenants_and_sources_stay_apart_on_the_wire<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume_plainly().await;
    let plain = arrived("1", &Posted::unkeyed(1));
    let of_tenant = Envelope { tenant: "t".into(), ..arrived("1", &Posted::unkeyed(2)) };
    let of_source = Envelope { source: "another".into(), ..arrived("1", &Posted::unkeyed(3)) };
    let all = [plain, of_tenant, of_source];

    scene.send(&all).await;
    scene.send(&all).await;

    let mut sequences = scene.sequences().await;
    sequences.sort_unstable();
    assert_eq!(sequences, [1, 2, 3]);
    assert_eq!(scene.status().await.dead_letters, 0);
}

pub async fn another_body_on_the_wire_takes_no_effect<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume_plainly().await;

    scene.send(&[arrived("1", &Posted::unkeyed(1))]).await;
    scene.send(&[arrived("1", &Posted::unkeyed(2))]).await;

    // A broker that knows duplicates by their id drops it; any other leaves it to the inbox.
    assert_eq!(scene.sequences().await, [1]);
    assert_eq!(scene.status().await.markers, 1);
}
