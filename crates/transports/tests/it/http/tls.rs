//! https: who is trusted, and for which name.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::transport::Class;
use oncebox_core::{Grade, Preflight};
use oncebox_transports::http::{Http, HttpOptions};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::{post, to};

/// A server with a certificate for `name`; its address by the name localhost,
/// and the certificate.
async fn server(name: &str) -> (String, String, JoinHandle<()>) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/hook", listener.local_addr().unwrap().port());
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = vec![0; 64 << 10];
            _ = stream.read(&mut request).await;
            _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await;
            _ = stream.shutdown().await;
        }
    });
    (url, cert.pem(), serving)
}

#[tokio::test]
async fn a_trusted_certificate_for_the_name_is_accepted() {
    let (url, pem, serving) = server("localhost").await;
    let http = Http::new(HttpOptions::new().destination("orders", &url).trust_pem(pem)).unwrap();

    assert_eq!(post(&http, to("orders", "a")).await, Ok(()));
    let found = http.inspect(&["orders".into()], Duration::ZERO).await.unwrap();
    assert_eq!(found[0].grade(), Grade::A, "{found:?}");
    serving.abort();
}

#[tokio::test]
async fn a_certificate_for_another_name_is_the_destinations_fault() {
    let (url, pem, serving) = server("other.test").await;
    let http = Http::new(HttpOptions::new().destination("orders", &url).trust_pem(pem)).unwrap();

    let failure = post(&http, to("orders", "a")).await.unwrap_err();

    assert_eq!(failure.class, Class::Destination);
    assert!(failure.reason.starts_with("orders (https://localhost:"), "{failure}");
    assert!(failure.reason.contains("certificate not valid for name"), "{failure}");
    let found = http.inspect(&["orders".into()], Duration::ZERO).await.unwrap();
    assert_eq!(found[0].grade(), Grade::F);
    serving.abort();
}

#[tokio::test]
async fn a_certificate_nobody_vouches_for_is_the_destinations_fault() {
    let (url, _, serving) = server("localhost").await;
    let http = Http::new(HttpOptions::new().destination("orders", &url)).unwrap();

    let failure = post(&http, to("orders", "a")).await.unwrap_err();

    assert_eq!(failure.class, Class::Destination);
    assert!(failure.reason.contains("certificate"), "{failure}");
    serving.abort();
}

#[tokio::test]
async fn a_peer_that_never_shakes_hands_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
    let options = HttpOptions::new().destination("orders", url).connect_timeout(Duration::from_millis(200));

    let failure = post(&Http::new(options).unwrap(), to("orders", "a")).await.unwrap_err();

    assert_eq!(failure.class, Class::Destination, "nothing was sent");
    assert!(failure.reason.contains("no connection within 200ms"), "{failure}");
}

#[test]
fn a_certificate_that_cannot_be_read_is_refused() {
    for pem in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "nonsense"] {
        assert!(Http::new(HttpOptions::new().trust_pem(pem)).is_err(), "{pem}");
    }
}
