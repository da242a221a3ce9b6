//! Exchanges, queues and bindings: made, or only looked at.
//!
//! The server closes a channel on which it refused something, so each question
//! that may be refused gets a channel of its own.

use std::collections::BTreeMap;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{ExchangeKind, Queue};

use super::connection::Live;
use super::error::{Trouble, within};
use super::options::{RabbitMqOptions, Topology};
use super::wire::{Route, short};

const NOT_FOUND: Option<u16> = Some(404);
const ACCESS_REFUSED: Option<u16> = Some(403);
const PRECONDITION_FAILED: Option<u16> = Some(406);
/// A limit nobody reaches. Servers from 4.0 have one of 20 unless told
/// otherwise, and older ones do not know how to say "none".
const NO_DELIVERY_LIMIT: u32 = 1 << 30;

/// Sees to it that an exchange is there.
pub(super) async fn exchange(live: &Live, name: &str, options: &RabbitMqOptions) -> Result<(), Trouble> {
    if name.is_empty() || live.knows_exchange(name) {
        return Ok(());
    }
    let may_declare = options.topology == Topology::Declare && !name.starts_with("amq.");
    let declared = match may_declare {
        true => declare_exchange(live, name, ExchangeKind::Topic, false, options).await,
        false => Err(Trouble { code: ACCESS_REFUSED, ..Trouble::unavailable("") }),
    };
    let answer = match declared {
        // It is there already in another form, or making it is not ours.
        Err(trouble) if [ACCESS_REFUSED, PRECONDITION_FAILED].contains(&trouble.code) => {
            declare_exchange(live, name, ExchangeKind::Topic, true, options).await
        }
        other => other,
    };
    if answer.is_ok() {
        live.note_exchange(name);
    }
    answer
}

/// Makes an exchange, or only asks for it.
pub(super) async fn declare_exchange(
    live: &Live,
    name: &str,
    kind: ExchangeKind,
    passive: bool,
    options: &RabbitMqOptions,
) -> Result<(), Trouble> {
    let channel = live.channel().await?;
    let flags = ExchangeDeclareOptions { passive, durable: true, ..ExchangeDeclareOptions::default() };
    let declare = channel.exchange_declare(named(name)?, kind, flags, FieldTable::default());
    live.heard(within(options.call_timeout, "exchange.declare", declare).await)
}

/// Sees to it that the queue of a group is there and bound; tells its name.
pub(super) async fn queue(
    live: &Live,
    route: &Route,
    group: &str,
    options: &RabbitMqOptions,
) -> Result<ShortString, Trouble> {
    let name = route.queue(group).map_err(Trouble::config)?;
    if options.topology == Topology::Check {
        return match declare_queue(live, &name, true, FieldTable::default(), options).await {
            Err(trouble) if trouble.code == NOT_FOUND => {
                Err(Trouble { text: format!("there is no queue {name}, and none is to be made"), ..trouble })
            }
            answer => answer.map(|_| name),
        };
    }
    if let Some(dead_letters) = options.dead_letter_exchange.as_deref() {
        keep_dead_letters(live, dead_letters, options).await?;
    }
    exchange(live, route.exchange.as_str(), options).await?;
    declare_queue(live, &name, false, queue_arguments(options), options).await.map_err(|trouble| {
        let hint = "it exists in another form: change the options, check it only, or remove it";
        match trouble.code {
            PRECONDITION_FAILED => Trouble { text: format!("{hint}: {}", trouble.text), ..trouble },
            _ => trouble,
        }
    })?;
    if !route.exchange.as_str().is_empty() {
        let key = route.key.clone().unwrap_or_else(|| "#".into());
        bind(live, &name, &route.exchange, key, options).await?;
    }
    Ok(name)
}

/// Makes a queue, or only asks for it.
pub(super) async fn declare_queue(
    live: &Live,
    name: &ShortString,
    passive: bool,
    arguments: FieldTable,
    options: &RabbitMqOptions,
) -> Result<Queue, Trouble> {
    let channel = live.channel().await?;
    let flags = QueueDeclareOptions { passive, durable: true, ..QueueDeclareOptions::default() };
    let declare = channel.queue_declare(name.clone(), flags, arguments);
    live.heard(within(options.call_timeout, "queue.declare", declare).await)
}

async fn bind(
    live: &Live,
    queue: &ShortString,
    exchange: &ShortString,
    key: ShortString,
    options: &RabbitMqOptions,
) -> Result<(), Trouble> {
    let channel = live.channel().await?;
    let flags = QueueBindOptions::default();
    let bind = channel.queue_bind(queue.clone(), exchange.clone(), key, flags, FieldTable::default());
    live.heard(within(options.call_timeout, "queue.bind", bind).await)
}

/// An exchange without a queue would lose them after all.
async fn keep_dead_letters(live: &Live, name: &str, options: &RabbitMqOptions) -> Result<(), Trouble> {
    if live.knows_exchange(name) {
        return Ok(());
    }
    let queue = named(name)?;
    match declare_exchange(live, name, ExchangeKind::Fanout, false, options).await {
        // Somebody has made it to his own liking, and keeps them.
        Err(trouble) if trouble.code == PRECONDITION_FAILED => {}
        answer => {
            answer?;
            let arguments = table([("x-queue-type", text("quorum")), ("x-delivery-limit", unlimited())]);
            declare_queue(live, &queue, false, arguments, options).await?;
            bind(live, &queue, &queue, ShortString::default(), options).await?;
        }
    }
    live.note_exchange(name);
    Ok(())
}

/// The queue where messages wait before they are tried again; tells its name.
/// When their time is over the server moves them back, and forgets them here
/// only when they arrived.
pub(super) async fn retry_queue(
    live: &Live,
    queue: &ShortString,
    seconds: u32,
    options: &RabbitMqOptions,
) -> Result<ShortString, Trouble> {
    let name = named(&format!("{queue}.retry.{seconds}s"))?;
    if options.topology == Topology::Declare && !live.knows_queue(name.as_str()) {
        let arguments = table([
            ("x-queue-type", text("quorum")),
            ("x-delivery-limit", unlimited()),
            ("x-message-ttl", AMQPValue::LongLongInt(i64::from(seconds) * 1_000)),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(queue.as_str())),
            ("x-dead-letter-strategy", text("at-least-once")),
            ("x-overflow", text("reject-publish")),
        ]);
        declare_queue(live, &name, false, arguments, options).await?;
        live.note_queue(name.as_str());
    }
    Ok(name)
}

/// What the queue of a group is made with.
pub(super) fn queue_arguments(options: &RabbitMqOptions) -> FieldTable {
    let limit =
        options.delivery_limit.map_or_else(unlimited, |limit| AMQPValue::LongLongInt(i64::from(limit)));
    let mut arguments = vec![("x-queue-type", text("quorum")), ("x-delivery-limit", limit)];
    if options.is_ordered() {
        arguments.push(("x-single-active-consumer", AMQPValue::Boolean(true)));
    }
    if let Some(name) = options.dead_letter_exchange.as_deref() {
        arguments.push(("x-dead-letter-exchange", text(name)));
        arguments.push(("x-dead-letter-strategy", text("at-least-once")));
    }
    if let Some(limit) = options.queue_limit {
        arguments.push(("x-max-length", AMQPValue::LongLongInt(i64::from(limit))));
    }
    if options.dead_letter_exchange.is_some() || options.queue_limit.is_some() {
        arguments.push(("x-overflow", text("reject-publish")));
    }
    table(arguments)
}

pub(super) fn table<'n>(pairs: impl IntoIterator<Item = (&'n str, AMQPValue)>) -> FieldTable {
    let pairs: BTreeMap<ShortString, AMQPValue> =
        pairs.into_iter().map(|(name, value)| (ShortString::from(name), value)).collect();
    FieldTable::from(pairs)
}

pub(super) fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn unlimited() -> AMQPValue {
    AMQPValue::LongLongInt(i64::from(NO_DELIVERY_LIMIT))
}

fn named(name: &str) -> Result<ShortString, Trouble> {
    short(name).map_err(Trouble::config)
}
