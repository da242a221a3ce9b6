//! F28 retention-edge: duplicates that come at half, just below, just above and
//! twice the time their marker is kept, while the janitor sweeps all the time.
//! None of them takes effect, and what no marker can speak for is parked.
//!
//! Sabotage: the age gate is off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::inbox::{InboxOptions, SHORTEST_RETENTION};
use oncebox::inspect::Inspect;
use oncebox::{
    Clock, Context, Envelope, Handler, HandlerError, HandlerKey, HandlerOptions, Inbox, Janitor, Outcome,
    Store,
};
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{Posted, moment};
use oncebox_conformance::{Findings, Ledger, MemoryFixture, StoreFixture};

use super::bodies::{HANDLER, arriving, deliver_until_done, effect, tireless};
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

const RETENTION: Duration = Duration::from_secs(2 * 24 * 3600);
/// When duplicates come, in hundredths of the retention.
const AGES: [u32; 4] = [50, 99, 101, 200];
/// The first age at which markers go.
const PURGED: u32 = 101;
const MESSAGES: usize = 20;

struct Booker<F>(Arc<F>);

impl<F: StoreFixture> Handler<<F::Store as Store>::Tx> for Booker<F> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    fn options(&self) -> HandlerOptions {
        HandlerOptions { retention: RETENTION, ..HandlerOptions::default() }
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        let id = cx.envelope().id.clone();
        self.0.effect(cx.tx(), &effect(&id, &message)).await
    }
}

struct Edge {
    findings: Findings,
    /// Answers while the janitor was at the markers of just these messages: either is right.
    racing: BTreeMap<String, usize>,
    /// How the duplicates of each age were answered.
    answers: BTreeMap<u32, BTreeMap<String, usize>>,
    parked: i64,
    purged: usize,
    /// Messages that came for the first time when no marker could speak for them.
    latecomers: BTreeMap<String, usize>,
}

impl Edge {
    fn check(&self) -> Result<(), String> {
        if !self.findings.is_clean() {
            return Err(self.findings.to_string());
        }
        for (age, expected) in AGES.into_iter().zip(["duplicate", "duplicate", "too_old", "too_old"]) {
            let answers = &self.answers[&age];
            if answers.get(expected) != Some(&MESSAGES) {
                return Err(format!("at {age} hundredths of the retention: {answers:?}"));
            }
        }
        if self.racing.keys().any(|answer| answer != "duplicate" && answer != "too_old") {
            return Err(format!("while markers were purged: {:?}", self.racing));
        }
        if self.latecomers.get("too_old") != Some(&MESSAGES) {
            return Err(format!("first seen when too old: {:?}", self.latecomers));
        }
        // The same message parked twice is one dead letter.
        let expected = 2 * MESSAGES as i64;
        if self.parked != expected {
            return Err(format!("{} of {expected} are parked", self.parked));
        }
        if self.purged < MESSAGES {
            return Err(format!("only {} markers were purged: this was no edge", self.purged));
        }
        Ok(())
    }
}

async fn edge<F: StoreFixture>(fixture: Arc<F>, age_gate: bool) -> Edge {
    let clock = Clock::manual(moment(0));
    let options = InboxOptions {
        redelivery_horizon: SHORTEST_RETENTION,
        age_gate,
        retry: tireless(),
        ..InboxOptions::default()
    };
    let inbox = Inbox::builder(fixture.store(), "bookings").handler(Booker(Arc::clone(&fixture)));
    let inbox = inbox.options(options).clock(clock.clone()).build().unwrap();
    let janitor = Janitor::new(fixture.store()).markers(inbox.retentions()).clock(clock.clone());
    let (over, sweeps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let sweeping = tokio::spawn({
        let (over, sweeps) = (Arc::clone(&over), Arc::clone(&sweeps));
        async move {
            let mut purged = 0;
            while !over.load(Ordering::SeqCst) {
                // Busy with a handler's transaction at times, which is no failure.
                if let Ok(swept) = janitor.sweep().await {
                    purged += swept.markers;
                    sweeps.fetch_add(1, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            purged + janitor.sweep().await.unwrap().markers
        }
    });
    let message = |name: &str, number: usize| {
        let posted = Posted::unkeyed(i64::try_from(number).unwrap());
        let id = format!("{name}-{number}");
        (Envelope { time: Some(moment(0)), ..arriving(&id, &posted) }, effect(&id, &posted))
    };
    let mut committed = Vec::new();
    for number in 0..MESSAGES {
        let (envelope, effect) = message("m", number);
        deliver_until_done(&inbox, &envelope).await;
        committed.push(effect);
    }
    let (mut answers, mut racing, mut passed) = (BTreeMap::new(), BTreeMap::new(), Duration::ZERO);
    for age in AGES {
        let until = RETENTION * age / 100;
        clock.advance(until - passed);
        passed = until;
        if age == PURGED {
            racing = redeliver(&inbox, (0..MESSAGES).map(|number| message("m", number).0)).await;
            // The sweep under way may have begun before time passed; the one after it has not.
            let seen = sweeps.load(Ordering::SeqCst);
            while sweeps.load(Ordering::SeqCst) < seen + 2 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        let answered = redeliver(&inbox, (0..MESSAGES).map(|number| message("m", number).0)).await;
        answers.insert(age, answered);
    }
    let latecomers = redeliver(&inbox, (0..MESSAGES).map(|number| message("late", number).0)).await;
    over.store(true, Ordering::SeqCst);
    let purged = sweeping.await.unwrap();
    let parked = fixture.store().status().await.unwrap().dead_letters;
    let findings = Ledger::check(&committed, &fixture.effects().await);
    Edge { findings, racing, answers, parked, purged, latecomers }
}

/// Asks what would become of each message, then delivers it to the end.
async fn redeliver<S: oncebox::Mailbox + oncebox::Dedup>(
    inbox: &Inbox<S>,
    envelopes: impl Iterator<Item = Envelope>,
) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    for envelope in envelopes {
        let answer = loop {
            match inbox.receive(envelope.clone(), 1).await.single().unwrap() {
                Outcome::Busy => tokio::time::sleep(Duration::from_millis(2)).await,
                Outcome::Refused { code, .. } => break code.to_owned(),
                Outcome::Duplicate { .. } => break "duplicate".to_owned(),
                other => break format!("{other:?}"),
            }
        };
        *answers.entry(answer).or_default() += 1;
        deliver_until_done(inbox, &envelope).await;
    }
    answers
}

fn holds<F: StoreFixture>() {
    on_store::<F, _, _>(|fixture| async move { edge(fixture, true).await.check().unwrap() });
}

fn is_noticed<F: StoreFixture>() {
    on_store::<F, _, _>(|fixture| async move {
        let complaint = edge(fixture, false).await.check().unwrap_err();
        assert!(complaint.contains("doubled"), "{complaint}");
    });
}

#[test]
fn no_duplicate_takes_effect_at_the_edge_of_retention_in_memory() {
    holds::<MemoryFixture>();
}

#[test]
fn no_duplicate_takes_effect_at_the_edge_of_retention_on_sqlite() {
    holds::<SqliteFixture>();
}

#[test]
fn no_duplicate_takes_effect_at_the_edge_of_retention_on_postgres() {
    holds::<PostgresFixture>();
}

#[test]
fn a_missing_age_gate_is_noticed_in_memory() {
    is_noticed::<MemoryFixture>();
}

#[test]
fn a_missing_age_gate_is_noticed_on_sqlite() {
    is_noticed::<SqliteFixture>();
}

#[test]
fn a_missing_age_gate_is_noticed_on_postgres() {
    is_noticed::<PostgresFixture>();
}
