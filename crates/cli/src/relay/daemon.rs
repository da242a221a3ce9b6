//! The daemon: each sink a relay of its own, each store a watcher and a
//! janitor, all of them until a signal comes.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::store::{Mailbox, Retention};
use oncebox_flow::relay::RelayReport;
use oncebox_flow::{Janitor, Wakeup};
use oncebox_stores::postgres::wakeup::listen;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::board::{Board, Lamp, State, Witness};
use super::signals::{Signal, Signals};
use super::sink::Sink;
use super::{health, summary};
use crate::config::{Config, StoreConfig};
use crate::database::Database;
use crate::fault::{Class, Fault};
use crate::output::Format;

/// How often a store is asked whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// A database, open, with the hint that there is work in it.
pub(crate) struct OpenStore {
    config: StoreConfig,
    pub(crate) database: Database,
    pub(crate) wakeup: Wakeup,
    lamp: Lamp,
}

impl OpenStore {
    pub(crate) async fn open(config: &StoreConfig) -> Result<Self, Fault> {
        let url = config.url.read()?;
        let database = Database::open(url.reveal(), &config.schema, false).await?.verified().await?;
        let lamp = Lamp::new(&config.name);
        lamp.set(Witness::Look, State::Ready);
        Ok(Self { config: config.clone(), database, wakeup: Wakeup::new(), lamp })
    }

    fn reload(&self) {
        let store = self.config.name.as_str();
        match self.config.url.read().and_then(|url| self.database.replace_url(url.reveal())) {
            Ok(()) => info!(store, "reload.store"),
            Err(fault) => error!(store, reason = fault.message(), "reload.failed"),
        }
    }
}

/// What runs beside the relays and ends with them.
struct Crew {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Crew {
    fn attend(&self, store: &OpenStore) -> Result<(), Fault> {
        match &store.database {
            Database::Sqlite(inner) => self.look_after(inner.clone(), store),
            Database::Postgres(inner) => {
                self.tasks.spawn(listen(inner.clone(), store.wakeup.clone(), self.stop.clone()));
                self.look_after(inner.clone(), store)
            }
        }
    }

    fn look_after<S: Mailbox + Retention>(&self, inner: S, store: &OpenStore) -> Result<(), Fault> {
        if let Some(keep) = store.config.keep {
            self.tasks.spawn(Janitor::new(inner.clone()).outbox(keep)?.run(self.stop.clone()));
        }
        self.tasks.spawn(watch(inner, store.lamp.clone(), self.stop.clone()));
        Ok(())
    }
}

/// Keeps a store's lamp up to date.
async fn watch<S: Mailbox>(store: S, lamp: Lamp, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(PING_INTERVAL)).await.is_some() {
        let was_ready = lamp.state() == State::Ready;
        let asked = async {
            if !was_ready {
                // It may be another server, or an older copy, that is back.
                return store.verify().await;
            }
            let mut begun = store.begin().await?;
            store.clock(&mut begun).await?;
            store.rollback(begun).await
        };
        let state = match tokio::time::timeout(PING_TIMEOUT, asked).await {
            Ok(Ok(())) => State::Ready,
            Ok(Err(error)) => State::Unavailable(error.chain()),
            Err(_elapsed) => State::Unavailable(format!("no answer within {PING_TIMEOUT:?}")),
        };
        if lamp.set(Witness::Look, state.clone()) {
            warn!(?state, "store.changed");
        }
    }
}

pub(super) async fn run(config: &Config, format: Format) -> Result<ExitCode, Fault> {
    let mut signals = Signals::new()?;
    let listener = match config.health {
        Some(address) => Some(health::bind(address).await?),
        None => None,
    };
    let (stores, sinks) = super::open(config).await?;
    let crew = Crew { tasks: TaskTracker::new(), stop: CancellationToken::new() };
    let lamps = sinks.iter().map(|sink| sink.lamp().clone()).collect();
    let board = Board::new(stores.iter().map(|store| store.lamp.clone()).collect(), lamps);
    let board = Arc::new(board.watching(sinks.iter().map(Sink::watched).collect()));
    if let Some(listener) = listener {
        if let (Format::Text, Ok(address)) = (format, listener.local_addr()) {
            eprintln!("answering health checks on http://{address}");
        }
        health::serve(listener, Arc::clone(&board))?;
    }
    super::first_look(&sinks).await?;
    stores.iter().try_for_each(|store| crew.attend(store))?;
    let mut relays = Vec::new();
    for sink in &sinks {
        let Some(store) = stores.get(sink.config.store) else { continue };
        relays.push(sink.start(store, &crew.stop)?);
        if format == Format::Text {
            eprintln!("relaying to {} as sink {:?}; stop with Ctrl-C", sink.place(), sink.config.name());
        }
    }
    info!(stores = stores.len(), sinks = sinks.len(), "daemon.started");
    let closed = serve(&mut signals, &stores, &sinks).await;
    board.stop();
    crew.stop.cancel();
    crew.tasks.close();
    let reports = tokio::select! {
        reports = drained(relays, crew.tasks) => reports,
        // Somebody does not want to wait.
        () = signals.stop() => std::process::exit(130),
    };
    let reports: Vec<_> = sinks.iter().map(|sink| sink.config.name()).zip(reports).collect();
    summary(&reports, format);
    if closed {
        return Err(Fault::new(
            Class::Output,
            "standard output was closed; what was not written stays in the outbox",
        ));
    }
    let is_drained = reports.iter().all(|(_, report)| report.drained);
    Ok(if is_drained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Until a signal says stop, or a destination is closed for good; true for the latter.
async fn serve(signals: &mut Signals, stores: &[OpenStore], sinks: &[Sink]) -> bool {
    let closed = sinks.iter().find_map(Sink::closed).unwrap_or_default();
    loop {
        tokio::select! {
            () = closed.cancelled() => return true,
            signal = signals.next() => match signal {
                Signal::Stop => return false,
                Signal::Reload => {
                    info!("reload.started");
                    stores.iter().for_each(OpenStore::reload);
                    for sink in sinks {
                        sink.reload().await;
                    }
                }
            },
        }
    }
}

async fn drained(relays: Vec<JoinHandle<RelayReport>>, tasks: TaskTracker) -> Vec<RelayReport> {
    let mut reports = Vec::new();
    for relay in relays {
        reports.push(relay.await.unwrap_or_default());
    }
    tasks.wait().await;
    reports
}
