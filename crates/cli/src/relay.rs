//! `oncebox relay`: the outbox table of any service, carried to a destination.

mod stdout;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use oncebox_core::store::{Mailbox, Retention};
use oncebox_flow::relay::{Progress, RelayReport};
use oncebox_flow::{Janitor, Relay, Wakeup};
use oncebox_stores::postgres::wakeup::listen;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::database::{Database, DatabaseArgs};
use crate::fault::{Class, Fault};
use crate::output::Format;
use stdout::StdoutPublisher;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Where messages go
    #[arg(long, value_enum)]
    to: Destination,
    /// The name under which progress is kept; relays with the same name share the work
    #[arg(long, default_value = "stdout", value_name = "NAME")]
    sink: String,
    /// Messages read and settled together
    #[arg(long, default_value_t = 500)]
    batch: usize,
    /// The longest wait between two looks at an idle outbox, in milliseconds
    #[arg(long, default_value_t = 500, value_name = "MS")]
    poll: u64,
    /// Relay what is there now, then stop
    #[arg(long)]
    once: bool,
    /// Days settled messages are kept for replay; 0 leaves them to another janitor
    #[arg(long, default_value_t = 7, value_name = "DAYS")]
    keep: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Destination {
    /// One CloudEvents JSON object per line; settled only after the line is flushed
    Stdout,
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    let Destination::Stdout = args.to;
    match args.database.open_verified().await? {
        Database::Sqlite(store) => relay(store, Wakeup::new(), args, format).await,
        Database::Postgres(store) => {
            let wakeup = Wakeup::new();
            // Ends with the process.
            tokio::spawn(listen(store.clone(), wakeup.clone(), CancellationToken::new()));
            relay(store, wakeup, args, format).await
        }
    }
}

async fn relay<S: Mailbox + Retention>(
    store: S,
    wakeup: Wakeup,
    args: Args,
    format: Format,
) -> Result<ExitCode, Fault> {
    let publisher = StdoutPublisher::default();
    let closed = publisher.closed();
    let mut relay = Relay::builder(store.clone(), publisher)
        .sink(args.sink.as_str())
        .batch(args.batch)
        .poll(Duration::from_millis(args.poll))
        .wakeup(wakeup)
        .build()?;
    if args.once {
        return once(&mut relay, format, &closed).await;
    }
    let stop = CancellationToken::new();
    let janitor = match args.keep {
        0 => None,
        days => Some(Janitor::new(store).outbox(Duration::from_secs(days * 86_400))?),
    };
    let janitor = janitor.map(|janitor| tokio::spawn(janitor.run(stop.clone())));
    if format == Format::Text {
        eprintln!("relaying to standard output as sink {:?}; stop with Ctrl-C", args.sink);
    }
    let running = tokio::spawn(relay.run(stop.clone()));
    tokio::select! {
        () = shutdown_signal() => {}
        () = closed.cancelled() => {}
    }
    stop.cancel();
    let report = running.await.unwrap_or_default();
    if let Some(janitor) = janitor {
        janitor.await.ok();
    }
    summary(&report, format);
    if closed.is_cancelled() {
        return Err(Fault::new(
            Class::Output,
            "standard output was closed; what was not written stays in the outbox",
        ));
    }
    Ok(if report.drained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn once<S: Mailbox>(
    relay: &mut Relay<S, StdoutPublisher>,
    format: Format,
    closed: &CancellationToken,
) -> Result<ExitCode, Fault> {
    let mut report = RelayReport { drained: true, ..RelayReport::default() };
    loop {
        let Progress { published, parked, promoted, outage, .. } = relay.step().await?;
        report.published += published as u64;
        report.parked += parked as u64;
        if closed.is_cancelled() || outage.is_some() {
            let reason = outage.unwrap_or_default();
            relay.release().await.ok();
            return Err(Fault::new(
                Class::Output,
                format!("cannot write: {reason}; what was not written stays in the outbox"),
            ));
        }
        if published + parked + promoted == 0 {
            break;
        }
    }
    relay.release().await?;
    summary(&report, format);
    Ok(ExitCode::SUCCESS)
}

fn summary(report: &RelayReport, format: Format) {
    match format {
        Format::Text => eprintln!("relayed {} messages, parked {}", report.published, report.parked),
        Format::Json => eprintln!(
            "{}",
            json!({ "v": 1, "published": report.published, "parked": report.parked, "errors": report.errors, "drained": report.drained })
        ),
    }
}

/// Ctrl-C or SIGTERM.
async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        tokio::signal::ctrl_c().await.ok();
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
