//! How long a message takes from its commit to its effect, at a steady pace,
//! against one commit, one confirmed publish, one delivery and one commit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox_core::{
    Acknowledge, Delivery, Envelope, Failure, Feed, Message as _, Publisher, Result, Subscriber as _,
};
use oncebox_flow::{CancellationToken, Consumer, Outbox, Relay, Wakeup};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::Run;
use super::bus::{Bus, DESTINATION, GROUP};
use crate::lab::Lab as _;
use crate::lab::postgres::PostgresLab;
use crate::order::Order;
use crate::report::{self, Measure, Target};
use crate::rounds::interleave;

/// Deliveries handled at once on both sides.
pub(super) const WORKERS: usize = 8;
/// One message every so often: 200 in a second.
const PACE: Duration = Duration::from_millis(5);
/// Messages before the first that counts.
const WARM_UP: u64 = 50;
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn measure<B: Bus>(run: &mut Run, lab: &PostgresLab, bus: &B) {
    let names = ["p50", "p99"].map(|part| format!("postgres.commit_to_effect_over_{}.{part}", B::NAME));
    if !names.iter().any(|name| run.wants(name)) {
        return;
    }
    let messages = run.sizes.timed;
    let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
    let (mut last_ours, mut last_by_hand) = (Value::Null, Value::Null);
    let medians = interleave(
        run.sizes.rounds,
        async || {
            let ((half, late), stages) = product(lab, bus, messages).await;
            ours.push(late);
            last_ours = stages;
            half
        },
        async || {
            let ((half, late), stages) = hand(lab, bus, messages).await;
            by_hand.push(late);
            last_by_hand = stages;
            half
        },
    )
    .await;
    // The warm-up is not part of the rounds.
    let tails: Vec<(f64, f64)> = ours.into_iter().zip(by_hand).skip(1).collect();
    let facts = json!({ "ours": last_ours, "by_hand": last_by_hand });
    report::note(&format!("postgres.commit_to_effect_over_{}.stages_ms", B::NAME), &facts, run.output);
    let [half, late] = names;
    for (name, rounds, bound) in [(half, medians, 3.0), (late, tails, 5.0)] {
        let mut measure = Measure::new(name, rounds, Target::AtMost(bound));
        measure.unit = "ms";
        run.report(&measure);
    }
}

/// The moments of a message's way, in order.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Committing,
    Committed,
    Publishing,
    Confirmed,
    Delivered,
    Effective,
}

/// When each message was where.
#[derive(Clone, Default)]
struct Times {
    seen: Arc<Mutex<HashMap<i64, [Option<Instant>; 6]>>>,
    changed: Arc<Notify>,
}

impl Times {
    fn note(&self, sequence: i64, moment: Moment) {
        let now = Instant::now();
        self.seen.lock().expect("a list").entry(sequence).or_default()[moment as usize].get_or_insert(now);
        if matches!(moment, Moment::Effective) {
            self.changed.notify_one();
        }
    }

    /// Milliseconds between two moments, of every message that has both and is no warm-up, sorted.
    fn between(&self, from: Moment, to: Moment) -> Vec<f64> {
        let seen = self.seen.lock().expect("a list");
        let counted = seen.iter().filter(|(sequence, _)| **sequence >= WARM_UP.cast_signed());
        let mut millis: Vec<f64> = counted
            .filter_map(|(_, moments)| moments[from as usize].zip(moments[to as usize]))
            .map(|(from, to)| to.saturating_duration_since(from).as_secs_f64() * 1000.0)
            .collect();
        millis.sort_by(f64::total_cmp);
        millis
    }

    /// The median and the 99th percentile in milliseconds, once all have arrived.
    async fn percentiles(&self, messages: u64) -> (f64, f64) {
        let expected = usize::try_from(messages).unwrap_or(usize::MAX);
        let all = async {
            while self.between(Moment::Committing, Moment::Effective).len() < expected {
                self.changed.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("everything takes effect");
        let millis = self.between(Moment::Committing, Moment::Effective);
        (millis[millis.len() / 2], millis[millis.len() * 99 / 100])
    }

    /// The median of every stage, for whoever wants to know where the time goes.
    fn stages(&self) -> Value {
        let median = |from, to| {
            let millis = self.between(from, to);
            millis.get(millis.len() / 2).map_or(0.0, |middle| (middle * 10.0).round() / 10.0)
        };
        json!({
            "commit": median(Moment::Committing, Moment::Committed),
            "until_relay_publishes": median(Moment::Committed, Moment::Publishing),
            "until_confirmed": median(Moment::Publishing, Moment::Confirmed),
            "until_delivered": median(Moment::Publishing, Moment::Delivered),
            "until_effect": median(Moment::Delivered, Moment::Effective),
        })
    }
}

/// A message every [`PACE`], whether or not the one before is through.
async fn at_a_pace<F: Future<Output = ()> + Send + 'static>(messages: u64, send: impl Fn(Order) -> F) {
    let mut pace = tokio::time::interval(PACE);
    let mut sending = tokio::task::JoinSet::new();
    for n in 0..messages {
        pace.tick().await;
        sending.spawn(send(Order::nth(n)));
    }
    sending.join_all().await;
}

async fn product<B: Bus>(lab: &PostgresLab, bus: &B, messages: u64) -> ((f64, f64), Value) {
    prepare(lab, bus).await;
    let (times, wakeup, stop) = (Times::default(), Wakeup::new(), CancellationToken::new());
    let feed = bus.transport().subscribe(DESTINATION, GROUP).await.expect("a feed");
    let consumer = Consumer::new(lab.inbox(), Timed { feed, times: times.clone() }).concurrency(WORKERS);
    let consumer = tokio::spawn(consumer.run(stop.clone()));
    let publisher = TimedPublisher { publisher: bus.transport(), times: times.clone() };
    let relay = Relay::builder(lab.store().clone(), publisher).wakeup(wakeup.clone());
    let relay = tokio::spawn(relay.build().expect("a relay").run(stop.clone()));
    let outbox = Outbox::new(lab.store().clone()).source("bench").wakeup(wakeup);
    at_a_pace(messages + WARM_UP, |order| {
        let (lab, outbox, times) = (lab.clone(), outbox.clone(), times.clone());
        async move {
            let mut tx = lab.pool().begin().await.expect("a transaction");
            lab.place(&mut tx, &order).await;
            outbox.put(&mut tx, &order).await.expect("a put");
            times.note(order.sequence, Moment::Committing);
            tx.commit().await.expect("a commit");
            times.note(order.sequence, Moment::Committed);
        }
    })
    .await;
    let percentiles = times.percentiles(messages).await;
    stop.cancel();
    assert!(consumer.await.expect("the consumer ends well"));
    relay.await.expect("the relay ends well");
    (percentiles, times.stages())
}

async fn hand<B: Bus>(lab: &PostgresLab, bus: &B, messages: u64) -> ((f64, f64), Value) {
    prepare(lab, bus).await;
    let times = Times::default();
    let consumer = {
        let (lab, bus, times) = (lab.clone(), bus.clone(), times.clone());
        tokio::spawn(async move {
            bus.consume_by_hand(|body| {
                let (lab, times) = (lab.clone(), times.clone());
                async move {
                    let order = Order::decode(&body).expect("an order");
                    let sequence = order.sequence;
                    times.note(sequence, Moment::Delivered);
                    let mut tx = lab.pool().begin().await.expect("a transaction");
                    lab.record(&mut tx, order).await;
                    tx.commit().await.expect("a commit");
                    times.note(sequence, Moment::Effective);
                }
            })
            .await;
        })
    };
    at_a_pace(messages + WARM_UP, |order| {
        let (lab, bus, times) = (lab.clone(), bus.clone(), times.clone());
        async move {
            let mut tx = lab.pool().begin().await.expect("a transaction");
            lab.place(&mut tx, &order).await;
            times.note(order.sequence, Moment::Committing);
            tx.commit().await.expect("a commit");
            times.note(order.sequence, Moment::Committed);
            times.note(order.sequence, Moment::Publishing);
            bus.send_by_hand(order.payload()).await;
            times.note(order.sequence, Moment::Confirmed);
        }
    })
    .await;
    let percentiles = times.percentiles(messages).await;
    consumer.abort();
    consumer.await.ok();
    (percentiles, times.stages())
}

async fn prepare<B: Bus>(lab: &PostgresLab, bus: &B) {
    bus.empty().await;
    lab.forget_effects().await;
    lab.rewind(lab.append(0).await).await;
}

/// A publisher that notes when it got a message and when it was confirmed.
struct TimedPublisher<P> {
    publisher: P,
    times: Times,
}

impl<P: Publisher> Publisher for TimedPublisher<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let sequence = |envelope: &Envelope| Order::decode(&envelope.payload).expect("an order").sequence;
        batch.iter().for_each(|envelope| self.times.note(sequence(envelope), Moment::Publishing));
        let results = self.publisher.publish(batch).await;
        batch.iter().for_each(|envelope| self.times.note(sequence(envelope), Moment::Confirmed));
        results
    }
}

/// A feed whose answers are the moment after the commit.
struct Timed<F> {
    feed: F,
    times: Times,
}

impl<F: Feed> Feed for Timed<F> {
    type Ack = TimedAck<F::Ack>;

    async fn next(&mut self) -> Result<Option<Delivery<Self::Ack>>> {
        let Some(Delivery { envelope, attempt, ack }) = self.feed.next().await? else { return Ok(None) };
        let sequence = Order::decode(&envelope.payload).expect("an order").sequence;
        self.times.note(sequence, Moment::Delivered);
        let ack = TimedAck { ack, times: self.times.clone(), sequence };
        Ok(Some(Delivery { envelope, attempt, ack }))
    }
}

struct TimedAck<A> {
    ack: A,
    times: Times,
    sequence: i64,
}

impl<A: Acknowledge> Acknowledge for TimedAck<A> {
    async fn ack(self) -> Result<()> {
        self.times.note(self.sequence, Moment::Effective);
        self.ack.ack().await
    }

    async fn nack(self, after: Duration, spent: bool) -> Result<()> {
        self.ack.nack(after, spent).await
    }
}
