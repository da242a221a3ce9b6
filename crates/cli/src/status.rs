//! `oncebox status`: what waits, what was refused, who relays.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use oncebox_core::inspect::{COUNT_CAP, SinkStatus, Status};
use oncebox_core::log::ParkedRow;
use serde_json::json;

use crate::database::DatabaseArgs;
use crate::fault::Fault;
use crate::output::{Format, plain};

/// Refused messages shown with their reason.
const SHOWN: usize = 20;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Unhealthy (exit 3) if a message has waited longer than this many seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    max_lag: u64,
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    let database = args.database.open_verified().await?;
    let status = database.inspect().status().await?;
    let parked = database.inspect().parked(SHOWN).await?;
    let troubles = troubles(&status, Duration::from_secs(args.max_lag));
    match format {
        Format::Json => println!("{}", as_json(&status, &parked, &troubles)),
        Format::Text => print!("{}", as_text(&status, &parked, &troubles)),
    }
    Ok(if troubles.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

fn troubles(status: &Status, max_lag: Duration) -> Vec<String> {
    let mut troubles = Vec::new();
    for sink in &status.sinks {
        let name = &sink.sink;
        if sink.dead > 0 {
            troubles.push(format!("sink {name}: {} dead", sink.dead));
        }
        if let Some(oldest) = sink.oldest.filter(|oldest| *oldest > max_lag) {
            troubles.push(format!("sink {name}: the oldest message waits since {}", span(oldest)));
        }
        if sink.pending > 0 && sink.relays == 0 {
            troubles.push(format!("sink {name}: messages wait and no relay is alive"));
        }
    }
    if status.sinks.is_empty() && status.logged > 0 {
        troubles.push("messages wait and no relay has run yet".to_owned());
    }
    if status.dead_letters > 0 {
        troubles.push(format!("inbox: {} dead letters", status.dead_letters));
    }
    troubles
}

fn as_json(status: &Status, parked: &[ParkedRow], troubles: &[String]) -> serde_json::Value {
    let sinks: Vec<_> = status.sinks.iter().map(sink_json).collect();
    let parked: Vec<_> = parked
        .iter()
        .map(|row| {
            json!({ "sink": row.sink, "position": row.position, "id": row.id, "type": row.kind, "state": row.state,
                    "attempts": row.attempts, "reason": row.reason, "since": row.since.to_string() })
        })
        .collect();
    json!({ "v": 1, "healthy": troubles.is_empty(), "troubles": troubles, "logged": status.logged,
            "scheduled": status.scheduled, "markers": status.markers, "dead_letters": status.dead_letters,
            "count_cap": COUNT_CAP, "sinks": sinks, "parked": parked })
}

fn sink_json(sink: &SinkStatus) -> serde_json::Value {
    json!({ "sink": sink.sink, "pending": sink.pending, "oldest_s": sink.oldest.map(|age| age.as_secs_f64()),
            "waiting": sink.waiting, "behind": sink.behind, "dead": sink.dead, "relays": sink.relays,
            "unowned_shards": sink.unowned_shards, "moved_at": sink.moved_at.map(|at| at.to_string()),
            "outage": sink.outage })
}

fn as_text(status: &Status, parked: &[ParkedRow], troubles: &[String]) -> String {
    use std::fmt::Write as _;
    let mut text =
        format!("outbox   {} logged   {} scheduled\n", count(status.logged), count(status.scheduled));
    for sink in &status.sinks {
        let oldest = sink.oldest.map_or_else(|| "-".into(), span);
        let _ = writeln!(
            text,
            "sink     {}   pending {}   oldest {oldest}   waiting {}   behind {}   dead {}   relays {}",
            plain(&sink.sink),
            count(sink.pending),
            sink.waiting,
            sink.behind,
            sink.dead,
            sink.relays,
        );
        if let Some(reason) = &sink.outage {
            let _ = writeln!(text, "         outage: {}", plain(reason));
        }
    }
    if status.sinks.is_empty() {
        text.push_str("sink     none yet: no relay has run on this database\n");
    }
    let _ =
        writeln!(text, "inbox    {} markers   {} dead letters", count(status.markers), status.dead_letters);
    for row in parked {
        let reason = row.reason.as_deref().unwrap_or("waits behind an earlier message of its key");
        let _ = writeln!(
            text,
            "  {:<8} {}  {}  attempts {}  {}",
            row.state,
            plain(&row.id),
            plain(&row.kind),
            row.attempts,
            plain(reason)
        );
    }
    for trouble in troubles {
        let _ = writeln!(text, "! {}", plain(trouble));
    }
    text
}

fn count(value: i64) -> String {
    if value >= COUNT_CAP { format!("{COUNT_CAP}+") } else { value.to_string() }
}

fn span(span: Duration) -> String {
    match span.as_secs() {
        0 => format!("{} ms", span.as_millis()),
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}
