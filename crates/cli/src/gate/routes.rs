//! Policies by path, from a file.
//!
//! ```toml
//! [defaults]
//! ttl = "24h"
//!
//! [[route]]
//! prefix = "/payments"
//! required = true
//! on_doubt = "block"
//! ```

use std::path::Path;
use std::time::Duration;

use oncebox_gate::{InFlight, OnDoubt, Policy, Store};
use serde::Deserialize;

use crate::config::parse_span;
use crate::fault::{Class, Fault};

/// What a file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RoutesFile {
    defaults: Changes,
    route: Vec<Route>,
}

#[derive(Debug, Deserialize)]
struct Route {
    prefix: String,
    #[serde(flatten)]
    changes: Changes,
}

/// What is changed for some paths; the rest is as it was.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Changes {
    methods: Option<Vec<String>>,
    required: Option<bool>,
    ttl: Option<String>,
    lease: Option<String>,
    stall: Option<String>,
    wait: Option<String>,
    sliding: Option<bool>,
    keep: Option<String>,
    on_doubt: Option<String>,
    fail_open: Option<bool>,
    raw_fingerprint: Option<bool>,
    excluded: Option<Vec<String>>,
    key_per_route: Option<bool>,
    max_request_body: Option<usize>,
    max_response_body: Option<usize>,
    max_keys: Option<usize>,
    docs: Option<String>,
    /// Whatever else stands there: a mistake.
    #[serde(flatten)]
    unknown: std::collections::BTreeMap<String, toml::Value>,
}

impl RoutesFile {
    pub(super) fn read(path: &Path) -> Result<Self, Fault> {
        let refuse = |why: String| Fault::new(Class::Config, format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        toml::from_str(&text).map_err(|error| refuse(error.to_string()))
    }

    /// The policy for all paths, and those for some, made from a first one.
    pub(super) fn policies(&self, base: &Policy) -> Result<(Policy, Vec<(String, Policy)>), Fault> {
        let defaults = self.defaults.apply(base, "[defaults]")?;
        let routes = self.route.iter().map(|route| {
            let place = format!("[[route]] {:?}", route.prefix);
            if !route.prefix.starts_with('/') {
                return Err(Fault::new(Class::Config, format!("{place}: a prefix begins with /")));
            }
            Ok((route.prefix.clone(), route.changes.apply(&defaults, &place)?))
        });
        let routes = routes.collect::<Result<Vec<_>, Fault>>()?;
        Ok((defaults, routes))
    }
}

impl Changes {
    fn apply(&self, base: &Policy, place: &str) -> Result<Policy, Fault> {
        let refuse = |why: String| Fault::new(Class::Config, format!("{place}: {why}"));
        if let Some(name) = self.unknown.keys().next() {
            return Err(refuse(format!("there is no option {name:?}")));
        }
        let time = |name: &str, text: &Option<String>| -> Result<Option<Duration>, Fault> {
            let parsed = text.as_deref().map(|text| {
                parse_span(text)
                    .ok_or_else(|| refuse(format!("{name}: {text:?} is no duration such as 30s or 24h")))
            });
            parsed.transpose()
        };
        let mut policy = base.clone();
        if let Some(methods) = &self.methods {
            let parsed = methods.iter().map(|name| {
                name.parse().map_err(|_| refuse(format!("methods: {name:?} is no method such as POST")))
            });
            policy.methods = parsed.collect::<Result<_, Fault>>()?;
            policy.required.retain(|method| policy.methods.contains(method));
        }
        if let Some(required) = self.required {
            policy.required = if required { policy.methods.clone() } else { Vec::new() };
        }
        policy.ttl = time("ttl", &self.ttl)?.unwrap_or(policy.ttl);
        policy.lease = time("lease", &self.lease)?.unwrap_or(policy.lease);
        policy.stall = time("stall", &self.stall)?.unwrap_or(policy.stall);
        policy.in_flight = time("wait", &self.wait)?.map_or(policy.in_flight, InFlight::Wait);
        policy.sliding = self.sliding.unwrap_or(policy.sliding);
        policy.store = match self.keep.as_deref() {
            None => policy.store,
            Some("final") => Store::Final,
            Some("success") => Store::Success,
            Some("all") => Store::All,
            Some(other) => return Err(refuse(format!("keep: {other:?} is not final, success or all"))),
        };
        policy.on_doubt = match self.on_doubt.as_deref() {
            None => policy.on_doubt,
            Some("retry") => OnDoubt::Retry,
            Some("block") => OnDoubt::Block,
            Some(other) => return Err(refuse(format!("on_doubt: {other:?} is not retry or block"))),
        };
        policy.fail_open = self.fail_open.unwrap_or(policy.fail_open);
        policy.raw_fingerprint = self.raw_fingerprint.unwrap_or(policy.raw_fingerprint);
        policy.excluded = self.excluded.clone().unwrap_or(policy.excluded);
        policy.key_per_route = self.key_per_route.unwrap_or(policy.key_per_route);
        policy.max_request_body = self.max_request_body.unwrap_or(policy.max_request_body);
        policy.max_response_body = self.max_response_body.unwrap_or(policy.max_response_body);
        policy.max_keys = self.max_keys.or(policy.max_keys);
        policy.docs = self.docs.clone().or(policy.docs);
        policy.check().map_err(|error| refuse(error.chain()))?;
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(text: &str) -> Result<(Policy, Vec<(String, Policy)>), String> {
        let file: RoutesFile = toml::from_str(text).map_err(|error| error.to_string())?;
        file.policies(&Policy::default()).map_err(|fault| fault.message().to_owned())
    }

    #[test]
    fn a_route_changes_what_it_says_and_nothing_else() {
        let text = "[defaults]\nttl = \"1h\"\n[[route]]\nprefix = \"/payments\"\nrequired = true\n\
                    on_doubt = \"block\"\nwait = \"2s\"\nexcluded = [\"traceId\"]\nkeep = \"all\"\n";

        let (defaults, routes) = policies(text).unwrap();

        assert_eq!((defaults.ttl, defaults.required.len()), (Duration::from_secs(3600), 0));
        let (prefix, payments) = &routes[0];
        assert_eq!((prefix.as_str(), payments.ttl), ("/payments", Duration::from_secs(3600)));
        assert_eq!(payments.required, payments.methods);
        assert_eq!(payments.on_doubt, OnDoubt::Block);
        assert_eq!(payments.in_flight, InFlight::Wait(Duration::from_secs(2)));
        assert_eq!(
            (payments.excluded.as_slice(), format!("{:?}", payments.store).as_str()),
            (&["traceId".to_owned()][..], "All")
        );
    }

    #[test]
    fn a_route_may_do_without_the_gate() {
        let text = "[defaults]\nrequired = true\n[[route]]\nprefix = \"/search\"\nmethods = []\n\
                    [[route]]\nprefix = \"/carts\"\nmethods = [\"POST\"]\n";

        let (defaults, routes) = policies(text).unwrap();

        assert_eq!(defaults.required, defaults.methods);
        assert_eq!((routes[0].1.methods.len(), routes[0].1.required.len()), (0, 0));
        assert_eq!((routes[1].1.methods.as_slice(), routes[1].1.required.as_slice()), {
            let post = &[axum::http::Method::POST][..];
            (post, post)
        });
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        for (text, says) in [
            ("[defaults]\nttl = \"soon\"", "[defaults]: ttl"),
            ("[defaults]\nlease = \"1ms\"", "lease"),
            ("[[route]]\nprefix = \"payments\"", "begins with /"),
            ("[[route]]\nprefix = \"/x\"\nrequird = true", "requird"),
            ("[[route]]\nprefix = \"/x\"\nmethods = [\"\"]", "methods"),
            ("[[route]]\nprefix = \"/x\"\nmethods = [\"GET\"]", "GET changes nothing"),
            ("[[route]]\nprefix = \"/x\"\nkeep = \"most\"", "keep"),
            ("[[route]]\nprefix = \"/x\"\non_doubt = \"hope\"", "on_doubt"),
            ("[[route]]\nrequired = true", "prefix"),
            ("[routes]", "routes"),
        ] {
            let refused = policies(text).unwrap_err();
            assert!(refused.contains(says), "{says}: {refused}");
        }
    }
}
