//! TLS: a server is talked to only under the name its certificate has.

use std::path::Path;
use std::process::{Command, Stdio};

use oncebox_conformance::sample::plain;
use oncebox_core::transport::Class;
use oncebox_core::{Kind, Publisher};
use oncebox_transports::nats::{Nats, NatsOptions};

use super::scene::unique;
use super::server::Server;

/// A certificate for `localhost` that is its own authority; false if nobody can make one.
fn make_certificate(folder: &Path) -> bool {
    let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &text("key.pem"), "-out", &text("cert.pem")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    made.is_ok_and(|status| status.success())
}

#[tokio::test]
async fn a_certificate_for_another_name_is_a_clear_error() {
    let folder = std::env::temp_dir().join(unique());
    std::fs::create_dir_all(&folder).unwrap();
    if !make_certificate(&folder) {
        println!("SKIP a certificate for another name: openssl makes no certificate");
        return;
    }
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let tls = ["--tls", "--tlscert", certificate.to_str().unwrap(), "--tlskey", key.to_str().unwrap()];
    let Some(server) = Server::start("TLS", &tls) else { return };
    let port = server.address().rsplit_once(':').unwrap().1.to_owned();
    let to = |host: &str| NatsOptions::from_url(&format!("tls://{host}:{port}")).unwrap().prefix(unique());
    let trusting = |host: &str| to(host).root_certificates(&certificate);

    let right = Nats::new(trusting("localhost")).publish(&[plain("a")]).await;
    let wrong_name = Nats::connect(trusting("127.0.0.1")).await.err().unwrap();
    let not_trusted = Nats::connect(to("localhost")).await.err().unwrap();
    let published = Nats::new(trusting("127.0.0.1")).publish(&[plain("a")]).await;

    assert!(right[0].is_ok(), "{right:?}");
    for error in [&wrong_name, &not_trusted] {
        assert_eq!(error.kind(), Kind::Config, "{}", error.chain());
        assert!(error.chain().contains("certificate"), "{}", error.chain());
    }
    assert_eq!(published[0].as_ref().unwrap_err().class, Class::Destination);
    std::fs::remove_dir_all(&folder).ok();
}
