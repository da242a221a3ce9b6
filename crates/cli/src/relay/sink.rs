//! One sink: a destination, its preflight, and the relay that serves it.

use std::time::Duration;

use oncebox_core::preflight::Inspection;
use oncebox_core::routes::Routes;
use oncebox_core::signature::Keyring;
use oncebox_core::store::Mailbox;
use oncebox_core::transport::Publisher;
use oncebox_flow::relay::{Heartbeat, RelayReport};
use oncebox_flow::routing::Routed;
use oncebox_flow::{Relay, Wakeup};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::board::{Lamp, Loop, State, Witness};
use super::daemon::OpenStore;
use super::gate::{Gate, Requirement, refusal};
use super::outlet::{self, Outlet};
use super::signer::Signer;
use crate::config::{Kind, SinkConfig, masked};
use crate::database::Database;
use crate::fault::{Class, Fault};

/// How long an inspection may take.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How often known destinations are inspected while the relay runs.
const INSPECT_INTERVAL: Duration = Duration::from_secs(30);
/// The same while something is wrong.
const INSPECT_SOON: Duration = Duration::from_secs(2);

/// What a sink publishes through: routes first, so that the gate sees where
/// messages really go.
type Chain = Routed<Signer<Gate<Outlet>>>;

/// A sink, set up but not started.
pub(crate) struct Sink {
    pub(crate) config: SinkConfig,
    routes: Routes,
    gate: Gate<Outlet>,
    signer: Signer<Gate<Outlet>>,
    heartbeat: Heartbeat,
}

/// What an inspection of a sink came to.
pub(crate) enum Look {
    /// Everything is good enough.
    Passed,
    /// Something is not; why.
    Refused(String),
    /// It could not be asked; why.
    Unavailable(String),
}

impl Sink {
    /// Sets a sink up; what can be wrong without asking anybody is wrong here.
    pub(crate) fn open(config: &SinkConfig) -> Result<Self, Fault> {
        let outlet = Outlet::open(config)?;
        let routes = outlet::routes(config)?;
        let requirement = Requirement {
            grade: config.require,
            horizon: config.horizon,
            limits: routes.clone(),
            patience: config.relay.publish_timeout,
        };
        let gate = Gate::new(outlet, requirement, Lamp::new(config.name()));
        let signer = Signer::new(gate.clone(), keyring(config)?);
        Ok(Self { config: config.clone(), routes, gate, signer, heartbeat: Heartbeat::new() })
    }

    pub(crate) fn lamp(&self) -> &Lamp {
        self.gate.lamp()
    }

    /// Its loop, for whoever watches it. A pass may take two leases; after
    /// another one something is wrong that no timeout has ended.
    pub(crate) fn watched(&self) -> Loop {
        let grace = self.config.relay.lease;
        Loop { sink: self.config.name().to_owned(), heartbeat: self.heartbeat.clone(), grace }
    }

    pub(crate) fn closed(&self) -> Option<CancellationToken> {
        self.gate.publisher().closed()
    }

    /// Where its messages go, without secrets.
    pub(crate) fn place(&self) -> String {
        match (self.config.kind, &self.config.url) {
            (Kind::Stdout, _) => "standard output".to_owned(),
            (_, Some(url)) => url.read().map_or_else(|_| url.to_string(), |url| masked(url.reveal())),
            (kind, None) => kind.name().to_owned(),
        }
    }

    /// Destinations that are known before a message names one.
    pub(crate) fn destinations(&self) -> Vec<String> {
        let routed = self.routes.rules().iter().filter_map(|rule| rule.to.as_deref());
        let mut all: Vec<String> = routed.filter(|to| !to.contains('{')).map(str::to_owned).collect();
        all.extend(self.config.destinations.iter().cloned());
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Inspects the known destinations, within a bounded time.
    pub(crate) async fn inspect(&self) -> Result<Vec<Inspection>, String> {
        inspect(&self.gate, &self.destinations()).await
    }

    /// One look at all known destinations, noted on the board.
    pub(crate) async fn look(&self) -> Look {
        look(&self.gate, &self.destinations(), &self.config).await
    }

    /// The same beside other looks: a broker that does not answer takes its time.
    pub(crate) fn look_aside(&self) -> JoinHandle<Look> {
        let (gate, destinations, config) = (self.gate.clone(), self.destinations(), self.config.clone());
        tokio::spawn(async move { look(&gate, &destinations, &config).await })
    }

    /// Reads credentials again. What cannot be read leaves everything as it was.
    pub(crate) async fn reload(&self) {
        let sink = self.config.name();
        let reloaded = async {
            // Nothing changes before everything is read.
            let keyring = keyring(&self.config)?;
            self.gate.publisher().reload(&self.config).await?;
            self.signer.replace(keyring);
            self.gate.forget();
            Ok::<(), Fault>(())
        };
        match reloaded.await {
            Ok(()) => info!(sink, "reload.sink"),
            Err(fault) => error!(sink, reason = fault.message(), "reload.failed"),
        }
    }

    /// A relay from `store` to this sink.
    pub(crate) fn relay<S: Mailbox>(&self, store: S, wakeup: &Wakeup) -> Result<Relay<S, Chain>, Fault> {
        let chain = Routed::new(self.signer.clone(), self.routes.clone());
        let relay = Relay::builder(store, chain).options(self.config.relay.clone());
        Ok(relay.wakeup(wakeup.clone()).heartbeat(self.heartbeat.clone()).build()?)
    }

    /// Starts relaying. Whatever preflight has not passed, the gate holds back.
    pub(crate) fn start(
        &self,
        store: &OpenStore,
        stop: &CancellationToken,
    ) -> Result<JoinHandle<RelayReport>, Fault> {
        let task = Task {
            gate: self.gate.clone(),
            destinations: self.destinations(),
            config: self.config.clone(),
            stop: stop.clone(),
        };
        Ok(match &store.database {
            Database::Sqlite(inner) => tokio::spawn(task.run(self.relay(inner.clone(), &store.wakeup)?)),
            Database::Postgres(inner) => tokio::spawn(task.run(self.relay(inner.clone(), &store.wakeup)?)),
        })
    }
}

/// A sink at work.
struct Task {
    gate: Gate<Outlet>,
    destinations: Vec<String>,
    config: SinkConfig,
    stop: CancellationToken,
}

impl Task {
    async fn run<S: Mailbox, P: Publisher>(self, relay: Relay<S, P>) -> RelayReport {
        let lamp = self.gate.lamp().clone();
        let ended = Ended { lamp: &lamp, stop: &self.stop };
        let running = relay.run(self.stop.clone());
        tokio::pin!(running);
        let report = tokio::select! {
            report = &mut running => report,
            () = self.keep_looking() => running.await,
        };
        drop(ended);
        report
    }

    /// Inspects the known destinations from time to time: a queue may be
    /// deleted or changed while nothing is sent. Ends with the stop.
    async fn keep_looking(&self) {
        loop {
            let is_well = self.gate.lamp().state() == State::Ready;
            let wait = tokio::time::sleep(if is_well { INSPECT_INTERVAL } else { INSPECT_SOON });
            if self.stop.run_until_cancelled(wait).await.is_none() {
                return;
            }
            let looking = look(&self.gate, &self.destinations, &self.config);
            if self.stop.run_until_cancelled(looking).await.is_none() {
                return;
            }
        }
    }
}

/// Notes a task that ends although nobody stopped it.
struct Ended<'a> {
    lamp: &'a Lamp,
    stop: &'a CancellationToken,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if !self.stop.is_cancelled() {
            self.lamp.set(Witness::Look, State::Ended);
        }
    }
}

async fn inspect(gate: &Gate<Outlet>, destinations: &[String]) -> Result<Vec<Inspection>, String> {
    match tokio::time::timeout(INSPECT_TIMEOUT, gate.inspect(destinations)).await {
        Ok(inspected) => inspected.map_err(|error| error.chain()),
        Err(_elapsed) => Err(format!("no answer within {INSPECT_TIMEOUT:?}")),
    }
}

async fn look(gate: &Gate<Outlet>, destinations: &[String], config: &SinkConfig) -> Look {
    let sink = config.name();
    let (look, state) = match inspect(gate, destinations).await {
        Err(reason) => (Look::Unavailable(reason.clone()), State::Unavailable(reason)),
        Ok(inspections) => {
            let refusals: Vec<String> =
                inspections.iter().filter_map(|inspection| refusal(inspection, config.require)).collect();
            let away: Vec<&str> = inspections.iter().filter_map(outlet::unreachable).collect();
            match (refusals.is_empty(), away.is_empty()) {
                (false, _) => (Look::Refused(refusals.join("; ")), State::Refused(refusals.join("; "))),
                (true, false) => (Look::Unavailable(away.join("; ")), State::Unavailable(away.join("; "))),
                (true, true) => (Look::Passed, State::Ready),
            }
        }
    };
    let is_change = gate.lamp().set(Witness::Look, state);
    match &look {
        Look::Passed if is_change => info!(sink, "sink.ready"),
        Look::Unavailable(reason) if is_change => warn!(sink, reason, "sink.unavailable"),
        Look::Refused(reason) if is_change => error!(sink, reason, "sink.refused"),
        _ => {}
    }
    look
}

fn keyring(config: &SinkConfig) -> Result<Option<Keyring>, Fault> {
    Ok(config.signing.as_ref().map(|signing| signing.keyring()).transpose()?.flatten())
}

/// The fault of a sink whose destinations are not safe enough.
pub(crate) fn refused(sink: &str, reason: &str) -> Fault {
    Fault::new(Class::Config, format!("sink {sink}: {reason}"))
        .help("`oncebox check` shows what to do about it; a lower `require` accepts it as it is")
}
