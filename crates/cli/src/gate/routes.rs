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

use axum::http::StatusCode;
use oncebox_core::gate::path::plain;
use oncebox_gate::{Durability, InFlight, KeySyntax, OnDoubt, Policy, Store, Strategy};
use serde::Deserialize;

use super::ProfileName;
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
    /// What the other options are changes to.
    profile: Option<String>,
    key_syntax: Option<String>,
    strategy: Option<String>,
    allow_unsafe_strategies: Option<bool>,
    mismatch_status: Option<u16>,
    replay_status: Option<u16>,
    replay_header: Option<String>,
    methods: Option<Vec<String>>,
    required: Option<bool>,
    ttl: Option<String>,
    lease: Option<String>,
    stall: Option<String>,
    wait: Option<String>,
    refuse_expired: Option<String>,
    sliding: Option<bool>,
    atp_codes: Option<bool>,
    keep: Option<String>,
    on_doubt: Option<String>,
    reserve_durability: Option<String>,
    fail_open: Option<bool>,
    raw_fingerprint: Option<bool>,
    excluded: Option<Vec<String>>,
    key_per_route: Option<bool>,
    max_request_body: Option<usize>,
    max_response_body: Option<usize>,
    keep_bodies: Option<bool>,
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

    /// The policy for all paths, and those for some: what the file changes about the policy that the command line
    /// makes of a profile.
    pub(super) fn policies(
        &self,
        profile: ProfileName,
        flags: impl Fn(ProfileName) -> Policy,
    ) -> Result<(Policy, Vec<(String, Policy)>), Fault> {
        let place = "[defaults]";
        let profile = self.defaults.profile(place)?.unwrap_or(profile);
        let defaults = |profile| self.defaults.apply(&flags(profile), place);
        let mut routes: Vec<(String, Policy)> = Vec::new();
        for route in &self.route {
            let place = format!("[[route]] {:?}", route.prefix);
            let refuse = |why: &str| Err(Fault::new(Class::Config, format!("{place}: {why}")));
            if !route.prefix.starts_with('/') {
                return refuse("a prefix begins with /");
            }
            if routes.iter().any(|(prefix, _)| plain(prefix) == plain(&route.prefix)) {
                return refuse("there is another route with this prefix");
            }
            let base = defaults(route.changes.profile(&place)?.unwrap_or(profile))?;
            routes.push((route.prefix.clone(), route.changes.apply(&base, &place)?));
        }
        Ok((defaults(profile)?, routes))
    }
}

/// Below this prefix no request goes without a key, whatever else the routes say about it.
pub(super) fn require(prefix: &str, defaults: &Policy, routes: &mut Vec<(String, Policy)>) {
    let below = plain(prefix).into_owned();
    let holds = routes.iter().filter(|(above, _)| below.starts_with(&*plain(above)));
    let longest = holds.max_by_key(|(above, _)| plain(above).len());
    let policy = longest.map_or(defaults, |(_, policy)| policy).clone();
    if !routes.iter().any(|(other, _)| plain(other) == below) {
        routes.push((prefix.to_owned(), policy));
    }
    for (_, policy) in routes.iter_mut().filter(|(other, _)| plain(other).starts_with(&below)) {
        policy.required.clone_from(&policy.methods);
    }
}

impl Changes {
    fn profile(&self, place: &str) -> Result<Option<ProfileName>, Fault> {
        choice(
            place,
            "profile",
            self.profile.as_deref(),
            &[("ietf", ProfileName::Ietf), ("atp", ProfileName::Atp)],
        )
    }

    fn apply(&self, base: &Policy, place: &str) -> Result<Policy, Fault> {
        let refuse = |why: String| Fault::new(Class::Config, format!("{place}: {why}"));
        if let Some(name) = self.unknown.keys().next() {
            return Err(refuse(format!("there is no option {name:?}")));
        }
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
        self.apply_times(&mut policy, place)?;
        self.apply_choices(&mut policy, place)?;
        self.apply_statuses(&mut policy, place)?;
        if let Some(name) = &self.replay_header {
            let why = || refuse(format!("replay_header: {name:?} is no name of a header"));
            policy.replay_header = name.parse().map_err(|_| why())?;
        }
        policy.sliding = self.sliding.unwrap_or(policy.sliding);
        policy.atp_codes = self.atp_codes.unwrap_or(policy.atp_codes);
        policy.allow_unsafe_strategies =
            self.allow_unsafe_strategies.unwrap_or(policy.allow_unsafe_strategies);
        policy.fail_open = self.fail_open.unwrap_or(policy.fail_open);
        policy.raw_fingerprint = self.raw_fingerprint.unwrap_or(policy.raw_fingerprint);
        policy.excluded = self.excluded.clone().unwrap_or(policy.excluded);
        policy.key_per_route = self.key_per_route.unwrap_or(policy.key_per_route);
        policy.max_request_body = self.max_request_body.unwrap_or(policy.max_request_body);
        policy.max_response_body = self.max_response_body.unwrap_or(policy.max_response_body);
        policy.keep_bodies = self.keep_bodies.unwrap_or(policy.keep_bodies);
        policy.max_keys = self.max_keys.or(policy.max_keys);
        policy.docs = self.docs.clone().or(policy.docs);
        policy.check().map_err(|error| refuse(error.chain()))?;
        Ok(policy)
    }

    fn apply_times(&self, policy: &mut Policy, place: &str) -> Result<(), Fault> {
        let time = |name: &str, text: &Option<String>| -> Result<Option<Duration>, Fault> {
            let parsed = text.as_deref().map(|text| {
                let why = || format!("{place}: {name}: {text:?} is no duration such as 30s or 24h");
                parse_span(text).ok_or_else(|| Fault::new(Class::Config, why()))
            });
            parsed.transpose()
        };
        policy.ttl = time("ttl", &self.ttl)?.unwrap_or(policy.ttl);
        policy.lease = time("lease", &self.lease)?.unwrap_or(policy.lease);
        policy.stall = time("stall", &self.stall)?.unwrap_or(policy.stall);
        policy.refuse_expired = time("refuse_expired", &self.refuse_expired)?.or(policy.refuse_expired);
        policy.in_flight = time("wait", &self.wait)?.map_or(policy.in_flight, InFlight::Wait);
        Ok(())
    }

    fn apply_choices(&self, policy: &mut Policy, place: &str) -> Result<(), Fault> {
        let syntaxes =
            [("lenient", KeySyntax::Lenient), ("quoted", KeySyntax::QuotedString), ("atp", KeySyntax::Atp)];
        let strategies = [
            ("strict", Strategy::Strict),
            ("content-based", Strategy::ContentBased),
            ("last-write-wins", Strategy::LastWriteWins),
            ("warn-but-allow", Strategy::WarnButAllow),
        ];
        let stores = [("final", Store::Final), ("success", Store::Success), ("all", Store::All)];
        let doubts = [("retry", OnDoubt::Retry), ("block", OnDoubt::Block)];
        if let Some(syntax) = choice(place, "key_syntax", self.key_syntax.as_deref(), &syntaxes)? {
            policy.key_syntax = syntax;
        }
        if let Some(strategy) = choice(place, "strategy", self.strategy.as_deref(), &strategies)? {
            policy.strategy = strategy;
        }
        if let Some(store) = choice(place, "keep", self.keep.as_deref(), &stores)? {
            policy.store = store;
        }
        if let Some(on_doubt) = choice(place, "on_doubt", self.on_doubt.as_deref(), &doubts)? {
            policy.on_doubt = on_doubt;
        }
        let durabilities = [("full", Durability::Full), ("relaxed", Durability::Relaxed)];
        let reserve = self.reserve_durability.as_deref();
        if let Some(durability) = choice(place, "reserve_durability", reserve, &durabilities)? {
            policy.reserve_durability = durability;
        }
        Ok(())
    }

    fn apply_statuses(&self, policy: &mut Policy, place: &str) -> Result<(), Fault> {
        let status = |name: &str, number: Option<u16>, is_right: fn(&StatusCode) -> bool, range: &str| {
            let parsed = number.map(|number| {
                let why = || format!("{place}: {name}: {number} is not {range}");
                let status = StatusCode::from_u16(number).ok().filter(is_right);
                status.ok_or_else(|| Fault::new(Class::Config, why()))
            });
            parsed.transpose()
        };
        let mismatch =
            status("mismatch_status", self.mismatch_status, StatusCode::is_client_error, "400 to 499")?;
        policy.mismatch_status = mismatch.unwrap_or(policy.mismatch_status);
        let replay = status("replay_status", self.replay_status, StatusCode::is_success, "200 to 299")?;
        policy.replay_status = replay.or(policy.replay_status);
        Ok(())
    }
}

/// What a name stands for.
fn choice<T: Clone>(
    place: &str,
    option: &str,
    name: Option<&str>,
    known: &[(&str, T)],
) -> Result<Option<T>, Fault> {
    let Some(name) = name else { return Ok(None) };
    if let Some((_, chosen)) = known.iter().find(|(other, _)| *other == name) {
        return Ok(Some(chosen.clone()));
    }
    let mut names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let last = names.pop().unwrap_or_default();
    let why = format!("{place}: {option}: {name:?} is not {} or {last}", names.join(", "));
    Err(Fault::new(Class::Config, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(text: &str) -> Result<(Policy, Vec<(String, Policy)>), String> {
        let file: RoutesFile = toml::from_str(text).map_err(|error| error.to_string())?;
        file.policies(ProfileName::Ietf, ProfileName::policy).map_err(|fault| fault.message().to_owned())
    }

    /// What holds for a path, as the gate finds it.
    fn at<'a>(path: &str, (defaults, routes): &'a (Policy, Vec<(String, Policy)>)) -> &'a Policy {
        let holds = routes.iter().filter(|(prefix, _)| path.starts_with(prefix.as_str()));
        // Of two that are equally long the first counts.
        holds.rev().max_by_key(|(prefix, _)| prefix.len()).map_or(defaults, |(_, policy)| policy)
    }

    fn required(text: &str, prefixes: &[&str]) -> (Policy, Vec<(String, Policy)>) {
        let (defaults, mut routes) = policies(text).unwrap();
        prefixes.iter().for_each(|prefix| require(prefix, &defaults, &mut routes));
        (defaults, routes)
    }

    #[test]
    fn a_prefix_that_requires_keys_does_so_whatever_the_file_says() {
        let text = "[[route]]\nprefix = \"/payments\"\non_doubt = \"block\"\n\
                    [[route]]\nprefix = \"/payments/cards\"\nkeep = \"all\"\nrequired = false\n\
                    [[route]]\nprefix = \"/pay\"\nttl = \"1h\"\n";

        for prefix in ["/payments", "/%70ayments", "//payments"] {
            let all = required(text, &[prefix]);

            for path in ["/payments", "/payments/cards", "/payments/7"] {
                let policy = at(path, &all);
                assert_eq!(policy.required, policy.methods, "{prefix}: {path}");
            }
            assert_eq!(at("/payments", &all).on_doubt, OnDoubt::Block, "the rest is the file's");
            assert_eq!(format!("{:?}", at("/payments/cards", &all).store), "All");
            assert!(at("/pay", &all).required.is_empty() && at("/", &all).required.is_empty());
        }
    }

    #[test]
    fn a_prefix_of_its_own_inherits_what_would_hold_there() {
        let text = "[[route]]\nprefix = \"/payments\"\non_doubt = \"block\"\n\
                    [[route]]\nprefix = \"/\"\nttl = \"1h\"\n";

        for prefixes in [&["/payments/cards", "/payments/cards/x"], &["/payments/cards/x", "/payments/cards"]]
        {
            let all = required(text, prefixes);

            for path in ["/payments/cards", "/payments/cards/x"] {
                assert_eq!(at(path, &all).on_doubt, OnDoubt::Block, "{path}");
                assert_eq!(at(path, &all).required, at(path, &all).methods, "{path}");
            }
            assert!(at("/payments", &all).required.is_empty());
        }
        let everything = required(text, &["/"]);
        assert!(["/", "/x", "/payments"].iter().all(|path| !at(path, &everything).required.is_empty()));
        assert_eq!(at("/x", &everything).ttl, Duration::from_secs(3600));
        let past = required("[[route]]\nprefix = \"/search\"\nmethods = []\n", &["/"]);
        assert!(at("/search", &past).required.is_empty(), "what goes past the gate needs no key");
    }

    #[test]
    fn a_route_may_have_another_profile_syntax_and_strategy() {
        let text = "[defaults]\nttl = \"2h\"\n[[route]]\nprefix = \"/atp\"\nprofile = \"atp\"\nreplay_status = 202\n\
                    atp_codes = false\nsliding = false\nrefuse_expired = \"7d\"\n\
                    [[route]]\nprefix = \"/quoted\"\nkey_syntax = \"quoted\"\nmismatch_status = 409\n\
                    [[route]]\nprefix = \"/bold\"\nstrategy = \"last-write-wins\"\nallow_unsafe_strategies = true\n\
                    [[route]]\nprefix = \"/content\"\nstrategy = \"content-based\"\nreplay_header = \"X-Hit\"\n\
                    reserve_durability = \"relaxed\"\n";

        let all = policies(text).unwrap();

        let atp = at("/atp", &all);
        assert_eq!((atp.key_syntax, atp.mismatch_status), (KeySyntax::Atp, StatusCode::CONFLICT));
        assert_eq!((atp.sliding, atp.replay_status), (false, Some(StatusCode::ACCEPTED)));
        assert_eq!((atp.atp_codes, atp.refuse_expired), (false, Some(Duration::from_secs(7 * 86_400))));
        assert_eq!(atp.ttl, Duration::from_secs(7200), "defaults hold for every profile");
        let quoted = at("/quoted", &all);
        assert_eq!(
            (quoted.key_syntax, quoted.mismatch_status),
            (KeySyntax::QuotedString, StatusCode::CONFLICT)
        );
        assert_eq!(at("/bold", &all).strategy, Strategy::LastWriteWins);
        assert_eq!(at("/content", &all).strategy, Strategy::ContentBased);
        assert_eq!(at("/content", &all).replay_header, "x-hit");
        assert_eq!(at("/", &all).replay_header, "idempotent-replayed");
        assert_eq!(at("/content", &all).reserve_durability, Durability::Relaxed);
        assert_eq!(at("/", &all).reserve_durability, Durability::Full);
        assert_eq!(at("/", &all).strategy, Strategy::Strict);
        let (defaults, routes) =
            policies("[defaults]\nprofile = \"atp\"\n[[route]]\nprefix = \"/i\"\nprofile = \"ietf\"\n")
                .unwrap();
        assert_eq!((defaults.key_syntax, routes[0].1.key_syntax), (KeySyntax::Atp, KeySyntax::Lenient));
    }

    #[test]
    fn a_route_changes_what_it_says_and_nothing_else() {
        let text = "[defaults]\nttl = \"1h\"\n[[route]]\nprefix = \"/payments\"\nrequired = true\n\
                    on_doubt = \"block\"\nwait = \"2s\"\nexcluded = [\"traceId\"]\nkeep = \"all\"\n\
                    keep_bodies = false\n";

        let (defaults, routes) = policies(text).unwrap();

        assert_eq!((defaults.ttl, defaults.required.len()), (Duration::from_secs(3600), 0));
        let (prefix, payments) = &routes[0];
        assert_eq!((prefix.as_str(), payments.ttl), ("/payments", Duration::from_secs(3600)));
        assert_eq!(payments.required, payments.methods);
        assert_eq!(payments.on_doubt, OnDoubt::Block);
        assert!(defaults.keep_bodies && !payments.keep_bodies);
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
            ("[[route]]\nprefix = \"/x\"\non_doubt = \"hope\"", "on_doubt: \"hope\" is not retry or block"),
            (
                "[[route]]\nprefix = \"/x\"\nreserve_durability = \"no\"",
                "reserve_durability: \"no\" is not full or relaxed",
            ),
            (
                "[[route]]\nprefix = \"/x\"\nreserve_durability = \"relaxed\"\non_doubt = \"block\"",
                "on_doubt = block needs a full one",
            ),
            ("[[route]]\nprefix = \"/x\"\nprofile = \"rfc\"", "profile: \"rfc\" is not ietf or atp"),
            (
                "[[route]]\nprefix = \"/x\"\nkey_syntax = \"x\"",
                "key_syntax: \"x\" is not lenient, quoted or atp",
            ),
            ("[[route]]\nprefix = \"/x\"\nstrategy = \"x\"", "last-write-wins or warn-but-allow"),
            ("[[route]]\nprefix = \"/x\"\nstrategy = \"warn-but-allow\"", "allow_unsafe_strategies"),
            ("[[route]]\nprefix = \"/x\"\nmismatch_status = 500", "500 is not 400 to 499"),
            ("[[route]]\nprefix = \"/x\"\nreplay_status = 42", "42 is not 200 to 299"),
            ("[[route]]\nprefix = \"/x\"\nexcluded = [\"/a~2\"]", "\"/a~2\" is no JSON pointer"),
            ("[[route]]\nprefix = \"/x\"\nreplay_header = \"a b\"", "\"a b\" is no name of a header"),
            ("[[route]]\nprefix = \"/x\"\nreplay_header = \"Set-Cookie\"", "marked by set-cookie"),
            ("[[route]]\nprefix = \"/x\"\n[[route]]\nprefix = \"//x\"", "another route"),
            ("[[route]]\nrequired = true", "prefix"),
            ("[routes]", "routes"),
        ] {
            let refused = policies(text).unwrap_err();
            assert!(refused.contains(says), "{says}: {refused}");
        }
    }
}
