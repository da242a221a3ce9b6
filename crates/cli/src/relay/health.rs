//! `/livez` and `/readyz`. Both answer from the board and ask nobody, so that
//! whoever can reach the port cannot make the databases work.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::board::Board;
use crate::fault::{Class, Fault};

/// Opens the port, so that a wrong address ends the start.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Fault> {
    TcpListener::bind(address).await.map_err(|error| {
        Fault::new(Class::Config, format!("cannot listen on {address} for health checks: {error}"))
            .help("change `listen` in [health]")
    })
}

/// Answers until `stop` is cancelled.
pub(super) async fn serve(listener: TcpListener, board: Arc<Board>, stop: CancellationToken) {
    let router = Router::new().route("/livez", get(livez)).route("/readyz", get(readyz)).with_state(board);
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let served = stop.run_until_cancelled(axum::serve(listener, service).into_future()).await;
    if let Some(Err(error)) = served {
        tracing::error!(%error, "health.stopped");
    }
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
    use std::sync::Mutex;
    use std::time::Duration;

    use oncebox_core::store::Store as _;
    use oncebox_core::transport::{Failure, Publisher};
    use oncebox_core::{Envelope, Result};
    use oncebox_flow::memory::MemoryStore;
    use oncebox_flow::relay::{Heartbeat, Relay};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::board::Loop;
    use super::*;

    /// Blocks its thread until it is told not to, as no transport should.
    #[derive(Clone)]
    struct Blocking(Arc<Mutex<()>>);

    impl Publisher for Blocking {
        async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
            drop(self.0.lock());
            vec![Ok(()); batch.len()]
        }
    }

    async fn ask(address: SocketAddr) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_relay_whose_loop_does_not_turn_is_not_alive_and_is_again_when_it_does() {
        let (store, gate, stop) = (MemoryStore::new(), Blocking(Arc::default()), CancellationToken::new());
        let (heartbeat, lease) = (Heartbeat::new(), Duration::from_millis(200));
        let relay = Relay::builder(store.clone(), gate.clone())
            .publish_timeout(lease / 2)
            .lease(lease)
            .poll(Duration::from_millis(5))
            .heartbeat(heartbeat.clone());
        let running = tokio::spawn(relay.build().unwrap().run(stop.clone()));
        let watched = Loop { sink: "orders".into(), heartbeat, grace: lease };
        let board = Arc::new(Board::new(Vec::new(), Vec::new()).watching(vec![watched]));
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, board, stop.clone()));
        let until = async |text: &str| {
            let answered = async {
                while !ask(address).await.contains(text) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), answered).await.expect(text);
        };

        until(" 200 ").await;
        let held = gate.0.lock().unwrap();
        let text = || "x".to_owned();
        let (id, source, kind, destination) = (text(), text(), text(), text());
        let message = Envelope { id, source, kind, destination, ..Envelope::default() };
        let mut tx = store.begin().await.unwrap();
        store.put(&mut tx, &[message], None).await.unwrap();
        store.commit(tx).await.unwrap();
        until("503 Service Unavailable").await;
        assert!(ask(address).await.contains("the loop of sink orders has not turned"));
        drop(held);
        until(" 200 ").await;

        stop.cancel();
        assert_eq!(running.await.unwrap().published, 1);
    }
}
