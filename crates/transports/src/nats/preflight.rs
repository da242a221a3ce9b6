//! What a stream would do to the messages sent to it, found out beforehand.

use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy};
use async_nats::jetstream::stream::{Config, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType};
use futures_util::StreamExt;
use oncebox_core::{Error, Finding, Grade, Inspection, Kind, Preflight, Result};
use tokio::time::timeout;

use super::connection::{API_TIMEOUT, Live};
use super::error::unavailable;
use super::topology::find_stream;
use super::{Nats, Topology, wire};

/// The most consumers of a stream that are looked at.
const MAX_CONSUMERS: usize = 1_000;
/// A relay that comes back after a crash sends again what it cannot know was
/// stored; a window shorter than this may not recognise it.
const SHORT_WINDOW: Duration = Duration::from_secs(60);

impl Preflight for Nats {
    async fn inspect(&self, destinations: &[String], horizon: Duration) -> Result<Vec<Inspection>> {
        let live = self.inner.publishing.live().await?;
        let mut inspections = Vec::with_capacity(destinations.len());
        for destination in destinations {
            let findings = match self.look_at(&live, destination, horizon).await {
                // It concerns this destination only; the others are still worth a look.
                Err(error) if error.kind() == Kind::Config => {
                    let reason = format!("it cannot be looked at: {}", error.chain());
                    vec![Finding::new(Grade::F, reason, "change its name or its stream")]
                }
                found => found?,
            };
            inspections.push(Inspection { destination: destination.clone(), transport: "nats", findings });
        }
        Ok(inspections)
    }
}

impl Nats {
    async fn look_at(&self, live: &Live, destination: &str, horizon: Duration) -> Result<Vec<Finding>> {
        let options = &self.inner.options;
        let subject = match wire::subject(&options.prefix, destination) {
            Ok(subject) => subject,
            Err(problem) => {
                let advice = "name a subject without spaces, wildcards and empty tokens";
                return Ok(vec![Finding::new(Grade::F, problem, advice)]);
            }
        };
        let server = live.client.server_info();
        if !server.jetstream {
            let advice = "enable JetStream on the server";
            return Ok(vec![Finding::new(
                Grade::F,
                "the server stores nothing: it has no JetStream",
                advice,
            )]);
        }
        let Some(name) = find_stream(live, &subject).await? else {
            let reason = format!("no stream takes the subject {subject}");
            return Ok(vec![match options.streams {
                Topology::Check => Finding::new(Grade::F, reason, "create a stream for it"),
                Topology::Declare => Finding::new(Grade::A, reason, "it will be made at the first message"),
            }]);
        };
        let stream = live.api.get_stream(&name).await;
        let stream =
            stream.map_err(|error| unavailable(format!("cannot look at the stream {name}"), error))?;
        let consumers = timeout(API_TIMEOUT, async {
            stream.consumers().take(MAX_CONSUMERS).filter_map(|found| async { found.ok() }).collect().await
        });
        let consumers: Vec<consumer::Info> = consumers
            .await
            .map_err(|_| Error::new(Kind::Unavailable, format!("cannot list the consumers of {name}")))?;
        let set_up = SetUp {
            subject: &subject,
            stream: &stream.cached_info().config,
            consumers: consumers.iter().map(|info| &info.config).collect(),
            is_cluster: server.cluster.is_some(),
            max_payload: server.max_payload,
            largest_message: options.largest_message,
            horizon,
        };
        Ok(set_up.findings())
    }
}

/// Everything that is known about a destination.
struct SetUp<'s> {
    subject: &'s str,
    stream: &'s Config,
    consumers: Vec<&'s consumer::Config>,
    is_cluster: bool,
    max_payload: usize,
    largest_message: usize,
    horizon: Duration,
}

impl SetUp<'_> {
    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.check_storage(&mut findings);
        self.check_limits(&mut findings);
        self.check_consumers(&mut findings);
        findings
    }

    /// Whether what is stored is confirmed and stays.
    fn check_storage(&self, findings: &mut Vec<Finding>) {
        let (stream, name) = (self.stream, &self.stream.name);
        let mut find =
            |grade, reason: String, advice: &str| findings.push(Finding::new(grade, reason, advice));
        if stream.no_ack {
            find(Grade::F, format!("the stream {name} confirms nothing (no_ack)"), "turn no_ack off");
        }
        if stream.sealed {
            find(Grade::F, format!("the stream {name} is sealed"), "use a stream that takes messages");
        }
        if stream.mirror.is_some() {
            find(Grade::F, format!("the stream {name} is a mirror"), "publish to the stream it mirrors");
        }
        if stream.storage == StorageType::Memory {
            find(Grade::D, format!("the stream {name} is kept in memory"), "use file storage");
        }
        if stream.persist_mode == Some(PersistenceMode::Async) {
            let reason = format!("the stream {name} confirms before it has written");
            find(Grade::D, reason, "use the default persist mode");
        }
        if self.is_cluster && stream.num_replicas <= 1 {
            let reason = format!("the stream {name} is on one node of the cluster");
            find(Grade::B, reason, "use 3 replicas");
        }
        if stream.duplicate_window < SHORT_WINDOW {
            let reason = format!(
                "the stream {name} recognises what is sent again for {:?} only",
                stream.duplicate_window
            );
            find(Grade::A, reason, "a longer window saves consumers some duplicates");
        }
    }

    /// Whether a limit drops what was confirmed, or refuses what is sent.
    fn check_limits(&self, findings: &mut Vec<Finding>) {
        let (stream, name) = (self.stream, &self.stream.name);
        let mut find =
            |grade, reason: String, advice: &str| findings.push(Finding::new(grade, reason, advice));
        if stream.discard == DiscardPolicy::Old && (stream.max_messages > 0 || stream.max_bytes > 0) {
            let reason = format!(
                "the stream {name} drops its oldest messages when it is full ({} messages, {} bytes)",
                stream.max_messages, stream.max_bytes
            );
            find(Grade::C, reason, "use discard new: the relay waits until there is room");
        }
        let refuses_per_subject = stream.discard == DiscardPolicy::New && stream.discard_new_per_subject;
        if stream.max_messages_per_subject > 0 && !refuses_per_subject {
            let reason = format!(
                "the stream {name} keeps only the last {} messages of a subject",
                stream.max_messages_per_subject
            );
            find(Grade::C, reason, "remove max_msgs_per_subject");
        }
        if !stream.max_age.is_zero() && stream.max_age < self.horizon {
            let reason = format!(
                "the stream {name} drops messages after {:?}, they may have to wait {:?}",
                stream.max_age, self.horizon
            );
            find(Grade::C, reason, "raise max_age above the time a consumer may be away");
        }
        let stream_limit = usize::try_from(stream.max_message_size).unwrap_or_default();
        if stream_limit > 0 && stream_limit < self.largest_message {
            let reason = format!(
                "the stream {name} refuses messages above {stream_limit} bytes, {} are allowed",
                self.largest_message
            );
            find(Grade::B, reason, "raise max_msg_size, or lower the limit of the route");
        }
        if self.max_payload < self.largest_message {
            let reason = format!(
                "the server refuses messages above {} bytes, {} are allowed",
                self.max_payload, self.largest_message
            );
            find(Grade::B, reason, "raise max_payload, or lower the limit of the route");
        }
    }

    /// Whether whoever reads the stream makes it lose messages.
    fn check_consumers(&self, findings: &mut Vec<Finding>) {
        let (stream, name) = (self.stream, &self.stream.name);
        let mut find =
            |grade, reason: String, advice: &str| findings.push(Finding::new(grade, reason, advice));
        let readers: Vec<&&consumer::Config> =
            self.consumers.iter().filter(|config| reads(config, self.subject)).collect();
        match stream.retention {
            // One without a name is gone, and its interest with it, when it goes away.
            RetentionPolicy::Interest if !readers.iter().any(|config| config.durable_name.is_some()) => {
                let reason = format!(
                    "the stream {name} drops at once what no consumer asks for, and no durable one asks for {}",
                    self.subject
                );
                find(Grade::F, reason, "create the consumer first, or use limits retention");
            }
            RetentionPolicy::WorkQueue if readers.is_empty() => {
                let reason = format!("no consumer takes {} from the work queue {name} yet", self.subject);
                find(Grade::A, reason, "messages wait for the first one");
            }
            _ => {}
        }
        // A consumer without a name is somebody looking on.
        for config in readers.into_iter().filter(|config| config.durable_name.is_some()) {
            let consumer = config.durable_name.as_deref().unwrap_or_default();
            if config.ack_policy == AckPolicy::None {
                let is_removed = stream.retention != RetentionPolicy::Limits;
                let grade = if is_removed { Grade::F } else { Grade::B };
                let reason = format!("the consumer {consumer} of {name} acknowledges nothing");
                find(grade, reason, "use explicit acknowledgements");
            }
            if config.max_deliver > 0 {
                // It tells so once, to whoever listens at that moment.
                let reason = format!(
                    "the consumer {consumer} of {name} gives up on a message after {} deliveries, \
                     and nobody hears of it while no feed is open",
                    config.max_deliver
                );
                find(Grade::D, reason, "set max_deliver to -1: the inbox decides and keeps what it buries");
            }
        }
    }
}

/// Whether a consumer is delivered what is published to `subject`.
fn reads(config: &consumer::Config, subject: &str) -> bool {
    let mut filters =
        config.filter_subjects.iter().chain(Some(&config.filter_subject)).filter(|f| !f.is_empty());
    let Some(first) = filters.next() else { return true };
    covers(first, subject) || filters.any(|filter| covers(filter, subject))
}

/// Whether `subject` matches `filter`.
fn covers(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for part in filter.split('.') {
        match (part, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (part, Some(token)) if part == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn safe() -> Config {
        Config {
            name: "ORDERS".into(),
            discard: DiscardPolicy::New,
            num_replicas: 1,
            duplicate_window: Duration::from_secs(120),
            ..Config::default()
        }
    }

    fn reader() -> consumer::Config {
        consumer::Config {
            durable_name: Some("billing".into()),
            ack_policy: AckPolicy::Explicit,
            filter_subjects: vec!["orders".into(), "orders.>".into()],
            max_deliver: -1,
            ..consumer::Config::default()
        }
    }

    fn grade(stream: &Config, consumers: &[consumer::Config]) -> (Grade, Vec<String>) {
        let set_up = SetUp {
            subject: "orders.eu",
            stream,
            consumers: consumers.iter().collect(),
            is_cluster: false,
            max_payload: 1 << 20,
            largest_message: 1 << 20,
            horizon: Duration::from_secs(86_400),
        };
        let findings = set_up.findings();
        let grade = findings.iter().map(|finding| finding.grade).max().unwrap_or(Grade::A);
        (grade, findings.into_iter().map(|finding| finding.reason).collect())
    }

    #[test]
    fn a_safe_stream_leaves_nothing_to_say() {
        assert_eq!(grade(&safe(), &[reader()]), (Grade::A, vec![]));
        let refusing = Config { max_messages: 10, max_bytes: 1_000, ..safe() };
        assert_eq!(grade(&refusing, &[]), (Grade::A, vec![]));
        let patient = Config { max_age: Duration::from_secs(86_400), ..safe() };
        assert_eq!(grade(&patient, &[]), (Grade::A, vec![]));
    }

    #[test]
    fn every_unsafe_set_up_has_its_grade_and_a_reason() {
        let table: [(Grade, &str, Config); 12] = [
            (Grade::F, "confirms nothing", Config { no_ack: true, ..safe() }),
            (Grade::F, "sealed", Config { sealed: true, ..safe() }),
            (Grade::D, "in memory", Config { storage: StorageType::Memory, ..safe() }),
            (
                Grade::D,
                "before it has written",
                Config { persist_mode: Some(PersistenceMode::Async), ..safe() },
            ),
            (Grade::C, "drops its oldest", Config { discard: DiscardPolicy::Old, max_messages: 3, ..safe() }),
            (Grade::C, "drops its oldest", Config { discard: DiscardPolicy::Old, max_bytes: 3, ..safe() }),
            (Grade::C, "the last 1 messages of a subject", Config { max_messages_per_subject: 1, ..safe() }),
            (Grade::C, "drops messages after", Config { max_age: Duration::from_secs(3600), ..safe() }),
            (Grade::B, "refuses messages above 1000", Config { max_message_size: 1_000, ..safe() }),
            (
                Grade::F,
                "drops at once what no consumer asks for",
                Config { retention: RetentionPolicy::Interest, ..safe() },
            ),
            (
                Grade::A,
                "no consumer takes orders.eu",
                Config { retention: RetentionPolicy::WorkQueue, ..safe() },
            ),
            (
                Grade::A,
                "recognises what is sent again",
                Config { duplicate_window: Duration::from_secs(1), ..safe() },
            ),
        ];

        for (expected, reason, stream) in table {
            let (grade, reasons) = grade(&stream, &[]);
            assert_eq!(grade, expected, "{reasons:?}");
            assert!(reasons.iter().any(|found| found.contains(reason)), "{reason}: {reasons:?}");
        }
    }

    #[test]
    fn a_careless_consumer_is_found_and_an_onlooker_is_not() {
        let none = consumer::Config { ack_policy: AckPolicy::None, ..reader() };
        let onlooker = consumer::Config { durable_name: None, ..none.clone() };
        let elsewhere = consumer::Config { filter_subjects: vec!["invoices.>".into()], ..none.clone() };
        let limited = consumer::Config { max_deliver: 5, ..reader() };
        let interest = Config { retention: RetentionPolicy::Interest, ..safe() };

        assert_eq!(grade(&safe(), std::slice::from_ref(&none)).0, Grade::B);
        assert_eq!(grade(&interest, &[none]).0, Grade::F);
        assert_eq!(grade(&safe(), &[onlooker, elsewhere]).0, Grade::A);
        assert_eq!(grade(&safe(), &[limited]).0, Grade::D);
        assert_eq!(grade(&interest, &[reader()]).0, Grade::A);
        let passing = consumer::Config { durable_name: None, ..reader() };
        assert_eq!(grade(&interest, &[passing]).0, Grade::F);
    }

    #[test]
    fn filters_match_as_the_server_matches_them() {
        for (filter, subject, expected) in [
            ("orders", "orders", true),
            ("orders.>", "orders.eu", true),
            ("orders.>", "invoices.eu", false),
            ("orders.>", "orders", false),
            ("*.eu", "orders.eu", true),
            ("*", "orders.eu", false),
            ("orders.eu.new", "orders.eu", false),
            (">", "orders", true),
        ] {
            assert_eq!(covers(filter, subject), expected, "{filter} {subject}");
        }
    }
}
