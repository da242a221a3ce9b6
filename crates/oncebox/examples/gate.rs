//! The gate in a service of axum: an order that is sent twice is placed once,
//! and both clients read the same reply. The order, its message and the reply
//! are committed in one transaction.
//!
//! `cargo run -p oncebox --features gate --example gate`

use std::error::Error;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Json, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use oncebox::gate::{Caller, Claimed, Gate, Policy};
use oncebox::stores::sqlite::{SqliteStore, migrate, pool_options};
use oncebox::{Message, Outbox};
use serde::{Deserialize, Serialize};
use tower_service::Service as _;

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1", key = "item", destination = "orders")]
struct OrderPlaced {
    item: String,
}

/// `Claimed` is a transaction that has the key of the request. If the key was
/// used before, this is not run: the client gets the first reply.
async fn place(
    State(outbox): State<Outbox<SqliteStore>>,
    mut tx: Claimed<SqliteStore>,
    Json(order): Json<OrderPlaced>,
) -> Response {
    let placed = sqlx::query_scalar("INSERT INTO purchase (item) VALUES (?1) RETURNING id")
        .bind(&order.item)
        .fetch_one(&mut *tx)
        .await;
    let Ok(number): Result<i64, _> = placed else {
        // Dropped, it rolls back, and the key is free.
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    if outbox.put(&mut tx, &order).await.is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let reply = (StatusCode::CREATED, Json(serde_json::json!({ "order": number }))).into_response();
    tx.seal(reply).await.map(Body::new)
}

fn app(store: &SqliteStore) -> oncebox::Result<Router> {
    let policy = Policy { required: vec![axum::http::Method::POST], ..Policy::default() };
    let gate = Gate::new(store.clone()).policy(policy)?.secret(b"read it from your settings");
    // Behind authentication, which knows who calls; here a header stands for it.
    let gate = gate.transactional().scope(|request| {
        let user = request.headers.get("x-user")?.to_str().ok()?;
        Some(Caller { tenant: String::new(), principal: user.to_owned() })
    });
    let outbox = Outbox::new(store.clone()).source("shop");
    Ok(Router::new().route("/orders", post(place)).with_state(outbox).layer(gate))
}

/// Sends an order as a client would, and prints what comes back.
async fn send(app: &mut Router, user: &str, key: &str, item: &str) -> Result<(), Box<dyn Error>> {
    let request = Request::post("/orders")
        .header("content-type", "application/json")
        .header("x-user", user)
        .header("idempotency-key", key)
        .body(Body::from(format!("{{\"item\":\"{item}\"}}")))?;
    let response = app.call(request).await?;
    let (status, is_replay) = (response.status(), response.headers().contains_key("idempotent-replayed"));
    let body = to_bytes(response.into_body(), 4096).await?;
    let text = serde_json::from_slice::<serde_json::Value>(&body)?;
    let code = text.get("code").and_then(serde_json::Value::as_str);
    let said = code.map_or_else(|| text.to_string(), str::to_owned);
    println!("{user} {key} {item}: {} {said}{}", status.as_u16(), if is_replay { " (replayed)" } else { "" });
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // One connection: each would have a database in memory of its own.
    let pool = pool_options().max_connections(1).connect("sqlite::memory:").await?;
    sqlx::query("CREATE TABLE purchase (id INTEGER PRIMARY KEY, item TEXT)").execute(&pool).await?;
    let store = SqliteStore::new(pool.clone());
    migrate::up(&store).await?;
    let mut app = app(&store)?;

    send(&mut app, "anna", "k-1", "tea").await?;
    send(&mut app, "anna", "k-1", "tea").await?;
    send(&mut app, "anna", "k-1", "milk").await?;
    send(&mut app, "ben", "k-1", "milk").await?;

    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM purchase").fetch_one(&pool).await?;
    let messages: i64 = sqlx::query_scalar("SELECT count(*) FROM oncebox_outbox").fetch_one(&pool).await?;
    println!("{orders} orders, {messages} messages");
    Ok(())
}
