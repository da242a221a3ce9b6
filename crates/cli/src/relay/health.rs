//! `/livez` and `/readyz`. Both answer from the board and ask nobody, so that
//! whoever can reach the port cannot make the databases work; and from a thread
//! of their own, so that they answer whatever the others are busy with.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;

use super::board::Board;
use crate::admin;
use crate::fault::{Class, Fault};

/// Opens the port, so that a wrong address ends the start.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Fault> {
    TcpListener::bind(address).await.map_err(|error| {
        Fault::new(Class::Config, format!("cannot listen on {address} for health checks: {error}"))
            .help("change `listen` in [health]")
    })
}

pub(super) fn serve(listener: TcpListener, board: Arc<Board>) -> Result<(), Fault> {
    let router = Router::new().route("/livez", get(livez)).route("/readyz", get(readyz));
    admin::serve(listener, router.with_state(board))
}

/// Whether to restart the process: only if one of its tasks is gone, or if the
/// loop of a relay does not turn although its passes and waits are bounded. A
/// database or broker that is away would not come back by a restart.
async fn livez(State(board): State<Arc<Board>>) -> impl IntoResponse {
    match board.death() {
        None => (StatusCode::OK, "alive\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// Whether everything works. Reasons name hosts and queues, so they are told
/// only to this machine.
async fn readyz(
    State(board): State<Arc<Board>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
) -> impl IntoResponse {
    let status = if board.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(board.json(peer.ip().is_loopback())))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use oncebox_core::store::{Mailbox as _, Store as _};
    use oncebox_core::transport::{Failure, Publisher};
    use oncebox_core::{Envelope, Result};
    use oncebox_flow::memory::MemoryStore;
    use oncebox_flow::relay::{Heartbeat, Relay};
    use tokio_util::sync::CancellationToken;

    use super::super::board::Loop;
    use super::*;

    /// Blocks its thread until it is told not to, as no transport should.
    #[derive(Clone)]
    struct Blocking(Arc<AtomicBool>);

    impl Publisher for Blocking {
        async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
            while self.0.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            vec![Ok(()); batch.len()]
        }
    }

    /// Waits for an answer of `/livez` with this text.
    #[track_caller]
    fn says(address: SocketAddr, text: &str) {
        let since = Instant::now();
        loop {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            if answer.contains(text) {
                return;
            }
            assert!(since.elapsed() < Duration::from_secs(10), "{answer}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_relay_whose_loop_does_not_turn_is_not_alive_and_is_again_when_it_does() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (store, gate, stop) = (MemoryStore::new(), Blocking(Arc::default()), CancellationToken::new());
        let (heartbeat, lease) = (Heartbeat::new(), Duration::from_millis(200));
        let relay = Relay::builder(store.clone(), gate.clone()).publish_timeout(lease / 2).lease(lease);
        let relay = relay.poll(Duration::from_millis(5)).heartbeat(heartbeat.clone()).build().unwrap();
        let running = runtime.spawn(relay.run(stop.clone()));
        let watched = Loop { sink: "orders".into(), heartbeat, grace: lease };
        let board = Arc::new(Board::new(Vec::new(), Vec::new()).watching(vec![watched]));
        let listener = runtime.block_on(bind("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = listener.local_addr().unwrap();
        serve(listener, board).unwrap();

        says(address, "200 OK");
        gate.0.store(true, Ordering::Relaxed);
        let text = || "x".to_owned();
        let (id, source, kind, destination) = (text(), text(), text(), text());
        let message = Envelope { id, source, kind, destination, ..Envelope::default() };
        runtime.block_on(async {
            let mut tx = store.begin().await.unwrap();
            store.put(&mut tx, &[message], None).await.unwrap();
            store.commit(tx).await.unwrap();
        });
        says(address, "503 Service Unavailable");
        says(address, "the loop of sink orders has not turned");
        gate.0.store(false, Ordering::Relaxed);
        says(address, "200 OK");

        stop.cancel();
        assert_eq!(runtime.block_on(running).unwrap().published, 1);
    }
}
