//! Only what a producer signed takes effect, and what somebody else wrote in
//! its name does not get in its way.

use std::time::Duration;

use oncebox_core::signature::HEADER;
use oncebox_core::{Envelope, KeySelector, Keyring, Kind, Message, Outcome, Verdict};
use oncebox_flow::inbox::InboxOptions;
use oncebox_flow::{HandlerOptions, Inbox, Janitor, Relay, Signing};

use super::carrier::Carrier;
use super::scene::{HANDLER, Scene, arrived, swift};
use crate::fixture::{StoreFixture, kind};
use crate::sample::{Posted, moment};

fn ring() -> Keyring {
    Keyring::new("k1", "the secret of the path suite").unwrap()
}

/// A message as its producer's relay sends it.
fn signed(id: &str, message: &Posted) -> Envelope {
    let mut envelope = Envelope { time: Some(moment(0)), ..arrived(id, message) };
    envelope.headers.insert(HEADER.into(), ring().sign(&envelope));
    envelope
}

fn verifying<F: StoreFixture, T: Carrier>(scene: &Scene<F, T>) -> Inbox<F::Store> {
    scene.inbox().handler(scene.booker(HANDLER)).verify(ring()).build().unwrap()
}

/// What `receive` says about a message it must not handle.
async fn refusal<F: StoreFixture>(inbox: &Inbox<F::Store>, envelope: Envelope) -> String {
    match inbox.receive(envelope, 1).await.single() {
        Some(Outcome::Refused { code: "forged", reason }) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

pub async fn what_is_signed_on_its_way_out_takes_effect<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume(verifying(&scene), 1).await;
    let relay = Relay::builder(scene.store.clone(), Signing::new(scene.picky.clone(), ring()));
    let mut relays = [relay.clock(scene.clock.clone()).build().unwrap()];

    scene.commit(&[Posted::on("red", 1), Posted::unkeyed(2), Posted::on("red", 3)]).await;
    scene.settle(&mut relays).await;

    scene.check().await;
    assert_eq!(scene.status().await.dead_letters, 0);
}

pub async fn a_forged_id_does_not_suppress_the_real_message<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let inbox = verifying(&scene);
    let (real, body) = (signed("1", &Posted::on("red", 1)), Posted::on("red", 666).encode().unwrap());
    let unsigned = Envelope { headers: Default::default(), ..real.clone() };
    let forged = Envelope { payload: body, ..unsigned.clone() };
    let replayed_signature = Envelope { payload: forged.payload.clone(), ..real.clone() };

    for envelope in [forged, replayed_signature, unsigned] {
        assert_eq!(inbox.deliver(envelope, 1).await, Verdict::Done, "acknowledged once it is buried");
    }
    let quarantined = scene.status().await;
    let took_effect = inbox.deliver(real.clone(), 1).await;

    assert_eq!((quarantined.markers, scene.sequences().await), (0, vec![1]), "no marker, no effect");
    assert_eq!(took_effect, Verdict::Done);
    assert!(matches!(inbox.receive(real, 2).await.single(), Some(Outcome::Duplicate { .. })));
    // The same forged body under two signatures is one letter.
    assert_eq!(scene.status().await.dead_letters, 2);
}

pub async fn an_altered_message_is_quarantined<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    type Alter = fn(&mut Envelope);
    let alterations: [Alter; 6] = [
        |e| e.payload.push(b' '),
        |e| e.id.push('x'),
        |e| e.source.push('x'),
        |e| e.tenant.push('x'),
        |e| e.key = None,
        |e| e.time = Some(moment(1)),
    ];
    let inbox = verifying(&scene);

    for alter in alterations {
        let mut envelope = signed("1", &Posted::on("red", 1));
        alter(&mut envelope);
        let reason = refusal::<F>(&inbox, envelope.clone()).await;
        assert_eq!(reason, "forged: the message does not match its signature");
        assert_eq!(inbox.deliver(envelope, 1).await, Verdict::Done);
    }

    let status = scene.status().await;
    assert_eq!(status.markers, 0);
    // A letter's identity is that of the message; key and time are not part of it.
    assert_eq!(status.dead_letters, 5);
    assert!(scene.sequences().await.is_empty());
}

pub async fn an_unsigned_message_is_refused_where_signatures_are_required<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let inbox = verifying(&scene);
    let message = Posted::unkeyed(1);
    let with = |value: &str| {
        let headers = [(HEADER.to_owned(), value.to_owned())].into();
        Envelope { headers, ..arrived("1", &message) }
    };
    let stranger = Keyring::new("k2", "the secret of a stranger").unwrap();
    let impostor = Keyring::new("k1", "the secret of an impostor").unwrap();

    let unsigned = refusal::<F>(&inbox, arrived("1", &message)).await;
    let malformed = refusal::<F>(&inbox, with("v1")).await;
    let unknown = refusal::<F>(&inbox, with(&stranger.sign(&arrived("1", &message)))).await;
    let wrong = refusal::<F>(&inbox, with(&impostor.sign(&arrived("1", &message)))).await;
    // Verification comes before anything else a message could be refused for.
    let bare = Envelope { payload: b"{}".to_vec(), ..Envelope::default() };
    assert_eq!(inbox.deliver(bare, 1).await, Verdict::Done);

    assert_eq!(unsigned, "forged: the message is not signed");
    assert_eq!(malformed, "forged: the signature is malformed");
    assert_eq!(unknown, "forged: the message is signed with an unknown key");
    assert_eq!(wrong, "forged: the message does not match its signature");
    let status = scene.status().await;
    assert_eq!((status.markers, status.dead_letters), (0, 1));
}

pub async fn a_type_nobody_takes_is_ignored_before_it_is_verified<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let options = InboxOptions { ignore_unknown: true, retry: swift(), ..InboxOptions::default() };
    let inbox = scene.inbox().options(options).handler(scene.booker(HANDLER)).verify(ring()).build().unwrap();
    let foreign = Envelope { kind: "of.another.service".into(), ..arrived("1", &Posted::unkeyed(1)) };

    assert_eq!(inbox.deliver(foreign, 1).await, Verdict::Done);
    assert_eq!(scene.status().await.dead_letters, 0);
}

pub async fn a_replay_is_too_old_once_its_marker_is_gone<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let inbox = verifying(&scene);
    let janitor = Janitor::new(scene.store.clone()).clock(scene.clock.clone()).markers(inbox.retentions());
    let real = signed("1", &Posted::unkeyed(1));
    assert_eq!(inbox.deliver(real.clone(), 1).await, Verdict::Done);

    janitor.sweep().await.unwrap();
    scene.clock.advance(Duration::from_secs(8 * 24 * 3600));
    let swept = janitor.sweep().await.unwrap();
    let replayed = inbox.receive(real.clone(), 1).await.single().unwrap();
    let rejuvenated =
        refusal::<F>(&inbox, Envelope { time: Some(moment(8 * 24 * 3600)), ..real.clone() }).await;
    let timeless = refusal::<F>(&inbox, Envelope { time: None, ..real }).await;

    assert_eq!(swept.markers, 1);
    assert!(matches!(replayed, Outcome::Refused { code: "too_old", .. }), "{replayed:?}");
    assert_eq!(
        (&rejuvenated, &timeless),
        (&timeless, &"forged: the message does not match its signature".into())
    );
    assert_eq!(scene.sequences().await, [1]);
}

pub async fn a_key_that_a_signature_does_not_cover_is_a_mistake<F: StoreFixture, T: Carrier>(
    scene: Scene<F, T>,
) {
    let build = |selector: KeySelector| {
        let options = HandlerOptions { selector, ..HandlerOptions::default() };
        scene.inbox().handler(scene.booker(HANDLER).options(options)).verify(ring()).build()
    };

    for selector in [
        KeySelector::Header("x".into()),
        KeySelector::CorrelationId,
        KeySelector::IdempotencyKey,
        KeySelector::Composite(vec![KeySelector::MessageId, KeySelector::Header("x".into())]),
    ] {
        assert_eq!(kind(build(selector.clone())), Some(Kind::Config), "{selector}");
    }
    assert!(build(KeySelector::Composite(vec![KeySelector::MessageId])).is_ok());
}

pub async fn what_is_forged_on_the_wire_is_quarantined<F: StoreFixture, T: Carrier>(scene: Scene<F, T>) {
    let _consumer = scene.consume(verifying(&scene), 1).await;
    let body = Posted::on("red", 666).encode().unwrap();
    let altered = Envelope { payload: body, ..signed("1", &Posted::on("red", 1)) };
    let unsigned = arrived("2", &Posted::on("red", 2));

    scene.send(&[altered, unsigned, signed("3", &Posted::on("red", 3))]).await;

    assert_eq!(scene.sequences().await, [3]);
    let status = scene.status().await;
    assert_eq!((status.markers, status.dead_letters), (1, 2));
}
