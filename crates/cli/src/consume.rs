//! `oncebox consume`: what a queue delivers, printed or passed on, through the
//! inbox. For trying things out and for scripts.

mod line;
mod taker;
mod tap;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use oncebox_core::signature::Keyring;
use oncebox_core::store::{Dedup, Mailbox, Retention};
use oncebox_core::transport::{Feed, Subscriber};
use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{HandlerKey, MissingId};
use oncebox_flow::inbox::InboxOptions;
use oncebox_flow::memory::MemoryStore;
use oncebox_flow::{HandlerOptions, Inbox, Janitor};
use oncebox_transports::nats::{Nats, NatsOptions};
use oncebox_transports::rabbitmq::{RabbitMq, RabbitMqOptions};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::config::{Kind, Reference, parse_span};
use crate::database::{Database, DatabaseArgs};
use crate::fault::{Class, Fault};
use crate::output::{Format, plain};
use crate::relay::{Outlet, Signals};
use line::{LineHandler, Tally};
use taker::Taker;
use tap::Tap;

/// Outbox rows are none of this command's business, so its janitor never finds one old enough.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Messages are taken one by one; what is fetched ahead is kept from others.
const PREFETCH: u16 = 2;
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
    /// Take only what is signed with this key, whose secret is in the file; others are buried. May be
    /// given several times
    #[arg(long, value_name = "ID=FILE")]
    verify_key: Vec<String>,
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
    keyring: Option<Keyring>,
    outlet: Outlet,
    count: Option<u64>,
    idle: Option<Duration>,
    /// Whether markers and dead letters are gone with this process.
    is_in_memory: bool,
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
            subscribe(&args, kind, MemoryStore::new(), plan).await
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
        keyring: keyring(&args.verify_key)?,
        outlet: match &args.forward {
            Some(url) => Outlet::forward(url)?,
            None => Outlet::stdout(),
        },
        count: args.count,
        idle: idle.transpose()?,
        is_in_memory: !args.database.is_named(),
        format,
    })
}

/// The keys of `--verify-key`, if there are any.
fn keyring(keys: &[String]) -> Result<Option<Keyring>, Fault> {
    let mut keyring: Option<Keyring> = None;
    for key in keys {
        let Some((id, file)) = key.split_once('=').filter(|(_, file)| !file.is_empty()) else {
            // Not quoted: somebody may have written the secret itself.
            return Err(Fault::new(Class::Input, "--verify-key must be ID=FILE, such as k1=/run/secrets/k1"));
        };
        let secret = Reference::File(file.into()).read()?;
        keyring = Some(match keyring {
            None => Keyring::new(id, secret.reveal())?,
            Some(keyring) => keyring.also(id, secret.reveal())?,
        });
    }
    Ok(keyring)
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
            // What was fetched ahead goes to others at once.
            nats.drain().await;
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
        .options(InboxOptions { retry: retry.clone(), ..InboxOptions::default() })
        .handler(handler)
        .build()?;
    let janitor = Janitor::new(store.clone()).outbox(NEVER)?.markers(inbox.retentions());
    tokio::spawn(janitor.run(stop.clone()));
    let tap = Tap::new(feed, plan.idle, Arc::clone(&tally));
    let taker = Taker {
        store,
        inbox,
        channel: plan.channel.clone(),
        handler: plan.key,
        retry,
        keyring: plan.keyring,
        tally: Arc::clone(&tally),
        is_forgetful: plan.is_in_memory,
        format: plan.format,
    };
    let running = tokio::spawn(taker.run(tap, stop.clone()));
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
    report(&tally, is_drained, plan.is_in_memory, plan.format);
    if closed.is_some_and(|closed| closed.is_cancelled()) {
        return Err(Fault::new(
            Class::Output,
            "standard output was closed; what was not written comes again",
        ));
    }
    Ok(if is_drained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(tally: &Tally, is_drained: bool, is_in_memory: bool, format: Format) {
    let markers = if is_in_memory { "memory" } else { "database" };
    let (delivered, taken, buried) = tally.counts();
    match format {
        Format::Text if buried > 0 => eprintln!("delivered {delivered}, taken {taken}, buried {buried}"),
        Format::Text => eprintln!("delivered {delivered}, taken {taken}"),
        Format::Json => eprintln!(
            "{}",
            json!({ "v": 1, "delivered": delivered, "taken": taken, "buried": buried, "markers": markers,
                    "drained": is_drained })
        ),
    }
}
