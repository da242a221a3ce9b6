//! Many clients at once, and what they saw.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::child::Child;
use super::client::Client;

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
    /// Whether each connection has a session, as a cookie says.
    pub(super) with_session: bool,
    /// Whether clients never sleep: to wake one costs the service more, the
    /// more it keeps it waiting, which says nothing about the service.
    pub(super) is_awake: bool,
    /// How often each connection sends, whether it was answered or not; as soon as it was if not given.
    pub(super) every: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    /// Requests per second.
    pub(super) rate: f64,
    /// Processor time of the service per request.
    pub(super) cpu_micros: f64,
    pub(super) p50_millis: f64,
    pub(super) p99_millis: f64,
}

/// A kibibyte of JSON, as a shop might send it.
pub(super) fn order() -> String {
    let line = |n: usize| {
        format!(
            "{{\"sku\":\"TEA-{n:04}\",\"title\":\"Darjeeling first flush\",\"quantity\":{},\"price\":\"12.50\"}}",
            n % 3 + 1
        )
    };
    let lines: Vec<String> = (0..9).map(line).collect();
    let start = format!(
        "{{\"order\":\"8e03978e-40d5-43dd-bc93-6894a57f9324\",\"customer\":{{\"id\":70213,\"vip\":true,\
         \"referrer\":null}},\"currency\":\"EUR\",\"lines\":[{}],\"note\":\"",
        lines.join(",")
    );
    let note = "Please ring twice. ".chars().cycle().take(1024 - start.len() - 2);
    format!("{start}{}\"}}", note.collect::<String>())
}

/// Sends everything to `entry`. Each answer must be 201, and the handler, which
/// the service at that address has, must have run once for each key.
pub(super) fn run(entry: &Child, service: &str, load: Load) -> Report {
    run_beside(entry, service, load, std::future::pending())
}

/// As [`run`], with a service on the thread of the clients, which sleeps as little as they do.
pub(super) fn run_beside(
    entry: &Child,
    service: &str,
    load: Load,
    beside: impl Future<Output = ()> + Send + 'static,
) -> Report {
    std::thread::scope(|scope| {
        // Clients have one thread, which polls its sockets between turns.
        let clients = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                tokio::spawn(beside);
                on_this_thread(entry, service, load).await
            })
        });
        clients.join().expect("every answer is as it should be")
    })
}

async fn on_this_thread(entry: &Child, service: &str, load: Load) -> Report {
    let share = load.requests / load.connections;
    let clients = connect(entry, load).await;
    let before = Client::runs(service).await;
    let (cpu, started) = (entry.cpu_micros(), Instant::now());
    let mut tasks = JoinSet::new();
    for (place, client) in (0..).zip(clients) {
        let pace = load.every.map(|every| {
            // Not all at once.
            let first = started + every * place / u32::try_from(load.connections).expect("few");
            Pace { first, every }
        });
        tasks.spawn(send(client, share, load.keys, pace));
    }
    let awake = load.is_awake.then(|| tokio::spawn(stay_awake()));
    let mut took: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    let (elapsed, cpu) = (started.elapsed().as_secs_f64(), entry.cpu_micros() - cpu);
    if let Some(awake) = awake {
        awake.abort();
    }
    let runs = Client::runs(service).await - before;
    let expected = if load.keys == Keys::Same { 0 } else { took.len() };
    assert_eq!(runs, expected, "runs of the handler");
    took.sort_unstable();
    let millis = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    Report {
        rate: took.len() as f64 / elapsed,
        cpu_micros: cpu / took.len() as f64,
        p50_millis: millis(0.5),
        p99_millis: millis(0.99),
    }
}

async fn stay_awake() {
    loop {
        tokio::task::yield_now().await;
    }
}

/// Connections that have been used, each with the key that is asked for again.
async fn connect(entry: &Child, load: Load) -> Vec<(Client, String)> {
    let order = order();
    let mut clients = Vec::new();
    for _ in 0..load.connections {
        let mut client = Client::connect(&entry.address).await;
        if load.with_session {
            let answer = client.ask("POST", "/session").await;
            let cookie = answer.header("set-cookie").and_then(|cookie| cookie.split(';').next());
            client.set_cookie(cookie.expect("a session").to_owned());
        }
        let key = uuid::Uuid::new_v4().to_string();
        let warm = if load.keys == Keys::None { None } else { Some(key.as_str()) };
        assert_eq!(client.order(&order, warm).await, 201);
        clients.push((client, key));
    }
    clients
}

/// When a connection sends. What is late because its predecessor was is late from then on.
#[derive(Clone, Copy)]
struct Pace {
    first: Instant,
    every: Duration,
}

async fn send(
    (mut client, same): (Client, String),
    requests: usize,
    keys: Keys,
    pace: Option<Pace>,
) -> Vec<Duration> {
    let order = order();
    let mut took = Vec::with_capacity(requests);
    for n in 0..requests {
        let unique = (keys == Keys::Unique).then(|| format!("{same}-{n}"));
        let key = match keys {
            Keys::None => None,
            Keys::Unique => unique.as_deref(),
            Keys::Same => Some(same.as_str()),
        };
        let sent = match pace {
            Some(Pace { first, every }) => {
                let due = first + every * u32::try_from(n).expect("few");
                tokio::time::sleep_until(due.into()).await;
                due
            }
            None => Instant::now(),
        };
        assert_eq!(client.order(&order, key).await, 201);
        took.push(sent.elapsed());
    }
    took
}

/// Copies of a request that takes long, all at once. Tells how often it ran and
/// how long, in milliseconds, 99 of 100 of those that were refused waited at most.
pub(super) async fn storm(child: &Child, connections: usize, each: usize) -> (f64, f64) {
    let start = Arc::new(Barrier::new(connections));
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let (mut client, start) = (Client::connect(&child.address).await, Arc::clone(&start));
        tasks.spawn(async move {
            let order = order();
            let mut took = Vec::new();
            start.wait().await;
            for _ in 0..each {
                let sent = Instant::now();
                let status = client.order(&order, Some("storm")).await;
                took.push((status, sent.elapsed()));
            }
            took
        });
    }
    let all: Vec<(u16, Duration)> = tasks.join_all().await.into_iter().flatten().collect();
    let mut refused: Vec<Duration> =
        all.iter().filter(|(status, _)| *status == 409).map(|(_, took)| *took).collect();
    refused.sort_unstable();
    assert!(refused.len() >= all.len() - each, "copies are refused while the first one runs");
    let runs = Client::runs(&child.address).await;
    (runs as f64, refused[refused.len() * 99 / 100].as_secs_f64() * 1e3)
}
