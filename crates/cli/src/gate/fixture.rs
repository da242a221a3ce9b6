//! The service that `check` is tried on. Its handler does what the header
//! `x-fx` of a request tells it, and counts how often it ran.
//!
//! Each path has a policy of its own, so that one server shows all of them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use clap::Args as ClapArgs;
use oncebox_core::gate::Receipts as ReceiptsSeam;
use oncebox_gate::{Caller, Gate, InFlight, KeySyntax, Policy, Strategy};
use serde::Deserialize;
use tokio::net::TcpListener;

use super::{ProfileName, Receipts, dying, with_store};
use crate::fault::{Class, Fault};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// Where receipts are kept: `memory`, a PostgreSQL URL or the path of a SQLite file with the tables
    #[arg(long, value_name = "URL", default_value = "memory", env = "ONCEBOX_DB", hide_env_values = true)]
    store: String,
    /// The schema (PostgreSQL) or table prefix (SQLite) of the oncebox tables
    #[arg(long, env = "ONCEBOX_SCHEMA", default_value = "oncebox", value_name = "NAME")]
    schema: String,
    /// What the gate behaves like
    #[arg(long, value_enum, default_value = "ietf")]
    profile: ProfileName,
    /// No gate: the bare service, to be put behind a proxy
    #[arg(long)]
    bare: bool,
}

/// What the fixture's gate keeps of one reply: small, so that a case can be larger.
pub(super) const MAX_REPLY: usize = 64 << 10;
pub(super) const MAX_REQUEST: usize = 256 << 10;

pub(crate) async fn run(args: Args) -> Result<ExitCode, Fault> {
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| Fault::new(Class::Config, format!("cannot listen on {}: {error}", args.listen)))?;
    let counts = Counts::default();
    let router = if args.bare {
        service(&counts)
    } else {
        let receipts = Receipts::open(&args.store, &args.schema, 64 << 20).await?;
        let router = with_store!(receipts, store => gated(&counts, store, args.profile)?);
        router.merge(faulty(&counts, args.profile).await?)
    };
    eprintln!("fixture listens on http://{}", listener.local_addr()?);
    axum::serve(listener, router).with_graceful_shutdown(super::proxy::stopped()).await?;
    Ok(ExitCode::SUCCESS)
}

/// The policies, by the path they hold for.
pub(super) fn policies(profile: ProfileName) -> Vec<(&'static str, Policy)> {
    let base = Policy { max_response_body: MAX_REPLY, max_request_body: MAX_REQUEST, ..profile.policy() };
    let with = |change: fn(&mut Policy)| {
        let mut policy = base.clone();
        change(&mut policy);
        policy
    };
    vec![
        ("/", base.clone()),
        ("/required", with(|policy| policy.required = policy.methods.clone())),
        ("/wait", with(|policy| policy.in_flight = InFlight::Wait(Duration::from_secs(5)))),
        ("/short-wait", with(|policy| policy.in_flight = InFlight::Wait(Duration::from_millis(100)))),
        ("/excluded", with(|policy| policy.excluded = vec!["timestamp".into()])),
        ("/raw", with(|policy| policy.raw_fingerprint = true)),
        ("/lease", with(|policy| policy.lease = Duration::from_secs(2))),
        (
            "/ttl",
            with(|policy| (policy.lease, policy.ttl) = (Duration::from_secs(1), Duration::from_secs(3))),
        ),
        ("/last-wins", with(|policy| let_others(policy, Strategy::LastWriteWins))),
        ("/warn", with(|policy| let_others(policy, Strategy::WarnButAllow))),
        (
            "/content",
            with(|policy| {
                (policy.strategy, policy.key_syntax) = (Strategy::ContentBased, KeySyntax::Lenient);
            }),
        ),
    ]
}

/// With keys of their own: nothing that is replaced there is known elsewhere.
const fn let_others(policy: &mut Policy, strategy: Strategy) {
    (policy.strategy, policy.allow_unsafe_strategies, policy.key_per_route) = (strategy, true, true);
}

/// Paths whose store is down, or goes down while the handler runs.
async fn faulty(counts: &Counts, profile: ProfileName) -> Result<Router, Fault> {
    let open = Policy { fail_open: true, ..profile.policy() };
    let down = Gate::new(dying::down()?).policy(profile.policy())?.unscoped();
    let open = Gate::new(dying::down()?).policy(open)?.unscoped();
    let dying = Gate::new(dying::cannot_seal().await?).policy(profile.policy())?.unscoped();
    let place = |path: &str| Router::new().route(path, any(handle)).with_state(counts.clone());
    Ok(place("/down/orders")
        .layer(down)
        .merge(place("/down-open/orders").layer(open))
        .merge(place("/dying/orders").layer(dying)))
}

fn gated<S: ReceiptsSeam>(counts: &Counts, store: S, profile: ProfileName) -> Result<Router, Fault> {
    let mut gate = Gate::new(store);
    for (path, policy) in policies(profile) {
        gate = if path == "/" { gate.policy(policy)? } else { gate.route(path, policy)? };
    }
    let gate = gate.scope(|request| {
        let header = |name: &str| {
            let value = request.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        Some(Caller { tenant: header("x-fx-tenant"), principal: header("authorization") })
    });
    Ok(Router::new().merge(handlers(counts).layer(gate)).merge(counter(counts)))
}

fn service(counts: &Counts) -> Router {
    handlers(counts).merge(counter(counts))
}

/// How often each case ran.
#[derive(Clone, Debug, Default)]
struct Counts(Arc<Mutex<HashMap<String, u64>>>);

impl Counts {
    /// Counts a run; tells the runs of this case and of all.
    fn count(&self, case: &str) -> (u64, u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = counts.entry(case.to_owned()).or_default();
        *own += 1;
        let own = *own;
        (own, counts.values().sum())
    }

    fn of(&self, case: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(case).copied().unwrap_or_default()
    }
}

fn handlers(counts: &Counts) -> Router {
    Router::new().fallback(any(handle)).with_state(counts.clone())
}

fn counter(counts: &Counts) -> Router {
    let of =
        |State(counts): State<Counts>, Path(case): Path<String>| async move { counts.of(&case).to_string() };
    Router::new().route("/_fx/count/{case}", get(of)).with_state(counts.clone())
}

/// What a request wants of the handler.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Wish {
    /// Milliseconds it takes.
    sleep: u64,
    status: Option<u16>,
    /// The status of the first run; later ones succeed.
    fail_first: Option<u16>,
    /// Falls over, the first time.
    raise: bool,
    cookie: bool,
    /// Two `Link` fields.
    multi: bool,
    /// Bytes that are no text.
    bin: bool,
    /// 204 without a body.
    empty: bool,
    /// Pieces of a body without a length, with a pause between them.
    chunks: usize,
    /// Bytes of the body.
    size: usize,
    /// The body ends before it is whole.
    truncate: bool,
    /// Events without an end.
    sse: bool,
    /// Answers with the request's headers.
    echo: bool,
}

async fn handle(State(counts): State<Counts>, request: Request) -> Response {
    let (parts, _body) = request.into_parts();
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let wish: Wish = serde_json::from_str(text("x-fx")).unwrap_or_default();
    let (run, number) = counts.count(text("x-fx-case"));
    tokio::time::sleep(Duration::from_millis(wish.sleep)).await;
    #[expect(clippy::panic, reason = "a client asks for it")]
    if wish.raise && run == 1 {
        panic!("the request wants it");
    }
    let mut response = Response::new(body(&wish, number, &parts.headers));
    let status = wish.fail_first.filter(|_| run == 1).or(wish.status);
    let usual = if wish.empty { 204 } else { 201 };
    *response.status_mut() = StatusCode::from_u16(status.unwrap_or(usual)).unwrap_or(StatusCode::CREATED);
    let headers = response.headers_mut();
    headers.insert("x-fx-n", HeaderValue::from(number));
    headers.insert("etag", HeaderValue::from_static("\"fixture\""));
    if let Ok(location) = HeaderValue::try_from(format!("/orders/{number}")) {
        headers.insert("location", location);
    }
    let kind = match &wish {
        wish if wish.sse => "text/event-stream",
        wish if wish.bin => "application/octet-stream",
        _ => "application/json",
    };
    headers.insert("content-type", HeaderValue::from_static(kind));
    if wish.cookie {
        headers.insert("set-cookie", HeaderValue::from_static("session=secret"));
    }
    if wish.multi {
        headers.append("link", HeaderValue::from_static("</first>"));
        headers.append("link", HeaderValue::from_static("</second>"));
    }
    response.into_response()
}

fn body(wish: &Wish, number: u64, headers: &HeaderMap) -> Body {
    let text = format!("{{\"n\":{number}}}");
    if wish.empty {
        return Body::empty();
    }
    if wish.bin {
        return Body::from(vec![0, 0xff, 1, 0xfe, b'\r', b'\n', 0]);
    }
    if wish.size > 0 {
        return Body::from(vec![b'x'; wish.size]);
    }
    if wish.echo {
        let names = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("?")));
        return Body::from(names.collect::<Vec<_>>().join("\n"));
    }
    if wish.chunks == 0 && !wish.sse && !wish.truncate {
        return Body::from(text);
    }
    let (pieces, truncate) = (wish.chunks.max(2), wish.truncate);
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    tokio::spawn(async move {
        for piece in 0..pieces {
            let sent = sender.send(Ok(Bytes::from(format!("data: {number}.{piece}\n\n")))).await;
            if sent.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if truncate {
            sender.send(Err(std::io::Error::other("cut off on purpose"))).await.ok();
        }
    });
    Body::from_stream(futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    }))
}
