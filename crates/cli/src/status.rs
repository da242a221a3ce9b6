//! `oncebox status`: what waits, what was refused, who relays, how handlers keep up.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use oncebox_core::inspect::{COUNT_CAP, HandlerStatus, SinkStatus, Status};
use oncebox_core::log::ParkedRow;
use serde_json::json;

use crate::database::DatabaseArgs;
use crate::fault::Fault;
use crate::output::{Format, plain, span};

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
    for handler in &status.handlers {
        let name = &handler.handler;
        if handler.parked > 0 {
            let count = count(handler.parked);
            troubles.push(format!("handler {name}: {count} parked, no running process knows the handler"));
        }
        // The oldest may be a dead one, which is a trouble already.
        let oldest = handler.oldest.filter(|oldest| handler.dead == 0 && *oldest > max_lag);
        if let Some(oldest) = oldest {
            troubles.push(format!("handler {name}: the oldest delivery waits since {}", span(oldest)));
        }
    }
    if status.dead_letters > 0 {
        troubles.push(format!("inbox: {} dead letters", status.dead_letters));
    }
    troubles
}

fn as_json(status: &Status, parked: &[ParkedRow], troubles: &[String]) -> serde_json::Value {
    let sinks: Vec<_> = status.sinks.iter().map(sink_json).collect();
    let handlers: Vec<_> = status.handlers.iter().map(handler_json).collect();
    let parked: Vec<_> = parked
        .iter()
        .map(|row| {
            json!({ "sink": row.sink, "position": row.position, "id": row.id, "type": row.kind, "state": row.state,
                    "attempts": row.attempts, "reason": row.reason, "since": row.since.to_string() })
        })
        .collect();
    json!({ "v": 1, "healthy": troubles.is_empty(), "troubles": troubles, "logged": status.logged,
            "scheduled": status.scheduled, "markers": status.markers, "dead_letters": status.dead_letters,
            "count_cap": COUNT_CAP, "sinks": sinks, "parked": parked, "handlers": handlers })
}

fn handler_json(handler: &HandlerStatus) -> serde_json::Value {
    json!({ "scope": handler.scope, "handler": handler.handler, "ready": handler.ready,
            "running": handler.leased, "behind": handler.behind, "parked": handler.parked,
            "dead": handler.dead, "oldest_s": handler.oldest.map(|age| age.as_secs_f64()) })
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
    text.push_str(&handlers_text(&status.handlers));
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

/// A table with columns as wide as what is in them.
fn handlers_text(handlers: &[HandlerStatus]) -> String {
    if handlers.is_empty() {
        return String::new();
    }
    let head = ["scope", "handler", "ready", "running", "behind", "parked", "dead", "oldest"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(handlers.iter().map(|handler| {
        let scope = if handler.scope.is_empty() { "-".to_owned() } else { plain(&handler.scope) };
        let oldest = handler.oldest.map_or_else(|| "-".into(), span);
        let counts = [handler.ready, handler.leased, handler.behind, handler.parked, handler.dead];
        let [ready, running, behind, parked, dead] = counts.map(count);
        [scope, plain(&handler.handler), ready, running, behind, parked, dead, oldest]
    }));
    let wide = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(wide).collect();
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}\n", cells.collect::<Vec<_>>().join("   ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn count(value: i64) -> String {
    if value >= COUNT_CAP { format!("{COUNT_CAP}+") } else { value.to_string() }
}
