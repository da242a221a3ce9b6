//! Dead letters of the inbox: messages that a handler gave up, or that no
//! handler could take.

use std::collections::BTreeSet;
use std::process::ExitCode;

use oncebox_core::letters::{LetterFilter, LetterId, Requeued};
use oncebox_core::{DeadLetter, Error};
use serde_json::{Value, json};

use super::{Change, Fate, SAMPLE, missing, unclaimed};
use crate::consent;
use crate::database::Database;
use crate::fault::{Class, Fault, without_userinfo};
use crate::output::{Format, plain};

/// Changed by one `--all`; each is read with its payload.
const MAX_LETTERS: usize = 1_000;

pub(super) async fn read(
    database: &Database,
    filter: &LetterFilter,
    limit: usize,
) -> Result<Vec<DeadLetter>, Fault> {
    let letters = database.letters().letters(filter, limit).await?;
    if letters.len() == limit {
        eprintln!("only the oldest {limit} dead letters of the inbox were looked at");
    }
    Ok(letters)
}

pub(super) fn line(letter: &DeadLetter) -> String {
    let handler = if letter.handler.is_empty() { "(no handler)" } else { letter.handler.as_str() };
    let envelope = &letter.envelope;
    let blocks = if letter.blocks > 0 { format!("  blocks {}", letter.blocks) } else { String::new() };
    format!(
        "{}  {}  {}  {}  {}  attempts {}  since {}{blocks}  {}: {}",
        letter.id,
        plain(handler),
        plain(&letter.channel),
        plain(&envelope.id),
        plain(&envelope.kind),
        letter.attempts,
        letter.died_at,
        plain(&letter.code),
        plain(&without_userinfo(&letter.reason)),
    )
}

pub(super) async fn change(change: &Change, fate: Fate, format: Format) -> Result<ExitCode, Fault> {
    let names = change.letters.iter().map(|name| name.letter()).collect::<Result<BTreeSet<_>, _>>()?;
    check(change)?;
    let database = change.database.open_verified().await?;
    let chosen = match change.all {
        true => read(&database, &change.filter.letters(), MAX_LETTERS).await?,
        false => named(&database, &names).await?,
    };
    if format == Format::Text || consent::can_ask() {
        announce(&chosen, fate);
    }
    if change.dry_run {
        let would: Vec<_> = chosen.iter().map(|letter| letter.id.to_string()).collect();
        if format == Format::Json {
            println!("{}", json!({ "v": 1, "changed": 0, "would_change": would }));
        }
        return Ok(ExitCode::SUCCESS);
    }
    // Who names a letter to try it again has decided; what cannot be undone, or is chosen by a rule, is asked about.
    let is_asked = change.all || matches!(fate, Fate::Discard);
    if is_asked && !chosen.is_empty() {
        consent::obtain(change.yes)?;
    }
    let report = apply(&database, &chosen, fate).await;
    report.print(format);
    report.conclude(&chosen, fate)
}

fn check(change: &Change) -> Result<(), Fault> {
    let (all, has_filter) = (change.all, !change.filter.is_empty());
    if all && !has_filter {
        let text = "--all alone does not say which dead letters are meant";
        return Err(Fault::new(Class::Input, text).help(
            "add --handler, --channel or --code for those of the inbox, or --sink for those of a relay",
        ));
    }
    if !all && has_filter {
        let text =
            "--handler, --channel and --code choose among --all; dead letters that are named need none";
        return Err(Fault::new(Class::Input, text).help("add --all, or leave them out"));
    }
    Ok(())
}

/// All of them, or nothing is done.
async fn named(database: &Database, names: &BTreeSet<LetterId>) -> Result<Vec<DeadLetter>, Fault> {
    let mut letters = Vec::new();
    for id in names {
        letters.push(super::read(database, *id).await?);
    }
    Ok(letters)
}

fn announce(chosen: &[DeadLetter], fate: Fate) {
    let (word, warning) = match fate {
        Fate::Requeue { .. } => ("try again", ""),
        Fate::Discard => ("give up", "; no handler will ever see them, and what waits behind them goes on"),
    };
    eprintln!("{word}: {} of the inbox{warning}", counted(chosen.len()));
    chosen.iter().take(SAMPLE).for_each(|letter| eprintln!("  {}", line(letter)));
}

fn counted(count: usize) -> String {
    format!("{count} dead letter{}", if count == 1 { "" } else { "s" })
}

/// What became of each letter.
#[derive(Default)]
struct Report {
    changed: Vec<LetterId>,
    refused: Vec<(LetterId, Requeued)>,
    /// Nothing after it was tried.
    failed: Option<Error>,
}

async fn apply(database: &Database, chosen: &[DeadLetter], fate: Fate) -> Report {
    let mut report = Report::default();
    for letter in chosen {
        let done = match fate {
            Fate::Requeue { window } => database.letters().requeue_letter(letter.id, window, None).await,
            Fate::Discard => {
                let is_gone = database.letters().discard_letter(letter.id, None).await;
                is_gone.map(|is_gone| if is_gone { Requeued::Ready } else { Requeued::Missing })
            }
        };
        match done {
            Ok(Requeued::Ready) => report.changed.push(letter.id),
            Ok(refusal) => report.refused.push((letter.id, refusal)),
            Err(error) => {
                report.failed = Some(error);
                break;
            }
        }
    }
    report
}

impl Report {
    fn print(&self, format: Format) {
        if format == Format::Text {
            println!("changed {}", self.changed.len());
            return;
        }
        let changed: Vec<_> = self.changed.iter().map(ToString::to_string).collect();
        let refused: Vec<Value> = self
            .refused
            .iter()
            .map(|(id, refusal)| json!({ "letter": id.to_string(), "why": why(*refusal) }))
            .collect();
        println!("{}", json!({ "v": 1, "changed": changed.len(), "letters": changed, "refused": refused }));
    }

    /// The first refusal, and how many there are.
    fn conclude(self, chosen: &[DeadLetter], fate: Fate) -> Result<ExitCode, Fault> {
        if let Some(error) = self.failed {
            return Err(Fault::from(error));
        }
        let Some((id, refusal)) = self.refused.first().copied() else { return Ok(ExitCode::SUCCESS) };
        let fault = match (refusal, chosen.iter().find(|letter| letter.id == id), fate) {
            (Requeued::TooOld, Some(letter), Fate::Requeue { window: Some(window) }) => {
                too_old(letter, window)
            }
            (Requeued::NoHandler, Some(letter), _) => unclaimed(letter),
            _ => missing(id),
        };
        Err(match self.refused.len() {
            1 => fault,
            more => fault.and(format!("; {more} of {} were refused", counted(chosen.len()))),
        })
    }
}

const fn why(refusal: Requeued) -> &'static str {
    match refusal {
        Requeued::Ready => "ready",
        Requeued::Missing => "missing",
        Requeued::TooOld => "too_old",
        Requeued::NoHandler => "no_handler",
    }
}

fn too_old(letter: &DeadLetter, window: std::time::Duration) -> Fault {
    let text = format!(
        "{} was accepted at {}, more than {} ago: markers of that age may be gone, so a copy of the message may \
         have been handled and forgotten since, and what it did would be done twice",
        letter.id,
        letter.received_at,
        crate::output::span(window),
    );
    Fault::new(Class::Config, text).help(
        "make sure that it has no effect yet and pass --force; or pass --window if your handlers keep markers longer",
    )
}
