//! `oncebox consume`: what a queue delivers, printed or passed on, through the
//! inbox. For trying things out and for scripts.

mod line;
mod tap;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use oncebox_core::store::{Dedup, Mailbox, Retention};
use oncebox_core::transport::{Feed, Subscriber};
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{HandlerKey, MissingId, cloudevents};
use oncebox_flow::inbox::InboxOptions;
use oncebox_flow::memory::MemoryStore;
use oncebox_flow::{Consumer, HandlerOptions, Inbox, Janitor};
use oncebox_transports::nats::{Nats, NatsOptions};
use oncebox_transports::rabbitmq::{RabbitMq, RabbitMqOptions};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::config::{Kind, parse_span};
use crate::database::{Database, DatabaseArgs};
use crate::fault::{Class, Fault};
use crate::output::{Format, plain};
use crate::relay::{Outlet, Signals};
use line::{LineHandler, Tally};
use tap::Tap;

/// Outbox rows are none of this command's business, so its janitor never finds one old enough.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Messages are taken one by one; what is fetched ahead is kept from others.
const PREFETCH: u16 = 2;
/// How long the end waits for what was fetched ahead to be given back.
const GIVE_BACK: Duration = Duration::from_millis(300);
/// A group's queue and its marker both carry its name.
const MAX_GROUP: usize = 100;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// The broker: amqp://… or nats://… [env: ONCEBOX_FROM]
    #[arg(long, value_name = "URL", env = "ONCEBOX_FROM", hide_env = true, hide_env_values = true)]
    from: String,
    /// What to listen to: the destination that a relay sends to
    #[arg(long, value_name = "DESTINATION")]
    channel: String,
    /// The group to join; each message goes to one member of each group
    #[arg(long, value_name = "NAME")]
    group: String,
    #[command(flatten)]
    database: DatabaseArgs,
    /// POST each message to this URL instead of printing it
    #[arg(long, value_name = "URL")]
    forward: Option<String>,
    /// Stop after this many messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop when nothing came for this long, for instance 5s
    #[arg(long, value_name = "TIME")]
    idle: Option<String>,
    /// What to do with a message that has no id
    #[arg(long, value_enum, default_value_t = Missing::Allow)]
    missing_id: Missing,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Missing {
    /// Take it each time it is delivered
    Allow,
    /// Take its content for its id
    Hash,
    /// Bury it as a dead letter
    Reject,
}

/// What a run needs, whatever the store and the broker.
struct Plan {
    channel: String,
    key: HandlerKey,
    missing_id: MissingId,
    outlet: Outlet,
    count: Option<u64>,
    idle: Option<Duration>,
    /// Where markers are kept, for the report.
    markers: &'static str,
    format: Format,
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    let kind = Kind::of_url(&args.from).filter(|kind| matches!(kind, Kind::RabbitMq | Kind::Nats));
    let Some(kind) = kind else {
        return Err(Fault::new(Class::Input, "--from is not the URL of a broker that delivers")
            .help("use amqp(s)://… or nats://…"));
    };
    let plan = plan(&args, format)?;
    match args.database.is_named() {
        false => {
            if format == Format::Text {
                let until = "duplicates are recognised until this process ends";
                eprintln!("no --db: markers are kept in memory, {until}");
            }
            let store = MemoryStore::new();
            let code = subscribe(&args, kind, store.clone(), plan).await;
            for letter in store.dead_letters().await {
                let (code, event) = (letter.code, cloudevents::to_json(&letter.envelope));
                eprintln!("{}", json!({ "v": 1, "buried": code, "reason": letter.reason, "event": event }));
            }
            code
        }
        true => match args.database.open_verified().await? {
            Database::Sqlite(store) => subscribe(&args, kind, store, plan).await,
            Database::Postgres(store) => subscribe(&args, kind, store, plan).await,
        },
    }
}

fn plan(args: &Args, format: Format) -> Result<Plan, Fault> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    if args.group.is_empty() || args.group.len() > MAX_GROUP || !args.group.chars().all(is_plain) {
        let text =
            format!("{:?} is not a group: use 1 to {MAX_GROUP} characters from a-z 0-9 . _ -", args.group);
        return Err(Fault::new(Class::Input, text));
    }
    let idle = args.idle.as_deref().map(|text| {
        let refusal = || Fault::new(Class::Input, format!("--idle must be a time such as 5s, not {text:?}"));
        parse_span(text).ok_or_else(refusal)
    });
    // Keys are part of the program elsewhere; this one lives as long as the process, too.
    let key: &'static str = format!("consume.{}", args.group).leak();
    Ok(Plan {
        channel: args.channel.clone(),
        key: HandlerKey::new(key),
        missing_id: match args.missing_id {
            Missing::Allow => MissingId::AllowUnkeyed,
            Missing::Hash => MissingId::ContentHash,
            Missing::Reject => MissingId::Reject,
        },
        outlet: match &args.forward {
            Some(url) => Outlet::forward(url)?,
            None => Outlet::stdout(),
        },
        count: args.count,
        idle: idle.transpose()?,
        markers: if args.database.is_named() { "database" } else { "memory" },
        format,
    })
}

async fn subscribe<S>(args: &Args, kind: Kind, store: S, plan: Plan) -> Result<ExitCode, Fault>
where
    S: Mailbox + Dedup + Retention,
{
    let (channel, group) = (args.channel.as_str(), args.group.as_str());
    match kind {
        Kind::Nats => {
            let options =
                NatsOptions::from_url(&args.from)?.name("oncebox consume").prefetch(PREFETCH.into());
            let nats = Nats::connect(options).await.map_err(|error| Fault::unreachable(&error))?;
            let code = consume(store, nats.subscribe(channel, group).await?, plan).await;
            nats.close();
            // What was fetched ahead is given back by a task of the feed's own.
            tokio::time::sleep(GIVE_BACK).await;
            code
        }
        _ => {
            let options = RabbitMqOptions::from_url(&args.from)?.name("oncebox consume").prefetch(PREFETCH);
            let rabbitmq = RabbitMq::connect(options).await.map_err(|error| Fault::unreachable(&error))?;
            consume(store, rabbitmq.subscribe(channel, group).await?, plan).await
        }
    }
}

async fn consume<S, F>(store: S, feed: F, plan: Plan) -> Result<ExitCode, Fault>
where
    S: Mailbox + Dedup + Retention,
    F: Feed,
{
    let mut signals = Signals::new()?;
    let stop = CancellationToken::new();
    let tally = Arc::new(Tally::new(plan.count, stop.clone()));
    let closed = plan.outlet.closed();
    let handler = LineHandler {
        key: plan.key,
        options: HandlerOptions { missing_id: plan.missing_id, ..HandlerOptions::default() },
        outlet: plan.outlet,
        tally: Arc::clone(&tally),
    };
    // Nothing is buried because a destination is away for long.
    let retry = RetryPolicy { max_attempts: None, ..RetryPolicy::default() };
    let inbox = Inbox::builder(store.clone(), plan.channel.as_str())
        .options(InboxOptions { retry, ..InboxOptions::default() })
        .handler(handler)
        .build()?;
    let janitor = Janitor::new(store).outbox(NEVER)?.markers(inbox.retentions());
    tokio::spawn(janitor.run(stop.clone()));
    let tap = Tap::new(feed, plan.idle, Arc::clone(&tally));
    let running = tokio::spawn(Consumer::new(inbox, tap).run(stop.clone()));
    if plan.format == Format::Text {
        eprintln!("listening to {}; stop with Ctrl-C", plain(&plan.channel));
    }
    let gone = async {
        match &closed {
            Some(closed) => closed.cancelled().await,
            None => std::future::pending().await,
        }
    };
    let mut running = running;
    let early = tokio::select! {
        ended = &mut running => Some(ended.unwrap_or(false)),
        () = signals.stop() => None,
        () = gone => None,
    };
    stop.cancel();
    let is_drained = match early {
        Some(ended) => ended,
        None => tokio::select! {
            ended = running => ended.unwrap_or(false),
            () = signals.stop() => std::process::exit(130),
        },
    };
    let (delivered, taken) = tally.counts();
    match plan.format {
        Format::Text => eprintln!("delivered {delivered}, taken {taken}"),
        Format::Json => {
            let markers = plan.markers;
            eprintln!(
                "{}",
                json!({ "v": 1, "delivered": delivered, "taken": taken, "markers": markers, "drained": is_drained })
            );
        }
    }
    if closed.is_some_and(|closed| closed.is_cancelled()) {
        return Err(Fault::new(
            Class::Output,
            "standard output was closed; what was not written comes again",
        ));
    }
    Ok(if is_drained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
