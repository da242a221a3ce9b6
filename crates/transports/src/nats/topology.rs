//! Streams and durable consumers: found, or made where that is allowed.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PriorityPolicy, pull};
use async_nats::jetstream::context::{
    ConsumerInfoErrorKind, CreateStreamErrorKind, GetStreamByNameErrorKind,
};
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{ErrorCode, consumer};
use oncebox_core::{Digest, Error, Kind, Result};

use super::connection::Live;
use super::error::unavailable;
use super::options::{NatsOptions, Topology};

/// How long a declared stream recognises a message that is sent again.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// The group of a consumer that serves one member at a time. One is all a server allows.
pub(super) const PINNED_GROUP: &str = "oncebox";
/// A pinned member that asks for nothing for this long loses its place.
pub(super) const PIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Subjects whose stream is known to exist; beyond that many they are looked up again.
const MAX_KNOWN: usize = 10_000;
/// The longest name of a stream or consumer that is made here.
const MAX_NAME: usize = 100;

/// The subjects that a stream was found for.
#[derive(Debug, Default)]
pub(super) struct Known {
    subjects: Mutex<HashSet<String>>,
}

impl Known {
    pub(super) fn contains(&self, subject: &str) -> bool {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner).contains(subject)
    }

    pub(super) fn add(&self, subject: &str) {
        let mut subjects = self.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        if subjects.len() >= MAX_KNOWN {
            subjects.clear();
        }
        subjects.insert(subject.to_owned());
    }

    pub(super) fn remove(&self, subject: &str) {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner).remove(subject);
    }
}

/// The name of the stream that takes `subject`, if there is one.
pub(super) async fn find_stream(live: &Live, subject: &str) -> Result<Option<String>> {
    match live.api.stream_by_subject(subject).await {
        Ok(name) => Ok(Some(name)),
        Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == GetStreamByNameErrorKind::InvalidSubject => {
            Err(Error::new(Kind::Config, format!("{subject} is no subject")).because(error))
        }
        Err(error) => Err(unavailable(format!("cannot look up the stream of {subject}"), error)),
    }
}

/// The name of the stream that takes `subject`, made if that is allowed.
///
/// # Errors
/// [`Kind::Config`] if there is none, [`Kind::Unavailable`] if nobody answers.
pub(super) async fn ensure_stream(live: &Live, options: &NatsOptions, subject: &str) -> Result<String> {
    if let Some(name) = find_stream(live, subject).await? {
        return Ok(name);
    }
    if options.streams == Topology::Check {
        return Err(Error::new(Kind::Config, format!("no stream takes the subject {subject}")));
    }
    let config = stream_config(options, subject);
    let name = config.name.clone();
    match live.api.create_stream(config).await {
        Ok(_) => Ok(name),
        Err(error) => {
            // Another process may have made it in the meantime.
            if let Some(name) = find_stream(live, subject).await? {
                return Ok(name);
            }
            let kind = match error.kind() {
                CreateStreamErrorKind::JetStream(_) => Kind::Config,
                _ => Kind::Unavailable,
            };
            Err(Error::new(kind, format!("cannot make the stream {name} for {subject}")).because(error))
        }
    }
}

/// A stream that keeps what it confirmed: on disk, refusing what it has no room for.
fn stream_config(options: &NatsOptions, subject: &str) -> stream::Config {
    let prefix_tokens = options.prefix.split('.').filter(|token| !token.is_empty()).count();
    let root: Vec<&str> = subject.split('.').take(prefix_tokens + 1).collect();
    let root = root.join(".");
    stream::Config {
        name: safe_name(&root.to_uppercase()),
        subjects: vec![root.clone(), format!("{root}.>")],
        storage: StorageType::File,
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        num_replicas: options.replicas,
        duplicate_window: DUPLICATE_WINDOW,
        allow_direct: true,
        description: Some("made by oncebox".into()),
        ..stream::Config::default()
    }
}

/// A name the server accepts. What cannot be in a name is replaced, and what
/// was replaced or is too long is told apart by a digest.
fn safe_name(text: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let replaced: String = text.chars().map(|c| if is_safe(c) { c } else { '_' }).collect();
    if replaced == text && text.len() <= MAX_NAME {
        return replaced;
    }
    let kept: String = replaced.chars().take(MAX_NAME).collect();
    let digest: String = Digest::of(text.as_bytes()).to_string().chars().take(8).collect();
    format!("{kept}-{digest}")
}

/// What a group on a destination is called.
pub(super) fn durable_name(group: &str, subject: &str) -> String {
    safe_name(&format!("{group}-{subject}"))
}

/// Whom a consumer serves, as far as this needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Durable {
    pub(super) stream: String,
    pub(super) name: String,
    pub(super) ack_wait: Duration,
    /// After so many deliveries the server gives a message up; 0 if it never does.
    pub(super) max_deliver: u64,
    pub(super) is_pinned: bool,
}

impl Durable {
    fn of(info: &consumer::Info) -> Self {
        Self {
            stream: info.stream_name.clone(),
            name: info.name.clone(),
            ack_wait: info.config.ack_wait,
            max_deliver: u64::try_from(info.config.max_deliver).unwrap_or_default(),
            is_pinned: info.config.priority_policy == PriorityPolicy::PinnedClient,
        }
    }
}

/// The durable consumer of `group` on `subject`, made if that is allowed.
///
/// # Errors
/// As [`ensure_stream`]; also [`Kind::Config`] if the consumer that is there
/// would lose or reorder messages.
pub(super) async fn ensure_consumer(
    live: &Live,
    options: &NatsOptions,
    subject: &str,
    group: &str,
) -> Result<Durable> {
    let stream = ensure_stream(live, options, subject).await?;
    let name = durable_name(group, subject);
    let handle = live
        .api
        .get_stream_no_info(&stream)
        .await
        .map_err(|error| unavailable(format!("cannot use the stream {stream}"), error))?;
    let info = match handle.consumer_info(&name).await {
        Ok(info) => info,
        Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {
            if options.consumers == Topology::Check {
                return Err(Error::new(Kind::Config, format!("the stream {stream} has no consumer {name}")));
            }
            let config = consumer_config(options, subject, name.clone(), Abilities::of(live));
            let made = handle.create_consumer(config).await.map_err(|error| {
                let kind = match error.kind() {
                    stream::ConsumerErrorKind::JetStream(_) => Kind::Config,
                    _ => Kind::Unavailable,
                };
                Error::new(kind, format!("cannot make the consumer {name} on {stream}")).because(error)
            })?;
            made.cached_info().clone()
        }
        Err(error) => {
            return Err(unavailable(format!("cannot look up the consumer {name} on {stream}"), error));
        }
    };
    check_consumer(&info.config, options.is_ordered())
        .map_err(|problem| Error::new(Kind::Config, format!("the consumer {name} on {stream} {problem}")))?;
    Ok(Durable::of(&info))
}

/// What consumers of the server can do.
#[derive(Clone, Copy)]
struct Abilities {
    /// Serve one member of several (2.11).
    has_pins: bool,
    /// Filter on more than one subject (2.10).
    has_filters: bool,
}

impl Abilities {
    fn of(live: &Live) -> Self {
        let is_at_least = |minor| live.client.is_server_compatible(2, minor, 0);
        Self { has_pins: is_at_least(11), has_filters: is_at_least(10) }
    }
}

fn consumer_config(options: &NatsOptions, subject: &str, name: String, abilities: Abilities) -> pull::Config {
    let prefetch = i64::try_from(options.prefetch).unwrap_or(i64::MAX);
    let mut config = pull::Config {
        durable_name: Some(name.clone()),
        name: Some(name),
        description: Some("made by oncebox".into()),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: options.ack_wait,
        // Giving up is the inbox's to decide, and it keeps what it buries.
        max_deliver: -1,
        max_ack_pending: prefetch,
        ..pull::Config::default()
    };
    if abilities.has_filters {
        config.filter_subjects = vec![subject.to_owned(), format!("{subject}.>")];
    } else {
        config.filter_subject = subject.to_owned();
    }
    if options.is_ordered() {
        if abilities.has_pins {
            config.priority_policy = PriorityPolicy::PinnedClient;
            config.priority_groups = vec![PINNED_GROUP.into()];
            config.priority_timeout = PIN_TIMEOUT;
        } else {
            // Older servers cannot serve one member alone; one message at a
            // time keeps the order whoever gets it, at the price of speed.
            config.max_ack_pending = 1;
        }
    }
    config
}

fn check_consumer(config: &consumer::Config, is_ordered: bool) -> Result<(), &'static str> {
    if config.deliver_subject.is_some() {
        return Err("pushes instead of being pulled from");
    }
    if config.ack_policy != AckPolicy::Explicit {
        return Err("does not wait for an acknowledgement of each message");
    }
    if config.headers_only {
        return Err("delivers headers only");
    }
    let is_pinned = config.priority_policy == PriorityPolicy::PinnedClient;
    let group = config.priority_groups.first().map(String::as_str);
    if is_pinned && group != Some(PINNED_GROUP) {
        return Err("is pinned to a group that is not called oncebox");
    }
    if is_ordered && !is_pinned && config.max_ack_pending != 1 {
        return Err(
            "keeps no order: it is neither pinned to one client nor limited to one message at a time",
        );
    }
    Ok(())
}

/// Whether an error of the server means that what was asked for is not there.
pub(super) fn is_missing(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::NO_MESSAGE_FOUND | ErrorCode::SEQUENCE_NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use oncebox_core::Order;

    use super::*;

    fn options() -> NatsOptions {
        NatsOptions::from_url("nats://localhost").unwrap()
    }

    #[test]
    fn a_declared_stream_is_named_after_the_first_token_and_loses_nothing() {
        let config = stream_config(&options(), "orders.eu.placed");

        assert_eq!(config.name, "ORDERS");
        assert_eq!(config.subjects, ["orders", "orders.>"]);
        assert_eq!((config.storage, config.discard), (StorageType::File, DiscardPolicy::New));
    }

    #[test]
    fn the_prefix_is_part_of_the_stream() {
        let config = stream_config(&options().prefix("prod.eu"), "prod.eu.orders.placed");

        assert!(config.name.starts_with("PROD_EU_ORDERS-"), "{}", config.name);
        assert_eq!(config.subjects, ["prod.eu.orders", "prod.eu.orders.>"]);
    }

    #[test]
    fn names_the_server_would_refuse_stay_apart() {
        let (dotted, scored) = (durable_name("a.b", "s"), durable_name("a_b", "s"));
        let long = durable_name(&"x".repeat(300), "s");

        assert_ne!(dotted, scored);
        assert_eq!(scored, "a_b-s");
        assert!(long.len() < 120 && !dotted.contains('.'), "{long} {dotted}");
        assert_ne!(long, durable_name(&"x".repeat(301), "s"));
    }

    #[test]
    fn an_ordered_group_is_pinned_or_takes_one_message_at_a_time() {
        let ordered = options().order(Order::SingleActive);

        let (all, none) = (
            Abilities { has_pins: true, has_filters: true },
            Abilities { has_pins: false, has_filters: false },
        );

        let new = consumer_config(&ordered, "s", "n".into(), all);
        let old = consumer_config(&ordered, "s", "n".into(), none);
        let shared = consumer_config(&options(), "s", "n".into(), all);

        assert_eq!((new.priority_policy, new.max_ack_pending), (PriorityPolicy::PinnedClient, 100));
        assert_eq!((old.priority_policy, old.max_ack_pending), (PriorityPolicy::None, 1));
        assert_eq!((shared.priority_policy, shared.max_deliver), (PriorityPolicy::None, -1));
        assert_eq!(new.filter_subjects, ["s", "s.>"]);
        assert_eq!((old.filter_subject.as_str(), old.filter_subjects.len()), ("s", 0));
    }

    #[test]
    fn a_consumer_that_would_lose_or_reorder_is_refused() {
        let good = consumer::Config { ack_policy: AckPolicy::Explicit, ..consumer::Config::default() };
        let pinned = consumer::Config {
            priority_policy: PriorityPolicy::PinnedClient,
            priority_groups: vec![PINNED_GROUP.into()],
            ..good.clone()
        };

        assert!(check_consumer(&good, false).is_ok());
        assert!(check_consumer(&good, true).is_err());
        assert!(check_consumer(&pinned, true).is_ok());
        assert!(check_consumer(&consumer::Config { max_ack_pending: 1, ..good.clone() }, true).is_ok());
        for ack_policy in [AckPolicy::None, AckPolicy::All] {
            assert!(check_consumer(&consumer::Config { ack_policy, ..good.clone() }, false).is_err());
        }
    }
}
