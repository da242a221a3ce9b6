//! Starts children, kills them, starts them again; then heals and judges.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use oncebox_flow::CrashPoint;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::broker::Broker;
use super::chance::Chance;
use super::ground::Ground;
use super::plan::{Plan, Role, Stop};
use super::verdict::Verdict;
use super::{Orders, Sabotage};
use crate::machine::TempDir;

const ROLES: [Role; 8] = [
    Role::Producer,
    Role::Producer,
    Role::Relay,
    Role::Relay,
    Role::Relay,
    Role::Worker,
    Role::Worker,
    Role::Worker,
];
/// Without progress for this long, a healed system has come to rest. Longer
/// than a broker takes to serve another worker.
const REST: Duration = Duration::from_secs(20);

/// What a child's output says: it waits at a point, or it has ended.
struct News {
    slot: usize,
    life: u64,
    at: Option<CrashPoint>,
}

struct Slot {
    role: Role,
    child: Child,
    /// Which incarnation this is, so that news of an earlier one is not mistaken.
    life: u64,
}

struct Supervisor<'g> {
    ground: &'g Ground,
    address: String,
    sabotage: Option<Sabotage>,
    slots: Vec<Slot>,
    news: mpsc::UnboundedSender<News>,
    chance: Chance,
    plan: Plan,
    lives: u64,
    at_points: BTreeMap<CrashPoint, u64>,
    at_random: BTreeMap<Role, u64>,
    died_alone: u64,
}

/// One store's whole torture.
pub(super) async fn run(ground: &Ground, orders: Orders) -> Verdict {
    let directory = TempDir::new();
    let mut chance = Chance::new(orders.seed);
    let broker = Broker::start(orders.broker, &directory.0, Chance::new(chance.next())).await;
    // A worker of a server is often idle, and the next one takes its time to be served.
    let visits = if orders.broker.brand().is_some() { 60 } else { 25 };
    let (news, mut heard) = mpsc::unbounded_channel();
    let mut supervisor = Supervisor {
        ground,
        address: broker.address(),
        sabotage: orders.sabotage,
        slots: Vec::new(),
        news,
        chance,
        plan: Plan::new(visits),
        lives: 0,
        at_points: BTreeMap::new(),
        at_random: BTreeMap::new(),
        died_alone: 0,
    };
    let started = Instant::now();
    for (slot, role) in ROLES.into_iter().enumerate() {
        let born = supervisor.spawn(slot, role, true);
        supervisor.slots.push(born);
    }
    supervisor.torment(&mut heard, orders, (&broker, started)).await;
    let seconds = started.elapsed().as_secs_f64();
    broker.heal().await;
    let healing = Instant::now();
    supervisor.heal().await;
    let backlog = supervisor.wait_for_rest(&broker).await;
    let heal_seconds = healing.elapsed().as_secs_f64();
    supervisor.end().await;
    Verdict {
        store: ground.name(),
        kind: orders.broker,
        seed: orders.seed,
        seconds,
        at_points: supervisor.at_points,
        at_random: supervisor.at_random,
        died_alone: supervisor.died_alone,
        at_broker: broker.kills(),
        broker: broker.counts(),
        ledger: ground.ledger().await,
        backlog,
        heal_seconds,
    }
}

impl Supervisor<'_> {
    fn spawn(&mut self, slot: usize, role: Role, doomed: bool) -> Slot {
        self.lives += 1;
        let stop = if doomed { self.plan.deal(role, &mut self.chance) } else { None };
        let mut command = Command::new(std::env::current_exe().expect("this program's file"));
        command
            .args(["torture-worker", "--role", role.name(), "--slot", &slot.to_string()])
            .args(["--seed", &self.chance.next().to_string()])
            .env("ONCEBOX_TORTURE_BROKER", &self.address)
            .env("ONCEBOX_TORTURE_DATABASE", self.ground.database())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if let Some(Stop { point, visit }) = stop {
            command.args(["--point", &point.name(), "--visit", &visit.to_string()]);
        }
        if let Some(sabotage) = self.sabotage {
            command.args(["--sabotage", sabotage.name()]);
        }
        let mut child = command.spawn().expect("a child starts");
        let (news, life) = (self.news.clone(), self.lives);
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let at = line.strip_prefix("at ").and_then(CrashPoint::parse);
                    news.send(News { slot, life, at }).ok();
                }
                news.send(News { slot, life, at: None }).ok();
            });
        }
        Slot { role, child, life }
    }

    /// SIGKILL, and a successor at once.
    async fn replace(&mut self, slot: usize, doomed: bool) {
        let role = self.slots[slot].role;
        self.slots[slot].child.kill().await.ok();
        self.slots[slot] = self.spawn(slot, role, doomed);
    }

    async fn torment(
        &mut self,
        heard: &mut mpsc::UnboundedReceiver<News>,
        orders: Orders,
        (broker, started): (&Broker, Instant),
    ) {
        let mut next = Instant::now() + self.chance.millis(500, 1000);
        let is_enough = |kills: u64| orders.kills.is_some_and(|enough| kills >= enough);
        while started.elapsed() < orders.span && !is_enough(self.kills() + broker.kills()) {
            tokio::select! {
                Some(news) = heard.recv() => self.on_news(&news).await,
                () = tokio::time::sleep_until(next.into()) => {
                    let victim = usize::try_from(self.chance.below(ROLES.len() as u64)).unwrap_or(0);
                    *self.at_random.entry(self.slots[victim].role).or_default() += 1;
                    self.replace(victim, true).await;
                    next = Instant::now() + self.chance.millis(200, 900);
                }
            }
        }
    }

    async fn on_news(&mut self, news: &News) {
        if self.slots[news.slot].life != news.life {
            return;
        }
        match news.at {
            Some(point) => *self.at_points.entry(point).or_default() += 1,
            None => self.died_alone += 1,
        }
        self.replace(news.slot, true).await;
    }

    fn kills(&self) -> u64 {
        self.at_points.values().sum::<u64>() + self.at_random.values().sum::<u64>()
    }

    /// Ends the producers for good and gives everybody else a successor that lives.
    async fn heal(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].role == Role::Producer {
                self.slots[slot].child.kill().await.ok();
            } else {
                self.replace(slot, false).await;
            }
        }
    }

    /// Waits until everything has arrived, or nothing has moved for a while.
    /// Answers with what is left.
    async fn wait_for_rest(&self, broker: &Broker) -> i64 {
        let (mut last, mut moved) = ((0, 0, 0), Instant::now());
        loop {
            let (orders, effects) = self.ground.progress().await;
            let mut left = self.ground.backlog().await;
            // A server is asked last: that takes its own time.
            if left == 0 && effects >= orders {
                left = i64::try_from(broker.backlog().await).unwrap_or(i64::MAX);
            }
            if left == 0 && effects >= orders {
                return 0;
            }
            if (left, orders, effects) != last {
                (last, moved) = ((left, orders, effects), Instant::now());
            }
            // Nothing under way and still something missing: it will not come any more.
            if moved.elapsed() > REST {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn end(&mut self) {
        for slot in &mut self.slots {
            slot.child.kill().await.ok();
        }
    }
}
