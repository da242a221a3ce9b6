//! Clients: each has a connection and sends one request after the other.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::server::Child;

/// Which keys requests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    None,
    Unique,
    Same,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) requests: usize,
    pub(super) connections: usize,
    pub(super) keys: Keys,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    /// Requests per second.
    pub(super) rate: f64,
    /// Processor time of the service per request.
    pub(super) cpu_micros: f64,
    pub(super) p50_millis: f64,
}

/// A kibibyte of JSON.
fn body() -> String {
    format!("{{\"item\":\"tea\",\"count\":2,\"note\":\"{}\"}}", "x".repeat(985))
}

fn request(path: &str, key: Option<&str>) -> Vec<u8> {
    let (body, key) = (body(), key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default());
    format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{key}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    async fn connect(child: &Child) -> Self {
        let stream = TcpStream::connect(&child.address).await.expect("the service listens");
        stream.set_nodelay(true).expect("an option");
        Self { stream, buffer: vec![0; 16 << 10] }
    }

    /// Sends a request and reads the answer; tells its status.
    async fn send(&mut self, request: &[u8]) -> u16 {
        self.stream.write_all(request).await.expect("the service reads");
        let mut read = 0;
        loop {
            let more = self.stream.read(&mut self.buffer[read..]).await.expect("the service answers");
            assert!(more > 0, "the service hung up");
            read += more;
            let answer = &self.buffer[..read];
            let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&answer[..head]).expect("a head");
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if read >= head + 4 + length.unwrap_or(0) {
                return text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
            }
        }
    }
}

/// Sends everything; only what is answered with 201 counts.
pub(super) async fn run(child: &Child, load: Load) -> Report {
    let share = load.requests / load.connections;
    let name = format!("{:x}", std::process::id());
    let warm = request("/orders", (load.keys != Keys::None).then_some("same"));
    let mut clients = Vec::new();
    for _ in 0..load.connections {
        let mut client = Client::connect(child).await;
        client.send(&warm).await;
        clients.push(client);
    }
    let (cpu, started) = (child.cpu_micros(), Instant::now());
    let mut tasks = JoinSet::new();
    for (number, mut client) in clients.into_iter().enumerate() {
        let name = name.clone();
        tasks.spawn(async move {
            let mut took = Vec::with_capacity(share);
            for n in 0..share {
                let key = match load.keys {
                    Keys::None => None,
                    Keys::Unique => Some(format!("{name}-{number}-{n}")),
                    Keys::Same => Some("same".to_owned()),
                };
                let request = request("/orders", key.as_deref());
                let sent = Instant::now();
                assert_eq!(client.send(&request).await, 201);
                took.push(sent.elapsed());
            }
            took
        });
    }
    let mut took: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    let (elapsed, requests) = (started.elapsed().as_secs_f64(), took.len() as f64);
    took.sort_unstable();
    Report {
        rate: requests / elapsed,
        cpu_micros: (child.cpu_micros() - cpu) / requests,
        p50_millis: took[took.len() / 2].as_secs_f64() * 1e3,
    }
}

/// Many copies of a request that takes long; tells how often it ran and how
/// long, at most, 99 of 100 of those that were refused waited, in milliseconds.
pub(super) async fn storm(child: &Child, copies: usize) -> (f64, f64) {
    let slow = request("/slow", Some("storm"));
    let mut first = Client::connect(child).await;
    let running = {
        let slow = slow.clone();
        tokio::spawn(async move { first.send(&slow).await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (mut client, slow) = (Client::connect(child).await, slow.clone());
        tasks.spawn(async move {
            let mut took = Vec::new();
            for _ in 0..copies / 16 {
                let sent = Instant::now();
                let status = client.send(&slow).await;
                took.push((status, sent.elapsed()));
            }
            took
        });
    }
    let mut all: Vec<(u16, Duration)> = tasks.join_all().await.into_iter().flatten().collect();
    let runs = all.iter().filter(|(status, _)| *status == 201).count();
    assert_eq!(running.await.expect("the first one"), 201);
    all.sort_unstable_by_key(|(_, took)| *took);
    (1.0 + runs as f64, all[all.len() * 99 / 100].1.as_secs_f64() * 1e3)
}
