//! Two relays, each with connections of its own, against one: never slower, and
//! the order of keys is the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use oncebox_core::inspect::Inspect as _;
use oncebox_core::{Acknowledge as _, Delivery, Envelope, Failure, Feed as _, Publisher, Subscriber as _};
use oncebox_flow::{CancellationToken, Relay};
use serde_json::json;
use tokio::sync::Notify;

use super::bus::{Bus, DESTINATION, Dress, GROUP};
use super::toll::{self, Cost, Toll};
use super::{Run, WINDOW};
use crate::lab::Lab as _;
use crate::lab::postgres::PostgresLab;
use crate::report::{self, Measure, Target, median};
use crate::rounds::{interleave, rate};

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn measure<B: Bus>(run: &mut Run, lab: &PostgresLab, bus: &B) {
    let name = format!("postgres.relay_to_{}.two_vs_one", B::NAME);
    if !run.wants(&name) {
        return;
    }
    let (rounds, backlog) = (run.sizes.rounds, run.sizes.backlog);
    let (mut of_two, mut of_one) = (Vec::new(), Vec::new());
    let pairs = interleave(
        rounds,
        async || drain(lab, bus, 2, backlog, &mut of_two).await,
        async || drain(lab, bus, 1, backlog, &mut of_one).await,
    )
    .await;
    let facts = json!({
        "two_relays": toll::summary(&of_two),
        "one_relay": toll::summary(&of_one),
    });
    report::note(&format!("{name}.cost_of_a_message"), &facts, run.output);
    let raw = by_hand(rounds, bus, backlog).await;
    let least = raw.iter().copied().fold(f64::INFINITY, f64::min);
    let most = raw.iter().copied().fold(0.0, f64::max);
    let facts = json!({"two_raw_publishers_vs_one": median(raw), "least": least, "most": most});
    report::note(&format!("{name}.ceiling"), &facts, run.output);
    drain(lab, bus, 2, backlog, &mut of_two).await;
    assert_ordered(bus, backlog).await;
    bus.empty().await;
    run.report(&Measure::new(name, pairs, Target::AtLeast(1.0)));
}

/// What a second publisher is worth on this machine if nothing is read: the
/// rate of two written by hand against that of one, round by round.
async fn by_hand<B: Bus>(rounds: usize, bus: &B, messages: u64) -> Vec<f64> {
    let other = bus.again().await;
    let publish = |buses: Vec<B>| async move {
        let share = messages / buses.len() as u64;
        let start =
            |bus: B| tokio::spawn(async move { bus.publish_by_hand(share, WINDOW, Dress::Full).await });
        let done = join_all(buses.into_iter().map(start)).await;
        done.into_iter().map(|done| done.expect("a publisher ends well")).sum()
    };
    let rates = interleave(
        rounds,
        async || {
            bus.empty().await;
            rate(publish(vec![bus.clone(), other.clone()])).await
        },
        async || {
            bus.empty().await;
            rate(publish(vec![bus.clone()])).await
        },
    )
    .await;
    rates.into_iter().map(|(two, one)| two / one).collect()
}

/// Counts what was confirmed.
#[derive(Clone)]
struct Counted<P> {
    publisher: P,
    confirmed: Arc<AtomicU64>,
    changed: Arc<Notify>,
}

impl<P: Publisher> Publisher for Counted<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let results = self.publisher.publish(batch).await;
        let confirmed = results.iter().filter(|result| result.is_ok()).count();
        self.confirmed.fetch_add(confirmed as u64, Ordering::SeqCst);
        self.changed.notify_one();
        results
    }
}

/// Messages per second of so many relays that share the shards when the backlog appears.
async fn drain<B: Bus>(
    lab: &PostgresLab,
    bus: &B,
    relays: usize,
    backlog: u64,
    tolls: &mut Vec<Cost>,
) -> f64 {
    bus.empty().await;
    lab.rewind(lab.append(0).await).await;
    let (confirmed, changed) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let stop = CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..relays {
        let (confirmed, changed) = (Arc::clone(&confirmed), Arc::clone(&changed));
        let publisher = Counted { publisher: bus.transport(), confirmed, changed };
        let relay = Relay::builder(lab.store().clone(), publisher).poll(Duration::from_millis(5));
        // A short lease, so that the first gives up its share soon.
        let relay = relay.lease(Duration::from_secs(2)).publish_timeout(Duration::from_secs(1));
        running.spawn(relay.build().expect("a relay").run(stop.clone()));
    }
    tokio::time::timeout(PATIENCE, shared(lab, relays)).await.expect("the shards are shared");
    lab.append(backlog).await;
    let toll = Toll::read(lab).await;
    let arrived = async {
        while confirmed.load(Ordering::SeqCst) < backlog {
            changed.notified().await;
        }
        backlog
    };
    let measured = tokio::time::timeout(PATIENCE, rate(arrived)).await.expect("everything is relayed");
    tolls.push(toll.since(lab, backlog).await);
    stop.cancel();
    while let Some(ended) = running.join_next().await {
        assert!(ended.expect("a relay ends well").drained);
    }
    measured
}

/// Waits until every relay has its part.
async fn shared(lab: &PostgresLab, relays: usize) {
    loop {
        let status = lab.store().status().await.expect("a status");
        let holders: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT holder FROM oncebox.relay_cursor WHERE lease_until > clock_timestamp()
             GROUP BY holder HAVING count(*) = $1) AS even",
        )
        .bind(8 / relays as i64)
        .fetch_one(lab.pool())
        .await
        .expect("the holders");
        if holders == relays as i64 && status.sinks.iter().all(|sink| sink.unowned_shards == 0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reads everything back; the ids of a key must grow. The lab's ids do.
async fn assert_ordered<B: Bus>(bus: &B, backlog: u64) {
    let mut feed = bus.transport().subscribe(DESTINATION, GROUP).await.expect("a feed");
    let mut last: HashMap<String, String> = HashMap::new();
    for _ in 0..backlog {
        let next = tokio::time::timeout(PATIENCE, feed.next()).await.expect("deliveries go on");
        let Delivery { envelope, ack, .. } = next.expect("a delivery").expect("the feed goes on");
        let key = envelope.key.unwrap_or_default();
        if let Some(before) = last.insert(key.clone(), envelope.id.clone()) {
            assert!(before < envelope.id, "{key}: {} came after {before}", envelope.id);
        }
        ack.ack().await.expect("an answer");
    }
}
