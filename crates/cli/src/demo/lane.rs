//! One lane: a client, a broker, and a worker process that keeps being killed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::broker::Broker;
use super::progress::Progress;
use super::proof::Proof;
use super::schedule::Schedule;
use super::wire::{FromWorker, KillPoint, Service, ToWorker};
use crate::fault::{Class, Fault};

/// Orders the client has in flight at once.
pub(super) const WINDOW: usize = 8;
/// An outage lasts at least this long.
const OUTAGE: Duration = Duration::from_millis(300);
/// A lane that makes no progress for this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the lane looks whether it is done.
const TICK: Duration = Duration::from_millis(50);

/// Something that happened to a lane.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) at: f64,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Killed(KillPoint),
    Down,
    Up,
}

/// What a lane went through.
#[derive(Debug)]
pub(super) struct LaneReport {
    pub(super) service: Service,
    pub(super) seed: u64,
    pub(super) kills: u32,
    pub(super) duplicates: u32,
    pub(super) reordered: u32,
    pub(super) outages: u32,
    pub(super) events: Vec<Event>,
}

pub(super) struct Lane {
    service: Service,
    database: PathBuf,
    schedule: Arc<Schedule>,
    progress: Progress,
    sabotage: bool,
    broker: Broker,
    next_order: u32,
    in_flight: BTreeMap<u32, Option<KillPoint>>,
    outage: Option<(Range<u32>, Instant)>,
    started: Instant,
    last_progress: Instant,
    events: Vec<Event>,
    kills: u32,
    outages: u32,
}

/// A worker process and its pipes.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Lane {
    pub(super) fn new(
        service: Service,
        dir: &Path,
        schedule: Arc<Schedule>,
        progress: Progress,
        sabotage: bool,
    ) -> Self {
        let now = Instant::now();
        Self {
            service,
            database: super::database(dir, service),
            broker: Broker::new(Arc::clone(&schedule)),
            schedule,
            progress,
            sabotage: sabotage && service == Service::Oncebox,
            next_order: 0,
            in_flight: BTreeMap::new(),
            outage: None,
            started: now,
            last_progress: now,
            events: Vec::new(),
            kills: 0,
            outages: 0,
        }
    }

    pub(super) async fn run(mut self) -> Result<LaneReport, Fault> {
        loop {
            let mut worker = self.start().await?;
            if self.supervise(&mut worker).await? {
                break;
            }
            worker.child.wait().await?;
            self.broker.disconnected();
        }
        Ok(LaneReport {
            service: self.service,
            seed: self.schedule.seed,
            kills: self.kills,
            duplicates: self.broker.duplicates,
            reordered: self.broker.reordered,
            outages: self.outages,
            events: self.events,
        })
    }

    async fn start(&self) -> Result<Worker, Fault> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command.args(["--log", "error", "demo-worker"]).arg(self.service.name()).arg(&self.database);
        if self.sabotage {
            command.arg("--sabotage");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let Some((input, output)) = pipes else {
            return Err(Fault::new(Class::Failed, "a worker has no pipes"));
        };
        Ok(Worker { child, input, output: BufReader::new(output).lines() })
    }

    /// Serves one worker until it dies (false) or the lane is done (true).
    async fn supervise(&mut self, worker: &mut Worker) -> Result<bool, Fault> {
        let mut ticks = tokio::time::interval(TICK);
        let mut ready = false;
        loop {
            tokio::select! {
                line = worker.output.next_line() => {
                    let Some(line) = line.unwrap_or_default() else { return self.died() };
                    let message = serde_json::from_str(&line).map_err(|error| {
                        Fault::new(Class::Failed, format!("a worker said something odd: {error}"))
                    })?;
                    if matches!(message, FromWorker::Ready) {
                        ready = true;
                        self.resend(worker).await;
                    }
                    if self.hear(worker, message).await? {
                        return Ok(false);
                    }
                }
                _ = ticks.tick() => {
                    if self.is_done().await? {
                        tell(worker, &ToWorker::Stop).await;
                        worker.child.wait().await?;
                        return Ok(true);
                    }
                }
            }
            if ready {
                self.drive(worker).await;
            }
        }
    }

    /// Answers one message; true if the worker was killed over it.
    async fn hear(&mut self, worker: &mut Worker, message: FromWorker) -> Result<bool, Fault> {
        self.last_progress = Instant::now();
        match message {
            FromWorker::Ready => {}
            FromWorker::Placed { order } => {
                self.in_flight.remove(&order);
                self.progress.placed(self.service, self.next_order - self.in_flight.len() as u32);
            }
            FromWorker::Publish { token, parcel } => {
                let stored = self.broker.publish(parcel);
                tell(worker, &ToWorker::Confirm { token, stored }).await;
            }
            FromWorker::Ack { tag } => self.broker.ack(tag),
            FromWorker::Nack { tag } => self.broker.nack(tag),
            FromWorker::At { point, order } => {
                // SIGKILL: no handler, no cleanup, no last words.
                worker.child.start_kill()?;
                self.kills += 1;
                self.broker.killed(order);
                if let Some(kill) = self.in_flight.get_mut(&order) {
                    *kill = None;
                }
                self.note(What::Killed(point));
                self.progress.killed(self.service, point, order, self.started.elapsed());
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends new orders and deliveries as far as the windows allow.
    async fn drive(&mut self, worker: &mut Worker) {
        self.weather();
        while self.in_flight.len() < WINDOW && self.next_order < self.last_order() {
            let order = self.next_order;
            self.next_order += 1;
            let kill = self.schedule.kill(order).filter(|point| *point != KillPoint::Applied);
            self.in_flight.insert(order, kill);
            self.place(worker, order, kill).await;
            self.weather();
        }
        while let Some(delivery) = self.broker.deliver() {
            tell(worker, &delivery).await;
        }
    }

    /// During an outage only its own orders are sent, so that both lanes lose
    /// the same chance, however fast they are.
    fn last_order(&self) -> u32 {
        let outage_end = self.outage.as_ref().map_or(u32::MAX, |(range, _)| range.end);
        outage_end.min(self.schedule.orders)
    }

    async fn place(&self, worker: &mut Worker, order: u32, kill: Option<KillPoint>) {
        let amount = self.schedule.amount(order);
        tell(worker, &ToWorker::Place { order, amount, kill }).await;
    }

    /// A client that got no answer asks again.
    async fn resend(&self, worker: &mut Worker) {
        for (order, kill) in &self.in_flight {
            self.place(worker, *order, *kill).await;
        }
    }

    /// Starts an outage when its first order is sent, ends it when all of its
    /// orders have been answered and a while has passed.
    fn weather(&mut self) {
        if let Some((range, until)) = &self.outage {
            let answered =
                self.next_order >= range.end && self.in_flight.range(range.clone()).next().is_none();
            if answered && Instant::now() >= *until {
                self.outage = None;
                self.broker.set_down(false);
                self.note(What::Up);
            }
            return;
        }
        let starting = self.schedule.outages().get(self.outages as usize);
        if let Some(range) = starting.filter(|range| self.next_order >= range.start) {
            self.outage = Some((range.clone(), Instant::now() + OUTAGE));
            self.outages += 1;
            self.broker.set_down(true);
            self.note(What::Down);
        }
    }

    fn died(&mut self) -> Result<bool, Fault> {
        if self.last_progress.elapsed() > PATIENCE {
            return Err(Fault::new(
                Class::Failed,
                format!("the {} worker keeps dying by itself", self.service.name()),
            ));
        }
        Ok(false)
    }

    async fn is_done(&self) -> Result<bool, Fault> {
        if self.last_progress.elapsed() > PATIENCE {
            return Err(Fault::new(
                Class::Failed,
                format!("the {} lane made no progress", self.service.name()),
            ));
        }
        if let Ok(effects) = Proof::effects(&self.database).await {
            self.progress.effects(self.service, effects);
        }
        let placed = self.next_order == self.schedule.orders && self.in_flight.is_empty();
        Ok(placed
            && self.outage.is_none()
            && self.broker.is_idle()
            && (self.service == Service::Naive || Proof::is_drained(&self.database).await?))
    }

    fn note(&mut self, what: What) {
        self.events.push(Event { at: self.started.elapsed().as_secs_f64(), what });
    }
}

/// A worker that has just died does not hear it; its pipe's end is noticed on
/// the reading side.
async fn tell(worker: &mut Worker, message: &ToWorker) {
    if let Ok(mut line) = serde_json::to_vec(message) {
        line.push(b'\n');
        worker.input.write_all(&line).await.ok();
    }
}
