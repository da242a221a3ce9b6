//! One connection to the server: made when first needed, mended by the client
//! itself, and replaced when its answers stay away.
//!
//! The client queues what is sent while it is disconnected. Nothing here is
//! sent then: a caller is told at once that there is no connection, and a call
//! that was under way learns of the loss within [`GLANCE`].

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectOptions, Event, ServerError};
use oncebox_core::{Error, Kind, Result};
use tokio::time::{Instant, timeout};

use super::error::{not_connected, unavailable};
use super::options::{Access, Login, NatsOptions};

/// How often a call that waits looks whether its connection is still there.
pub(super) const GLANCE: Duration = Duration::from_millis(100);
/// The longest wait for an answer of the JetStream interface.
pub(super) const API_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that is silent for two of these and a bit counts as gone.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The longest pause between two attempts of the client to connect again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Confirms that may be awaited by all callers together.
const MAX_AWAITED: usize = 20_000;

/// What the client heard on this connection without being asked.
#[derive(Default)]
struct Heard {
    /// The last thing the server complained about, and when.
    complaint: Option<(Instant, String)>,
    /// Why the client could not connect again, until it could.
    obstacle: Option<String>,
}

impl Heard {
    fn hear(&mut self, event: Event) {
        match event {
            Event::Connected => self.obstacle = None,
            Event::ServerError(ServerError::Other(complaint)) => {
                self.complaint = Some((Instant::now(), complaint));
            }
            Event::ServerError(error) => self.obstacle = Some(error.to_string()),
            Event::ClientError(error) => self.obstacle = Some(error.to_string()),
            _ => {}
        }
    }
}

/// A connection in use. Clones share it.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) client: Client,
    /// For requests about streams and consumers.
    pub(super) api: Context,
    /// For publishing, with its own patience.
    pub(super) publishing: Context,
    heard: Arc<Mutex<Heard>>,
    /// The connects the client had made when this was handed out.
    connects: u64,
}

impl Live {
    fn new(client: Client, heard: Arc<Mutex<Heard>>, confirm_timeout: Duration) -> Self {
        let api = ContextBuilder::new()
            .timeout(API_TIMEOUT)
            .max_ack_inflight(MAX_AWAITED)
            .backpressure_on_inflight(true)
            .build(client.clone());
        let mut publishing = api.clone();
        // A call ends before its confirms do: it is the call that draws the conclusions.
        publishing.set_timeout(confirm_timeout.saturating_add(API_TIMEOUT));
        let connects = connects(&client);
        Self { client, api, publishing, heard, connects }
    }

    /// Whether what was sent since this was handed out can still be answered.
    pub(super) fn is_unbroken(&self) -> bool {
        self.is_connected() && connects(&self.client) == self.connects
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// What the server last complained about since then; it tells nobody in particular.
    pub(super) fn complaint_since(&self, since: Instant) -> Option<String> {
        let heard = locked(&self.heard);
        heard.complaint.as_ref().filter(|(when, _)| *when >= since).map(|(_, text)| text.clone())
    }
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

struct Kept {
    live: Live,
    /// Something was not answered although the connection seemed to be there.
    is_suspect: bool,
}

/// A connection that is made when it is needed.
pub(super) struct Connection {
    options: NatsOptions,
    /// What it is for, as operators of the server see it.
    role: &'static str,
    access: Mutex<Access>,
    kept: tokio::sync::Mutex<Option<Kept>>,
}

impl Connection {
    pub(super) fn new(options: NatsOptions, role: &'static str) -> Self {
        let access = Mutex::new(options.access.clone());
        Self { options, role, access, kept: tokio::sync::Mutex::new(None) }
    }

    /// Where this connects to, for people.
    pub(super) fn hosts(&self) -> String {
        locked(&self.access).hosts()
    }

    /// Connects with what `change` makes of servers and credentials from now
    /// on. Calls that are under way end on the old connection.
    pub(super) async fn replace(&self, change: impl FnOnce(&mut Access)) {
        change(&mut locked(&self.access));
        *self.kept.lock().await = None;
    }

    /// The connection, made if there is none.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] at once while the client is connecting again,
    /// [`Kind::Config`] if the server does not let us in.
    pub(super) async fn live(&self) -> Result<Live> {
        let mut kept = self.kept.lock().await;
        if let Some(there) = kept.as_ref() {
            if !there.live.is_connected() {
                return Err(self.not_connected(&there.live));
            }
            if !there.is_suspect {
                return Ok(Live { connects: connects(&there.live.client), ..there.live.clone() });
            }
            // The client never forgets who waits for an answer that does not
            // come; a fresh one does not remember.
            *kept = None;
        }
        let live = self.connect().await?;
        *kept = Some(Kept { live: live.clone(), is_suspect: false });
        Ok(live)
    }

    /// Where there is no connection, and why as far as the client says.
    fn not_connected(&self, live: &Live) -> Error {
        let why = locked(&live.heard).obstacle.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        Error::new(Kind::Unavailable, format!("not connected to NATS at {}{why}", self.hosts()))
    }

    /// Something sent over `live` was not answered: the next caller gets a fresh connection.
    pub(super) async fn suspect(&self, live: &Live) {
        if let Some(kept) = self.kept.lock().await.as_mut()
            && Arc::ptr_eq(&kept.live.heard, &live.heard)
        {
            kept.is_suspect = true;
        }
    }

    /// Returns when what was handed to the client is on its way, if it can be.
    pub(super) async fn flush(&self) {
        let client = self.kept.lock().await.as_ref().map(|kept| kept.live.client.clone());
        if let Some(client) = client {
            // What cannot be sent comes again.
            drop(timeout(API_TIMEOUT, client.flush()).await);
        }
    }

    async fn connect(&self) -> Result<Live> {
        let access = locked(&self.access).clone();
        let hosts = access.hosts();
        let heard = Arc::<Mutex<Heard>>::default();
        let options = self.connect_options(&access.login, &heard)?;
        // The client bounds one address; a name may have many.
        let patience = self.options.connect_timeout.saturating_mul(2);
        let client = timeout(patience, options.connect(access.servers))
            .await
            .map_err(|elapsed| unavailable(format!("cannot connect to NATS at {hosts}"), elapsed))?
            .map_err(|error| not_connected(&hosts, error))?;
        Ok(Live::new(client, heard, self.options.confirm_timeout))
    }

    fn connect_options(&self, login: &Login, heard: &Arc<Mutex<Heard>>) -> Result<ConnectOptions> {
        let heard = Arc::clone(heard);
        let mut options = ConnectOptions::new()
            .name(format!("{} {}", self.options.name, self.role))
            .connection_timeout(self.options.connect_timeout)
            .request_timeout(Some(API_TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .require_tls(self.options.require_tls)
            .reconnect_delay_callback(|attempts| {
                let doubled = Duration::from_millis(10).saturating_mul(1 << attempts.min(10));
                doubled.min(RECONNECT_PAUSE)
            })
            .event_callback(move |event| {
                locked(&heard).hear(event);
                std::future::ready(())
            });
        for file in &self.options.root_certificates {
            options = options.add_root_certificates(file.clone());
        }
        if let Some((certificate, key)) = &self.options.client_certificate {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        Ok(match login {
            Login::Nobody => options,
            Login::Password { user, password } => options.user_and_password(user.clone(), password.clone()),
            Login::Token(token) => options.token(token.clone()),
            Login::Credentials(contents) => options.credentials(contents).map_err(|_| {
                Error::new(Kind::Config, "the NATS credentials are not the contents of a .creds file")
            })?,
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("hosts", &self.hosts()).field("role", &self.role).finish()
    }
}

/// Nothing panics while it holds one of these locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
