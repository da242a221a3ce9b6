//! How an HTTP publisher is set up, and what is refused before it starts.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use oncebox_core::cloudevents::Mode;
use oncebox_core::{Error, Failure, Kind, Result};

use super::target::{Leeway, Target};
use super::webhook::WebhookKeys;

/// No timeout is longer: a lease would be over long before.
const LONGEST_TIME: Duration = Duration::from_secs(3600);

/// How messages are posted. `Debug` shows neither URLs nor header values.
#[derive(Clone)]
pub struct HttpOptions {
    pub(super) mode: Mode,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) window: Duration,
    pub(super) concurrency: usize,
    pub(super) keys: Option<WebhookKeys>,
    pub(super) roots_pem: Vec<Vec<u8>>,
    leeway: Leeway,
    named: BTreeMap<String, String>,
    headers: Vec<(String, String, String)>,
    allowed: Vec<String>,
}

impl HttpOptions {
    /// Options that know no destination yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            mode: Mode::default(),
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            window: Duration::from_secs(3),
            concurrency: 8,
            keys: None,
            roots_pem: Vec::new(),
            leeway: Leeway::default(),
            named: BTreeMap::new(),
            headers: Vec::new(),
            allowed: Vec::new(),
        }
    }

    /// Messages for the destination `name` are posted to `url`.
    #[must_use]
    pub fn destination(mut self, name: impl Into<String>, url: impl Into<String>) -> Self {
        self.named.insert(name.into(), url.into());
        self
    }

    /// A header for every message to the destination `name`, such as `authorization`.
    #[must_use]
    pub fn header(
        mut self,
        destination: impl Into<String>,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        self.headers.push((destination.into(), name.into(), value.into()));
        self
    }

    /// A destination may be a URL itself if it lies below `prefix`:
    /// `https://hooks.example.com/orders` covers that path and those below it.
    #[must_use]
    pub fn allow(mut self, prefix: impl Into<String>) -> Self {
        self.allowed.push(prefix.into());
        self
    }

    /// How a message becomes a request; binary unless changed.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Signs every request.
    #[must_use]
    pub fn sign_with(mut self, keys: WebhookKeys) -> Self {
        self.keys = Some(keys);
        self
    }

    /// How long an answer may take, connecting included; 5 s unless changed.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a connection may take, TLS included; 3 s unless changed.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long one call goes on sending; what was not sent by then is left to
    /// the next call. 3 s unless changed. The relay's publish timeout must be
    /// longer than this and [`timeout`](Self::timeout) together by more than a
    /// second, or it gives up on a call whose messages were confirmed.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// The most requests to one destination at once; 8 unless changed.
    #[must_use]
    pub const fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests;
        self
    }

    /// Certificates, in PEM, that are trusted beside the public ones.
    #[must_use]
    pub fn trust_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.roots_pem.push(certificates.into());
        self
    }

    /// Allows plain http to other machines. Anybody between can read and forge.
    #[must_use]
    pub const fn allow_plain_http(mut self) -> Self {
        self.leeway.plain_http = true;
        self
    }

    /// Allows link-local addresses, where clouds keep their metadata services.
    #[must_use]
    pub const fn allow_link_local(mut self) -> Self {
        self.leeway.link_local = true;
        self
    }

    pub(super) const fn leeway(&self) -> Leeway {
        self.leeway
    }

    pub(super) fn directory(&self) -> Result<Directory> {
        if self.timeout.is_zero() || self.connect_timeout.is_zero() || self.concurrency == 0 {
            return Err(config("the timeouts and the concurrency of an http sink must not be zero"));
        }
        if [self.timeout, self.connect_timeout, self.window].iter().any(|time| *time > LONGEST_TIME) {
            return Err(config(format!("a timeout of an http sink must be at most {LONGEST_TIME:?}")));
        }
        let mut named = BTreeMap::new();
        for (name, url) in &self.named {
            let target = Target::parse(url, self.leeway)
                .map_err(|reason| config(format!("the http destination {name:?}: {reason}")))?;
            let headers = HeaderMap::new();
            named.insert(name.clone(), Place { label: format!("{name} ({target})"), target, headers });
        }
        for (destination, name, value) in &self.headers {
            let Some(place) = named.get_mut(destination) else {
                let message = format!("a header is set for {destination:?}, which is no http destination");
                return Err(config(message));
            };
            let (Ok(header), Ok(mut value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>())
            else {
                return Err(config(format!("the header {name:?} of {destination:?} cannot be sent")));
            };
            value.set_sensitive(true);
            place.headers.insert(header, value);
        }
        let allowed = self.allowed.iter().map(|prefix| Target::parse(prefix, self.leeway)).collect();
        let allowed: Result<_, _> = allowed;
        let allowed = allowed.map_err(|reason| config(format!("an allowed prefix: {reason}")))?;
        Ok(Directory { named, allowed, leeway: self.leeway })
    }
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions")
            .field("mode", &self.mode)
            .field("timeout", &self.timeout)
            .field("keys", &self.keys)
            .field("leeway", &self.leeway)
            .field("destinations", &self.named.keys())
            .finish_non_exhaustive()
    }
}

/// Where one destination's messages go.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) target: Target,
    /// For people: the name, if it has one, and the origin.
    pub(super) label: String,
    pub(super) headers: HeaderMap,
}

/// The destinations that may be posted to.
#[derive(Debug)]
pub(super) struct Directory {
    named: BTreeMap<String, Place>,
    allowed: Vec<Target>,
    leeway: Leeway,
}

impl Directory {
    /// The place of a destination. One that is unknown or not allowed says
    /// nothing about the message: it waits for the configuration.
    pub(super) fn find(&self, destination: &str) -> Result<Place, Failure> {
        if let Some(place) = self.named.get(destination) {
            return Ok(place.clone());
        }
        if !destination.contains("://") {
            let message = format!("no http destination is configured under the name {destination:?}");
            return Err(Failure::destination(message));
        }
        let target = Target::parse(destination, self.leeway)
            .map_err(|reason| Failure::destination(format!("the URL is refused: {reason}")))?;
        if !self.allowed.iter().any(|prefix| target.is_below(prefix)) {
            let message = format!("the URL on {target} lies below no allowed prefix");
            return Err(Failure::destination(message));
        }
        Ok(Place { label: target.to_string(), target, headers: HeaderMap::new() })
    }
}

fn config(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Kind::Config, message)
}

#[cfg(test)]
mod tests {
    use oncebox_core::transport::Class;

    use super::*;

    #[test]
    fn a_destination_is_a_name_or_below_an_allowed_prefix() {
        let options =
            HttpOptions::new().destination("orders", "https://a.test/x").allow("https://b.test/hooks");
        let directory = options.directory().unwrap();

        assert_eq!(directory.find("orders").unwrap().label, "orders (https://a.test)");
        assert_eq!(directory.find("https://b.test/hooks/7").unwrap().label, "https://b.test");
        for refused in
            ["bookings", "https://a.test/x", "https://b.test/admin", "https://u:hunter2@b.test/hooks/7"]
        {
            let failure = directory.find(refused).unwrap_err();
            assert_eq!(failure.class, Class::Destination);
            assert!(!failure.reason.contains("hunter2"));
        }
    }

    #[test]
    fn a_set_up_that_cannot_work_is_refused_without_its_secrets() {
        let base = || HttpOptions::new().destination("orders", "https://a.test/x");
        for options in [
            base().destination("bookings", "http://b.test/hunter2"),
            base().destination("bookings", "https://u:hunter2@b.test/"),
            base().header("bookings", "authorization", "hunter2"),
            base().header("orders", "authorization", "hunter2\n"),
            base().header("orders", "not a name", "hunter2"),
            base().allow("hunter2"),
            base().timeout(Duration::ZERO),
            base().concurrency(0),
            base().window(Duration::MAX),
        ] {
            let refused = options.directory().unwrap_err();
            assert_eq!(refused.kind(), Kind::Config);
            assert!(!refused.chain().contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn debug_shows_no_url_and_no_header_value() {
        let options = HttpOptions::new()
            .destination("orders", "https://a.test/hunter2")
            .header("orders", "x", "hunter2");

        let shown = format!("{options:?} {:?}", options.directory().unwrap());

        assert!(shown.contains("orders") && !shown.contains("hunter2"), "{shown}");
    }
}
