//! What the experiments that kill have in common: a load, children that die
//! while it flows, and the ledger in the end.

use std::sync::Arc;
use std::time::Duration;

use oncebox::inspect::Inspect as _;
use oncebox::{Inbox, Order, Outbox, Store, Subscriber as _};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::sample::{DESTINATION, Posted, SOURCE};
use oncebox_conformance::{Entry, Findings, Ledger, StoreFixture};
use tokio::time::Instant;

use super::bodies::{HANDLER, tireless};
use super::booking::{Booking, operation};
use super::children::{Killed, Role, Ward};
use super::link::{GROUP, Link, Place};
use crate::crash_points::ground::Ground;

/// Without progress for this long, nothing more will come. All effects end the
/// wait sooner, so that only a run that has lost some is patient to the end.
const REST: Duration = Duration::from_secs(30);
/// The same where a loss is what is looked for.
const SABOTAGED_REST: Duration = Duration::from_secs(4);

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) case: &'static str,
    /// The relays and workers; the first of each is what the sabotage replaces.
    pub(super) relays: (Role, usize),
    pub(super) workers: (Role, usize),
    /// Who is killed, how often.
    pub(super) victims: Victims,
    pub(super) kills: usize,
    pub(super) messages: i64,
    /// Accounts, which are the keys.
    pub(super) accounts: i64,
    pub(super) order: Order,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victims {
    Relays,
    Workers,
    All,
}

/// A store and a place with children between them.
pub(super) struct Scene<F: Ground> {
    fixture: Arc<F>,
    ward: Ward,
    plan: Plan,
    dice: Dice,
    children: Vec<(Role, Killed)>,
    /// So far.
    kills: usize,
    committed: Vec<Entry>,
}

impl Plan {
    /// The whole run on the shared server, if there is one.
    pub(super) async fn run<F: Ground, L: Link>(self, fixture: &Arc<F>) -> Option<Findings> {
        let place = Place::shared::<L>()?;
        let mut scene = Scene::open::<L>(fixture, &place, self).await;
        scene.start();
        for _ in 0..self.kills {
            scene.kill_one(self.messages / i64::try_from(self.kills).unwrap()).await;
        }
        let findings = scene.judge().await;
        L::clean(&place).await;
        Some(findings)
    }

    fn rest(&self) -> Duration {
        let is_sabotaged = self.relays.0.is_sabotaged() || self.workers.0.is_sabotaged();
        if is_sabotaged { SABOTAGED_REST } else { REST }
    }
}

impl<F: Ground> Scene<F> {
    /// Declares what messages go to and starts the children.
    pub(super) async fn open<L: Link>(fixture: &Arc<F>, place: &Place, plan: Plan) -> Self {
        drop(L::to(place, plan.order).subscribe(DESTINATION, GROUP).await.unwrap());
        let ward = Ward::new::<F, L>(fixture, place, plan.order);
        let dice = Dice::new(Dice::seed(plan.case));
        let fixture = Arc::clone(fixture);
        Self { fixture, ward, plan, dice, children: Vec::new(), kills: 0, committed: Vec::new() }
    }

    pub(super) fn start(&mut self) {
        let Plan { relays, workers, .. } = self.plan;
        for (role, count) in [relays, workers] {
            self.add(role, count);
        }
    }

    pub(super) async fn commit(&mut self, count: i64) {
        let start = i64::try_from(self.committed.len()).unwrap();
        let messages: Vec<Posted> = (start..start + count)
            .map(|n| Posted::on(&format!("account-{}", n % self.plan.accounts), n))
            .collect();
        let store = self.fixture.store();
        let mut tx = store.begin().await.unwrap();
        Outbox::new(store.clone()).source(SOURCE).put_all(&mut tx, &messages).await.unwrap();
        store.commit(tx).await.unwrap();
        self.committed.extend(messages.iter().map(|message| operation(HANDLER, message)));
    }

    /// Commits messages, kills a child that works on them and starts another.
    pub(super) async fn kill_one(&mut self, share: i64) {
        let committed = std::time::Instant::now();
        self.commit(share).await;
        let is_victim = |role: Role| match self.plan.victims {
            Victims::Relays => role == self.plan.relays.0,
            Victims::Workers => role == self.plan.workers.0,
            Victims::All => true,
        };
        let is_at_work =
            |(role, child): &(Role, Killed)| is_victim(*role) && child.was_at_work_since(committed);
        let victims = loop {
            let working = (0..self.children.len()).filter(|child| is_at_work(&self.children[*child]));
            let working: Vec<usize> = working.collect();
            if !working.is_empty() {
                break working;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        let victim = *self.dice.pick(&victims).unwrap();
        let role = self.children[victim].0;
        tokio::time::sleep(Duration::from_millis(self.dice.below(60) as u64)).await;
        self.replace(victim, role);
    }

    /// Commits many messages, a transaction per thousand.
    pub(super) async fn fill(&mut self, count: i64) {
        for _ in 0..count / 1_000 {
            self.commit(1_000).await;
        }
    }

    /// Starts more children.
    pub(super) fn add(&mut self, role: Role, count: usize) {
        self.children.extend((0..count).map(|_| (role, self.ward.start(role))));
    }

    /// Has relays send everything, one of them killed each time `every` has
    /// passed, and dismisses them; tells how long it took from the first batch.
    pub(super) async fn drain(&mut self, relays: usize, every: Option<Duration>) -> Duration {
        let called = std::time::Instant::now();
        self.add(self.plan.relays.0, relays);
        while !self.children.iter().any(|(_, child)| child.was_at_work_since(called)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (started, mut killed) = (Instant::now(), Instant::now());
        while self.pending().await > 0 {
            if every.is_some_and(|every| killed.elapsed() >= every) {
                killed = Instant::now();
                let victim = self.dice.below(relays);
                self.replace(victim, self.plan.relays.0);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        let took = started.elapsed();
        self.children.clear();
        took
    }

    async fn pending(&self) -> i64 {
        let status = self.fixture.store().status().await.unwrap();
        status.sinks.iter().map(|sink| sink.pending + sink.waiting + sink.behind).sum()
    }

    /// Kills a child and starts another in its place.
    fn replace(&mut self, victim: usize, role: Role) {
        // The old one is dead before the new one lives.
        let dead = self.children.swap_remove(victim);
        drop(dead);
        self.children.push((role, self.ward.start(role)));
        self.kills += 1;
    }

    /// Waits until everything has arrived, or nothing moves any more.
    pub(super) async fn judge(self) -> Findings {
        let (mut last, mut moved) = (0, Instant::now());
        let (healed, rest) = (Instant::now(), self.plan.rest());
        loop {
            let effects = self.fixture.effect_count().await;
            if effects >= self.committed.len() || moved.elapsed() > rest {
                break;
            }
            if effects != last {
                (last, moved) = (effects, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let took = healed.elapsed();
        // A copy that is still under way would double now.
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(self.children);
        let Plan { case, order, .. } = self.plan;
        let findings = Ledger::check(&self.committed, &self.fixture.effects().await);
        let findings = if order == Order::None { unordered(findings) } else { findings };
        println!("{case} {}: {} kills, caught up in {took:?}, {findings}", F::GUARANTEES.name, self.kills);
        findings
    }
}

/// The findings that count where nobody promised an order.
pub(super) fn unordered(mut findings: Findings) -> Findings {
    findings.inversions.clear();
    findings
}

/// An inbox that books, for experiments within one process.
pub(super) fn inbox<F: StoreFixture>(fixture: &Arc<F>) -> Inbox<F::Store> {
    let inbox = Inbox::builder(fixture.store(), DESTINATION).handler(Booking::new(fixture));
    inbox.retry(tireless()).build().unwrap()
}
