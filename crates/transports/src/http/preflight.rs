//! What can be known of a URL without posting anything: whether it is allowed,
//! reachable and encrypted.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use oncebox_core::error::chain;
use oncebox_core::{Finding, Grade, Inspection, Preflight, Result};
use tower_service::Service;

use super::publisher::Http;

/// Destinations looked at side by side.
const AT_ONCE: usize = 8;

impl Preflight for Http {
    /// What the other side does with a message it has confirmed cannot be seen
    /// from here; no finding means the way there is safe.
    async fn inspect(&self, destinations: &[String], _horizon: Duration) -> Result<Vec<Inspection>> {
        let looks: Vec<_> = destinations.iter().map(|destination| self.look(destination.clone())).collect();
        Ok(stream::iter(looks).buffered(AT_ONCE).collect().await)
    }
}

impl Http {
    async fn look(&self, destination: String) -> Inspection {
        let findings = self.findings(&destination).await;
        Inspection { destination, transport: "http", findings }
    }

    async fn findings(&self, destination: &str) -> Vec<Finding> {
        let place = match self.directory().find(destination) {
            Ok(place) => place,
            Err(failure) => {
                let advice = "configure the destination, or allow a prefix of its URL";
                return vec![Finding::new(Grade::F, failure.reason, advice)];
            }
        };
        let mut findings = Vec::new();
        if !place.target.is_https() && !place.target.is_loopback() {
            let reason =
                format!("{} is plain http: anybody between can read, drop and confirm messages", place.label);
            findings.push(Finding::new(Grade::C, reason, "use https"));
        }
        let mut connector = self.connector();
        let ready = std::future::poll_fn(|context| connector.poll_ready(context)).await;
        let connected = match ready {
            Ok(()) => connector.call(place.target.uri().clone()).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = connected {
            let reason = format!("{} cannot be reached: {}", place.label, chain(error.as_ref()));
            findings.push(Finding::new(Grade::F, reason, "check the URL, the network and the certificate"));
        }
        findings
    }
}
