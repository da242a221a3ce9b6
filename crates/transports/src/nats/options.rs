//! How a NATS server is reached, and what is expected of its streams and consumers.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::ServerAddr;
use oncebox_core::cloudevents::{Mode, percent_decode};
use oncebox_core::{Error, Keyring, Kind, Order, Result};

/// Whether what is missing on the server is made or only missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// Streams and consumers that do not exist are made. What exists is left as it is.
    #[default]
    Declare,
    /// Nothing is made; what is missing is an error that names it. Needs fewer permissions.
    Check,
}

/// How to log in.
#[derive(Clone, Default)]
pub(super) enum Login {
    #[default]
    Nobody,
    Password {
        user: String,
        password: String,
    },
    Token(String),
    /// The contents of a `.creds` file.
    Credentials(String),
}

/// Where to connect, and as whom. Changes when credentials are rotated.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) login: Login,
}

impl Access {
    /// Takes user information out of the URLs: the client prints them when it
    /// logs, and here they are printed in errors.
    pub(super) fn of_url(urls: &str) -> Result<Self> {
        let mut access = Self { servers: Vec::new(), login: Login::Nobody };
        for url in urls.split(',').map(str::trim).filter(|url| !url.is_empty()) {
            // The URL itself is not repeated: it may hold a password.
            let invalid = || Error::new(Kind::Config, "the NATS URL is invalid");
            let address: ServerAddr = url.parse().map_err(|_| invalid())?;
            if address.host().is_empty() || address.is_websocket() {
                return Err(invalid());
            }
            let plain = |text: &str| percent_decode(text);
            match (address.username().map(plain), address.password().map(plain)) {
                (Some(user), Some(password)) => access.login = Login::Password { user, password },
                (Some(token), None) => access.login = Login::Token(token),
                _ => {}
            }
            let mut url = address.into_inner();
            url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| invalid())?;
            access.servers.push(ServerAddr::from_url(url).map_err(|_| invalid())?);
        }
        if access.servers.is_empty() {
            return Err(Error::new(Kind::Config, "no NATS URL was given"));
        }
        Ok(access)
    }

    /// The servers, for people.
    pub(super) fn hosts(&self) -> String {
        let hosts: Vec<String> =
            self.servers.iter().map(|server| format!("{}:{}", server.host(), server.port())).collect();
        hosts.join(", ")
    }
}

/// What may be set before connecting. `Debug` shows no secrets.
#[derive(Clone)]
pub struct NatsOptions {
    pub(super) access: Access,
    pub(super) root_certificates: Vec<PathBuf>,
    pub(super) client_certificate: Option<(PathBuf, PathBuf)>,
    pub(super) require_tls: bool,
    pub(super) name: String,
    pub(super) prefix: String,
    pub(super) streams: Topology,
    pub(super) consumers: Topology,
    pub(super) mode: Mode,
    pub(super) window: usize,
    pub(super) confirm_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) prefetch: usize,
    pub(super) order: Order,
    pub(super) ack_wait: Duration,
    pub(super) confirm_acks: bool,
    pub(super) keyring: Option<Keyring>,
    pub(super) replicas: usize,
    pub(super) largest_message: usize,
}

impl NatsOptions {
    /// Options for `nats://[user:password@|token@]host[:port]`, or several of
    /// them separated by commas. `tls://` insists on TLS.
    ///
    /// # Errors
    /// [`Kind::Config`] if the URL cannot be used. It is not repeated in the error.
    pub fn from_url(url: &str) -> Result<Self> {
        Ok(Self {
            access: Access::of_url(url)?,
            root_certificates: Vec::new(),
            client_certificate: None,
            require_tls: false,
            name: "oncebox".into(),
            prefix: String::new(),
            streams: Topology::Declare,
            consumers: Topology::Declare,
            mode: Mode::default(),
            window: 1_000,
            confirm_timeout: Duration::from_secs(8),
            connect_timeout: Duration::from_secs(5),
            prefetch: 100,
            order: Order::None,
            ack_wait: Duration::from_secs(30),
            confirm_acks: false,
            keyring: None,
            replicas: 1,
            largest_message: 1 << 20,
        })
    }

    /// Logs in with the contents of a `.creds` file (JWT and key) instead of what the URL says.
    #[must_use]
    pub fn credentials(mut self, contents: impl Into<String>) -> Self {
        self.access.login = Login::Credentials(contents.into());
        self
    }

    /// Trusts the certificates in this PEM file instead of the system's.
    #[must_use]
    pub fn root_certificates(mut self, file: impl Into<PathBuf>) -> Self {
        self.root_certificates.push(file.into());
        self
    }

    /// Shows this certificate to the server; both are PEM files.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Refuses to talk to a server without TLS.
    #[must_use]
    pub const fn require_tls(mut self, require: bool) -> Self {
        self.require_tls = require;
        self
    }

    /// The name of the connections, as operators of the server see it; `oncebox` unless changed.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Tokens put before every destination: with `prod.eu`, the destination
    /// `orders` is the subject `prod.eu.orders`. Empty unless changed.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// What to do about streams and consumers that do not exist.
    #[must_use]
    pub const fn topology(mut self, topology: Topology) -> Self {
        self.streams = topology;
        self.consumers = topology;
        self
    }

    /// What to do about streams that do not exist, where others own the streams
    /// and each service makes its consumers.
    #[must_use]
    pub const fn stream_topology(mut self, topology: Topology) -> Self {
        self.streams = topology;
        self
    }

    /// How envelopes travel.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The most messages of one publish that wait for their confirm; 1 000 unless changed.
    #[must_use]
    pub fn window(mut self, messages: usize) -> Self {
        self.window = messages.clamp(1, MAX_WINDOW);
        self
    }

    /// How long one publish waits for its confirms; 8 s unless changed, below
    /// the relay's own patience of 10 s, so that what was confirmed counts.
    #[must_use]
    pub const fn confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout;
        self
    }

    /// How long connecting to one server may take; 5 s unless changed.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The most deliveries a feed holds, and the most a declared consumer has out; 100 unless changed.
    #[must_use]
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.clamp(1, MAX_WINDOW);
        self
    }

    /// Whether deliveries of a key keep their order. [`Order::None`] unless
    /// changed; both others mean that one member of a group is served at a time.
    #[must_use]
    pub const fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// How long a declared consumer waits for a sign of life before it delivers
    /// again; 30 s unless changed, at least 1 s. Feeds give that sign every third of it.
    #[must_use]
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = wait.max(Duration::from_secs(1));
        self
    }

    /// Waits for the server's answer to every acknowledgement. Without it, one
    /// that is lost on its way means a redelivery, recognised as a duplicate.
    #[must_use]
    pub const fn confirm_acks(mut self, confirm: bool) -> Self {
        self.confirm_acks = confirm;
        self
    }

    /// Derives the ids by which the server recognises duplicates from a secret,
    /// so that nobody who may publish can take one in advance.
    #[must_use]
    pub fn keyring(mut self, keyring: Keyring) -> Self {
        self.keyring = Some(keyring);
        self
    }

    /// Replicas of a declared stream; 1 unless changed.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas.clamp(1, 5);
        self
    }

    /// The largest message that will be sent, for the preflight; 1 MiB unless changed.
    #[must_use]
    pub const fn largest_message(mut self, bytes: usize) -> Self {
        self.largest_message = bytes;
        self
    }

    pub(super) const fn is_ordered(&self) -> bool {
        !matches!(self.order, Order::None)
    }
}

/// No window or prefetch is larger: the client queues 65 536 messages for a subscription.
const MAX_WINDOW: usize = 10_000;

impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsOptions")
            .field("servers", &self.access.hosts())
            .field("name", &self.name)
            .field("prefix", &self.prefix)
            .field("streams", &self.streams)
            .field("consumers", &self.consumers)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_information_leaves_the_url_and_never_shows() {
        let options = NatsOptions::from_url("nats://me:hun%74er2@one:4222, two:4223").unwrap();

        let shown = format!("{options:?}");
        let servers: Vec<String> =
            options.access.servers.iter().map(|server| server.as_url_str().to_owned()).collect();

        assert!(shown.contains("one:4222, two:4223"), "{shown}");
        assert!(!shown.contains("hunter2") && !shown.contains("@"), "{shown}");
        assert_eq!(servers, ["nats://one:4222", "nats://two:4223"]);
        let Login::Password { user, password } = options.access.login else { panic!("no login") };
        assert_eq!((user.as_str(), password.as_str()), ("me", "hunter2"));
    }

    #[test]
    fn a_user_alone_is_a_token() {
        let options = NatsOptions::from_url("nats://s3cret@one").unwrap();

        assert!(matches!(options.access.login, Login::Token(token) if token == "s3cret"));
    }

    #[test]
    fn a_url_that_cannot_be_used_is_not_repeated() {
        for url in
            ["", ",", "amqp://u:hunter2@h", "nats://u:hunter2@", "ws://u:hunter2@h", "nats://u:hunter2@h:x"]
        {
            let error = NatsOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), Kind::Config, "{url}");
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
    }
}
