//! NATS JetStream: publishing with awaited confirms, and durable pull consumers.
//!
//! A destination is a subject. A group is a durable consumer on the stream that
//! takes the subject, filtered on it and on everything below it.
//!
//! | question | answer |
//! |---|---|
//! | when is a message confirmed? | when the stream has stored it; a confirm that says *duplicate* is checked against what is stored |
//! | what keeps the order of a key? | the next message of a key is sent when the one before is confirmed, and with [`Order::SingleActive`] one member of a group at a time is served |
//! | how does a slow handler keep its message? | the feed tells the server that it is at work, every third of `ack_wait` |
//! | who gives up on a message? | the inbox; a consumer somebody made with a limit of its own is listened to, and what it gives up on while a feed is open is handed to the inbox; what it gives up on while nobody listens stays in the stream, undelivered, so the preflight grades it D |
//!
//! [`Order::SingleActive`]: oncebox_core::Order::SingleActive

mod connection;
mod error;
mod options;
mod preflight;
mod publisher;
mod subscriber;
mod topology;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::{Capabilities, Order, Result};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

pub use self::options::{NatsOptions, Topology};
pub use self::subscriber::{NatsAnswer, NatsFeed};

use self::connection::Connection;
use self::options::{Access, Login};
use self::subscriber::Attempts;
use self::topology::Known;

/// How long leaving may take: opening a feed and giving back what it holds are both bounded by half of it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A transport over NATS JetStream. Clones share their connections, one for
/// publishing and one for all feeds.
#[derive(Clone)]
pub struct Nats {
    inner: Arc<Inner>,
}

struct Inner {
    options: NatsOptions,
    publishing: Connection,
    consuming: Connection,
    known: Known,
    attempts: Attempts,
    feeds: TaskTracker,
    closed: CancellationToken,
}

impl Nats {
    /// What this transport can do when set to this order. Attempts are exact as
    /// long as a message stays with this process; what another process counted
    /// as not spent is not known here.
    #[must_use]
    pub const fn capabilities(order: Order) -> Capabilities {
        Capabilities {
            name: match order {
                Order::None => "nats",
                Order::ByKey | Order::SingleActive => "nats, single active",
            },
            survives_process: true,
            order: match order {
                Order::None => Order::None,
                Order::ByKey | Order::SingleActive => Order::SingleActive,
            },
            delayed_nack: true,
            exact_attempts: true,
        }
    }

    /// A transport that connects when it is first used.
    #[must_use]
    pub fn new(options: NatsOptions) -> Self {
        let closed = CancellationToken::new();
        let connection = |role| Connection::new(options.clone(), role);
        let (publishing, consuming) = (connection("publisher"), connection("consumer"));
        let (known, attempts) = (Known::default(), Attempts::default());
        let feeds = TaskTracker::new();
        Self { inner: Arc::new(Inner { options, publishing, consuming, known, attempts, feeds, closed }) }
    }

    /// A transport that is connected.
    ///
    /// # Errors
    /// [`Kind::Unavailable`](oncebox_core::Kind::Unavailable) if the server does not answer,
    /// [`Kind::Config`](oncebox_core::Kind::Config) if it does not let us in.
    pub async fn connect(options: NatsOptions) -> Result<Self> {
        let nats = Self::new(options);
        nats.inner.publishing.live().await?;
        Ok(nats)
    }

    /// Connects with this URL from now on: other credentials, or other servers.
    /// Nothing that is under way is lost; what is not answered comes again. The
    /// contents of a `.creds` file stay in use if the URL names no user.
    ///
    /// # Errors
    /// [`Kind::Config`](oncebox_core::Kind::Config) if the URL cannot be used; everything stays as it was.
    pub async fn replace_url(&self, url: &str) -> Result<()> {
        let new = Access::of_url(url)?;
        self.replace_access(|access| {
            let keeps_login = matches!((&access.login, &new.login), (Login::Credentials(_), Login::Nobody));
            access.servers.clone_from(&new.servers);
            if !keeps_login {
                access.login = new.login.clone();
            }
        })
        .await;
        Ok(())
    }

    /// Logs in with the contents of another `.creds` file from now on.
    pub async fn replace_credentials(&self, contents: &str) {
        self.replace_access(|access| access.login = Login::Credentials(contents.into())).await;
    }

    async fn replace_access(&self, change: impl Fn(&mut Access)) {
        self.inner.publishing.replace(&change).await;
        self.inner.consuming.replace(&change).await;
    }

    /// Ends all feeds and refuses to publish. What was delivered can still be answered.
    pub fn close(&self) {
        self.inner.closed.cancel();
    }

    /// Closes, and returns when the server has been sent everything that was
    /// answered and everything that was fetched but not handed out has been given
    /// back, so that others get it at once. Bounded: a server that does not answer
    /// is left after a few seconds, and its own timeout gives back what it holds.
    ///
    /// What is still being handled is answered after this, over the same
    /// connection. Drop the feeds first: what one of them holds ready counts
    /// as handed out.
    pub async fn drain(&self) {
        self.close();
        self.inner.feeds.close();
        let left = async {
            self.inner.feeds.wait().await;
            self.inner.consuming.flush().await;
        };
        if timeout(DRAIN_TIMEOUT, left).await.is_err() {
            debug!(hosts = self.inner.consuming.hosts(), "nats.drained_slowly");
        }
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats").field("options", &self.inner.options).finish_non_exhaustive()
    }
}
