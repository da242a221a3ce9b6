//! `/livez`, `/readyz` and `/metrics` of a proxy, on a port of their own.
//!
//! A gate is ready while its store takes writes, and until it drains. That is
//! looked at every second and answered from the latest look, so that
//! whoever can reach the port cannot make the database work. The service behind
//! the gate does not count: while it is away a gate answers 502 and frees the
//! keys, and if all gates were taken out of service for it, nobody would.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use oncebox_core::Kind;
use oncebox_core::gate::Receipts;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::admin;
use crate::fault::{Class, Fault};

/// The time between two looks at the store.
const EVERY: Duration = Duration::from_secs(1);
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What operators are told.
#[derive(Clone)]
pub(super) struct Admin {
    metrics: PrometheusHandle,
    standing: Arc<Standing>,
}

#[derive(Default)]
struct Standing {
    has_store: AtomicBool,
    drains: AtomicBool,
}

impl Admin {
    /// Counts from here on, and answers on this port.
    pub(super) fn start(listener: TcpListener) -> Result<Self, Fault> {
        let failed = |error| Fault::new(Class::Config, format!("metrics cannot be counted: {error}"));
        let metrics = PrometheusBuilder::new().install_recorder().map_err(failed)?;
        let admin = Self { metrics, standing: Arc::default() };
        let address: SocketAddr = listener.local_addr()?;
        let router = Router::new()
            .route("/livez", get(|| async { "alive\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(render))
            .with_state(admin.clone());
        admin::serve(listener, router)?;
        eprintln!("admin answers on http://{address}");
        Ok(admin)
    }

    /// From here on no new requests should come.
    pub(super) fn drain(&self) {
        self.standing.drains.store(true, Ordering::SeqCst);
    }

    /// Looks at the store, over and over.
    pub(super) async fn watch<S: Receipts>(self, store: S) {
        loop {
            // Deletes nothing, but only where something could be deleted.
            let has_store = match timeout(PATIENCE, store.forget(0, None)).await {
                Ok(Ok(_)) => true,
                Ok(Err(error)) => error.kind() == Kind::Busy,
                Err(_elapsed) => false,
            };
            if self.standing.has_store.swap(has_store, Ordering::SeqCst) != has_store {
                tracing::info!(has_store, "gate.ready");
            }
            sleep(EVERY).await;
        }
    }
}

async fn readyz(State(admin): State<Admin>) -> impl IntoResponse {
    if admin.standing.drains.load(Ordering::SeqCst) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if admin.standing.has_store.load(Ordering::SeqCst) {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the store cannot be written\n")
    }
}

async fn render(State(admin): State<Admin>) -> impl IntoResponse {
    ([("content-type", "text/plain; version=0.0.4")], admin.metrics.render())
}
