//! What a receiver gets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use oncebox_conformance::sample::{at, full};
use oncebox_core::Envelope;
use oncebox_core::cloudevents::Mode;
use oncebox_transports::http::{Http, HttpOptions, WebhookKeys};
use sha2::Sha256;

use super::server::Server;
use super::{options, post, to};

#[tokio::test]
async fn a_message_arrives_whole_in_both_modes() {
    let server = Server::answering(202, &[]).await;
    let sent = Envelope { destination: server.url.clone(), time: at(0), ..full("a") };

    for mode in [Mode::Binary, Mode::Structured] {
        let http = Http::new(options(&server.url).mode(mode)).unwrap();

        assert_eq!(post(&http, sent.clone()).await, Ok(()));

        let seen = server.seen().pop().unwrap();
        assert!(seen.envelope() == sent, "{mode}: a field was lost");
        assert_eq!(seen.header("idempotency-key"), Some("\"a\""));
        assert_eq!(seen.header("traceparent"), sent.traceparent.as_deref());
    }
}

#[tokio::test]
async fn a_receiver_verifies_the_signature_with_either_key() {
    let server = Server::answering(200, &[]).await;
    let (old, new) = ("the secret of last year", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let keys = WebhookKeys::new(new).unwrap().also(old).unwrap();
    let http = Http::new(options(&server.url).sign_with(keys)).unwrap();

    post(&http, to(&server.url, "é1")).await.unwrap();

    let seen = server.seen().remove(0);
    let signed = |secret: &[u8]| {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
        let (id, timestamp) = (seen.header("webhook-id").unwrap(), seen.header("webhook-timestamp").unwrap());
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(&seen.body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    };
    let signatures: Vec<_> = seen.header("webhook-signature").unwrap().split(' ').collect();
    let new = STANDARD.decode(&new["whsec_".len()..]).unwrap();
    assert_eq!(signatures, [signed(&new), signed(old.as_bytes())]);
    assert_eq!(seen.header("webhook-id"), Some("%C3%A91"));
}

#[tokio::test]
async fn a_named_destination_has_its_own_url_and_headers() {
    let server = Server::answering(200, &[]).await;
    let options = HttpOptions::new().destination("orders", format!("{}/hooks/1?token=2", server.url)).header(
        "orders",
        "authorization",
        "Bearer hunter2",
    );
    let http = Http::new(options).unwrap();

    post(&http, to("orders", "a")).await.unwrap();

    let seen = server.seen().remove(0);
    assert_eq!(seen.path, "/hooks/1");
    assert_eq!(seen.header("authorization"), Some("Bearer hunter2"));
}

#[tokio::test]
async fn headers_of_a_message_cannot_take_the_place_of_ours() {
    let server = Server::answering(200, &[]).await;
    let options = HttpOptions::new()
        .destination("orders", &server.url)
        .header("orders", "authorization", "Bearer ours")
        .sign_with(WebhookKeys::new("a secret of ours alone").unwrap());
    let mut message = to("orders", "a");
    for name in
        ["authorization", "host", "content-length", "idempotency-key", "webhook-id", "ce-id", "x\r\ny"]
    {
        message.headers.insert(name.into(), "theirs".into());
    }
    message.headers.insert("x-theirs".into(), "theirs".into());

    post(&Http::new(options).unwrap(), message.clone()).await.unwrap();

    let seen = server.seen().remove(0);
    assert_eq!(seen.header("authorization"), Some("Bearer ours"));
    assert_eq!((seen.header("idempotency-key"), seen.header("webhook-id")), (Some("\"a\""), Some("a")));
    assert_eq!((seen.header("ce-id"), seen.header("x-theirs")), (Some("a"), Some("theirs")));
}
