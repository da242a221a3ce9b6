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

/// Whether to restart the process: only if one of its tasks is gone. A relay
/// that hangs gives up its pass by itself, and a database that is away would
/// not come back by a restart.
async fn livez(State(board): State<Arc<Board>>) -> impl IntoResponse {
    match board.is_alive() {
        true => (StatusCode::OK, "alive\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "a task has ended\n"),
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
