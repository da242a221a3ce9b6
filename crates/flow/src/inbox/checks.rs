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
