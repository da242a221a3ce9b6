//! From an outbox over a relay to receivers that fail, take part twice or are down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox_conformance::dice::Dice;
use oncebox_conformance::sample::plain;
use oncebox_core::store::Store;
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Backoff, Envelope};
use oncebox_flow::memory::MemoryStore;
use oncebox_flow::{CancellationToken, Outbox, Relay};
use oncebox_transports::http::{Http, HttpOptions};

use super::server::{Server, reply};

/// Effects by key, each message once: what a gate lets through.
#[derive(Default)]
struct Gate {
    passed: BTreeSet<String>,
    effects: BTreeMap<String, Vec<usize>>,
}

impl Gate {
    fn count(&self) -> usize {
        self.effects.values().map(Vec::len).sum()
    }
}

/// A receiver behind a gate that answers with an error once in four times,
/// before or after the effect, and always while it is down.
async fn receiver(seed: u64, is_down: &Arc<AtomicBool>) -> (Server, Arc<Mutex<Gate>>) {
    let gate: Arc<Mutex<Gate>> = Arc::default();
    let (effects, is_down) = (Arc::clone(&gate), Arc::clone(is_down));
    let dice = Arc::new(Mutex::new(Dice::new(seed)));
    let server = Server::start(move |seen| {
        let (is_before, is_after) = {
            let mut dice = dice.lock().unwrap();
            (dice.once_in(8) || is_down.load(Ordering::SeqCst), dice.once_in(8))
        };
        if !is_before {
            let mut gate = effects.lock().unwrap();
            if gate.passed.insert(seen.header("idempotency-key").unwrap().to_owned()) {
                let (key, id) = (seen.header("ce-partitionkey").unwrap(), seen.header("ce-id").unwrap());
                gate.effects.entry(key.to_owned()).or_default().push(id.parse().unwrap());
            }
        }
        let status = if is_before || is_after { 503 } else { 204 };
        Box::pin(async move { reply(status, "") })
    })
    .await;
    (server, gate)
}

async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "waited too long: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_takes_effect_once_and_in_order_and_a_dead_destination_holds_up_nobody() {
    const MESSAGES: usize = 120;
    let seed = Dice::seed("http path");
    let (never, is_down) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let (good, good_gate) = receiver(seed, &never).await;
    let (bad, bad_gate) = receiver(seed + 1, &is_down).await;
    let store = MemoryStore::new();
    let outbox = Outbox::new(store.clone());
    let mut tx = store.begin().await.unwrap();
    let message = |n: usize| {
        let destination = if n.is_multiple_of(2) { "good" } else { "bad" };
        Envelope { destination: destination.into(), key: Some(format!("{}", n % 10)), ..plain(n.to_string()) }
    };
    outbox.put_envelopes(&mut tx, (0..MESSAGES).map(message).collect()).await.unwrap();
    store.commit(tx).await.unwrap();

    let options = HttpOptions::new().destination("good", &good.url).destination("bad", &bad.url);
    let stop = CancellationToken::new();
    let backoff = Backoff { base: Duration::from_millis(50), cap: Duration::from_millis(200) };
    let relay = Relay::builder(store.clone(), Http::new(options).unwrap())
        .retry(RetryPolicy { backoff, ..RetryPolicy::default() })
        .error_backoff(Duration::from_millis(20))
        .build()
        .unwrap();
    let running = tokio::spawn(relay.run(stop.clone()));

    wait_until("the good destination", || good_gate.lock().unwrap().count() == MESSAGES / 2).await;
    assert_eq!(bad_gate.lock().unwrap().count(), 0);
    is_down.store(false, Ordering::SeqCst);
    wait_until("the bad destination", || bad_gate.lock().unwrap().count() == MESSAGES / 2).await;
    stop.cancel();
    assert!(running.await.unwrap().drained);

    for gate in [good_gate, bad_gate] {
        let gate = gate.lock().unwrap();
        assert!(gate.effects.values().all(|numbers| numbers.is_sorted()), "{:?}", gate.effects);
    }
}
