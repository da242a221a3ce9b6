//! The destinations a sink may have, behind one type, so that everything else
//! is written once.

use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use oncebox_core::preflight::{Finding, Inspection, Preflight};
use oncebox_core::routes::Routes;
use oncebox_core::transport::{Failure, Publisher};
use oncebox_core::{Envelope, Result, Rule};
use oncebox_transports::http::{Http, HttpOptions, WebhookKeys};
use oncebox_transports::nats::{self, Nats, NatsOptions};
use oncebox_transports::rabbitmq::{self, RabbitMq, RabbitMqOptions};
use tokio_util::sync::CancellationToken;

use super::stdout::StdoutPublisher;
use crate::config::{Kind, Reference, SinkConfig};
use crate::fault::{Class, Fault};

/// What messages to the `url` of an HTTP sink have as their destination.
const HTTP_DEFAULT: &str = "url";

/// Where a sink's messages go.
pub(crate) enum Outlet {
    RabbitMq(RabbitMq),
    Nats(Nats),
    /// Replaced as a whole when its secrets change.
    Http(RwLock<Http>),
    Stdout(StdoutPublisher),
}

impl Outlet {
    /// Sets up what the configuration asks for. Nothing is connected yet.
    pub(crate) fn open(sink: &SinkConfig) -> Result<Self, Fault> {
        Ok(match sink.kind {
            Kind::RabbitMq => Self::RabbitMq(RabbitMq::new(rabbitmq_options(sink)?)?),
            Kind::Nats => Self::Nats(Nats::new(nats_options(sink)?)),
            Kind::Http => Self::Http(RwLock::new(Http::new(http_options(sink)?)?)),
            Kind::Stdout => Self::stdout(),
        })
    }

    /// Standard output.
    pub(crate) fn stdout() -> Self {
        Self::Stdout(StdoutPublisher::default())
    }

    /// One URL for everything.
    pub(crate) fn forward(url: &str) -> Result<Self, Fault> {
        let options = HttpOptions::new().destination(HTTP_DEFAULT, url);
        Ok(Self::Http(RwLock::new(Http::new(options)?)))
    }

    /// The envelope under the destination that [`forward`](Self::forward) knows.
    pub(crate) fn address(&self, mut envelope: Envelope) -> Envelope {
        if matches!(self, Self::Http(_)) {
            HTTP_DEFAULT.clone_into(&mut envelope.destination);
        }
        envelope
    }

    /// Reads credentials again and uses them from now on: all of them, or, if
    /// something cannot be read, none.
    pub(crate) async fn reload(&self, sink: &SinkConfig) -> Result<(), Fault> {
        match self {
            Self::RabbitMq(rabbitmq) => Ok(rabbitmq.replace_url(&needed_url(sink)?)?),
            Self::Nats(nats) => {
                let url = needed_url(sink)?;
                let credentials = sink.nats.credentials.as_ref().map(Reference::read).transpose()?;
                nats.replace_url(&url).await?;
                if let Some(credentials) = credentials {
                    nats.replace_credentials(credentials.reveal()).await;
                }
                Ok(())
            }
            Self::Http(http) => {
                let fresh = Http::new(http_options(sink)?)?;
                *http.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                Ok(())
            }
            Self::Stdout(_) => Ok(()),
        }
    }

    /// Cancelled when the destination will never take anything again.
    pub(crate) fn closed(&self) -> Option<CancellationToken> {
        match self {
            Self::Stdout(stdout) => Some(stdout.closed()),
            _ => None,
        }
    }
}

/// Whether a finding says that nobody answers, as the HTTP transport does: its
/// destinations are servers of their own, and one that is down now may be up soon.
pub(crate) fn is_away(finding: &Finding) -> bool {
    finding.reason.contains("cannot be reached")
}

/// Why a destination does not answer, if it does not.
pub(crate) fn unreachable(inspection: &Inspection) -> Option<&str> {
    inspection.findings.iter().find(|finding| is_away(finding)).map(|finding| finding.reason.as_str())
}

/// The routes of a sink; what no route of an HTTP sink takes goes to its `url`.
pub(crate) fn routes(sink: &SinkConfig) -> Result<Routes, Fault> {
    let fallback = (sink.kind == Kind::Http && sink.url.is_some()).then(|| Rule::to("*", HTTP_DEFAULT));
    Ok(Routes::new(sink.routes.rules().iter().cloned().chain(fallback))?)
}

fn needed_url(sink: &SinkConfig) -> Result<String, Fault> {
    let missing = || Fault::new(Class::Input, format!("sink {} has no url", sink.name()));
    Ok(sink.url.as_ref().ok_or_else(missing)?.read()?.reveal().to_owned())
}

/// A little less than the relay waits, so that it hears what was confirmed.
fn patience(sink: &SinkConfig) -> Duration {
    sink.relay.publish_timeout * 4 / 5
}

fn read_pem(path: &Path) -> Result<String, Fault> {
    let secret = Reference::File(path.to_owned()).read()?;
    Ok(secret.reveal().to_owned())
}

fn rabbitmq_options(sink: &SinkConfig) -> Result<RabbitMqOptions, Fault> {
    let topology = if sink.declare { rabbitmq::Topology::Declare } else { rabbitmq::Topology::Check };
    let mut options = RabbitMqOptions::from_url(&needed_url(sink)?)?
        .topology(topology)
        .mode(sink.mode)
        .window(sink.window)
        .confirm_timeout(patience(sink))
        // Shorter than the relay waits, so that it hears which call got no answer.
        .call_timeout(sink.relay.publish_timeout / 2)
        .groups(sink.rabbitmq.groups.clone())
        .name(&format!("oncebox relay {}", sink.name()));
    if let Some(file) = &sink.ca_file {
        options = options.ca(&read_pem(file)?);
    }
    if let Some(exchange) = &sink.rabbitmq.exchange {
        options = options.exchange(exchange);
    }
    if let Some(management) = &sink.rabbitmq.management {
        options = options.management(management.read()?.reveal());
    }
    Ok(options)
}

fn nats_options(sink: &SinkConfig) -> Result<NatsOptions, Fault> {
    let topology = if sink.declare { nats::Topology::Declare } else { nats::Topology::Check };
    let mut options = NatsOptions::from_url(&needed_url(sink)?)?
        .topology(topology)
        .mode(sink.mode)
        .window(sink.window)
        .confirm_timeout(patience(sink))
        .name(format!("oncebox relay {}", sink.name()));
    if let Some(file) = &sink.ca_file {
        // Read here, so that a file that is not there ends the start.
        read_pem(file)?;
        options = options.root_certificates(file);
    }
    if let Some(credentials) = &sink.nats.credentials {
        options = options.credentials(credentials.read()?.reveal());
    }
    if let Some(prefix) = &sink.nats.prefix {
        options = options.prefix(prefix);
    }
    if let Some(replicas) = sink.nats.replicas {
        options = options.replicas(replicas);
    }
    if let Some(keyring) = sink.signing.as_ref().map(|signing| signing.keyring()).transpose()?.flatten() {
        options = options.keyring(keyring);
    }
    Ok(options)
}

fn http_options(sink: &SinkConfig) -> Result<HttpOptions, Fault> {
    // One call sends for a while and then waits for the last answer.
    let (timeout, window) = (sink.relay.publish_timeout / 2, sink.relay.publish_timeout * 2 / 5);
    let mut options = HttpOptions::new().mode(sink.mode).timeout(timeout).window(window);
    options = options.connect_timeout(timeout.min(Duration::from_secs(3)));
    if let Some(url) = &sink.url {
        options = options.destination(HTTP_DEFAULT, url.read()?.reveal());
        if let Some(authorization) = &sink.http.authorization {
            options = options.header(HTTP_DEFAULT, "authorization", authorization.read()?.reveal());
        }
    }
    for to in sink.routes.rules().iter().filter_map(|rule| rule.to.as_deref()) {
        if let Some(prefix) = allowed_prefix(to) {
            options = options.allow(prefix);
        }
    }
    if let Some(secret) = &sink.http.webhook_secret {
        options = options.sign_with(WebhookKeys::new(secret.read()?.reveal())?);
    }
    if let Some(file) = &sink.ca_file {
        options = options.trust_pem(read_pem(file)?);
    }
    if sink.http.is_plain {
        options = options.allow_plain_http();
    }
    Ok(options)
}

/// What a route to a URL allows: the URL, or the folder that its first
/// placeholder is in. A message alone cannot choose another host.
fn allowed_prefix(to: &str) -> Option<&str> {
    let (_, rest) = to.split_once("://")?;
    let Some((fixed, _)) = to.split_once('{') else { return Some(to) };
    let has_host = rest.split_once('{').is_some_and(|(fixed, _)| fixed.contains('/'));
    fixed.rsplit_once('/').filter(|_| has_host).map(|(folder, _)| folder)
}

impl Publisher for Outlet {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        match self {
            Self::RabbitMq(rabbitmq) => rabbitmq.publish(batch).await,
            Self::Nats(nats) => nats.publish(batch).await,
            Self::Http(http) => {
                let http = http.read().unwrap_or_else(PoisonError::into_inner).clone();
                http.publish(batch).await
            }
            Self::Stdout(stdout) => stdout.publish(batch).await,
        }
    }
}

impl Preflight for Outlet {
    async fn inspect(&self, destinations: &[String], horizon: Duration) -> Result<Vec<Inspection>> {
        match self {
            Self::RabbitMq(rabbitmq) => rabbitmq.inspect(destinations, horizon).await,
            Self::Nats(nats) => nats.inspect(destinations, horizon).await,
            Self::Http(http) => {
                let http = http.read().unwrap_or_else(PoisonError::into_inner).clone();
                http.inspect(destinations, horizon).await
            }
            Self::Stdout(_) => {
                let nothing = |destination: &String| Inspection {
                    destination: destination.clone(),
                    transport: "stdout",
                    findings: Vec::new(),
                };
                Ok(destinations.iter().map(nothing).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are another crate's.
    #[tokio::test]
    async fn a_server_that_is_down_is_away_and_a_host_nobody_allowed_is_not() {
        let outlet = Outlet::forward("http://127.0.0.1:1/hook").unwrap();
        let destinations = [HTTP_DEFAULT.to_owned(), "https://elsewhere.example/x".to_owned()];

        let inspections = outlet.inspect(&destinations, Duration::from_secs(1)).await.unwrap();

        assert!(unreachable(&inspections[0]).is_some(), "{inspections:?}");
        assert!(
            unreachable(&inspections[1]).is_none() && !inspections[1].findings.is_empty(),
            "{inspections:?}"
        );
    }

    #[test]
    fn a_placeholder_never_widens_the_hosts_a_route_allows() {
        let cases = [
            ("https://h/hook", Some("https://h/hook")),
            ("https://h/{type}", Some("https://h")),
            ("https://h/a/b-{type}/c", Some("https://h/a")),
            ("https://{tenant}.example.com/x", None),
            ("https://h{tenant}", None),
            ("orders", None),
            ("{destination}", None),
        ];

        for (to, prefix) in cases {
            assert_eq!(allowed_prefix(to), prefix, "{to}");
        }
    }
}
