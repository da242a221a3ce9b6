use std::collections::{BTreeMap, BTreeSet, VecDeque};

use oncebox_conformance::dice::Dice;
use oncebox_conformance::sample::{keyed, plain};
use oncebox_core::Envelope;
use tokio::time::advance;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// What a broker was told, in order.
#[derive(Debug, Default)]
struct Heard {
    said: Vec<String>,
    /// Answers fail while this is set.
    is_deaf: bool,
}

type Ear = Arc<Mutex<Heard>>;

/// An answer that is written down; messages are numbers.
struct Note {
    id: String,
    ear: Ear,
}

impl Note {
    fn say(&self, what: String) -> Result<()> {
        let mut heard = self.ear.lock().unwrap();
        if heard.is_deaf {
            return Err(Error::new(Kind::Unavailable, "deaf"));
        }
        heard.said.push(what);
        Ok(())
    }
}

impl Answer for Note {
    async fn ack(&self) -> Result<()> {
        tokio::task::yield_now().await;
        self.say(format!("ack {}", self.id))
    }

    async fn give_back(&self, after: Duration, spent: bool, attempt: u32) -> Result<()> {
        tokio::task::yield_now().await;
        self.say(format!("back {} {}s {}", self.id, after.as_secs(), attempt + u32::from(spent)))
    }

    async fn keep_alive(&self) {
        _ = self.say(format!("alive {}", self.id));
    }

    fn identity(&self) -> Option<u64> {
        self.id.parse().ok()
    }
}

fn push(lanes: &mut Lanes<Note>, ear: &Ear, envelope: Envelope) {
    let ack = Note { id: envelope.id.clone(), ear: Arc::clone(ear) };
    lanes.push(Delivery { envelope, attempt: 1, ack });
}

/// Lanes with these (id, key) in them.
fn lanes(options: LanesOptions, messages: &[(&str, &str)]) -> (Lanes<Note>, Ear) {
    let (mut lanes, ear) = (Lanes::new(options), Ear::default());
    for (id, key) in messages {
        push(&mut lanes, &ear, if key.is_empty() { plain(*id) } else { keyed(*id, key) });
    }
    (lanes, ear)
}

fn said(ear: &Ear) -> Vec<String> {
    std::mem::take(&mut ear.lock().unwrap().said)
}

fn take_all(lanes: &mut Lanes<Note>) -> Vec<Delivery<LaneAck<Note>>> {
    std::iter::from_fn(|| lanes.take()).collect()
}

fn ids(deliveries: &[Delivery<LaneAck<Note>>]) -> Vec<&str> {
    deliveries.iter().map(|delivery| delivery.envelope.id.as_str()).collect()
}

async fn next(lanes: &mut Lanes<Note>) -> Delivery<LaneAck<Note>> {
    loop {
        if let Some(delivery) = lanes.take() {
            return delivery;
        }
        lanes.changed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_has_one_delivery_out_at_a_time_and_in_order() {
    let (mut lanes, ear) =
        lanes(LanesOptions::default(), &[("a1", "a"), ("a2", "a"), ("b1", "b"), ("n", ""), ("a3", "a")]);

    let mut first = take_all(&mut lanes);
    assert_eq!(ids(&first), ["a1", "b1", "n"]);
    first.remove(0).ack.ack().await.unwrap();
    assert_eq!(said(&ear), ["ack a1"]);

    assert_eq!(ids(&take_all(&mut lanes)), ["a2"]);
}

#[tokio::test(start_paused = true)]
async fn unordered_lanes_hand_out_a_key_at_once() {
    let options = LanesOptions { ordered: false, ..LanesOptions::default() };
    let (mut lanes, _) = lanes(options, &[("a1", "a"), ("a2", "a")]);

    assert_eq!(ids(&take_all(&mut lanes)), ["a1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_delivery_of_a_key_waits_here_however_long_and_blocks_its_key() {
    let (mut lanes, ear) = lanes(LanesOptions::default(), &[("a1", "a"), ("a2", "a"), ("n", "")]);
    let start = Instant::now();

    next(&mut lanes).await.ack.nack(10 * MINUTE, true).await.unwrap();
    assert_eq!(ids(&take_all(&mut lanes)), ["n"]);
    // The dropped answer to `n` brings it back at once.
    next(&mut lanes).await.ack.ack().await.unwrap();
    let again = next(&mut lanes).await;

    assert_eq!((again.envelope.id.as_str(), again.attempt), ("a1", 2));
    assert_eq!(start.elapsed(), 10 * MINUTE);
    assert_eq!(said(&ear), ["ack n"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_delivery_without_a_key_waits_here_for_a_short_delay_only() {
    let (mut lanes, ear) = lanes(LanesOptions::default(), &[("n1", ""), ("n2", "")]);
    let start = Instant::now();

    next(&mut lanes).await.ack.nack(10 * SECOND, false).await.unwrap();
    next(&mut lanes).await.ack.nack(11 * SECOND, true).await.unwrap();
    let again = next(&mut lanes).await;

    assert_eq!((again.envelope.id.as_str(), again.attempt), ("n1", 1));
    assert_eq!(start.elapsed(), 10 * SECOND);
    assert_eq!(said(&ear), ["back n2 11s 2"]);
    again.ack.ack().await.unwrap();
    assert_eq!(lanes.room(), 100);
}

#[tokio::test(start_paused = true)]
async fn delayed_deliveries_without_a_key_take_at_most_half_the_room() {
    let options = LanesOptions { prefetch: 4, ..LanesOptions::default() };
    let (mut lanes, ear) = lanes(options, &[("n1", ""), ("n2", ""), ("n3", ""), ("n4", "")]);

    for delivery in take_all(&mut lanes) {
        delivery.ack.nack(SECOND, true).await.unwrap();
    }

    assert_eq!(said(&ear), ["back n3 1s 2", "back n4 1s 2"]);
    assert_eq!(lanes.room(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_dropped_brings_the_delivery_back_at_once() {
    let (mut lanes, _) = lanes(LanesOptions::default(), &[("a1", "a"), ("a2", "a")]);

    drop(next(&mut lanes).await);
    drop(next(&mut lanes).await.ack.ack());
    let again = next(&mut lanes).await;

    assert_eq!((again.envelope.id.as_str(), again.attempt), ("a1", 1));
}

#[tokio::test(start_paused = true)]
async fn an_ack_the_broker_did_not_hear_is_tried_again_before_the_key_goes_on() {
    let (mut lanes, ear) = lanes(LanesOptions::default(), &[("a1", "a"), ("a2", "a")]);
    ear.lock().unwrap().is_deaf = true;

    next(&mut lanes).await.ack.ack().await.unwrap_err();
    assert!(lanes.take().is_none());
    ear.lock().unwrap().is_deaf = false;
    let again = next(&mut lanes).await;

    assert_eq!(again.envelope.id, "a1");
    again.ack.ack().await.unwrap();
    assert_eq!(next(&mut lanes).await.envelope.id, "a2");
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_what_is_still_here_is_dropped() {
    let (mut lanes, ear) = lanes(LanesOptions::default(), &[("7", ""), ("7", "")]);

    let out = next(&mut lanes).await;
    push(&mut lanes, &ear, plain("7"));
    assert!(lanes.take().is_none());
    out.ack.nack(MINUTE, true).await.unwrap();
    assert_eq!(said(&ear), ["back 7 60s 2"]);
    push(&mut lanes, &ear, plain("7"));

    assert_eq!(next(&mut lanes).await.envelope.id, "7");
}

#[tokio::test(start_paused = true)]
async fn after_a_reset_a_key_waits_for_what_is_still_out() {
    let (mut lanes, ear) = lanes(LanesOptions::default(), &[("a1", "a"), ("a2", "a"), ("n", "")]);
    let out = next(&mut lanes).await;

    lanes.reset();
    assert_eq!(lanes.room(), 100);
    for id in ["a1", "a2"] {
        push(&mut lanes, &ear, keyed(id, "a"));
    }
    assert!(lanes.take().is_none());
    let lost = out.ack.ack().await.unwrap_err();

    assert_eq!(lost.kind(), Kind::Unavailable);
    assert!(said(&ear).is_empty());
    let again = next(&mut lanes).await;
    assert_eq!(again.envelope.id, "a1");
    again.ack.ack().await.unwrap();
    assert_eq!(next(&mut lanes).await.envelope.id, "a2");
}

#[tokio::test(start_paused = true)]
async fn dropped_lanes_give_back_what_is_not_out_and_let_the_rest_be_answered() {
    let (mut lanes, ear) =
        lanes(LanesOptions::default(), &[("a1", "a"), ("n1", ""), ("n2", ""), ("n3", ""), ("a2", "a")]);
    let mut out = take_all(&mut lanes);
    out.remove(3).ack.nack(SECOND, true).await.unwrap();

    drop(lanes);
    sleep(SECOND).await;
    assert_eq!(said(&ear), ["back n3 0s 2", "back a2 0s 1"]);
    for (delivery, answer) in out.into_iter().zip(0..) {
        match answer {
            0 => delivery.ack.ack().await.unwrap(),
            1 => delivery.ack.nack(SECOND, true).await.unwrap(),
            _ => drop(delivery),
        }
    }
    sleep(SECOND).await;

    assert_eq!(said(&ear), ["ack a1", "back n1 1s 2", "back n2 0s 1"]);
}

#[tokio::test(start_paused = true)]
async fn the_broker_is_told_that_somebody_is_at_it_until_it_is_answered() {
    let options = LanesOptions { keep_alive: Some(10 * SECOND), ..LanesOptions::default() };
    let (mut lanes, ear) = lanes(options, &[("a1", "a"), ("a2", "a")]);
    let out = next(&mut lanes).await;

    sleep(11 * SECOND).await;
    assert_eq!(said(&ear), ["alive a1", "alive a2"]);
    drop(lanes);
    sleep(10 * SECOND).await;
    assert_eq!(said(&ear), ["back a2 0s 1", "alive a1"]);
    out.ack.ack().await.unwrap();
    sleep(MINUTE).await;

    assert_eq!(said(&ear), ["ack a1"]);
}

/// A queue that delivers in order until it is told otherwise.
struct Broker {
    waiting: VecDeque<usize>,
    unanswered: BTreeSet<usize>,
    ear: Ear,
}

impl Broker {
    fn listen(&mut self) {
        for said in said(&self.ear) {
            let (verb, rest) = said.split_once(' ').unwrap();
            let number = rest.split(' ').next().unwrap().parse().unwrap();
            assert!(self.unanswered.remove(&number), "{number} was answered twice");
            if verb == "back" {
                self.waiting.push_back(number);
            }
        }
    }

    /// The connection broke: all that is unanswered is delivered again, in order.
    fn reconnect(&mut self) {
        for number in std::mem::take(&mut self.unanswered).into_iter().rev() {
            self.waiting.push_front(number);
        }
    }
}

const MESSAGES: usize = 400;
const PREFETCH: usize = 12;
const KEYS: [&str; 4] = ["", "a", "b", "c"];

fn key_of(number: usize) -> &'static str {
    KEYS[number % KEYS.len()]
}

/// What a consumer has seen.
struct Consumer {
    out: Vec<(usize, Delivery<LaneAck<Note>>)>,
    /// Handled, by key and in order: a handler's effects.
    done: BTreeMap<&'static str, Vec<usize>>,
    /// Out without a key when a connection broke: a copy may come beside them.
    stale: BTreeSet<usize>,
}

impl Consumer {
    fn take(&mut self, delivery: Delivery<LaneAck<Note>>) {
        let number: usize = delivery.envelope.id.parse().unwrap();
        let key = key_of(number);
        let twin =
            self.out.iter().find(|(other, _)| *other == number || (!key.is_empty() && key_of(*other) == key));
        assert!(twin.is_none() || self.stale.contains(&number), "{number} came beside {:?}", twin.unwrap().0);
        let done = self.done.entry(key).or_default();
        let is_in_order = done.len() * KEYS.len() + number % KEYS.len() == number || done.contains(&number);
        assert!(key.is_empty() || is_in_order, "{number} came before its turn: {done:?}");
        self.out.push((number, delivery));
    }

    async fn answer(&mut self, dice: &mut Dice) {
        if self.out.is_empty() {
            return;
        }
        let (number, delivery) = self.out.swap_remove(dice.below(self.out.len()));
        match dice.below(6) {
            0 => drop(delivery),
            1 => _ = delivery.ack.nack(Duration::ZERO, dice.once_in(2)).await,
            2 => _ = delivery.ack.nack(Duration::from_secs(dice.below(20) as u64), dice.once_in(2)).await,
            _ => {
                let done = self.done.entry(key_of(number)).or_default();
                if !done.contains(&number) {
                    done.push(number);
                }
                _ = delivery.ack.ack().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_keys_keep_their_order_and_nothing_is_lost() {
    let seed = Dice::seed("lanes");
    for round in 0..20 {
        let mut dice = Dice::new(seed.wrapping_add(round));
        let options = LanesOptions { prefetch: PREFETCH, ..LanesOptions::default() };
        let mut lanes = Lanes::new(options);
        let mut broker =
            Broker { waiting: (0..MESSAGES).collect(), unanswered: BTreeSet::new(), ear: Ear::default() };
        let mut consumer = Consumer { out: Vec::new(), done: BTreeMap::new(), stale: BTreeSet::new() };

        for step in 0.. {
            assert!(step < 200_000, "it never ends");
            match dice.below(100) {
                0..30 => {
                    let number = if lanes.room() > 0 { broker.waiting.pop_front() } else { None };
                    if let Some(number) = number {
                        broker.unanswered.insert(number);
                        let (id, key) = (number.to_string(), key_of(number));
                        let envelope = if key.is_empty() { plain(id) } else { keyed(id, key) };
                        push(&mut lanes, &broker.ear, envelope);
                    }
                }
                30..60 => lanes.take().into_iter().for_each(|delivery| consumer.take(delivery)),
                60..92 => consumer.answer(&mut dice).await,
                92..98 => advance(Duration::from_secs(dice.below(4) as u64)).await,
                98 => broker.ear.lock().unwrap().is_deaf = dice.once_in(3),
                _ if dice.once_in(5) => {
                    broker.listen();
                    lanes.reset();
                    broker.reconnect();
                    let unkeyed = consumer.out.iter().map(|(number, _)| *number);
                    consumer.stale = unkeyed.filter(|number| key_of(*number).is_empty()).collect();
                }
                _ => {}
            }
            broker.listen();
            assert!(
                broker.unanswered.len() <= PREFETCH && lanes.room() + broker.unanswered.len() == PREFETCH
            );
            if broker.waiting.is_empty() && broker.unanswered.is_empty() && consumer.out.is_empty() {
                break;
            }
        }

        let done: usize = consumer.done.values().map(Vec::len).sum();
        assert_eq!(done, MESSAGES);
        let keyed = consumer.done.iter().filter(|(key, _)| !key.is_empty());
        assert!(keyed.into_iter().all(|(_, numbers)| numbers.is_sorted()));
    }
}
