//! Dead letters of relays: messages that a destination refused for good.

use std::process::ExitCode;

use oncebox_core::log::{ParkedRow, Position};
use oncebox_core::store::Mailbox;
use serde_json::json;

use super::{Change, Fate, SAMPLE};
use crate::consent;
use crate::database::Database;
use crate::fault::{Class, Fault};
use crate::output::{Format, plain};

/// Dead letters looked at.
pub(super) const MAX_ROWS: usize = 10_000;

pub(super) async fn read(
    database: &Database,
    sink: Option<&str>,
    limit: usize,
) -> Result<Vec<ParkedRow>, Fault> {
    let dead = database.inspect().dead(sink, limit).await?;
    if dead.len() == limit {
        eprintln!("only the oldest {limit} dead letters were looked at");
    }
    Ok(dead)
}

pub(super) fn line(row: &ParkedRow) -> String {
    let reason = plain(row.reason.as_deref().unwrap_or("no reason was kept"));
    let (sink, id, kind) = (plain(&row.sink), plain(&row.id), plain(&row.kind));
    format!(
        "{sink}  {}  {id}  {kind}  attempts {}  since {}  {reason}",
        row.position, row.attempts, row.since
    )
}

pub(super) async fn change(
    change: &Change,
    sink: &str,
    fate: Fate,
    format: Format,
) -> Result<ExitCode, Fault> {
    let positions =
        change.letters.iter().map(|name| name.position()).collect::<Result<Vec<Position>, Fault>>()?;
    let database = change.database.open_verified().await?;
    let rows = read(&database, Some(sink), MAX_ROWS).await?;
    let missing = positions.iter().find(|position| !rows.iter().any(|row| row.position == **position));
    if let Some(position) = missing {
        return Err(not_found(sink, *position));
    }
    let is_chosen = |row: &&ParkedRow| change.all || positions.contains(&row.position);
    let chosen: Vec<&ParkedRow> = rows.iter().filter(is_chosen).collect();
    let (word, warning) = match fate {
        Fate::Requeue { .. } => ("try again", ""),
        Fate::Discard => ("give up", "; they will never be sent to this sink"),
    };
    eprintln!("{word} {} dead letters of sink {}{warning}", chosen.len(), plain(sink));
    chosen.iter().take(SAMPLE).for_each(|row| eprintln!("  {}", line(row)));
    if change.dry_run || chosen.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    consent::obtain(change.yes)?;
    let mut done = 0;
    for row in &chosen {
        let position = row.position;
        let changed = match (&database, fate) {
            (Database::Sqlite(store), Fate::Requeue { .. }) => store.requeue(sink, position, None).await?,
            (Database::Sqlite(store), Fate::Discard) => store.discard(sink, position, None).await?,
            (Database::Postgres(store), Fate::Requeue { .. }) => store.requeue(sink, position, None).await?,
            (Database::Postgres(store), Fate::Discard) => store.discard(sink, position, None).await?,
        };
        done += usize::from(changed);
    }
    match format {
        Format::Json => println!("{}", json!({ "v": 1, "changed": done })),
        Format::Text => println!("changed {done}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn not_found(sink: &str, position: Position) -> Fault {
    let text = format!("sink {} has no dead letter at position {position}", plain(sink));
    Fault::new(Class::NotFound, text).help("`oncebox dead list` shows those there are")
}
