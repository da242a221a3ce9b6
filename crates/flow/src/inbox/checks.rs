//! Settings that could not be kept are refused when an inbox is built.

use std::collections::BTreeMap;
use std::time::Duration;

use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{Error, HandlerKey, Kind, Result};

use super::{HandlerOptions, InboxOptions};

/// The longest scope: it is part of every marker's name.
const MAX_SCOPE: usize = 100;

fn refused(reason: impl Into<String>) -> Error {
    Error::new(Kind::Config, reason.into())
}

/// The keys of all handlers, present and former.
#[derive(Default)]
pub(super) struct Names(BTreeMap<HandlerKey, HandlerKey>);

impl Names {
    pub(super) fn add(&mut self, key: HandlerKey, legacy: &[HandlerKey]) -> Result<()> {
        for name in std::iter::once(key).chain(legacy.iter().copied()) {
            if let Some(other) = self.0.insert(name, key) {
                return Err(refused(match (name == key, other == name) {
                    (true, true) => format!("two handlers have the key {name}"),
                    (true, false) => {
                        format!(
                            "the key {name} is a former key of handler {other}: its messages would go to both"
                        )
                    }
                    (false, _) => format!(
                        "the former key {name} of handler {key} belongs to handler {other}: its messages would go to both"
                    ),
                }));
            }
        }
        Ok(())
    }
}

pub(super) fn inbox(scope: &str, options: &InboxOptions) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    if scope.len() > MAX_SCOPE || !scope.chars().all(is_plain) {
        return Err(refused(format!(
            "the scope {scope:?} must have at most {MAX_SCOPE} characters, all of a-z 0-9 . _ -"
        )));
    }
    positive("timeout", options.timeout)?;
    retry(&options.retry)
}

pub(super) fn handler(key: HandlerKey, options: &HandlerOptions, inbox: &InboxOptions) -> Result<()> {
    let (kept, horizon) = (options.retention, inbox.redelivery_horizon);
    if kept < horizon {
        return Err(refused(format!(
            "handler {key} keeps its markers for {kept:?}, but messages may be redelivered for {horizon:?}: \
             raise the handler's retention, or lower `redelivery_horizon` if the transport really gives up earlier"
        )));
    }
    let named = |error: Error| refused(format!("handler {key}: {error}"));
    options.timeout.map_or(Ok(()), |timeout| positive("timeout", timeout)).map_err(named)?;
    options.retry.as_ref().map_or(Ok(()), retry).map_err(named)?;
    options.rate.map_or(Ok(()), |rate| rate.check()).map_err(named)?;
    options.breaker.map_or(Ok(()), |breaker| breaker.check()).map_err(named)?;
    if options.concurrency == Some(0) {
        return Err(refused(format!("handler {key} could never run with a concurrency of 0")));
    }
    Ok(())
}

fn retry(policy: &RetryPolicy) -> Result<()> {
    if policy.max_attempts == Some(0) {
        return Err(refused("max_attempts counts executions and must be at least 1"));
    }
    Ok(())
}

pub(super) fn positive(name: &str, length: Duration) -> Result<()> {
    if length.is_zero() {
        return Err(refused(format!("`{name}` must be longer than nothing")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oncebox_core::{HandlerError, Kind, Message};
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::inbox::{Inbox, InboxBuilder, WorkOptions, Worker, on};
    use crate::memory::{MemoryStore, MemoryTx};

    #[derive(Serialize, Deserialize)]
    struct Ping;

    impl Message for Ping {
        const NAME: &'static str = "ping";
    }

    async fn done(_: &mut MemoryTx, _: Ping) -> Result<(), HandlerError> {
        Ok(())
    }

    type Builder = InboxBuilder<MemoryStore>;

    fn with(inbox: Builder, key: &'static str, tune: impl Fn(HandlerOptions) -> HandlerOptions) -> Builder {
        inbox.handler_with(on::<Ping, _>(HandlerKey::new(key), done), tune)
    }

    /// Why an inbox with these handlers is refused.
    fn refusal(handlers: impl Fn(Builder) -> Builder) -> String {
        let refused = handlers(Inbox::builder(MemoryStore::new(), "pings").durable()).build().unwrap_err();
        assert_eq!(refused.kind(), Kind::Config);
        refused.to_string()
    }

    #[test]
    fn two_handlers_never_share_a_key_now_or_formerly() {
        let twice = refusal(|inbox| with(with(inbox, "a", |o| o), "a", |o| o));
        let former = refusal(|inbox| with(with(inbox, "a", |o| o), "b", |o| o.legacy("a")));
        let present = refusal(|inbox| with(with(inbox, "b", |o| o.legacy("a")), "a", |o| o));
        let both = refusal(|inbox| with(with(inbox, "b", |o| o.legacy("a")), "c", |o| o.legacy("a")));

        assert!(twice.contains("two handlers have the key a"), "{twice}");
        for text in [former, present, both] {
            assert!(text.contains("would go to both"), "{text}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused_with_the_reason() {
        let second = Duration::from_secs(1);
        let no_retry = RetryPolicy { max_attempts: Some(0), ..RetryPolicy::default() };
        let one = |tune: fn(HandlerOptions) -> HandlerOptions| refusal(move |inbox| with(inbox, "a", tune));

        let refused = refusal(|inbox| with(inbox, "a", |o| o.retry(no_retry.clone())));
        assert!(refused.contains("max_attempts"), "{refused}");
        assert!(one(|o| o.concurrency(0)).contains("never run"));
        assert!(one(|o| o.rate(0, Duration::from_secs(1))).contains("rate"));
        assert!(one(|o| o.breaker(1, Duration::ZERO)).contains("breaker"));
        assert!(one(|o| o.timeout(Duration::ZERO)).contains("timeout"));
        assert!(one(|o| o.retention(Duration::from_secs(3600))).contains("redelivered"));
        assert!(refusal(|inbox| with(inbox.scope("Not Plain"), "a", |o| o)).contains("scope"));
        let receiver = Inbox::builder(MemoryStore::new(), "pings");
        let refused = with(receiver, "a", HandlerOptions::durable).build().unwrap_err();
        assert!(refused.to_string().contains("call `.durable()`"), "{refused}");
        let inbox = with(Inbox::builder(MemoryStore::new(), "pings").durable(), "a", |o| o).build().unwrap();
        for options in [
            WorkOptions { concurrency: 0, ..WorkOptions::default() },
            WorkOptions { batch: 0, ..WorkOptions::default() },
            WorkOptions { poll: Duration::ZERO, ..WorkOptions::default() },
            WorkOptions { lease: Duration::from_millis(1), ..WorkOptions::default() },
        ] {
            assert_eq!(Worker::new(&inbox, options).unwrap_err().kind(), Kind::Config);
        }
        assert!(Worker::new(&inbox, WorkOptions { lease: second, ..WorkOptions::default() }).is_ok());
    }

    #[test]
    #[should_panic(expected = "1 to 128 characters")]
    fn an_empty_key_is_no_key() {
        let _key = HandlerKey::new("");
    }
}
