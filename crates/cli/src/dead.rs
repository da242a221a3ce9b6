//! `oncebox dead`: the messages that a destination refused for good, for a
//! person to decide about.

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use oncebox_core::log::{ParkedRow, Position};
use oncebox_core::store::Mailbox;
use serde_json::json;

use crate::database::{Database, DatabaseArgs};
use crate::fault::{Class, Fault};
use crate::output::{Format, plain};

/// Dead letters looked at.
const MAX_ROWS: usize = 10_000;
/// Dead letters shown before a change.
const SAMPLE: usize = 3;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show dead letters with their reasons, oldest first
    List {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Only those of this sink
        #[arg(long, value_name = "NAME")]
        sink: Option<String>,
    },
    /// Try dead letters again, with fresh attempts
    Requeue(Change),
    /// Give dead letters up; later messages of their keys go on
    Discard(Change),
}

#[derive(Debug, ClapArgs)]
struct Change {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The sink that refused them
    #[arg(long, value_name = "NAME")]
    sink: String,
    /// Their positions, as `dead list` shows them
    #[arg(value_name = "POSITION", required_unless_present = "all")]
    positions: Vec<Position>,
    /// All dead letters of the sink
    #[arg(long, conflicts_with = "positions")]
    all: bool,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy)]
enum Fate {
    Requeue,
    Discard,
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    match args.action {
        Action::List { database, sink } => {
            let database = database.open_verified().await?;
            list(&dead(&database, sink.as_deref()).await?, format);
            Ok(ExitCode::SUCCESS)
        }
        Action::Requeue(change) => apply(change, Fate::Requeue, format).await,
        Action::Discard(change) => apply(change, Fate::Discard, format).await,
    }
}

async fn dead(database: &Database, sink: Option<&str>) -> Result<Vec<ParkedRow>, Fault> {
    let dead = database.inspect().dead(sink, MAX_ROWS).await?;
    if dead.len() == MAX_ROWS {
        eprintln!("only the oldest {MAX_ROWS} dead letters were looked at");
    }
    Ok(dead)
}

fn list(rows: &[ParkedRow], format: Format) {
    if format == Format::Json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({ "sink": row.sink, "position": row.position, "id": row.id, "type": row.kind,
                        "attempts": row.attempts, "reason": row.reason, "since": row.since.to_string() })
            })
            .collect();
        println!("{}", json!({ "v": 1, "dead": rows }));
        return;
    }
    for row in rows {
        println!("{}", line(row));
    }
    if rows.is_empty() {
        eprintln!("no dead letters");
    }
}

fn line(row: &ParkedRow) -> String {
    let reason = plain(row.reason.as_deref().unwrap_or("no reason was kept"));
    let (sink, id, kind) = (plain(&row.sink), plain(&row.id), plain(&row.kind));
    format!(
        "{sink}  {}  {id}  {kind}  attempts {}  since {}  {reason}",
        row.position, row.attempts, row.since
    )
}

async fn apply(change: Change, fate: Fate, format: Format) -> Result<ExitCode, Fault> {
    let database = change.database.open_verified().await?;
    let rows = dead(&database, Some(&change.sink)).await?;
    let missing = change.positions.iter().find(|position| !rows.iter().any(|row| row.position == **position));
    if let Some(position) = missing {
        return Err(not_found(&change.sink, *position));
    }
    let is_chosen = |row: &&ParkedRow| change.all || change.positions.contains(&row.position);
    let chosen: Vec<&ParkedRow> = rows.iter().filter(is_chosen).collect();
    let (word, warning) = match fate {
        Fate::Requeue => ("try again", ""),
        Fate::Discard => ("give up", "; they will never be sent to this sink"),
    };
    eprintln!("{word} {} dead letters of sink {}{warning}", chosen.len(), plain(&change.sink));
    chosen.iter().take(SAMPLE).for_each(|row| eprintln!("  {}", line(row)));
    if change.dry_run || chosen.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if !change.yes && !is_confirmed() {
        return Err(Fault::new(Class::Config, "nobody confirmed the change").help("pass --yes"));
    }
    let mut done = 0;
    for row in &chosen {
        let (sink, position) = (change.sink.as_str(), row.position);
        let changed = match (&database, fate) {
            (Database::Sqlite(store), Fate::Requeue) => store.requeue(sink, position, None).await?,
            (Database::Sqlite(store), Fate::Discard) => store.discard(sink, position, None).await?,
            (Database::Postgres(store), Fate::Requeue) => store.requeue(sink, position, None).await?,
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

fn is_confirmed() -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    eprint!("go on? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).is_ok() && answer.trim().eq_ignore_ascii_case("y")
}

fn not_found(sink: &str, position: Position) -> Fault {
    let text = format!("sink {} has no dead letter at position {position}", plain(sink));
    Fault::new(Class::NotFound, text).help("`oncebox dead list` shows those there are")
}
