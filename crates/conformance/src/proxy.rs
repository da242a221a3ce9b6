//! A TCP proxy that misbehaves on demand, between a client and a server that
//! do not know of it.
//!
//! It can cut a connection before chosen bytes go on (a COMMIT that never
//! arrives, or whose answer never does), hold everything back for a while, and
//! go silent without hanging up. It knows no protocol: what to wait for is
//! given as bytes.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// PostgreSQL's COMMIT as a simple query, which is how sqlx sends it.
pub const POSTGRES_COMMIT_REQUEST: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";
/// What the server answers when it has committed.
pub const POSTGRES_COMMIT_REPLY: &[u8] = b"C\0\0\0\x0bCOMMIT\0";

const CHUNK: usize = 16 << 10;

/// Who sends the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Whoever connected to the proxy.
    Client,
    /// Whom the proxy connects to.
    Server,
}

/// Where a connection is to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Whose bytes are watched.
    pub sender: Sender,
    /// The bytes that are not passed on any more.
    pub pattern: Vec<u8>,
}

impl Cut {
    /// PostgreSQL's COMMIT does not arrive.
    #[must_use]
    pub fn commit_request() -> Self {
        Self { sender: Sender::Client, pattern: POSTGRES_COMMIT_REQUEST.to_vec() }
    }

    /// It does, and its answer does not.
    #[must_use]
    pub fn commit_reply() -> Self {
        Self { sender: Sender::Server, pattern: POSTGRES_COMMIT_REPLY.to_vec() }
    }
}

#[derive(Debug, Default)]
struct Orders {
    cut: Option<Cut>,
    delay: Duration,
    is_silent: bool,
}

#[derive(Debug, Default)]
struct Plan {
    orders: Mutex<Orders>,
    cuts: AtomicUsize,
    connections: AtomicUsize,
}

impl Plan {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes connections on to one server. Stops when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    plan: Arc<Plan>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy on a port of its own in front of `server`, for instance `127.0.0.1:5432`.
    ///
    /// # Errors
    /// If no port can be had.
    pub async fn before(server: impl Into<String>) -> io::Result<Self> {
        let server = server.into();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let plan = Arc::new(Plan::default());
        let accepting = tokio::spawn(accept(listener, server, Arc::clone(&plan)));
        Ok(Self { address, plan, accepting })
    }

    /// Where to connect instead.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the first connection that comes to these bytes; once.
    pub fn cut(&self, cut: Cut) {
        self.plan.orders().cut = Some(cut);
    }

    /// Takes an order back that nothing has met yet; true if there was one.
    #[must_use]
    pub fn spare(&self) -> bool {
        self.plan.orders().cut.take().is_some()
    }

    /// Holds every chunk back this long.
    pub fn delay(&self, delay: Duration) {
        self.plan.orders().delay = delay;
    }

    /// Reads and passes nothing on, while all connections stay open; `false`
    /// ends that and hangs up on those whose bytes are lost.
    pub fn silence(&self, is_silent: bool) {
        self.plan.orders().is_silent = is_silent;
    }

    /// Connections cut so far.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.plan.cuts.load(Ordering::SeqCst)
    }

    /// Connections made so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.plan.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: String, plan: Arc<Plan>) {
    while let Ok((client, _)) = listener.accept().await {
        plan.connections.fetch_add(1, Ordering::SeqCst);
        let (server, plan) = (server.clone(), Arc::clone(&plan));
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(&server).await else { return };
            // A proxy must not add the delays of small packets.
            client.set_nodelay(true).ok();
            server.set_nodelay(true).ok();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            // Whichever direction ends first hangs up on both sides.
            tokio::select! {
                _ = pass_on(Sender::Client, from_client, to_server, &plan) => {}
                _ = pass_on(Sender::Server, from_server, to_client, &plan) => {}
            }
        });
    }
}

/// What to do with a chunk.
enum Judged {
    Pass(Duration),
    CutAt(usize),
    Swallow,
}

async fn pass_on(
    sender: Sender,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    plan: &Plan,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut tail = Vec::new();
    let mut has_swallowed = false;
    loop {
        let read = from.read(&mut buffer).await?;
        let chunk = &buffer[..read];
        if chunk.is_empty() {
            return Ok(());
        }
        let judged = judge(&mut plan.orders(), sender, &tail, chunk);
        match judged {
            Judged::Pass(_) if has_swallowed => return Ok(()),
            Judged::Pass(delay) => {
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                to.write_all(chunk).await?;
            }
            Judged::CutAt(end) => {
                plan.cuts.fetch_add(1, Ordering::SeqCst);
                return to.write_all(&chunk[..end]).await;
            }
            Judged::Swallow => has_swallowed = true,
        }
        tail = chunk[chunk.len().saturating_sub(LONGEST_PATTERN)..].to_vec();
    }
}

/// How much of a chunk is remembered, for a pattern that two of them share.
const LONGEST_PATTERN: usize = 64;

fn judge(orders: &mut Orders, sender: Sender, tail: &[u8], chunk: &[u8]) -> Judged {
    if orders.is_silent {
        return Judged::Swallow;
    }
    let found = orders
        .cut
        .as_ref()
        .filter(|cut| cut.sender == sender)
        .and_then(|cut| find(tail, chunk, &cut.pattern));
    match found {
        Some(start) => {
            orders.cut = None;
            Judged::CutAt(start)
        }
        None => Judged::Pass(orders.delay),
    }
}

/// Where in `chunk` the pattern starts; at 0 if it started in what went before.
fn find(tail: &[u8], chunk: &[u8], pattern: &[u8]) -> Option<usize> {
    let kept = tail.len().min(pattern.len().saturating_sub(1));
    let joined = [&tail[tail.len() - kept..], chunk].concat();
    let start = joined.windows(pattern.len().max(1)).position(|window| window == pattern)?;
    Some(start.saturating_sub(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends everything back.
    async fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await.ok();
                });
            }
        });
        address
    }

    async fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
        stream.write_all(bytes).await?;
        let mut answer = vec![0; bytes.len()];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[test]
    fn a_pattern_is_found_across_two_chunks() {
        assert_eq!(find(b"", b"abcd", b"cd"), Some(2));
        assert_eq!(find(b"xxab", b"cd", b"abcd"), Some(0));
        assert_eq!(find(b"ab", b"xcd", b"abcd"), None);
        assert_eq!(find(b"", b"", b"ab"), None);
    }

    #[tokio::test]
    async fn it_cuts_once_in_the_direction_it_was_told() {
        let proxy = Proxy::before(echo().await).await.unwrap();
        let mut one = TcpStream::connect(proxy.address()).await.unwrap();
        let mut two = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(exchange(&mut one, b"hello").await.unwrap(), b"hello");

        proxy.cut(Cut { sender: Sender::Server, pattern: b"bye".to_vec() });
        assert_eq!(exchange(&mut two, b"good").await.unwrap(), b"good");
        let cut = exchange(&mut one, b"goodbye").await;

        assert!(cut.is_err());
        assert_eq!(exchange(&mut two, b"goodbye").await.unwrap(), b"goodbye");
        assert_eq!((proxy.cuts(), proxy.connections(), proxy.spare()), (1, 2, false));
    }

    #[tokio::test]
    async fn it_goes_silent_without_hanging_up_and_hangs_up_afterwards() {
        let proxy = Proxy::before(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(exchange(&mut stream, b"a").await.unwrap(), b"a");

        proxy.silence(true);
        let quiet = tokio::time::timeout(Duration::from_millis(50), exchange(&mut stream, b"b")).await;
        proxy.silence(false);

        assert!(quiet.is_err(), "nothing comes, and nobody hangs up");
        assert!(exchange(&mut stream, b"c").await.is_err());
    }

    #[tokio::test]
    async fn it_holds_bytes_back() {
        let proxy = Proxy::before(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.delay(Duration::from_millis(20));

        let start = std::time::Instant::now();
        exchange(&mut stream, b"a").await.unwrap();

        assert!(start.elapsed() >= Duration::from_millis(40), "once each way");
    }
}
