//! Where a message goes, by its name.
//!
//! The same rules serve two places: the outbox, which checks a destination's
//! size limit while the caller can still do something about it, and a sink,
//! which may rename destinations or leave messages to other sinks.

use std::borrow::Cow;

use crate::envelope::Envelope;
use crate::error::{Error, Kind, Result};

/// Messages whose name matches `pattern` go to `to`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// A message name, `prefix.*` for all names below a prefix, or `*` for every name.
    pub pattern: String,
    /// A destination that may contain `{type}`, `{destination}` and `{tenant}`; `None` means the
    /// message is not for this sink.
    pub to: Option<String>,
    /// The largest payload in bytes that the destination takes.
    pub max_bytes: Option<usize>,
}

impl Rule {
    /// Messages that match `pattern` go to `to`.
    #[must_use]
    pub fn to(pattern: impl Into<String>, to: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), to: Some(to.into()), max_bytes: None }
    }

    /// Messages that match `pattern` are not for this sink.
    #[must_use]
    pub fn skip(pattern: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), to: None, max_bytes: None }
    }

    /// The same rule with a size limit.
    #[must_use]
    pub const fn within(mut self, max_bytes: usize) -> Self {
        self.max_bytes = Some(max_bytes);
        self
    }

    fn matches(&self, kind: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(prefix) => kind.starts_with(prefix),
            None => self.pattern == kind,
        }
    }

    fn check(&self) -> Result<()> {
        let invalid =
            |why: &str| Err(Error::new(Kind::Config, format!("the route for {:?} {why}", self.pattern)));
        match self.pattern.split_once('*') {
            None if self.pattern.is_empty() => return invalid("has no pattern"),
            Some((prefix, rest)) if !rest.is_empty() || !(prefix.is_empty() || prefix.ends_with('.')) => {
                return invalid("is no pattern: use a message name, `prefix.*` or `*`");
            }
            _ => {}
        }
        match self.to.as_deref() {
            Some("") => invalid("has an empty destination"),
            Some(template) => match unknown_placeholder(template) {
                Some(name) => {
                    invalid(&format!("uses {{{name}}}: use {{type}}, {{destination}} or {{tenant}}"))
                }
                None => Ok(()),
            },
            None => Ok(()),
        }
    }
}

/// Where one message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// To this destination.
    To(Cow<'a, str>),
    /// Nowhere: it is not for this sink.
    Skip,
}

/// Rules in order; the first that matches decides. A message no rule matches
/// keeps its destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    rules: Vec<Rule>,
}

impl Routes {
    /// Checks and takes over `rules`.
    ///
    /// # Errors
    /// [`Kind::Config`] if a pattern or a template is malformed.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self> {
        let rules: Vec<Rule> = rules.into_iter().collect();
        rules.iter().try_for_each(Rule::check)?;
        Ok(Self { rules })
    }

    /// Whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, in order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Where `envelope` goes.
    #[must_use]
    pub fn find<'a>(&'a self, envelope: &'a Envelope) -> Route<'a> {
        match self.rule(&envelope.kind) {
            None => Route::To(Cow::Borrowed(&envelope.destination)),
            Some(Rule { to: None, .. }) => Route::Skip,
            Some(Rule { to: Some(template), .. }) => Route::To(fill(template, envelope)),
        }
    }

    /// The largest payload that messages named `kind` may have, if a rule says so.
    #[must_use]
    pub fn limit(&self, kind: &str) -> Option<usize> {
        self.rule(kind).and_then(|rule| rule.max_bytes)
    }

    fn rule(&self, kind: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.matches(kind))
    }
}

/// The pieces of a template: text, and names in braces.
enum Piece<'t> {
    Text(&'t str),
    Name(&'t str),
}

fn pieces(template: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = template;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some((name, after)) = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            rest = after;
            return Some(Piece::Name(name));
        }
        // An opening brace that is never closed is text.
        let end = rest.char_indices().skip(1).find(|(_, c)| *c == '{').map_or(rest.len(), |(at, _)| at);
        let (text, after) = rest.split_at(end);
        rest = after;
        Some(Piece::Text(text))
    })
}

fn unknown_placeholder(template: &str) -> Option<&str> {
    pieces(template).find_map(|piece| match piece {
        Piece::Name(name) if !["type", "destination", "tenant"].contains(&name) => Some(name),
        _ => None,
    })
}

fn fill<'a>(template: &'a str, envelope: &'a Envelope) -> Cow<'a, str> {
    if !template.contains('{') {
        return Cow::Borrowed(template);
    }
    let filled = pieces(template).map(|piece| match piece {
        Piece::Text(text) => text,
        Piece::Name("type") => &envelope.kind,
        Piece::Name("destination") => &envelope.destination,
        Piece::Name(_) => &envelope.tenant,
    });
    Cow::Owned(filled.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(kind: &str) -> Envelope {
        Envelope {
            kind: kind.into(),
            destination: "orders".into(),
            tenant: "acme".into(),
            ..Envelope::default()
        }
    }

    fn to(routes: &Routes, kind: &str) -> Option<String> {
        match routes.find(&envelope(kind)) {
            Route::To(destination) => Some(destination.into_owned()),
            Route::Skip => None,
        }
    }

    #[test]
    fn without_rules_a_message_keeps_its_destination() {
        assert_eq!(to(&Routes::default(), "order.placed").as_deref(), Some("orders"));
        assert_eq!(Routes::default().limit("order.placed"), None);
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let routes = Routes::new([
            Rule::to("order.placed", "new").within(10),
            Rule::skip("order.internal.*"),
            Rule::to("order.*", "all/{type}").within(20),
        ])
        .unwrap();

        assert_eq!(to(&routes, "order.placed").as_deref(), Some("new"));
        assert_eq!(to(&routes, "order.internal.audit"), None);
        assert_eq!(to(&routes, "order.paid").as_deref(), Some("all/order.paid"));
        assert_eq!(to(&routes, "orders.paid").as_deref(), Some("orders"), "a prefix ends at its dot");
        assert_eq!(
            ["order.placed", "order.paid", "order.internal.audit", "invoice.sent"]
                .map(|kind| routes.limit(kind)),
            [Some(10), Some(20), None, None]
        );
    }

    #[test]
    fn a_template_is_filled_once_and_values_are_not_templates() {
        let routes = Routes::new([Rule::to("*", "{tenant}/{destination}.{type}/{")]).unwrap();
        let sly = Envelope { tenant: "{type}".into(), ..envelope("t") };

        assert_eq!(to(&routes, "order.paid").as_deref(), Some("acme/orders.order.paid/{"));
        assert_eq!(routes.find(&sly), Route::To("{type}/orders.t/{".into()));
    }

    #[test]
    fn a_malformed_rule_is_refused_by_name() {
        let cases = [
            (Rule::to("", "x"), "has no pattern"),
            (Rule::to("a*b", "x"), "is no pattern"),
            (Rule::to("ord*", "x"), "is no pattern"),
            (Rule::to("order.*", ""), "has an empty destination"),
            (Rule::to("order.*", "{key}"), "uses {key}"),
            (Rule::to("order.*", "é{ké}"), "uses {ké}"),
        ];

        for (rule, text) in cases {
            let error = Routes::new([rule.clone()]).err().map(|error| (error.kind(), error.to_string()));
            let (kind, message) = error.unwrap();
            assert_eq!(kind, Kind::Config);
            assert!(message.contains(text), "{message}");
        }
    }
}
