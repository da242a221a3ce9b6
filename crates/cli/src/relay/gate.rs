//! In front of a destination: lets messages through only to places that passed
//! preflight, and notes on the board whether they arrive.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncebox_core::log::LaneKey;
use oncebox_core::preflight::{Finding, Grade, Inspection, Preflight};
use oncebox_core::routes::Routes;
use oncebox_core::transport::{Class, Failure, Publisher};
use oncebox_core::{Envelope, Result};
use tokio::time::Instant;
use tracing::{info, warn};

use super::board::{Lamp, State, Witness};
use super::outlet;
use crate::config::shown;

/// A refused destination is looked at again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// And one that passed after this long: a queue may have changed since.
const FRESH: Duration = Duration::from_secs(300);
/// More destinations than this are not remembered; they are inspected again.
const MAX_KNOWN: usize = 10_000;
/// The most destinations that one question is about.
const GROUP: usize = 32;

/// What must hold of a destination.
#[derive(Clone, Debug)]
pub(crate) struct Requirement {
    pub(crate) grade: Grade,
    pub(crate) horizon: Duration,
    /// The largest payload of each type of message.
    pub(crate) limits: Routes,
    /// How long a call to publish may take. A third of it may go into inspections.
    pub(crate) patience: Duration,
}

/// A publisher behind its preflight. Clones share what is known.
pub(crate) struct Gate<P> {
    inner: Arc<Inner<P>>,
}

struct Inner<P> {
    publisher: P,
    requirement: Requirement,
    lamp: Lamp,
    known: Mutex<BTreeMap<String, Known>>,
    /// How many destinations are asked about at once; fewer after no answer came.
    group: AtomicUsize,
}

/// What an inspection said.
struct Known {
    /// Why it may not be used, if it may not.
    refusal: Option<String>,
    /// When it is to be looked at again.
    due: Instant,
}

impl<P> Clone for Gate<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Publisher + Preflight + Sync> Gate<P> {
    pub(crate) fn new(publisher: P, requirement: Requirement, lamp: Lamp) -> Self {
        let group = AtomicUsize::new(GROUP);
        Self { inner: Arc::new(Inner { publisher, requirement, lamp, known: Mutex::default(), group }) }
    }

    pub(crate) fn publisher(&self) -> &P {
        &self.inner.publisher
    }

    pub(crate) fn lamp(&self) -> &Lamp {
        &self.inner.lamp
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.inner.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets every verdict: they were about another place.
    pub(crate) fn forget(&self) {
        self.known().clear();
    }

    /// Inspects destinations and remembers what came of it.
    pub(crate) async fn inspect(&self, destinations: &[String]) -> Result<Vec<Inspection>> {
        let requirement = &self.inner.requirement;
        let inspections = self.inner.publisher.inspect(destinations, requirement.horizon).await?;
        let mut known = self.known();
        for inspection in &inspections {
            let refusal = refusal(inspection, requirement.grade);
            let due = Instant::now() + if refusal.is_none() { FRESH } else { LOOK_AGAIN };
            let fresh = Known { refusal: refusal.clone(), due };
            let before = known.insert(inspection.destination.clone(), fresh);
            let is_news = before.is_none_or(|before| before.refusal.is_none() != refusal.is_none());
            let (grade, destination) = (inspection.grade(), shown(&inspection.destination));
            match refusal {
                None if is_news => info!(destination, %grade, "preflight.passed"),
                Some(reason) if is_news => warn!(destination, %grade, reason, "preflight.refused"),
                _ => {}
            }
        }
        Ok(inspections)
    }

    /// Inspects those destinations of a batch of which nothing is known, or not
    /// for long. What is not reached in time is left to the next call. If
    /// nobody can be asked: why.
    async fn inspect_strangers(&self, batch: &[Envelope]) -> Option<String> {
        let (started, share) = (Instant::now(), self.inner.requirement.patience / 6);
        let strangers = self.strangers(batch);
        let mut rest = strangers.as_slice();
        while !rest.is_empty() && started.elapsed() < share {
            let allowed = self.inner.group.load(Ordering::Relaxed);
            let (group, later) = rest.split_at(allowed.clamp(1, rest.len()));
            rest = later;
            let next = match tokio::time::timeout(share, self.inspect(group)).await {
                Ok(Ok(_)) => (allowed * 2).min(GROUP),
                Ok(Err(error)) => {
                    self.put_off(group);
                    return Some(error.chain());
                }
                Err(_elapsed) => {
                    self.put_off(group);
                    if let [alone] = group {
                        self.note_silence(alone, share);
                    }
                    (group.len() / 2).max(1)
                }
            };
            self.inner.group.store(next, Ordering::Relaxed);
        }
        None
    }

    /// What of a batch is to be inspected, unknown destinations first.
    fn strangers(&self, batch: &[Envelope]) -> Vec<String> {
        let mut known = self.known();
        let wanted: BTreeSet<&str> = batch.iter().map(|envelope| envelope.destination.as_str()).collect();
        if known.len() + wanted.len() > MAX_KNOWN {
            // Never what this batch needs, or it would not get anywhere.
            known.retain(|destination, _| wanted.contains(destination.as_str()));
        }
        let now = Instant::now();
        let due = wanted
            .into_iter()
            .map(|destination| (known.get(destination).map(|known| known.due), destination));
        let mut due: Vec<_> = due.filter(|(due, _)| due.is_none_or(|due| due <= now)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, destination)| destination.to_owned()).collect()
    }

    /// Lets old verdicts count for a while longer, because no new ones can be had.
    fn put_off(&self, destinations: &[String]) {
        let (mut known, due) = (self.known(), Instant::now() + LOOK_AGAIN);
        for destination in destinations {
            if let Some(known) = known.get_mut(destination) {
                known.due = due;
            }
        }
    }

    /// Notes a destination that cannot be inspected in time, lest every batch waits for it.
    fn note_silence(&self, destination: &str, waited: Duration) {
        self.known().entry(destination.to_owned()).or_insert_with(|| {
            let destination = shown(destination);
            warn!(destination, ?waited, "preflight.unanswered");
            let refusal = Some(format!("preflight got no answer about {destination} within {waited:?}"));
            Known { refusal, due: Instant::now() + LOOK_AGAIN }
        });
    }

    /// Why each envelope may not pass, if it may not. What follows a held
    /// envelope in its lane is held, too. `silence` is why nobody could be asked.
    fn held(&self, batch: &[Envelope], silence: Option<&str>) -> Vec<Option<Failure>> {
        let known = self.known();
        let mut lanes = HashSet::new();
        let hold = |envelope: &Envelope| {
            let lane = LaneKey::of(envelope);
            let failure = match (known.get(&envelope.destination), silence) {
                // Nothing is wrong with it, nor with where it goes.
                _ if lane.as_ref().is_some_and(|lane| lanes.contains(lane)) => {
                    Failure::pending("it is behind one of its key that may not pass")
                }
                (Some(Known { refusal: Some(reason), .. }), _) => Failure::destination(reason.clone()),
                (Some(Known { refusal: None, .. }), _) => self.too_large(envelope)?,
                (None, Some(reason)) => Failure::destination(reason),
                (None, None) => Failure::pending("its destination was not inspected yet"),
            };
            lanes.extend(lane);
            Some(failure)
        };
        batch.iter().map(hold).collect()
    }

    /// Rows that no outbox of ours has checked may be larger than their route allows.
    fn too_large(&self, envelope: &Envelope) -> Option<Failure> {
        let (size, limit) = (envelope.payload.len(), self.inner.requirement.limits.limit(&envelope.kind)?);
        let destination = shown(&envelope.destination);
        let text = || format!("{destination}: the payload has {size} bytes, its route allows {limit}");
        (size > limit).then(|| Failure::message(text()).permanently())
    }

    async fn pass(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let silence = self.inspect_strangers(batch).await;
        let held = self.held(batch, silence.as_deref());
        if held.iter().all(Option::is_none) {
            return self.inner.publisher.publish(batch).await;
        }
        let free = held.iter().zip(batch).filter(|(held, _)| held.is_none());
        let free: Vec<Envelope> = free.map(|(_, envelope)| envelope.clone()).collect();
        let mut results = match free.is_empty() {
            true => Vec::new(),
            false => self.inner.publisher.publish(&free).await,
        }
        .into_iter();
        let answer = |held| match held {
            Some(failure) => Err(failure),
            None => results.next().unwrap_or_else(|| Err(Failure::unknown("the transport gave no answer"))),
        };
        held.into_iter().map(answer).collect()
    }
}

impl<P: Publisher + Preflight> Publisher for Gate<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let mut note = Note { lamp: &self.inner.lamp, state: None };
        let results = self.pass(batch).await;
        note.state = seen(&results);
        results
    }
}

/// Puts on the board what came of a call, also if its caller stopped waiting.
struct Note<'a> {
    lamp: &'a Lamp,
    state: Option<State>,
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        let gone = || State::Unavailable("the destination did not answer in time".to_owned());
        self.lamp.set(Witness::Traffic, self.state.take().unwrap_or_else(gone));
    }
}

/// What results say about the destination as a whole: it works if anything arrived.
fn seen(results: &[Result<(), Failure>]) -> Option<State> {
    let is_outage = |failure: &&Failure| matches!(failure.class, Class::Destination | Class::Unknown);
    let failure = results.iter().filter_map(|result| result.as_ref().err()).find(is_outage);
    Some(match failure {
        Some(failure) if results.iter().all(Result::is_err) => State::Unavailable(failure.reason.clone()),
        _ => State::Ready,
    })
}

/// Why a destination is not good enough, if it is not. One that is merely away
/// is no worse for it: the publisher waits for it.
pub(crate) fn refusal(inspection: &Inspection, required: Grade) -> Option<String> {
    let findings = inspection.findings.iter().filter(|finding| !outlet::is_away(finding));
    let bad: Vec<&Finding> = findings.filter(|finding| !finding.grade.satisfies(required)).collect();
    let grade = bad.iter().map(|finding| finding.grade).max()?;
    let reasons: Vec<&str> = bad.iter().map(|finding| finding.reason.as_str()).collect();
    let (destination, reasons) = (shown(&inspection.destination), reasons.join("; "));
    Some(format!("{destination} has grade {grade}, but {required} is required: {reasons}"))
}

#[cfg(test)]
mod tests {
    use oncebox_core::{Error, Kind, Rule};

    use super::*;

    /// Takes everything; finds fault with destinations that contain `bad` and
    /// says nothing about those that contain `silent`.
    #[derive(Default)]
    struct Broker {
        inspected: AtomicUsize,
        taken: Mutex<Vec<String>>,
        is_down: bool,
    }

    impl Publisher for Broker {
        async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
            self.taken.lock().unwrap().extend(batch.iter().map(|envelope| envelope.id.clone()));
            vec![Ok(()); batch.len()]
        }
    }

    impl Preflight for Broker {
        async fn inspect(&self, destinations: &[String], _: Duration) -> Result<Vec<Inspection>> {
            self.inspected.fetch_add(destinations.len(), Ordering::Relaxed);
            if self.is_down {
                return Err(Error::new(Kind::Unavailable, "the broker is away"));
            }
            if destinations.iter().any(|destination| destination.contains("silent")) {
                std::future::pending::<()>().await;
            }
            let inspection = |destination: &String| Inspection {
                destination: destination.clone(),
                transport: "test",
                findings: match destination.contains("bad") {
                    true => vec![Finding::new(Grade::D, "not durable", "make it durable")],
                    false => Vec::new(),
                },
            };
            Ok(destinations.iter().map(inspection).collect())
        }
    }

    fn gate(broker: Broker) -> Gate<Broker> {
        let limits = Routes::new([Rule::to("small", "good").within(3)]).unwrap();
        let (horizon, patience) = (Duration::from_secs(60), Duration::from_secs(6));
        let requirement = Requirement { grade: Grade::C, horizon, limits, patience };
        Gate::new(broker, requirement, Lamp::new("test"))
    }

    fn envelope(id: &str, destination: &str, key: Option<&str>) -> Envelope {
        let (id, destination, key) = (id.to_owned(), destination.to_owned(), key.map(Into::into));
        Envelope { id, destination, key, ..Envelope::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_destination_holds_its_messages_and_their_keys_only() {
        let gate = gate(Broker::default());
        let batch = [
            envelope("1", "good", Some("k")),
            envelope("2", "bad", Some("k")),
            envelope("3", "good", Some("k")),
            envelope("4", "good", Some("other")),
            envelope("5", "good", None),
        ];

        let results = gate.publish(&batch).await;

        assert_eq!(*gate.publisher().taken.lock().unwrap(), ["1", "4", "5"]);
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, true, true]);
        let failure = results[1].clone().unwrap_err();
        assert_eq!(failure.class, Class::Destination);
        assert!(failure.reason.contains("grade D") && failure.reason.contains("not durable"), "{failure}");
        assert_eq!(gate.lamp().state(), State::Starting, "nobody has looked yet");
        gate.publish(&batch).await;
        assert_eq!(gate.publisher().inspected.load(Ordering::Relaxed), 2, "each is inspected once");
        tokio::time::advance(LOOK_AGAIN).await;
        gate.publish(&batch).await;
        assert_eq!(
            gate.publisher().inspected.load(Ordering::Relaxed),
            3,
            "the refused one is looked at again"
        );
    }

    #[tokio::test]
    async fn a_payload_beyond_its_routes_limit_is_dead_and_its_key_waits() {
        let gate = gate(Broker::default());
        let large =
            Envelope { kind: "small".into(), payload: vec![0; 4], ..envelope("1", "good", Some("k")) };
        let exact = Envelope { payload: vec![0; 3], key: None, ..large.clone() };

        let results = gate.publish(&[large, envelope("2", "good", Some("k")), exact]).await;

        let failure = results[0].clone().unwrap_err();
        assert!(failure.permanent && failure.class == Class::Message, "{failure}");
        assert_eq!(
            results[1].clone().unwrap_err().class,
            Class::Pending,
            "it is not the destination's fault"
        );
        assert!(results[2].is_ok());
    }

    #[tokio::test]
    async fn a_broker_that_cannot_be_asked_is_an_outage_with_its_reason_on_the_board() {
        let gate = gate(Broker { is_down: true, ..Broker::default() });

        let results = gate.publish(&[envelope("1", "good", None)]).await;

        assert_eq!(results[0].clone().unwrap_err().class, Class::Destination);
        assert_eq!(gate.lamp().state(), State::Unavailable("the broker is away".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn one_destination_that_is_never_answered_for_holds_up_no_other() {
        let gate = gate(Broker::default());
        let mut batch: Vec<_> =
            (0..100).map(|n| envelope(&n.to_string(), &format!("q{n:03}"), None)).collect();
        batch.insert(3, envelope("silent", "a-silent", None));
        let started = Instant::now();
        let mut calls = 0;

        let last = loop {
            calls += 1;
            let results = gate.publish(&batch).await;
            assert!(started.elapsed() <= Duration::from_secs(2) * calls, "a third of the time is the most");
            if results.iter().filter(|result| result.is_ok()).count() == 100 {
                break results;
            }
            assert!(calls < 20, "{results:?}");
        };

        assert_eq!(last[3].clone().unwrap_err().class, Class::Destination);
        let taken = gate.publisher().taken.lock().unwrap().clone();
        assert!(!taken.contains(&"silent".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_grows_old_and_counts_on_while_nobody_can_be_asked() {
        let gate = gate(Broker::default());
        let batch = [envelope("1", "good", None)];
        gate.publish(&batch).await;
        tokio::time::advance(FRESH).await;
        gate.publish(&batch).await;
        assert_eq!(gate.publisher().inspected.load(Ordering::Relaxed), 2);

        gate.put_off(&["good".into(), "unknown".into()]);

        assert_eq!(gate.known().len(), 1);
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(gate.strangers(&batch), ["good"]);
    }

    #[tokio::test]
    async fn what_the_batch_at_hand_needs_is_not_forgotten_and_the_unknown_is_not_sent_to() {
        let gate = gate(Broker::default());
        let old: Vec<String> = (0..MAX_KNOWN).map(|n| format!("q{n}")).collect();
        gate.inspect(&old).await.unwrap();
        let batch = [envelope("1", "q7", None), envelope("2", "new", None)];
        assert_eq!(gate.held(&batch, None)[1].clone().unwrap().class, Class::Pending);

        assert_eq!(gate.strangers(&batch), ["new"]);

        assert_eq!(gate.known().keys().collect::<Vec<_>>(), ["q7"]);
        assert!(gate.publish(&batch).await.iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn a_reason_shows_no_path_of_a_web_hook() {
        let gate = gate(Broker::default());

        let results = gate.publish(&[envelope("1", "https://hooks.test/bad/hunter2?k=hunter2", None)]).await;

        let reason = results[0].clone().unwrap_err().reason;
        assert!(reason.contains("https://hooks.test") && !reason.contains("hunter2"), "{reason}");
    }
}
