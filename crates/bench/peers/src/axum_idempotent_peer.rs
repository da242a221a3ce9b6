//! axum-idempotent with its store in memory, before the handler that the bench
//! puts its own gate before. Says its address and serves until it is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, post};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::Ttl;
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use tower_cookies::CookieManagerLayer;

const DAY_SECONDS: u32 = 86_400;

/// How it tells requests apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By a hash of method, path, headers and body, as it comes.
    Hash,
    /// By the key, whatever else the request says.
    Key,
}

pub async fn serve(mode: Mode) -> Result<(), Box<dyn std::error::Error>> {
    let options = IdempotentOptions::default().expire_after(i64::from(DAY_SECONDS));
    let options = if mode == Mode::Key { options.use_idempotency_key_header(None, false) } else { options };
    let sessions = SessionLayer::new(Arc::new(MokaStore::builder().build())).with_cookie_options(
        CookieOptions::build().name("session").max_age(u64::from(DAY_SECONDS)).path("/"),
    );
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let order = async move || {
        counted.fetch_add(1, Ordering::Relaxed);
        (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], "{\"ok\":true}")
    };
    let router = Router::new()
        .route("/orders", post(order))
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .route("/session", post(begin))
        .layer(sessions)
        .layer(CookieManagerLayer::new())
        .route("/runs", get(async move || runs.load(Ordering::Relaxed).to_string()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    axum::serve(listener, router).await?;
    Ok(())
}

/// It has sessions only for those who have written something to one.
async fn begin(session: Session<MokaStore>) -> StatusCode {
    let Ok(ttl) = Ttl::new(i64::from(DAY_SECONDS)) else { return StatusCode::INTERNAL_SERVER_ERROR };
    match session.set("begun", &true, ttl, None).await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
