//! How to reach a server and what to ask of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use oncebox_core::cloudevents::Mode;
use oncebox_core::{Error, Kind, Order, Result};

/// Above this a consumer that dies costs more redeliveries than prefetching saves.
const MAX_PREFETCH: u16 = 10_000;
/// A window is kept in memory twice, here and in the client.
const MAX_WINDOW: usize = 100_000;

/// Who makes exchanges, queues and bindings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// This transport does, and needs the right to configure.
    #[default]
    Declare,
    /// Somebody else does: they are only looked at, and what is missing is an error.
    Check,
}

/// Options of a [`RabbitMq`](super::RabbitMq).
#[derive(Clone)]
pub struct RabbitMqOptions {
    pub(super) uri: Arc<AMQPUri>,
    pub(super) ca: Option<Arc<str>>,
    pub(super) management: Option<Arc<str>>,
    pub(super) topology: Topology,
    pub(super) exchange: Option<Arc<str>>,
    pub(super) groups: Vec<String>,
    pub(super) mode: Mode,
    pub(super) window: usize,
    pub(super) window_bytes: usize,
    pub(super) key_window: usize,
    pub(super) confirm_timeout: Duration,
    pub(super) call_timeout: Duration,
    pub(super) prefetch: u16,
    pub(super) order: Order,
    pub(super) hold: Duration,
    pub(super) delivery_limit: Option<u32>,
    pub(super) dead_letter_exchange: Option<Arc<str>>,
    pub(super) queue_limit: Option<u32>,
    pub(super) heartbeat: Duration,
    pub(super) name: Arc<str>,
}

impl RabbitMqOptions {
    /// Options for `amqp://user:password@host:port/vhost`, or `amqps` for TLS.
    ///
    /// # Errors
    /// [`Kind::Config`] if the address is not of that form. The error never quotes it.
    pub fn from_url(url: &str) -> Result<Self> {
        Ok(Self {
            uri: Arc::new(parse(url)?),
            ca: None,
            management: None,
            topology: Topology::default(),
            exchange: None,
            groups: Vec::new(),
            mode: Mode::default(),
            window: 1_000,
            window_bytes: 16 << 20,
            key_window: 1,
            confirm_timeout: Duration::from_secs(8),
            call_timeout: Duration::from_secs(10),
            prefetch: 100,
            order: Order::None,
            hold: Duration::from_secs(10),
            delivery_limit: None,
            dead_letter_exchange: None,
            queue_limit: None,
            heartbeat: Duration::from_secs(6),
            name: "oncebox".into(),
        })
    }

    /// Certificates, in PEM, to trust beside the public ones.
    #[must_use]
    pub fn ca(mut self, pem: &str) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// The management API, `http://user:password@host:port`. Only the preflight
    /// asks it: AMQP shows neither bindings nor policies.
    #[must_use]
    pub fn management(mut self, url: &str) -> Self {
        self.management = Some(url.into());
        self
    }

    /// Who makes exchanges, queues and bindings.
    #[must_use]
    pub const fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// One exchange for everything: a destination is then its routing key.
    #[must_use]
    pub fn exchange(mut self, name: &str) -> Self {
        self.exchange = Some(name.into());
        self
    }

    /// The groups whose queues the preflight looks at.
    #[must_use]
    pub fn groups<I: IntoIterator<Item = S>, S: Into<String>>(mut self, groups: I) -> Self {
        self.groups = groups.into_iter().map(Into::into).collect();
        self
    }

    /// How an envelope is written; binary unless changed. Both are always read.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The most messages sent and not confirmed yet; 1 000 unless changed.
    #[must_use]
    pub const fn window(mut self, messages: usize) -> Self {
        self.window = messages;
        self
    }

    /// The most bytes sent and not confirmed yet; 16 MiB unless changed. One
    /// message always goes.
    #[must_use]
    pub const fn window_bytes(mut self, bytes: usize) -> Self {
        self.window_bytes = bytes;
        self
    }

    /// The most messages of one key sent and not confirmed yet; 1 unless changed.
    ///
    /// With 1 a key keeps its order whatever the queue does. With more, a queue
    /// that refuses one message and takes the next before it heard the answer (it
    /// was full and is not, it was unbound and is bound again) has them the wrong
    /// way round. One key alone gets some hundred messages a second through with 1.
    #[must_use]
    pub const fn key_window(mut self, messages: usize) -> Self {
        self.key_window = messages;
        self
    }

    /// How long the confirms of one batch may take; 8 s unless changed. Less than
    /// the relay waits for a publish, so that it hears what was confirmed.
    #[must_use]
    pub const fn confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout;
        self
    }

    /// How long any other answer may take, a connection included; 10 s unless changed.
    #[must_use]
    pub const fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// The most deliveries a feed holds unanswered; 100 unless changed.
    ///
    /// Members of a single-active group should agree on it: what a member with
    /// more hands back can reach one with less out of order.
    #[must_use]
    pub const fn prefetch(mut self, deliveries: u16) -> Self {
        self.prefetch = deliveries;
        self
    }

    /// [`Order::None`] shares a queue among the members of a group.
    /// [`Order::SingleActive`] gives it to one member at a time, which keeps the
    /// order of keys. A queue cannot share keys, so [`Order::ByKey`] is refused.
    #[must_use]
    pub const fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// The longest delay that is waited for in memory; longer ones wait in a
    /// retry queue, unless the key keeps its order. 10 s unless changed.
    #[must_use]
    pub const fn hold(mut self, delay: Duration) -> Self {
        self.hold = delay;
        self
    }

    /// After so many deliveries the *server* takes a message out of the queue,
    /// and loses it without a dead-letter exchange. It counts what a dying
    /// consumer had merely prefetched, too. Practically unlimited unless changed.
    #[must_use]
    pub const fn delivery_limit(mut self, deliveries: u32) -> Self {
        self.delivery_limit = Some(deliveries);
        self
    }

    /// Where the server puts what it takes out of a queue.
    #[must_use]
    pub fn dead_letter_exchange(mut self, name: &str) -> Self {
        self.dead_letter_exchange = Some(name.into());
        self
    }

    /// The most messages a queue takes; beyond that it refuses. Unlimited unless changed.
    #[must_use]
    pub const fn queue_limit(mut self, messages: u32) -> Self {
        self.queue_limit = Some(messages);
        self
    }

    /// How often both sides show that they are alive; 6 s unless changed. A dead
    /// peer is noticed after about twice that.
    #[must_use]
    pub const fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    /// What the server calls the connections of this process.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        let wrong = |text: &str| Err(Error::new(Kind::Config, text.to_owned()));
        if self.window == 0 || self.window > MAX_WINDOW || self.key_window == 0 || self.window_bytes == 0 {
            return wrong("the RabbitMQ window must hold between 1 and 100000 messages");
        }
        if self.prefetch == 0 || self.prefetch > MAX_PREFETCH {
            return wrong("the RabbitMQ prefetch must be between 1 and 10000");
        }
        if self.order == Order::ByKey {
            return wrong("a RabbitMQ queue cannot share keys among its consumers: use single active");
        }
        if self.heartbeat_seconds() == 0 || self.confirm_timeout.is_zero() || self.call_timeout.is_zero() {
            return wrong("the RabbitMQ timeouts must not be zero, nor the heartbeat below a second");
        }
        for name in [&self.exchange, &self.dead_letter_exchange].into_iter().flatten() {
            if name.len() > 255 || name.contains('/') {
                return wrong("an exchange's name has at most 255 bytes and no slash");
            }
        }
        Ok(())
    }

    pub(super) fn heartbeat_seconds(&self) -> u16 {
        u16::try_from(self.heartbeat.as_secs()).unwrap_or(u16::MAX)
    }

    pub(super) const fn is_ordered(&self) -> bool {
        matches!(self.order, Order::SingleActive)
    }

    /// Where the server is, for people: without credentials.
    pub(super) fn place(&self) -> String {
        place(&self.uri)
    }
}

impl fmt::Debug for RabbitMqOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqOptions")
            .field("server", &self.place())
            .field("topology", &self.topology)
            .field("order", &self.order)
            .field("window", &self.window)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

pub(super) fn place(uri: &AMQPUri) -> String {
    format!("{}:{} (virtual host {})", uri.authority.host, uri.authority.port, uri.vhost)
}

/// The parser's own errors quote the address, password and all.
pub(super) fn parse(url: &str) -> Result<AMQPUri> {
    let wrong = |text: &str| Error::new(Kind::Config, format!("the RabbitMQ address {text}"));
    let form = "is not of the form amqp://user:password@host:port/vhost";
    let rest = url.split_once("://").map(|(_, rest)| rest).ok_or_else(|| wrong(form))?;
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    // The client takes it for an address without a host and goes to localhost.
    if authority.contains('[') {
        return Err(wrong("names its host by an IPv6 address, which the client cannot: use a name"));
    }
    let uri: AMQPUri = url.parse().map_err(|_quotes_it| wrong(form))?;
    match uri.scheme {
        AMQPScheme::AMQP | AMQPScheme::AMQPS if !uri.authority.host.is_empty() => Ok(uri),
        _ => Err(wrong(form)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "amqp://user:hunter2@broker.example:5673/shop";

    #[test]
    fn no_output_shows_the_password() {
        let options = RabbitMqOptions::from_url(URL).unwrap().management("http://user:hunter2@broker:15672");

        assert!(!format!("{options:?}").contains("hunter2"));
        assert_eq!(options.place(), "broker.example:5673 (virtual host shop)");
        for wrong in
            ["http://user:hunter2@host/", "amqp//user:hunter2@host", "amqp://user:hunter2@[::1]/", "hunter2"]
        {
            let error = RabbitMqOptions::from_url(wrong).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(!format!("{error:?} {}", error.chain()).contains("hunter2"));
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let options = || RabbitMqOptions::from_url(URL).unwrap();

        assert!(options().check().is_ok());
        let wrong = [
            options().window(0),
            options().key_window(0),
            options().prefetch(0),
            options().order(Order::ByKey),
            options().heartbeat(Duration::from_millis(999)),
            options().confirm_timeout(Duration::ZERO),
            options().exchange("a/b"),
        ];
        assert!(wrong.iter().all(|options| options.check().is_err()));
    }
}
