//! `oncebox dead`: what waits for a person to decide about it. Messages that a
//! destination refused for good, and messages that a handler gave up.

mod edit;
mod letters;
mod list;
mod refused;
mod show;

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use oncebox_core::letters::{LetterFilter, LetterId};
use oncebox_core::log::Position;
use oncebox_core::{DeadLetter, Error, Kind};

use crate::config::parse_span;
use crate::database::{Database, DatabaseArgs};
use crate::fault::{Class, Fault};
use crate::output::Format;

/// Dead letters shown before a change.
const SAMPLE: usize = 3;

const LIST_EXAMPLES: &str = "\
Examples:
  oncebox dead list --db app.db
  oncebox dead list --db app.db --handler ship-order --code attempts_exhausted
  oncebox dead list --db app.db --sink stripe-hook -o json";
const SHOW_EXAMPLES: &str = "\
Header values whose names speak of credentials are hidden; the payload is shown as it is.

Examples:
  oncebox dead show d42 --db app.db
  oncebox dead show d42 --db app.db -o json";
const REQUEUE_EXAMPLES: &str = "\
Examples:
  oncebox dead requeue d42 d43 --db app.db
  oncebox dead requeue --all --handler ship-order --code attempts_exhausted --yes --db app.db
  oncebox dead requeue 1007 --sink stripe-hook --yes --db app.db";
const DISCARD_EXAMPLES: &str = "\
Examples:
  oncebox dead discard d42 --yes --db app.db
  oncebox dead discard --all --handler ship-order --dry-run --db app.db
  oncebox dead discard 1007 --sink stripe-hook --yes --db app.db";
const EDIT_EXAMPLES: &str = "\
The edited message has an id of its own and names the old one as its cause. It takes the
place of the old one: what waits behind it waits on, and the old one is given up.

Examples:
  oncebox dead edit d42 --db app.db
  oncebox dead edit d42 --payload mended.json --db app.db
  mend < broken.json | oncebox dead edit d42 --payload - --db app.db";

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show dead letters with their reasons, oldest first
    #[command(after_help = LIST_EXAMPLES)]
    List(list::Args),
    /// Show one dead letter of the inbox: its reason, its history, its message
    #[command(after_help = SHOW_EXAMPLES)]
    Show(One),
    /// Try dead letters again, with fresh attempts
    #[command(after_help = REQUEUE_EXAMPLES)]
    Requeue(Requeue),
    /// Give dead letters up; later messages of their keys go on
    #[command(after_help = DISCARD_EXAMPLES)]
    Discard(Change),
    /// Put a dead letter of the inbox back with another payload
    #[command(after_help = EDIT_EXAMPLES)]
    Edit(edit::Args),
}

#[derive(Debug, ClapArgs)]
struct One {
    /// Its name, as `dead list` shows it
    #[arg(value_name = "LETTER")]
    letter: Name,
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Debug, ClapArgs)]
struct Requeue {
    #[command(flatten)]
    change: Change,
    /// How long handlers keep their markers; what was accepted earlier is refused
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = span, conflicts_with = "sink")]
    window: Duration,
    /// Also try what is older than that, though copies of it may have been handled and forgotten
    #[arg(long, conflicts_with = "sink")]
    force: bool,
}

#[derive(Debug, ClapArgs)]
struct Change {
    /// Their names, as `dead list` shows them: d42 or r17; with --sink, positions
    #[arg(value_name = "LETTER", required_unless_present = "all")]
    letters: Vec<Name>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// The sink of a relay that refused them; without, they are of the inbox
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// All of the sink, or all that --handler, --channel and --code choose
    #[arg(long, conflicts_with = "letters")]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Which dead letters of the inbox.
#[derive(Clone, Debug, ClapArgs)]
struct Filter {
    /// Only those of the inbox that this handler gave up
    #[arg(long, value_name = "KEY", conflicts_with = "sink")]
    handler: Option<String>,
    /// Only those of the inbox that came from this channel
    #[arg(long, value_name = "NAME", conflicts_with = "sink")]
    channel: Option<String>,
    /// Only those of the inbox with this code, for instance attempts_exhausted
    #[arg(long, value_name = "CODE", conflicts_with = "sink")]
    code: Option<String>,
}

impl Filter {
    const fn is_empty(&self) -> bool {
        self.handler.is_none() && self.channel.is_none() && self.code.is_none()
    }

    fn letters(&self) -> LetterFilter {
        LetterFilter { handler: self.handler.clone(), channel: self.channel.clone(), code: self.code.clone() }
    }
}

/// A dead letter as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// Refused by a destination.
    Position(Position),
    /// Given up by a handler.
    Letter(LetterId),
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Ok(position) = text.parse() {
            return Ok(Self::Position(position));
        }
        text.parse().map(Self::Letter).map_err(|_no_letter: Error| {
            let text = format!(
                "{text:?} names no dead letter: those of the inbox look like d42 or r17, \
                 those of a relay have a position like 1007 and need --sink"
            );
            Error::new(Kind::Invalid, text)
        })
    }
}

impl Name {
    /// Its name in the inbox.
    fn letter(self) -> Result<LetterId, Fault> {
        match self {
            Self::Letter(id) => Ok(id),
            Self::Position(position) => {
                let text =
                    format!("{position} is the position of a relay's dead letter, not one of the inbox");
                Err(Fault::new(Class::Input, text)
                    .help("name its sink with --sink; dead letters of the inbox look like d42 or r17"))
            }
        }
    }

    /// Its position in a sink.
    fn position(self) -> Result<Position, Fault> {
        match self {
            Self::Position(position) => Ok(position),
            Self::Letter(id) => {
                let text = format!("{id} is a dead letter of the inbox, and --sink is for those of a relay");
                Err(Fault::new(Class::Input, text).help("leave --sink out, or name positions"))
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Fate {
    /// Tried again, if it was accepted within this time.
    Requeue {
        window: Option<Duration>,
    },
    Discard,
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    match args.action {
        Action::List(args) => list::run(args, format).await,
        Action::Show(args) => show::run(args, format).await,
        Action::Requeue(Requeue { change, window, force }) => {
            change_all(change, Fate::Requeue { window: (!force).then_some(window) }, format).await
        }
        Action::Discard(change) => change_all(change, Fate::Discard, format).await,
        Action::Edit(args) => edit::run(args, format).await,
    }
}

async fn change_all(change: Change, fate: Fate, format: Format) -> Result<ExitCode, Fault> {
    match &change.sink {
        Some(sink) => refused::change(&change, sink, fate, format).await,
        None => letters::change(&change, fate, format).await,
    }
}

fn span(text: &str) -> Result<Duration, String> {
    parse_span(text).ok_or_else(|| "write a number and its unit, as in 12h or 7d".to_owned())
}

/// The dead letter with its history, or that there is none.
async fn read(database: &Database, id: LetterId) -> Result<DeadLetter, Fault> {
    database.letters().letter(id).await?.ok_or_else(|| missing(id))
}

fn missing(id: LetterId) -> Fault {
    let text = format!(
        "there is no dead letter {id}: it was requeued, edited or given up in the meantime, or never was one"
    );
    Fault::new(Class::NotFound, text).help("`oncebox dead list` shows those there are")
}

fn unclaimed(letter: &DeadLetter) -> Fault {
    let text = format!(
        "no handler was ever asked about {} ({}), so there is nobody to give it to",
        letter.id, letter.code
    );
    Fault::new(Class::Config, text)
        .help("register a handler and send it again, or give it up with `dead discard`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_is_named_by_its_letter_or_its_position() {
        assert_eq!("d42".parse::<Name>().ok(), Some(Name::Letter(LetterId::Delivery(42))));
        assert_eq!("r17".parse::<Name>().ok(), Some(Name::Letter(LetterId::Received(17))));
        assert_eq!("1007".parse::<Name>().ok(), Some(Name::Position(1007)));
        for text in ["", "d", "x4", "d4 ", "4d", "99999999999999999999"] {
            assert_eq!(text.parse::<Name>().unwrap_err().kind(), Kind::Invalid, "{text}");
        }
    }
}
