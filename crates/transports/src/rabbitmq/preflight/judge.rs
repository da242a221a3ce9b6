//! What the set-up of an exchange or a queue means for the messages in it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use oncebox_core::{Finding, Grade};

/// A limit above this is none: nobody delivers a message that often.
const MANY_DELIVERIES: u64 = 1_000_000;
/// The first major version that gives a quorum queue a limit if nobody else does.
const FIRST_WITH_LIMIT: u64 = 4;
/// That limit.
const DEFAULT_DELIVERY_LIMIT: u64 = 20;

/// What is known about an exchange or a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) name: String,
    pub(super) is_transient: bool,
    pub(super) is_auto_delete: bool,
    pub(super) is_exclusive: bool,
    pub(super) is_internal: bool,
    /// By the names they are declared with; those of policies as well.
    pub(super) arguments: BTreeMap<String, String>,
    /// Servers that could keep a copy of it.
    pub(super) nodes: usize,
    /// The server's major version; AMQP does not show it.
    pub(super) major_version: Option<u64>,
}

/// After how many deliveries a queue gives a message up.
enum Limit {
    None,
    After(u64),
    /// A matter of the server's version, which is not known.
    Unseen,
}

impl Facts {
    fn number(&self, name: &str) -> Option<u64> {
        self.arguments.get(name)?.parse().ok()
    }

    fn text(&self, name: &str) -> &str {
        self.arguments.get(name).map_or("", String::as_str)
    }

    fn delivery_limit(&self) -> Limit {
        if self.arguments.contains_key("x-delivery-limit") {
            // One that is negative is how newer servers are told that there is none.
            let limit = self.number("x-delivery-limit").filter(|limit| *limit < MANY_DELIVERIES);
            return limit.map_or(Limit::None, Limit::After);
        }
        match self.major_version {
            _ if self.text("x-queue-type") != "quorum" => Limit::None,
            Some(version) if version < FIRST_WITH_LIMIT => Limit::None,
            Some(_) => Limit::After(DEFAULT_DELIVERY_LIMIT),
            None => Limit::Unseen,
        }
    }
}

pub(super) fn exchange(facts: &Facts) -> Vec<Finding> {
    let name = &facts.name;
    let mut findings = Vec::new();
    if facts.is_internal {
        findings.push(Finding::new(
            Grade::F,
            format!("exchange {name} is internal: nobody may publish to it"),
            "publish to an exchange that is not, and bind this one to it",
        ));
    }
    if facts.is_transient {
        findings.push(Finding::new(
            Grade::D,
            format!(
                "exchange {name} is not durable: it is gone, with its bindings, when the server restarts"
            ),
            "declare it durable",
        ));
    }
    if facts.is_auto_delete {
        findings.push(Finding::new(
            Grade::C,
            format!("exchange {name} is deleted with its last binding, and publishing stops then"),
            "declare it without auto-delete",
        ));
    }
    findings
}

/// `horizon` is how long a message may have to wait for its consumer.
pub(super) fn queue(facts: &Facts, horizon: Duration) -> Vec<Finding> {
    let name = &facts.name;
    let mut findings = Vec::new();
    let mut find = |grade, reason: String, advice: &str| findings.push(Finding::new(grade, reason, advice));
    if facts.is_exclusive {
        find(
            Grade::F,
            format!("queue {name} is exclusive: it is deleted, with what it holds, with its connection"),
            "declare it without exclusive",
        );
    }
    if facts.is_auto_delete {
        find(
            Grade::F,
            format!("queue {name} is deleted, with what it holds, when its last consumer leaves"),
            "declare it without auto-delete",
        );
    }
    if facts.is_transient {
        find(
            Grade::D,
            format!("queue {name} is not durable: it is gone when the server restarts"),
            "declare it durable, or better as a quorum queue",
        );
    }
    let keeps_dead_letters = !facts.text("x-dead-letter-exchange").is_empty();
    let lost = |grade| if keeps_dead_letters { Grade::B } else { grade };
    if let Some(reason) = expiry(facts, "x-message-ttl", horizon) {
        let reason = format!("queue {name} drops messages after {reason}");
        find(lost(Grade::C), reason, "remove the time to live, or give the queue a dead-letter exchange");
    }
    if let Some(reason) = expiry(facts, "x-expires", horizon) {
        let reason = format!("queue {name} is deleted, with what it holds, when it is unused for {reason}");
        find(Grade::C, reason, "remove the expiry");
    }
    let has_limit = ["x-max-length", "x-max-length-bytes"].iter().any(|limit| facts.number(limit).is_some());
    if has_limit && !facts.text("x-overflow").starts_with("reject-publish") {
        let reason = format!("queue {name} drops its oldest messages when it is full");
        find(lost(Grade::C), reason, "set its overflow to reject-publish");
    }
    match facts.delivery_limit() {
        Limit::After(limit) if !keeps_dead_letters => {
            let reason =
                format!("queue {name} drops a message that was delivered {limit} times without an answer");
            find(Grade::C, reason, "give it a dead-letter exchange, or a limit nobody reaches");
        }
        Limit::Unseen if !keeps_dead_letters => {
            let reason = format!(
                "queue {name} sets no delivery limit: servers from {FIRST_WITH_LIMIT}.0 on drop a message \
                 that was delivered {DEFAULT_DELIVERY_LIMIT} times"
            );
            find(Grade::B, reason, "give it a dead-letter exchange or a limit, or give the management API");
        }
        _ => {}
    }
    if facts.nodes > 1 && facts.text("x-queue-type") != "quorum" {
        let reason = format!("queue {name} is kept by one of {} servers", facts.nodes);
        find(Grade::B, reason, "make it a quorum queue");
    }
    findings
}

/// A time that ends within the horizon, for people.
fn expiry(facts: &Facts, argument: &str, horizon: Duration) -> Option<String> {
    let span = Duration::from_millis(facts.number(argument)?);
    (span < horizon).then(|| format!("{span:?}, and one may have to wait for {horizon:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: Duration = Duration::from_secs(3_600);

    fn with(arguments: &[(&str, &str)]) -> Facts {
        let arguments = arguments.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Facts { name: "q".into(), arguments, ..Facts::default() }
    }

    fn grade(facts: &Facts) -> Grade {
        queue(facts, HORIZON).iter().map(|finding| finding.grade).max().unwrap_or(Grade::A)
    }

    #[test]
    fn every_unsafe_queue_has_its_grade() {
        let quorum = ("x-queue-type", "quorum");
        let dead = ("x-dead-letter-exchange", "dlx");
        let plain = with(&[]);
        let rows = [
            (with(&[quorum, ("x-delivery-limit", "1073741824")]), Grade::A),
            (plain.clone(), Grade::A),
            (Facts { is_exclusive: true, ..plain.clone() }, Grade::F),
            (Facts { is_auto_delete: true, ..plain.clone() }, Grade::F),
            (Facts { is_transient: true, ..plain.clone() }, Grade::D),
            (with(&[("x-message-ttl", "1000")]), Grade::C),
            (with(&[("x-message-ttl", "1000"), dead]), Grade::B),
            (with(&[("x-message-ttl", "3600000")]), Grade::A),
            (with(&[("x-expires", "1000")]), Grade::C),
            (with(&[("x-max-length", "5")]), Grade::C),
            (with(&[("x-max-length-bytes", "5"), ("x-overflow", "drop-head")]), Grade::C),
            (with(&[("x-max-length", "5"), ("x-overflow", "reject-publish")]), Grade::A),
            (with(&[quorum, ("x-delivery-limit", "5")]), Grade::C),
            (with(&[quorum, ("x-delivery-limit", "5"), dead]), Grade::A),
            (Facts { nodes: 3, ..plain }, Grade::B),
            (Facts { nodes: 3, major_version: Some(3), ..with(&[quorum]) }, Grade::A),
            (with(&[quorum]), Grade::B),
            (Facts { major_version: Some(3), ..with(&[quorum]) }, Grade::A),
            (Facts { major_version: Some(4), ..with(&[quorum]) }, Grade::C),
            (Facts { major_version: Some(4), ..with(&[quorum, dead]) }, Grade::A),
            (Facts { major_version: Some(4), ..with(&[quorum, ("x-delivery-limit", "-1")]) }, Grade::A),
            (Facts { major_version: Some(4), ..with(&[]) }, Grade::A),
        ];

        for (facts, expected) in rows {
            assert_eq!(grade(&facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn every_unsafe_exchange_has_its_grade() {
        let plain = Facts { name: "e".into(), ..Facts::default() };
        let grade = |facts: &Facts| exchange(facts).iter().map(|finding| finding.grade).max();

        assert_eq!(grade(&plain), None);
        assert_eq!(grade(&Facts { is_transient: true, ..plain.clone() }), Some(Grade::D));
        assert_eq!(grade(&Facts { is_auto_delete: true, ..plain.clone() }), Some(Grade::C));
        assert_eq!(grade(&Facts { is_internal: true, ..plain }), Some(Grade::F));
    }
}
