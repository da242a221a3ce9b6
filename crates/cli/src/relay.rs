//! `oncebox relay`: the outbox tables of any service, carried to brokers.

mod board;
mod daemon;
mod gate;
mod health;
mod outlet;
mod signals;
mod signer;
mod sink;
mod stdout;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use oncebox_core::store::Mailbox;
use oncebox_flow::relay::{Progress, RelayReport};
use serde_json::json;

use crate::config::{Config, Flags};
use crate::database::Database;
use crate::fault::{Class, Fault};
use crate::output::{self, Format};
use daemon::OpenStore;
pub(crate) use outlet::Outlet;
pub(crate) use signals::Signals;
pub(crate) use sink::Sink;
use sink::{Look, refused};

/// What belongs to the configuration, for every verb that reads it.
#[derive(Debug, ClapArgs)]
pub(crate) struct ConfigArgs {
    /// The configuration; ./oncebox.toml is read if it is there
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The database: a PostgreSQL URL, or the path of a SQLite file [env: ONCEBOX_DB]
    #[arg(long, value_name = "URL")]
    db: Option<String>,
    /// The schema (PostgreSQL) or table prefix (SQLite) of the oncebox tables [env: ONCEBOX_SCHEMA]
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,
    /// Where messages go: amqp://…, nats://…, https://… or stdout [env: ONCEBOX_TO]
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// The name under which progress is kept; relays with the same name share the work [env: ONCEBOX_SINK]
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// The worst grade of preflight with which a destination is used, A to F [env: ONCEBOX_REQUIRE]
    #[arg(long, value_name = "GRADE")]
    require: Option<String>,
    /// Whether exchanges and streams are made or only looked at: declare or check [env: ONCEBOX_TOPOLOGY]
    #[arg(long, value_name = "HOW")]
    topology: Option<String>,
    /// Destinations to inspect at start, separated by commas [env: ONCEBOX_DESTINATIONS]
    #[arg(long, value_name = "LIST")]
    destinations: Option<String>,
}

impl ConfigArgs {
    /// The configuration with `more` flags of the verb's own.
    pub(crate) fn load(&self, more: &[(&'static str, Option<String>)]) -> Result<Config, Fault> {
        let own = [
            ("--db", &self.db),
            ("--schema", &self.schema),
            ("--to", &self.to),
            ("--sink", &self.sink),
            ("--require", &self.require),
            ("--topology", &self.topology),
            ("--destinations", &self.destinations),
        ];
        let own = own.into_iter().map(|(flag, value)| (flag, value.clone()));
        let flags: Flags =
            own.chain(more.iter().cloned()).filter_map(|(flag, value)| Some((flag, value?))).collect();
        Config::load(self.config.as_deref(), &flags)
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// The CloudEvents mode: binary or structured [env: ONCEBOX_MODE]
    #[arg(long)]
    mode: Option<String>,
    /// Messages read and settled together [env: ONCEBOX_BATCH]
    #[arg(long)]
    batch: Option<String>,
    /// The longest wait between two looks at an idle outbox; a bare number means milliseconds [env: ONCEBOX_POLL]
    #[arg(long, value_name = "TIME")]
    poll: Option<String>,
    /// How long settled messages are kept for replay; a bare number means days, 0 leaves them to another
    /// janitor [env: ONCEBOX_KEEP]
    #[arg(long, value_name = "TIME")]
    keep: Option<String>,
    /// Relays in this process that share the shards [env: ONCEBOX_WORKERS]
    #[arg(long)]
    workers: Option<String>,
    /// Where /livez and /readyz are answered, such as 127.0.0.1:8080 [env: ONCEBOX_HEALTH]
    #[arg(long, value_name = "ADDRESS")]
    health: Option<String>,
    /// Relay what is there now, then stop
    #[arg(long)]
    once: bool,
    /// Show the configuration that counts and where each value came from, then stop
    #[arg(long)]
    print_config: bool,
}

impl Args {
    fn load(&self, log: Option<String>) -> Result<Config, Fault> {
        self.config.load(&[
            ("--log", log),
            ("--mode", self.mode.clone()),
            ("--batch", self.batch.clone()),
            ("--poll", self.poll.as_deref().map(|text| with_unit(text, "ms"))),
            (
                "--keep",
                self.keep
                    .as_deref()
                    .map(|text| if text == "0" { "off".into() } else { with_unit(text, "d") }),
            ),
            ("--workers", self.workers.clone()),
            ("--health", self.health.clone()),
        ])
    }
}

fn with_unit(text: &str, unit: &str) -> String {
    let is_bare = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_bare { format!("{text}{unit}") } else { text.to_owned() }
}

pub(crate) async fn run(args: Args, format: Format, log: Option<String>) -> Result<ExitCode, Fault> {
    let config = args.load(log)?;
    if args.print_config {
        print!("{}", config.show(format == Format::Json));
        return Ok(ExitCode::SUCCESS);
    }
    let log_format = if config.log_json { Format::Json } else { format };
    output::log_to_stderr(&config.log_filter, log_format);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    match args.once {
        true => once(&config, format).await,
        false => daemon::run(&config, format).await,
    }
}

/// Opens every store and sets every sink up.
async fn open(config: &Config) -> Result<(Vec<OpenStore>, Vec<Sink>), Fault> {
    let sinks = config.sinks.iter().map(Sink::open).collect::<Result<Vec<_>, _>>()?;
    let mut stores = Vec::new();
    for store in &config.stores {
        stores.push(OpenStore::open(store).await?);
    }
    Ok((stores, sinks))
}

/// Looks at every destination once. One that is not safe enough ends the
/// start; one that cannot be asked does not, because it may be back soon.
async fn first_look(sinks: &[Sink]) -> Result<(), Fault> {
    let looks: Vec<_> = sinks.iter().map(|sink| (sink, sink.look_aside())).collect();
    for (sink, look) in looks {
        if let Ok(Look::Refused(reason)) = look.await {
            return Err(refused(sink.config.name(), &reason));
        }
    }
    Ok(())
}

/// Relays what is there now, sink by sink.
async fn once(config: &Config, format: Format) -> Result<ExitCode, Fault> {
    let (stores, sinks) = open(config).await?;
    let mut reports = Vec::new();
    for sink in &sinks {
        match sink.look().await {
            Look::Passed => {}
            Look::Refused(reason) => return Err(refused(sink.config.name(), &reason)),
            Look::Unavailable(reason) => {
                let text = format!("sink {}: {}: {reason}", sink.config.name(), sink.place());
                return Err(Fault::new(Class::Unreachable, text));
            }
        }
        let Some(store) = stores.get(sink.config.store) else { continue };
        let report = match &store.database {
            Database::Sqlite(inner) => relay_once(sink, inner.clone(), store).await?,
            Database::Postgres(inner) => relay_once(sink, inner.clone(), store).await?,
        };
        reports.push((sink.config.name(), report));
    }
    summary(&reports, format);
    Ok(ExitCode::SUCCESS)
}

async fn relay_once<S: Mailbox>(sink: &Sink, inner: S, store: &OpenStore) -> Result<RelayReport, Fault> {
    let mut relay = sink.relay(inner, &store.wakeup)?;
    let mut report = RelayReport { drained: true, ..RelayReport::default() };
    loop {
        let Progress { published, parked, promoted, outage, pending, .. } = relay.step().await?;
        report.published += published as u64;
        report.parked += parked as u64;
        let closed = sink.closed();
        if closed.as_ref().is_some_and(|closed| closed.is_cancelled()) || outage.is_some() {
            let reason = outage.unwrap_or_default();
            relay.release().await.ok();
            let class = if closed.is_some() { Class::Output } else { Class::Unreachable };
            let text = format!("cannot write: {reason}; what was not written stays in the outbox");
            return Err(Fault::new(class, text));
        }
        if published + parked + promoted == 0 && !pending {
            break;
        }
    }
    relay.release().await?;
    Ok(report)
}

fn summary(reports: &[(&str, RelayReport)], format: Format) {
    if format == Format::Text {
        for (name, RelayReport { published, parked, .. }) in reports {
            let who = if reports.len() > 1 { format!("sink {name}: ") } else { String::new() };
            eprintln!("{who}relayed {published} messages, parked {parked}");
        }
        return;
    }
    let as_json = |report: &RelayReport| {
        json!({ "published": report.published, "parked": report.parked, "errors": report.errors,
                "drained": report.drained })
    };
    let sinks: serde_json::Map<_, _> =
        reports.iter().map(|(name, report)| ((*name).to_owned(), as_json(report))).collect();
    let sum = |count: fn(&RelayReport) -> u64| reports.iter().map(|(_, report)| count(report)).sum::<u64>();
    eprintln!(
        "{}",
        json!({ "v": 1, "published": sum(|report| report.published), "parked": sum(|report| report.parked),
                "errors": sum(|report| report.errors), "drained": reports.iter().all(|(_, report)| report.drained),
                "sinks": sinks })
    );
}
