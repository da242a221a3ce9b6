//! SQLite: requests that arrive together share commits.

use std::time::{Duration, Instant};

use oncebox_core::Digest;
use oncebox_core::gate::{
    Admission, AdmitRequest, Durability, Fingerprint, OnDoubt, OnMismatch, ReceiptKey, Receipts as _, Reply,
    Request,
};
use oncebox_stores::sqlite::{SqliteStore, migrate};
use tokio::task::JoinSet;

use crate::machine::TempDir;
use crate::rounds::interleave;

fn request(number: u64) -> AdmitRequest {
    let request = Request { method: "POST", path: "/", query: None, content_type: None, body: b"" };
    AdmitRequest {
        key: ReceiptKey { scope: [0; 32], key: *Digest::of(&number.to_be_bytes()).as_bytes() },
        token: i64::try_from(number).expect("few"),
        fingerprint: Fingerprint::raw(&request),
        lease: Duration::from_secs(30),
        ttl: Duration::from_secs(3600),
        sliding: false,
        on_doubt: OnDoubt::Retry,
        on_mismatch: OnMismatch::Refuse,
        durability: Durability::Full,
    }
}

/// Admits and seals requests, so many at once; tells how many a second.
async fn rate(store: &SqliteStore, requests: u64, at_once: u64) -> f64 {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..at_once {
        let store = store.clone();
        tasks.spawn(async move {
            let reply = Reply { status: 201, body: Some(vec![b'x'; 300]), ..Reply::default() };
            for n in 0..requests / at_once {
                let request = request(n * at_once + task);
                let admission = store.admit(&request, None).await.expect("an admission");
                let Admission::Proceed(pass) = admission else { panic!("{admission:?}") };
                store.seal(&pass, &reply).await.expect("a seal");
            }
        });
    }
    tasks.join_all().await;
    requests as f64 / started.elapsed().as_secs_f64()
}

/// What is measured here.
pub(super) const NAME: &str = "sqlite.shared_commit.64_vs_1";

/// 64 clients at once, whose receipts share commits, against one, whose do not, in each round, both in a database of
/// their own.
pub(super) async fn measure(rounds: usize, requests: usize) -> Vec<(f64, f64)> {
    let requests = requests as u64;
    interleave(rounds, async || fresh(requests, 64).await, async || fresh(requests / 16, 1).await).await
}

async fn fresh(requests: u64, at_once: u64) -> f64 {
    let folder = TempDir::new();
    let file = folder.0.join("gate.db");
    let store = SqliteStore::create(file.to_str().expect("a path")).await.expect("a database");
    migrate::up(&store).await.expect("tables");
    let rate = rate(&store, requests, at_once).await;
    store.pool().close().await;
    rate
}
