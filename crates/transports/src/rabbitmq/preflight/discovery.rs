//! Finding out over AMQP how a queue or an exchange was made.
//!
//! AMQP has no question for that. But the server compares a declaration of what
//! exists with what it has, and its refusal names the first difference: with
//! that taken over and asked again, each difference in turn comes to light. It
//! needs the right to configure, and is only done to what is known to be there.

use std::collections::BTreeMap;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::super::connection::Live;
use super::super::error::{Trouble, quoted_after, within};
use super::super::options::RabbitMqOptions;
use super::super::topology;
use super::judge::Facts;

/// More differences than there are arguments.
const ROUNDS: usize = 24;
const NUMBERS: [&str; 7] = [
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-delivery-limit",
    "x-max-priority",
    "x-quorum-initial-group-size",
];

/// One declaration after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Guess {
    kind: String,
    is_durable: bool,
    is_auto_delete: bool,
    is_internal: bool,
    arguments: BTreeMap<String, String>,
}

impl Guess {
    /// Takes over the difference a refusal names; false if it names none.
    fn learn(&mut self, refusal: &str) -> bool {
        let Some(name) = quoted_after(refusal, "inequivalent arg") else { return false };
        let Some((_, current)) = refusal.split_once("but current is") else { return false };
        let value = current.split('\'').nth(1).unwrap_or_default().to_owned();
        match name {
            "durable" => self.is_durable = value == "true",
            "auto_delete" => self.is_auto_delete = value == "true",
            "internal" => self.is_internal = value == "true",
            "type" => self.kind = value,
            name if current.trim_start().starts_with("none") => return self.arguments.remove(name).is_some(),
            name => return self.arguments.insert(name.to_owned(), value.clone()) != Some(value),
        }
        true
    }

    fn table(&self) -> FieldTable {
        topology::table(self.arguments.iter().map(|(name, value)| (name.as_str(), argument(name, value))))
    }

    fn facts(self, name: &str) -> Facts {
        Facts {
            name: name.to_owned(),
            is_transient: !self.is_durable,
            is_auto_delete: self.is_auto_delete,
            is_internal: self.is_internal,
            arguments: self.arguments,
            ..Facts::default()
        }
    }
}

fn argument(name: &str, value: &str) -> AMQPValue {
    match value.parse() {
        Ok(number) if NUMBERS.contains(&name) => AMQPValue::LongLongInt(number),
        _ if name == "x-single-active-consumer" => AMQPValue::Boolean(value == "true"),
        _ => topology::text(value),
    }
}

/// How a queue that exists was made.
pub(super) async fn queue(
    live: &Live,
    name: &ShortString,
    options: &RabbitMqOptions,
) -> Result<Facts, Trouble> {
    let arguments = topology::queue_arguments(options);
    let arguments = arguments.inner().iter().map(|(name, value)| (name.to_string(), spoken(value)));
    let mut guess = Guess {
        kind: String::new(),
        is_durable: true,
        is_auto_delete: false,
        is_internal: false,
        arguments: arguments.collect(),
    };
    for _ in 0..ROUNDS {
        let channel = live.channel().await?;
        let flags = QueueDeclareOptions {
            durable: guess.is_durable,
            auto_delete: guess.is_auto_delete,
            ..QueueDeclareOptions::default()
        };
        let declare = channel.queue_declare(name.clone(), flags, guess.table());
        match live.heard(within(options.call_timeout, "queue.declare", declare).await) {
            Ok(_) => return Ok(guess.facts(name.as_str())),
            Err(trouble) if guess.learn(&trouble.text) => {}
            Err(trouble) => return Err(trouble),
        }
    }
    Err(Trouble::config("it changes while it is looked at"))
}

/// How an exchange that exists was made.
pub(super) async fn exchange(
    live: &Live,
    name: &ShortString,
    options: &RabbitMqOptions,
) -> Result<Facts, Trouble> {
    let mut guess = Guess {
        kind: "topic".into(),
        is_durable: true,
        is_auto_delete: false,
        is_internal: false,
        arguments: BTreeMap::new(),
    };
    for _ in 0..ROUNDS {
        let channel = live.channel().await?;
        let flags = ExchangeDeclareOptions {
            durable: guess.is_durable,
            auto_delete: guess.is_auto_delete,
            internal: guess.is_internal,
            ..ExchangeDeclareOptions::default()
        };
        let kind = ExchangeKind::Custom(guess.kind.clone());
        let declare = channel.exchange_declare(name.clone(), kind, flags, guess.table());
        match live.heard(within(options.call_timeout, "exchange.declare", declare).await) {
            Ok(()) => return Ok(guess.facts(name.as_str())),
            Err(trouble) if guess.learn(&trouble.text) => {}
            Err(trouble) => return Err(trouble),
        }
    }
    Err(Trouble::config("it changes while it is looked at"))
}

fn spoken(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => text.to_string(),
        AMQPValue::LongLongInt(number) => number.to_string(),
        AMQPValue::Boolean(value) => value.to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_teaches_one_difference() {
        let mut guess = Guess {
            kind: "topic".into(),
            is_durable: true,
            is_auto_delete: false,
            is_internal: false,
            arguments: BTreeMap::from([("x-queue-type".into(), "quorum".into())]),
        };
        let said = |text: &str| format!("PRECONDITION_FAILED - inequivalent arg {text}");
        let lines = [
            said("'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
            said(
                "'x-queue-type' for queue 'q' in vhost '/': received the value 'quorum' of type 'longstr' but current is none",
            ),
            said(
                "'x-message-ttl' for queue 'q' in vhost '/': received none but current is the value '1000' of type 'signedint'",
            ),
            said("'type' for exchange 'e' in vhost '/': received 'topic' but current is 'fanout'"),
        ];

        assert!(lines.iter().all(|line| guess.learn(line)));

        let arguments = BTreeMap::from([("x-message-ttl".to_owned(), "1000".to_owned())]);
        let learnt = Guess {
            kind: "fanout".into(),
            is_durable: false,
            is_auto_delete: false,
            is_internal: false,
            arguments,
        };
        assert_eq!(guess, learnt);
        assert!(!guess.learn(&lines[2]), "the same answer again teaches nothing");
        assert!(!guess.learn("ACCESS_REFUSED - access to queue 'q' in vhost '/' refused"));
    }
}
