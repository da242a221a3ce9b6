//! Looks at exchanges and queues before anything is sent.
//!
//! With the management API everything is seen. Without it AMQP tells what is
//! there, and by comparing declarations how it was made; it tells neither which
//! queues are bound to an exchange (those of the groups given in the options are
//! looked at) nor what policies add. The client does not pass on the server's
//! version either, on which the limit of a quorum queue that was given none
//! depends. Nothing is ever published for a test: it would be in somebody's queue.

mod discovery;
mod judge;
mod management;

use std::time::Duration;

use lapin::ExchangeKind;
use lapin::types::{FieldTable, ShortString};
use oncebox_core::{Finding, Grade, Inspection, Kind, Preflight, Result};

use self::judge::Facts;
use self::management::{Management, Survey};
use super::connection::Live;
use super::error::Trouble;
use super::options::{RabbitMqOptions, Topology};
use super::wire::Route;
use super::{RabbitMq, topology};

const NOT_FOUND: Option<u16> = Some(404);
const RESOURCE_LOCKED: Option<u16> = Some(405);

impl Preflight for RabbitMq {
    async fn inspect(&self, destinations: &[String], horizon: Duration) -> Result<Vec<Inspection>> {
        let failed = |trouble: Trouble| trouble.error("inspecting RabbitMQ");
        let live = self.shared.publishing().await.map_err(failed)?;
        let options = &self.shared.options;
        let overview = match options.management.as_deref() {
            None => None,
            Some(url) => {
                let host = &self.shared.target().uri.vhost;
                let management = Management::new(url, host, options.call_timeout).map_err(failed)?;
                let survey = management.survey().await.map_err(failed)?;
                Some((management, survey))
            }
        };
        let inspector = Inspector { live: &live, options, overview, horizon };
        let mut inspections = Vec::with_capacity(destinations.len());
        for destination in destinations {
            let findings = match inspector.inspect(destination).await {
                // It concerns this destination only; the others are still worth a look.
                Err(trouble) if trouble.kind == Kind::Config => {
                    let reason = format!("it cannot be looked at: {}", trouble.text);
                    vec![Finding::new(Grade::F, reason, "change its name, its set-up or the user's rights")]
                }
                found => found.map_err(failed)?,
            };
            inspections.push(Inspection {
                destination: destination.clone(),
                transport: "rabbitmq",
                findings,
            });
        }
        Ok(inspections)
    }
}

struct Inspector<'i> {
    live: &'i Live,
    options: &'i RabbitMqOptions,
    overview: Option<(Management, Survey)>,
    horizon: Duration,
}

/// What looking at something came to.
enum Seen {
    Missing,
    /// Another connection has it for itself.
    Locked,
    There(Facts),
    /// It is there, and that is all that can be said.
    Hidden(String),
}

impl Inspector<'_> {
    async fn inspect(&self, destination: &str) -> Result<Vec<Finding>, Trouble> {
        let route = match Route::of(destination, self.options) {
            Ok(route) => route,
            Err(text) => {
                return Ok(vec![Finding::new(Grade::F, text, "name an exchange, EXCHANGE/KEY or /QUEUE")]);
            }
        };
        let mut findings = Vec::new();
        if !route.exchange.as_str().is_empty() {
            match self.exchange(&route.exchange).await? {
                Seen::Missing => return Ok(vec![self.missing("exchange", route.exchange.as_str())]),
                Seen::There(facts) => findings.extend(judge::exchange(&facts)),
                Seen::Locked => {}
                Seen::Hidden(reason) => findings.push(hidden("exchange", route.exchange.as_str(), &reason)),
            }
        }
        let queues = self.queues(&route, &mut findings)?;
        for queue in queues {
            match self.queue(&queue).await? {
                Seen::Missing => findings.push(self.missing("queue", queue.as_str())),
                Seen::Locked => {
                    let facts = Facts { name: queue.to_string(), is_exclusive: true, ..Facts::default() };
                    findings.extend(judge::queue(&facts, self.horizon));
                }
                Seen::There(facts) => findings.extend(judge::queue(&facts, self.horizon)),
                Seen::Hidden(reason) => findings.push(hidden("queue", queue.as_str(), &reason)),
            }
        }
        Ok(findings)
    }

    /// The queues a route leads to, as far as that can be known.
    fn queues(&self, route: &Route, findings: &mut Vec<Finding>) -> Result<Vec<ShortString>, Trouble> {
        let exchange = route.exchange.as_str();
        if exchange.is_empty() {
            return Ok(route.key.iter().cloned().collect());
        }
        if let Some((_, survey)) = &self.overview {
            let key = route.key.as_ref().map(ShortString::as_str);
            let queues = survey.queues(exchange, key);
            if queues.is_empty() {
                let by = key.map(|key| format!(" for {key}")).unwrap_or_default();
                let reason = format!(
                    "no queue is bound to exchange {exchange}{by}: every message comes back unroutable"
                );
                findings.push(Finding::new(Grade::F, reason, "subscribe a group, or bind a queue"));
            }
            return queues.iter().map(|queue| super::wire::short(queue).map_err(Trouble::config)).collect();
        }
        if self.options.groups.is_empty() {
            findings.push(Finding::new(
                Grade::B,
                format!("AMQP does not show which queues are bound to exchange {exchange}"),
                "give the management API, or the groups that subscribe to it",
            ));
        }
        let groups = self.options.groups.iter();
        groups.map(|group| route.queue(group).map_err(Trouble::config)).collect()
    }

    async fn exchange(&self, name: &ShortString) -> Result<Seen, Trouble> {
        if let Some((_, survey)) = &self.overview {
            return Ok(survey.exchange(name.as_str()).map_or(Seen::Missing, Seen::There));
        }
        let kind = ExchangeKind::Topic;
        let asked = topology::declare_exchange(self.live, name.as_str(), kind, true, self.options).await;
        if let Some(seen) = seen(asked.err())? {
            return Ok(seen);
        }
        // The server's own exchanges are durable, and nobody may declare them.
        if name.as_str().starts_with("amq.") {
            return Ok(Seen::There(Facts { name: name.to_string(), ..Facts::default() }));
        }
        self.look(discovery::exchange(self.live, name, self.options)).await
    }

    async fn queue(&self, name: &ShortString) -> Result<Seen, Trouble> {
        if let Some((management, survey)) = &self.overview {
            return Ok(management.queue(name.as_str(), survey).await?.map_or(Seen::Missing, Seen::There));
        }
        let asked = topology::declare_queue(self.live, name, true, FieldTable::default(), self.options).await;
        if let Some(seen) = seen(asked.err())? {
            return Ok(seen);
        }
        self.look(discovery::queue(self.live, name, self.options)).await
    }

    /// Who only checks may not declare, not even what is there.
    async fn look(&self, discovery: impl Future<Output = Result<Facts, Trouble>>) -> Result<Seen, Trouble> {
        if self.options.topology == Topology::Check {
            return Ok(Seen::Hidden("it is only checked".into()));
        }
        match discovery.await {
            Ok(facts) => Ok(Seen::There(facts)),
            Err(trouble) if trouble.code.is_some() => Ok(Seen::Hidden(trouble.text)),
            Err(trouble) => Err(trouble),
        }
    }

    fn missing(&self, what: &str, name: &str) -> Finding {
        let advice = match self.options.topology {
            Topology::Declare => format!("start a consumer once, or make {what} {name}"),
            Topology::Check => format!("make {what} {name}"),
        };
        Finding::new(Grade::F, format!("there is no {what} {name}"), advice)
    }
}

/// What the answer to "is it there" settles already.
fn seen(trouble: Option<Trouble>) -> Result<Option<Seen>, Trouble> {
    match trouble {
        None => Ok(None),
        Some(trouble) if trouble.code == NOT_FOUND => Ok(Some(Seen::Missing)),
        Some(trouble) if trouble.code == RESOURCE_LOCKED => Ok(Some(Seen::Locked)),
        Some(trouble) => Err(trouble),
    }
}

fn hidden(what: &str, name: &str, reason: &str) -> Finding {
    Finding::new(
        Grade::B,
        format!("how {what} {name} was made cannot be seen: {reason}"),
        "give the management API to the preflight",
    )
}
