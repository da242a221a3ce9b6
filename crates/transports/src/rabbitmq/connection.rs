//! Connections to the server: made when needed, one attempt at a time, and
//! given up when they do not answer.
//!
//! lapin's own recovery replays channels and their topology behind our back and
//! cannot tell what became of messages under way; here a broken connection is
//! thrown away and everything on it is unknown.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use lapin::options::ConfirmSelectOptions;
use lapin::tcp::{AMQPUriTcpExt, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Channel, Connection, ConnectionProperties, Event};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tracing::{Instrument, debug, info};

use super::error::{Trouble, within};
use super::options::{RabbitMqOptions, place};

/// The wait after the first failure to connect; doubled with each.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// A server that is back is found within this.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How long an exchange the server refused is not tried again: every refusal
/// costs a channel and what was under way on it.
const REFUSED_FOR: Duration = Duration::from_secs(3);
/// Exchanges remembered to be there; asked for again when there are more.
const KNOWN_EXCHANGES: usize = 10_000;
/// Channels kept for the next batch.
const IDLE_CHANNELS: usize = 8;

/// Where to connect: replaced as a whole, so that no attempt mixes two.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) uri: Arc<AMQPUri>,
    pub(super) version: u64,
}

/// One connection that is there whenever it can be. The server blocks
/// connections that publish, so those that consume are apart.
pub(super) struct Link {
    purpose: &'static str,
    state: Arc<tokio::sync::Mutex<State>>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    failures: u32,
    /// Why there is no connection, and when the next attempt is made.
    pause: Option<(Instant, Trouble)>,
    version: u64,
}

impl Link {
    pub(super) fn new(purpose: &'static str) -> Self {
        Self { purpose, state: Arc::default() }
    }

    /// The connection. While the server cannot be reached this fails at once,
    /// except for one caller in a while who tries. The attempt goes on if that
    /// caller goes away: the client's thread would anyway, and the next caller
    /// would start another one.
    pub(super) async fn get(&self, target: &Target, options: &RabbitMqOptions) -> Result<Arc<Live>, Trouble> {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        if state.version != target.version {
            *state = State { version: target.version, ..State::default() };
        }
        if let Some(live) = state.live.as_ref().filter(|live| live.is_usable()) {
            return Ok(Arc::clone(live));
        }
        state.live = None;
        if let Some((_, trouble)) = state.pause.as_ref().filter(|(until, _)| Instant::now() < *until) {
            return Err(trouble.clone());
        }
        let (uri, options, purpose) = (Arc::clone(&target.uri), options.clone(), self.purpose);
        let attempt = async move { state.connect(&uri, &options, purpose).await };
        let attempt = tokio::spawn(attempt.in_current_span()).await;
        attempt.unwrap_or_else(|error| Err(Trouble::unavailable(format!("the attempt ended: {error}"))))
    }
}

impl State {
    /// Makes an attempt, and notes what came of it.
    async fn connect(
        &mut self,
        uri: &AMQPUri,
        options: &RabbitMqOptions,
        purpose: &str,
    ) -> Result<Arc<Live>, Trouble> {
        let is_suspect = self.pause.as_ref().is_some_and(|(_, trouble)| trouble.is_silence);
        match Live::connect(uri, options, purpose, is_suspect).await {
            Ok(live) => {
                info!(server = place(uri), purpose, "rabbitmq.connected");
                let live = Arc::new(live);
                (self.live, self.failures, self.pause) = (Some(Arc::clone(&live)), 0, None);
                Ok(live)
            }
            Err(trouble) => {
                self.failures = self.failures.saturating_add(1);
                let text = format!("cannot connect to {}: {}", place(uri), trouble.text);
                let trouble = Trouble { text, ..trouble };
                self.pause = Some((Instant::now() + pause(self.failures), trouble.clone()));
                debug!(reason = trouble.text, failures = self.failures, "rabbitmq.not_connected");
                Err(trouble)
            }
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

/// Whether anybody answers. The client waits in a thread of its own for the
/// first word of a server, for ever if there is none: after the first silence
/// that is waited for here, where it can be given up.
async fn probe(uri: &AMQPUri, limit: Duration) -> Result<(), Trouble> {
    let address = (uri.authority.host.as_str(), uri.authority.port);
    let answer = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"AMQP\0\0\x09\x01").await?;
        stream.read_u8().await
    };
    let answer = async { answer.await.map_err(lapin::Error::from) };
    within(limit, "the protocol's name", answer).await.map(drop)
}

/// Doubles up to the longest, and up to half of it is drawn so that a server
/// that comes back is not met by everybody at once.
fn pause(failures: u32) -> Duration {
    let step = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_WAIT);
    let drawn = RandomState::new().hash_one(failures) % 1_000;
    step / 2 + (step / 2).mul_f64(drawn as f64 / 1_000.0)
}

type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// What is known about a connection, and changes.
struct Notes {
    events: Events,
    /// Why the server blocks it, as far as it said.
    alarm: String,
    /// Exchanges that are there.
    exchanges: HashSet<String>,
    /// Exchanges that cannot be used, until when and why.
    refused: HashMap<String, (Instant, String)>,
    /// Queues of retries that are there.
    queues: HashSet<String>,
    idle: Vec<Channel>,
}

/// A connection that was made.
pub(super) struct Live {
    connection: Option<Connection>,
    is_condemned: AtomicBool,
    notes: Mutex<Notes>,
    call_timeout: Duration,
    heartbeat: Duration,
}

impl Live {
    async fn connect(
        uri: &AMQPUri,
        options: &RabbitMqOptions,
        purpose: &str,
        is_suspect: bool,
    ) -> Result<Self, Trouble> {
        let limit = options.call_timeout;
        if is_suspect && uri.scheme == AMQPScheme::AMQP {
            probe(uri, limit).await?;
        }
        let mut uri = uri.clone();
        uri.query.heartbeat.get_or_insert(options.heartbeat_seconds());
        let name = format!("{} {} {}", options.name, purpose, std::process::id());
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let runtime = lapin::runtime::default_runtime()?;
        let ca = options.ca.clone();
        // The client gives the socket to a thread of its own, which would wait for
        // as long as the kernel does.
        let connect = async move |uri: AMQPUri, runtime| {
            let tls = OwnedTLSConfig { identity: None, cert_chain: ca.as_deref().map(str::to_owned) };
            let connected = uri.connect_with_config_async(tls.as_ref(), &runtime);
            match timeout(limit, connected).await {
                Ok(stream) => stream.map_err(lapin::Error::from),
                Err(_elapsed) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        };
        let handshake = Connection::connector(uri, runtime, connect, properties);
        let connection = within(limit, "the handshake", handshake).await?;
        Ok(Self::new(connection, options))
    }

    fn new(connection: Connection, options: &RabbitMqOptions) -> Self {
        let notes = Notes {
            events: Box::pin(connection.events_listener()),
            alarm: String::new(),
            exchanges: HashSet::new(),
            refused: HashMap::new(),
            queues: HashSet::new(),
            idle: Vec::new(),
        };
        Self {
            connection: Some(connection),
            is_condemned: AtomicBool::new(false),
            notes: Mutex::new(notes),
            call_timeout: options.call_timeout,
            heartbeat: options.heartbeat,
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        let is_connected = self.connection.as_ref().is_some_and(|connection| connection.status().connected());
        is_connected && !self.is_condemned.load(Ordering::Relaxed)
    }

    /// It does not answer: whoever comes next makes another.
    pub(super) fn condemn(&self) {
        self.is_condemned.store(true, Ordering::Relaxed);
    }

    /// Why the server does not read from this connection, if it does not. A
    /// call would wait until it does.
    pub(super) fn blocked(&self) -> Option<String> {
        if !self.connection.as_ref().is_some_and(|connection| connection.status().blocked()) {
            return None;
        }
        let mut notes = self.notes();
        while let Some(Some(event)) = notes.events.next().now_or_never() {
            if let Event::ConnectionBlocked(reason) = event {
                notes.alarm = reason;
            }
        }
        Some(format!("blocked by the server: {}", notes.alarm))
    }

    /// The most bytes of one frame.
    pub(super) fn frame_bytes(&self) -> usize {
        let negotiated =
            self.connection.as_ref().map_or(0, |connection| connection.configuration().frame_max());
        // No limit: the client still buffers frame by frame.
        if negotiated == 0 { 131_072 } else { negotiated as usize }
    }

    pub(super) async fn channel(&self) -> Result<Channel, Trouble> {
        if let Some(reason) = self.blocked() {
            return Err(Trouble::unavailable(reason));
        }
        let Some(connection) = self.connection.as_ref() else {
            return Err(Trouble::unavailable("the connection is closed"));
        };
        self.heard(within(self.call_timeout, "channel.open", connection.create_channel()).await)
    }

    /// A channel that confirms. Taken for one batch: confirms and returns of two
    /// batches on one channel could not be told apart.
    pub(super) async fn confirming(&self) -> Result<Channel, Trouble> {
        let idle = self.notes().idle.pop();
        if let Some(channel) = idle.filter(|channel| channel.status().connected()) {
            return Ok(channel);
        }
        let channel = self.channel().await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        self.heard(within(self.call_timeout, "confirm.select", select).await)?;
        Ok(channel)
    }

    /// Takes back a channel on which nothing is under way.
    pub(super) fn rest(&self, channel: Channel) {
        let mut notes = self.notes();
        if notes.idle.len() < IDLE_CHANNELS && channel.status().connected() {
            notes.idle.push(channel);
        }
    }

    /// Passes an answer on; a server that gave none gets no second question.
    pub(super) fn heard<T>(&self, answer: Result<T, Trouble>) -> Result<T, Trouble> {
        if answer.as_ref().is_err_and(|trouble| trouble.is_silence) && self.blocked().is_none() {
            self.condemn();
        }
        answer
    }

    pub(super) fn knows_exchange(&self, name: &str) -> bool {
        self.notes().exchanges.contains(name)
    }

    pub(super) fn note_exchange(&self, name: &str) {
        let mut notes = self.notes();
        notes.refused.remove(name);
        if notes.exchanges.len() >= KNOWN_EXCHANGES {
            notes.exchanges.clear();
        }
        notes.exchanges.insert(name.to_owned());
    }

    /// Why an exchange cannot be used, if that was found out a moment ago.
    pub(super) fn refusal(&self, name: &str) -> Option<String> {
        let notes = self.notes();
        let (until, reason) = notes.refused.get(name)?;
        (Instant::now() < *until).then(|| reason.clone())
    }

    pub(super) fn note_refusal(&self, name: &str, reason: &str) {
        let mut notes = self.notes();
        notes.exchanges.remove(name);
        let now = Instant::now();
        notes.refused.retain(|_, (until, _)| now < *until);
        notes.refused.insert(name.to_owned(), (now + REFUSED_FOR, reason.to_owned()));
    }

    pub(super) fn knows_queue(&self, name: &str) -> bool {
        self.notes().queues.contains(name)
    }

    pub(super) fn note_queue(&self, name: &str) {
        self.notes().queues.insert(name.to_owned());
    }

    pub(super) fn forget_queue(&self, name: &str) {
        self.notes().queues.remove(name);
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Live {
    /// A connection that is closed politely waits for the other side, for ever if
    /// that is gone, and a thread waits with it. Heartbeats end one that is left
    /// open, so a condemned one is left open until they had their say.
    fn drop(&mut self) {
        let Some(connection) = self.connection.take().filter(|_| self.is_condemned.load(Ordering::Relaxed))
        else {
            return;
        };
        let patience = self.heartbeat * 3;
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(async move {
                let until = Instant::now() + patience;
                while connection.status().connected() && Instant::now() < until {
                    sleep(patience / 20).await;
                }
                drop(connection);
            }));
        }
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("is_usable", &self.is_usable()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        assert!(pause(1) <= FIRST_WAIT && pause(1) >= FIRST_WAIT / 2);
        assert!((1..100).all(|failures| pause(failures) <= LONGEST_WAIT));
        assert!(pause(50) >= LONGEST_WAIT / 2);
    }

    #[tokio::test]
    async fn an_attempt_outlives_the_caller_who_made_it() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("amqp://{}", silent.local_addr().unwrap());
        let options = RabbitMqOptions::from_url(&url).unwrap().call_timeout(Duration::from_secs(5));
        let target = Target { uri: Arc::clone(&options.uri), version: 0 };
        let link = Link::new("testing");

        for _ in 0..3 {
            let left = timeout(Duration::from_millis(20), link.get(&target, &options)).await;
            assert!(left.is_err(), "nobody answers so soon");
        }
        let trouble = link.get(&target, &options).await.unwrap_err();

        assert!(trouble.is_silence, "{trouble:?}");
        assert_eq!(link.state.lock().await.failures, 1, "those who came later have waited for it");
    }
}
