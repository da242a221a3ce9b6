//! `oncebox dead list`: those of the inbox and those of relays.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use oncebox_core::DeadLetter;
use oncebox_core::log::ParkedRow;
use serde_json::{Value, json};

use super::{Filter, letters, refused};
use crate::database::DatabaseArgs;
use crate::fault::{Fault, without_userinfo};
use crate::output::Format;

/// Letters of the inbox come with their payloads, so fewer are read than of a relay's rows.
const SHOWN: usize = 100;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Only those of relays, of this sink
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    #[command(flatten)]
    filter: Filter,
    /// At most this many of each kind [default: 100 of the inbox, 10000 of relays]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: Option<u16>,
}

pub(super) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    let database = args.database.open_verified().await?;
    let limit = args.limit.map(usize::from);
    let refused = match args.filter.is_empty() {
        true => refused::read(&database, args.sink.as_deref(), limit.unwrap_or(refused::MAX_ROWS)).await?,
        false => Vec::new(),
    };
    let letters = match &args.sink {
        None => letters::read(&database, &args.filter.letters(), limit.unwrap_or(SHOWN)).await?,
        Some(_) => Vec::new(),
    };
    match format {
        Format::Json => println!("{}", as_json(&refused, &letters)),
        Format::Text => print_text(&refused, &letters),
    }
    Ok(ExitCode::SUCCESS)
}

fn print_text(refused: &[ParkedRow], letters: &[DeadLetter]) {
    refused.iter().for_each(|row| println!("{}", refused::line(row)));
    letters.iter().for_each(|letter| println!("{}", letters::line(letter)));
    if refused.is_empty() && letters.is_empty() {
        eprintln!("no dead letters");
    }
    if !letters.is_empty() {
        eprintln!("hint: `oncebox dead show LETTER` tells the whole story of one of the inbox");
    }
}

fn as_json(refused: &[ParkedRow], letters: &[DeadLetter]) -> Value {
    let refused: Vec<_> = refused
        .iter()
        .map(|row| {
            json!({ "sink": row.sink, "position": row.position, "id": row.id, "type": row.kind,
                    "attempts": row.attempts, "reason": row.reason, "since": row.since.to_string() })
        })
        .collect();
    let letters: Vec<_> = letters.iter().map(summary).collect();
    json!({ "v": 1, "dead": refused, "letters": letters })
}

/// What a letter is, without its message.
pub(super) fn summary(letter: &DeadLetter) -> Value {
    json!({ "letter": letter.id.to_string(), "scope": letter.scope, "channel": letter.channel,
            "handler": letter.handler, "code": letter.code, "reason": without_userinfo(&letter.reason),
            "attempts": letter.attempts, "accepted_at": letter.received_at.to_string(),
            "died_at": letter.died_at.to_string(), "blocks": letter.blocks,
            "id": letter.envelope.id, "type": letter.envelope.kind })
}
