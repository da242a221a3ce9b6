//! `oncebox replay`: a delivery that is done is run once more.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use oncebox_core::letters::LetterId;
use serde_json::json;

use crate::consent;
use crate::database::{Database, DatabaseArgs};
use crate::fault::{Class, Fault};
use crate::output::Format;

const WHAT_IT_MEANS: &str = "\
The handler runs again from the start, with everything it does: what it writes, what it puts
into the outbox, what it causes elsewhere. That is for handlers whose work was lost or was
wrong. The marker of the first run stays, so copies of the message still do nothing, and the
replay itself takes effect once. Other handlers of the message are not run.

A delivery is kept for some time after it is done; its number is in the table `finished`, on
SQLite `oncebox_delivery`. One that is dead is not done: `oncebox dead requeue` tries it again.

Example:
  oncebox replay d42 --yes --db app.db";

#[derive(Debug, ClapArgs)]
#[command(after_help = WHAT_IT_MEANS)]
pub(crate) struct Args {
    /// The deliveries, for instance d42
    #[arg(value_name = "DELIVERY", required = true)]
    deliveries: Vec<LetterId>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    if let Some(letter) = args.deliveries.iter().find(|id| matches!(id, LetterId::Received(_))) {
        let text = format!("{letter} is no delivery: it came in receiver mode and was never done");
        return Err(
            Fault::new(Class::Input, text).help(format!("`oncebox dead requeue {letter}` tries it again"))
        );
    }
    let database = args.database.open_verified().await?;
    if format == Format::Text || consent::can_ask() {
        let names: Vec<_> = args.deliveries.iter().map(ToString::to_string).collect();
        eprintln!(
            "run {} once more: the handler does everything again that it did when it finished",
            names.join(", ")
        );
    }
    consent::obtain(args.yes)?;
    let mut replayed = Vec::new();
    let mut failed = None;
    for id in &args.deliveries {
        match replay(&database, *id).await {
            Ok(()) => replayed.push(id.to_string()),
            Err(fault) => {
                failed = Some(fault);
                break;
            }
        }
    }
    match format {
        Format::Json => println!("{}", json!({ "v": 1, "replayed": replayed })),
        Format::Text => replayed.iter().for_each(|name| println!("{name} runs once more")),
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

async fn replay(database: &Database, id: LetterId) -> Result<(), Fault> {
    let (LetterId::Delivery(number) | LetterId::Received(number)) = id;
    if database.letters().replay_delivery(number, None).await? {
        return Ok(());
    }
    if database.letters().letter(id).await?.is_some() {
        return Err(Fault::new(
            Class::Config,
            format!("{id} is dead, so there is no finished run to repeat"),
        )
        .help(format!("`oncebox dead requeue {id}` tries it again")));
    }
    let text = format!(
        "there is no finished delivery {id}: it is under way, was given up, was deleted after its retention, \
         or never was one"
    );
    Err(Fault::new(Class::NotFound, text).help("`oncebox status` shows what is under way"))
}
