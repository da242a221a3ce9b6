//! Servers to test against.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use oncebox_conformance::fixture::service_url;
use oncebox_conformance::sample::{DESTINATION, keyed};
use oncebox_conformance::server::free_port;
use oncebox_core::transport::Class;
use oncebox_core::{Envelope, Failure, Publisher, Result};
use oncebox_transports::rabbitmq::{RabbitMq, RabbitMqOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// No server takes longer to start or to answer.
const PATIENCE: Duration = Duration::from_secs(90);

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    format!("oncebox-test-{}-{}-{nanos}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A virtual host of its own on the shared server.
pub(super) struct Host {
    pub(super) name: String,
    /// `user:password`.
    pub(super) user: String,
    pub(super) address: String,
    pub(super) api: String,
}

impl Host {
    pub(super) async fn fresh(case: &str) -> Option<Self> {
        let url = service_url("ONCEBOX_TEST_RABBITMQ_URL", case)?;
        let api = service_url("ONCEBOX_TEST_RABBITMQ_API", case)?;
        let (user, rest) = url.strip_prefix("amqp://").unwrap().split_once('@').unwrap();
        let address = rest.split('/').next().unwrap().to_owned();
        let host = Self { name: unique(), user: user.to_owned(), address, api };
        host.api("PUT", &format!("/api/vhosts/{}", host.name), "").await;
        let all = r#"{"configure":".*","write":".*","read":".*"}"#;
        let name = user.split(':').next().unwrap();
        host.api("PUT", &format!("/api/permissions/{}/{name}", host.name), all).await;
        Some(host)
    }

    pub(super) fn url(&self) -> String {
        format!("amqp://{}@{}/{}", self.user, self.address, self.name)
    }

    pub(super) fn options(&self) -> RabbitMqOptions {
        RabbitMqOptions::from_url(&self.url()).unwrap()
    }

    pub(super) fn transport(&self) -> RabbitMq {
        RabbitMq::new(self.options()).unwrap()
    }

    /// Makes or removes something within the virtual host.
    pub(super) async fn change(&self, method: &str, what: &str, body: &str) -> String {
        let (kind, rest) = what.split_once('/').unwrap_or((what, ""));
        self.api(method, &format!("/api/{kind}/{}/{rest}", self.name), body).await
    }

    pub(super) async fn api(&self, method: &str, path: &str, body: &str) -> String {
        request(&self.api, method, path, body).await
    }
}

impl Drop for Host {
    /// Of a test that failed before it came to clean up.
    fn drop(&mut self) {
        use std::io::{Read, Write};
        let (user, address) = self.api.strip_prefix("http://").unwrap().split_once('@').unwrap();
        let (name, user) = (&self.name, base64(user.as_bytes()));
        if let Ok(mut stream) = std::net::TcpStream::connect(address) {
            stream.set_read_timeout(Some(Duration::from_secs(10))).ok();
            let request =
                format!("DELETE /api/vhosts/{name} HTTP/1.0\r\nAuthorization: Basic {user}\r\n\r\n");
            stream.write_all(request.as_bytes()).ok();
            stream.read_to_end(&mut Vec::new()).ok();
        }
    }
}

/// One request to the management API; the body of the answer.
pub(super) async fn request(api: &str, method: &str, path: &str, body: &str) -> String {
    let (user, address) = api.strip_prefix("http://").unwrap().split_once('@').unwrap();
    let text = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Basic {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        base64(user.as_bytes()),
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = tokio::time::timeout(PATIENCE, exchange).await.expect("the management API answers");
    let status = answer.split(' ').nth(1).unwrap_or_default();
    assert!(status.starts_with('2'), "{method} {path}: {answer}");
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { letter as char } else { '=' });
        }
    }
    text
}

/// A server of its own, for tests that kill it or make it ill.
pub(super) struct Node {
    script: String,
    dir: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Node {
    pub(super) async fn start(case: &str) -> Option<Self> {
        let script = service_url("ONCEBOX_TEST_RABBITMQ_SERVER", case)?;
        let port = free_port();
        let dir = std::env::temp_dir().join(unique());
        let mut node = Self { script, dir, port, child: None };
        node.resume().await;
        Some(node)
    }

    pub(super) async fn resume(&mut self) {
        let mut command = Command::new(&self.script);
        command.arg("start").arg(&self.dir).arg(self.port.to_string()).env("RABBITMQ_PASSWORD", "secret");
        let log = std::env::temp_dir().join(format!("oncebox-rabbitmq-{}.log", self.port));
        let log = std::fs::File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).kill_on_drop(true);
        self.child = Some(command.spawn().unwrap());
        let is_up = async {
            while !self.answers().await {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, is_up).await.expect("the server starts");
    }

    async fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address()).await else { return false };
        let mut first = [0];
        stream.write_all(b"AMQP\0\0\x09\x01").await.is_ok()
            && stream.read_exact(&mut first).await.is_ok()
            && first == [1]
    }

    /// As the power does it.
    pub(super) async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.unwrap();
        }
    }

    pub(super) async fn ctl(&self, arguments: &[&str]) {
        self.call("ctl", arguments).await;
    }

    /// Returns when what was declared so far survives a kill.
    pub(super) async fn settle(&self) {
        self.call("settle", &[]).await;
    }

    async fn call(&self, what: &str, arguments: &[&str]) {
        let mut command = Command::new(&self.script);
        command.arg(what).arg(&self.dir).args(arguments).stdin(Stdio::null());
        let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn options(&self) -> RabbitMqOptions {
        self.options_by(&self.address())
    }

    /// The same by way of something in between.
    pub(super) fn options_by(&self, address: &str) -> RabbitMqOptions {
        RabbitMqOptions::from_url(&format!("amqp://oncebox:secret@{address}/%2f")).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.take());
        std::fs::remove_dir_all(&self.dir).ok();
        std::fs::remove_file(std::env::temp_dir().join(format!("oncebox-rabbitmq-{}.log", self.port))).ok();
    }
}

/// Publishes until everything is confirmed, as a relay does.
pub(super) async fn publish_all(transport: &RabbitMq, batch: &[Envelope]) {
    let relay = async {
        let mut rest = batch.to_vec();
        while !rest.is_empty() {
            let results = transport.publish(&rest).await;
            let mut results = results.into_iter();
            rest.retain(|_| results.next().unwrap().is_err());
            if !rest.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, relay).await.expect("everything is confirmed in the end");
}

/// Messages of one key, in order.
pub(super) fn messages(count: usize) -> Vec<Envelope> {
    (0..count).map(|n| keyed(format!("{n:05}"), "k")).collect()
}

pub(super) fn to(destination: &str, envelope: Envelope) -> Envelope {
    Envelope { destination: destination.into(), ..envelope }
}

pub(super) fn class(result: &Result<(), Failure>) -> Option<Class> {
    result.as_ref().err().map(|failure| failure.class)
}

pub(super) fn reason(result: &Result<(), Failure>) -> String {
    result.as_ref().err().map(|failure| failure.reason.clone()).unwrap_or_default()
}

/// The queue of a group on the usual destination.
pub(super) fn queue(group: &str) -> String {
    format!("{DESTINATION}.{group}")
}
