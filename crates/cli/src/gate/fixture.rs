//! The service that `check` is tried on. Its handler does what the header
//! `x-fx` of a request tells it, and counts how often it ran.
//!
//! Each path has a policy of its own, so that one server shows all of them.

mod counts;
mod door;
mod service;
mod wish;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use clap::Args as ClapArgs;
use oncebox_core::gate::Receipts as ReceiptsSeam;
use oncebox_flow::memory::MemoryStore;
use oncebox_gate::{Caller, Gate, InFlight, KeySyntax, OnDoubt, Policy, Strategy};
use tokio::net::TcpListener;

use super::{ProfileName, Receipts, dying, with_store};
use crate::fault::{Class, Fault};

use door::Door;
use service::{Service, claiming, plain};
pub(super) use wish::ZIPPED;

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
    /// The handler claims keys and seals replies in transactions of its own
    #[arg(long, conflicts_with = "bare")]
    tx: bool,
    /// No gate: the bare service, to be put behind a proxy
    #[arg(long)]
    bare: bool,
}

/// What the fixture's gate keeps of one reply: small, so that a case can be larger.
pub(super) const MAX_REPLY: usize = 64 << 10;
pub(super) const MAX_REQUEST: usize = 256 << 10;
/// What it keeps of all of them, in memory.
const MEMORY: usize = 64 << 20;
/// So little that ten thousand are too many.
const SMALL: usize = 4 << 20;

pub(crate) async fn run(args: Args) -> Result<ExitCode, Fault> {
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| Fault::new(Class::Config, format!("cannot listen on {}: {error}", args.listen)))?;
    let address = listener.local_addr()?;
    let (door, porter) = Door::new(listener)?;
    let service = Service::new(porter);
    let router = if args.bare {
        service.handlers(plain())
    } else {
        let receipts = Receipts::open(&args.store, &args.schema, MEMORY).await?;
        let router = with_store!(receipts, store => gated(&service, store, &args)?);
        router.merge(faulty(&service, args.profile).await?)
    };
    eprintln!("fixture listens on http://{address}");
    let router = router.merge(service.counter());
    axum::serve(door, router).with_graceful_shutdown(super::proxy::stopped()).await?;
    Ok(ExitCode::SUCCESS)
}

/// The policies, by the path they hold for.
fn policies(profile: ProfileName) -> Vec<(&'static str, Policy)> {
    let base = Policy { max_response_body: MAX_REPLY, max_request_body: MAX_REQUEST, ..profile.policy() };
    let with = |change: fn(&mut Policy)| {
        let mut policy = base.clone();
        change(&mut policy);
        policy
    };
    vec![
        ("/", base.clone()),
        ("/required", with(|policy| policy.required = policy.methods.clone())),
        ("/optional", with(|policy| policy.required = Vec::new())),
        ("/wait", with(|policy| policy.in_flight = InFlight::Wait(Duration::from_secs(5)))),
        ("/short-wait", with(|policy| policy.in_flight = InFlight::Wait(Duration::from_millis(100)))),
        ("/excluded", with(|policy| policy.excluded = vec!["timestamp".into()])),
        ("/raw", with(|policy| policy.raw_fingerprint = true)),
        ("/block", with(|policy| policy.on_doubt = OnDoubt::Block)),
        ("/lease", with(|policy| policy.lease = Duration::from_secs(2))),
        ("/crash", with(|policy| policy.lease = Duration::from_secs(4))),
        (
            "/ttl",
            with(|policy| (policy.lease, policy.ttl) = (Duration::from_secs(1), Duration::from_secs(3))),
        ),
        (
            "/refused-later",
            with(|policy| {
                (policy.lease, policy.ttl) = (Duration::from_secs(1), Duration::from_secs(3));
                (policy.sliding, policy.refuse_expired) = (false, Some(Duration::from_secs(3600)));
            }),
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

/// Paths whose store is down, or goes down while the handler runs, or is small.
async fn faulty(service: &Service, profile: ProfileName) -> Result<Router, Fault> {
    let open = Policy { fail_open: true, ..profile.policy() };
    let down = Gate::new(dying::down()?).policy(profile.policy())?.unscoped();
    let open = Gate::new(dying::down()?).policy(open)?.unscoped();
    let dying = Gate::new(dying::cannot_seal().await?).policy(profile.policy())?.unscoped();
    let small = MemoryStore::new().receipt_capacity(SMALL);
    let small = Gate::new(small).policy(profile.policy())?.unscoped();
    Ok(service
        .at("/capped/orders")
        .layer(small)
        .merge(service.at("/down/orders").layer(down))
        .merge(service.at("/down-open/orders").layer(open))
        .merge(service.at("/dying/orders").layer(dying)))
}

fn gated<S: ReceiptsSeam>(service: &Service, store: S, args: &Args) -> Result<Router, Fault> {
    let mut gate = Gate::new(store);
    for (path, policy) in policies(args.profile) {
        gate = if path == "/" { gate.policy(policy)? } else { gate.route(path, policy)? };
    }
    let handler = if args.tx {
        gate = gate.transactional();
        claiming::<S>()
    } else {
        plain()
    };
    let gate = gate.scope(|request| {
        let header = |name: &str| {
            let value = request.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        Some(Caller { tenant: header("x-fx-tenant"), principal: header("authorization") })
    });
    Ok(service.handlers(handler).layer(gate))
}
