//! Connections of clients: how many there are at a time, how long each may keep
//! us waiting, and how they end.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use oncebox_gate::GateFuture;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use super::entry::Entry;
use super::wire::{Notes, Wire};

/// The pause when no connection can be taken, above all for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(500);

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How many there may be; more wait until one ends.
    pub(super) connections: usize,
    /// How long one may be without a whole head of a request.
    pub(super) head: Duration,
    /// How long a client may take nothing of its answer.
    pub(super) stall: Duration,
    /// How long those that are busy are waited for at the end.
    pub(super) drain: Duration,
}

/// How a connection is told that it is to end.
struct End {
    /// After the request that it is busy with.
    soon: CancellationToken,
    now: CancellationToken,
}

impl End {
    /// For one connection: what all of them look at they would take turns at.
    fn child(&self) -> Self {
        Self { soon: self.soon.child_token(), now: self.now.child_token() }
    }
}

/// Answers until `stop` is done, and from then on what has been asked already.
/// Tells until when whatever else runs may be waited for.
pub(super) async fn serve<G>(
    listener: TcpListener,
    gate: G,
    bounds: Bounds,
    stop: impl Future<Output = ()>,
) -> Instant
where
    G: Service<Request<Body>, Future = GateFuture<Infallible>> + Clone + Send + Sync + 'static,
{
    let (tasks, room) = (TaskTracker::new(), Arc::new(Semaphore::new(bounds.connections)));
    let end = End { soon: CancellationToken::new(), now: CancellationToken::new() };
    let accepting = async {
        let mut builder = http1::Builder::new();
        // It would cost a timer for each request; one for each connection is enough.
        builder.header_read_timeout(None);
        // As much as a head may have, and no more: slow ones of many clients would take all memory.
        builder.max_buf_size(64 << 10);
        loop {
            let (stream, permit) = accept(&listener, &room).await;
            let (wire, notes) = Wire::new(stream);
            let entry = Entry::new(gate.clone(), notes.clone());
            let connection = builder.serve_connection(TokioIo::new(wire), entry);
            let end = end.child();
            tasks.spawn(async move {
                attend(connection, &notes, bounds, &end).await;
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop => {}
    }
    drop(listener);
    let deadline = Instant::now() + bounds.drain;
    end.soon.cancel();
    tasks.close();
    if timeout_at(deadline, tasks.wait()).await.is_err() {
        tracing::warn!(connections = tasks.len(), "connections were still busy, and are closed");
        end.now.cancel();
        tasks.wait().await;
    }
    deadline
}

/// The next connection, as soon as there is room for one. No error is the last.
async fn accept(listener: &TcpListener, room: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    // Nobody closes it, so there is always one in the end.
    let Ok(permit) = Arc::clone(room).acquire_owned().await else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Without it answers would wait for one another; it fails only if the client has gone.
                stream.set_nodelay(true).ok();
                return (stream, permit);
            }
            Err(error) if is_of_a_client(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be taken");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Whether the client was gone before it was let in.
fn is_of_a_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers on a connection until one of both has enough of it.
async fn attend<G>(
    connection: http1::Connection<TokioIo<Wire<TcpStream>>, Entry<G>>,
    notes: &Notes,
    bounds: Bounds,
    end: &End,
) where
    G: Service<Request<Body>, Future = GateFuture<Infallible>> + Clone,
{
    let mut connection = pin!(connection);
    let (mut told, mut is_told) = (pin!(end.soon.cancelled()), false);
    let look = bounds.head.min(bounds.stall);
    let mut patience = pin!(sleep(look));
    loop {
        tokio::select! {
            biased;
            done = connection.as_mut() => {
                if let Err(error) = done {
                    tracing::debug!(%error, "a connection broke off");
                }
                return;
            }
            () = told.as_mut(), if !is_told => {
                is_told = true;
                connection.as_mut().graceful_shutdown();
            }
            () = end.now.cancelled(), if is_told => return,
            () = patience.as_mut() => {
                let (waits, stuck) = (notes.waits(), notes.stuck());
                let due = [waits.map(|since| since + bounds.head), stuck.map(|since| since + bounds.stall)];
                let now = Instant::now();
                let due = due.into_iter().flatten().min().unwrap_or(now + look);
                if due <= now {
                    tracing::debug!("a connection is closed: its client asks nothing, or does not read");
                    return;
                }
                patience.as_mut().reset(due.min(now + look));
            }
        }
    }
}
