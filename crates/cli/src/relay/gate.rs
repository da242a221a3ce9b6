//! In front of a destination: lets messages through only to places that passed
//! preflight, and notes on the board whether they arrive.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
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

/// A refused destination is looked at again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// More destinations than this are not remembered; they are inspected again.
const MAX_KNOWN: usize = 10_000;

/// What must hold of a destination.
#[derive(Clone, Debug)]
pub(crate) struct Requirement {
    pub(crate) grade: Grade,
    pub(crate) horizon: Duration,
    /// The largest payload of each type of message.
    pub(crate) limits: Routes,
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
}

/// What an inspection said.
#[derive(Clone)]
enum Known {
    Good,
    Refused { reason: String, since: Instant },
}

impl<P> Clone for Gate<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Publisher + Preflight + Sync> Gate<P> {
    pub(crate) fn new(publisher: P, requirement: Requirement, lamp: Lamp) -> Self {
        Self { inner: Arc::new(Inner { publisher, requirement, lamp, known: Mutex::default() }) }
    }

    pub(crate) fn publisher(&self) -> &P {
        &self.inner.publisher
    }

    pub(crate) fn lamp(&self) -> &Lamp {
        &self.inner.lamp
    }

    /// Inspects destinations and remembers what came of it.
    pub(crate) async fn inspect(&self, destinations: &[String]) -> Result<Vec<Inspection>> {
        let inner = &self.inner;
        let inspections = inner.publisher.inspect(destinations, inner.requirement.horizon).await?;
        let mut known = inner.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + inspections.len() > MAX_KNOWN {
            known.clear();
        }
        for inspection in &inspections {
            let (grade, destination) = (inspection.grade(), inspection.destination.as_str());
            let verdict = match refusal(inspection, inner.requirement.grade) {
                None => Known::Good,
                Some(reason) => Known::Refused { reason, since: Instant::now() },
            };
            let before = known.insert(inspection.destination.clone(), verdict.clone());
            match (before, verdict) {
                (Some(Known::Good), Known::Good) | (Some(Known::Refused { .. }), Known::Refused { .. }) => {}
                (_, Known::Good) => info!(destination, %grade, "preflight.passed"),
                (_, Known::Refused { reason, .. }) => warn!(destination, %grade, reason, "preflight.refused"),
            }
        }
        Ok(inspections)
    }

    /// Inspects those destinations of a batch of which nothing is known.
    async fn inspect_strangers(&self, batch: &[Envelope]) -> Result<()> {
        let strangers: BTreeSet<String> = {
            let known = self.inner.known.lock().unwrap_or_else(PoisonError::into_inner);
            let is_strange = |destination: &str| match known.get(destination) {
                None => true,
                Some(Known::Good) => false,
                Some(Known::Refused { since, .. }) => since.elapsed() >= LOOK_AGAIN,
            };
            let destinations = batch.iter().map(|envelope| envelope.destination.as_str());
            destinations.filter(|destination| is_strange(destination)).map(str::to_owned).collect()
        };
        if !strangers.is_empty() {
            self.inspect(&strangers.into_iter().collect::<Vec<_>>()).await?;
        }
        Ok(())
    }

    /// Why each envelope may not pass, if it may not. What follows a held
    /// envelope in its lane is held, too.
    fn held(&self, batch: &[Envelope]) -> Vec<Option<Failure>> {
        let known = self.inner.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lanes = HashSet::new();
        let hold = |envelope: &Envelope| {
            let lane = LaneKey::of(envelope);
            let failure = match known.get(&envelope.destination) {
                _ if lane.as_ref().is_some_and(|lane| lanes.contains(lane)) => {
                    Failure::destination("it is behind one of its key that may not pass")
                }
                Some(Known::Refused { reason, .. }) => Failure::destination(reason.clone()),
                _ => self.too_large(envelope)?,
            };
            lanes.extend(lane);
            Some(failure)
        };
        batch.iter().map(hold).collect()
    }

    /// Rows that no outbox of ours has checked may be larger than their route allows.
    fn too_large(&self, envelope: &Envelope) -> Option<Failure> {
        let (size, limit) = (envelope.payload.len(), self.inner.requirement.limits.limit(&envelope.kind)?);
        let text = || format!("the payload has {size} bytes, its route allows {limit}");
        (size > limit).then(|| Failure::message(text()).permanently())
    }

    async fn pass(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        if let Err(error) = self.inspect_strangers(batch).await {
            return vec![Err(Failure::destination(error.chain())); batch.len()];
        }
        let held = self.held(batch);
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
    let (destination, reasons) = (&inspection.destination, reasons.join("; "));
    Some(format!("{destination} has grade {grade}, but {required} is required: {reasons}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use oncebox_core::{Error, Kind, Rule};

    use super::*;

    /// Takes everything; finds fault with destinations that begin with `bad`.
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
            let inspection = |destination: &String| Inspection {
                destination: destination.clone(),
                transport: "test",
                findings: match destination.starts_with("bad") {
                    true => vec![Finding::new(Grade::D, "not durable", "make it durable")],
                    false => Vec::new(),
                },
            };
            Ok(destinations.iter().map(inspection).collect())
        }
    }

    fn gate(broker: Broker) -> Gate<Broker> {
        let limits = Routes::new([Rule::to("small", "good").within(3)]).unwrap();
        let requirement = Requirement { grade: Grade::C, horizon: Duration::from_secs(60), limits };
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
        assert!(results[1].is_err() && results[2].is_ok());
    }

    #[tokio::test]
    async fn a_broker_that_cannot_be_asked_is_an_outage_with_its_reason_on_the_board() {
        let gate = gate(Broker { is_down: true, ..Broker::default() });

        let results = gate.publish(&[envelope("1", "good", None)]).await;

        assert_eq!(results[0].clone().unwrap_err().class, Class::Destination);
        assert_eq!(gate.lamp().state(), State::Unavailable("the broker is away".into()));
    }
}
