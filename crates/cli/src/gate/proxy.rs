//! The reverse proxy: the gate in front of a service in any language.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use axum::http::HeaderMap;
use clap::{Args as ClapArgs, ValueEnum};
use oncebox_core::gate::Receipts as ReceiptsSeam;
use oncebox_gate::{Caller, Durability, Gate, InFlight, OnDoubt, Policy};
use tokio::net::TcpListener;
use tower_layer::Layer as _;

use super::admin::Admin;
use super::listen::{self, Bounds};
use super::routes::{self, RoutesFile};
use super::upstream::{LinkLocal, Upstream};
use super::{ProfileName, Receipts, with_store};
use crate::fault::{Class, Fault};

/// No connection is waited for longer, in seconds.
const DAY: u64 = 86_400;
/// Longer than anybody keeps a reply.
const TEN_YEARS: u64 = 3_650 * DAY;

#[derive(Debug, ClapArgs)]
pub(crate) struct ProxyArgs {
    /// Where clients come in
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// The service behind the gate, as http://host:port
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// The service is at a link-local address, as those of clouds that tell secrets about a machine are
    #[arg(long)]
    allow_link_local: bool,
    /// Where receipts are kept: a PostgreSQL URL, the path of a SQLite file, or `memory`, which a restart forgets
    #[arg(long = "db", env = "ONCEBOX_DB", value_name = "URL", hide_env_values = true)]
    store: String,
    /// The schema (PostgreSQL) or table prefix (SQLite) of the oncebox tables
    #[arg(long, env = "ONCEBOX_SCHEMA", default_value = "oncebox", value_name = "NAME")]
    schema: String,
    /// What the gate behaves like
    #[arg(long, value_enum, default_value = "ietf")]
    profile: ProfileName,
    /// The header that tells callers apart; with a key but without it, a request is refused
    #[arg(long, value_name = "HEADER", default_value = "authorization", conflicts_with = "unscoped")]
    principal_header: String,
    /// All who come without that header are one caller, and share their keys
    #[arg(long)]
    anonymous: bool,
    /// A header that names the tenant; only if something before the gate sets it and clients cannot
    #[arg(long, value_name = "HEADER")]
    tenant_header: Option<String>,
    /// All callers share their keys: for services with one caller
    #[arg(long)]
    unscoped: bool,
    /// A secret for the hashes of keys and callers; the same for all gates on one database
    #[arg(
        long,
        env = "ONCEBOX_GATE_SECRET",
        hide_env_values = true,
        value_name = "TEXT",
        default_value = ""
    )]
    secret: String,
    /// Paths that must have a key; may be given more than once
    #[arg(long, value_name = "PREFIX")]
    require: Vec<String>,
    /// How long replies are kept, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400, value_parser = clap::value_parser!(u64).range(..=TEN_YEARS))]
    ttl: u64,
    /// How long a request may run without a sign of life from this process, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=DAY))]
    lease: u64,
    /// How long the service may take for a reply to a request that it has, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=DAY))]
    timeout: u64,
    /// How long a body may stand still, of a request or of a reply, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=DAY))]
    stall: u64,
    /// How long a connection may be without a whole head of a request, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=DAY))]
    head_timeout: u64,
    /// How many clients may be connected at a time; more wait until one of them goes
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// How long what runs is waited for after SIGTERM, in seconds; as long as --timeout unless it is given
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=DAY))]
    drain: Option<u64>,
    /// Copies wait that many seconds for the reply instead of being refused at once
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=DAY))]
    wait: Option<u64>,
    /// What becomes of a request whose earlier run was cut off
    #[arg(long, value_enum, default_value = "retry")]
    on_doubt: DoubtName,
    /// Whether a request waits until the database has its key on the disk before it runs
    #[arg(long, value_enum, default_value = "full")]
    reserve_durability: DurabilityName,
    /// The largest request and reply body, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    max_body: usize,
    /// The most keys that one caller may have at a time; more are refused with 429
    #[arg(long, value_name = "N")]
    max_keys: Option<usize>,
    /// Policies by path, as TOML; see the guide
    #[arg(long, value_name = "FILE")]
    routes: Option<PathBuf>,
    /// How many bytes of replies are kept in this process, to be replayed without asking the database; 0 for none
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    cache: usize,
    /// Where /livez, /readyz and /metrics are answered, such as 127.0.0.1:9090; nowhere unless it is given
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
}

/// What becomes of a request whose earlier run may or may not have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DoubtName {
    /// It runs again: at least once
    Retry,
    /// It is refused: at most once
    Block,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DurabilityName {
    /// It does
    Full,
    /// PostgreSQL: it does not, and if the server crashes meanwhile a copy may run; not with --on-doubt block
    Relaxed,
}

impl ProxyArgs {
    /// What the command line makes of a profile.
    fn policy(&self, profile: ProfileName) -> Policy {
        Policy {
            ttl: Duration::from_secs(self.ttl),
            lease: Duration::from_secs(self.lease),
            in_flight: self.wait.map_or(InFlight::Refuse, |wait| InFlight::Wait(Duration::from_secs(wait))),
            on_doubt: match self.on_doubt {
                DoubtName::Retry => OnDoubt::Retry,
                DoubtName::Block => OnDoubt::Block,
            },
            reserve_durability: match self.reserve_durability {
                DurabilityName::Full => Durability::Full,
                DurabilityName::Relaxed => Durability::Relaxed,
            },
            stall: Duration::from_secs(self.stall),
            max_request_body: self.max_body,
            max_response_body: self.max_body,
            max_keys: self.max_keys,
            ..profile.policy()
        }
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            connections: usize::try_from(self.max_connections).unwrap_or(usize::MAX),
            head: Duration::from_secs(self.head_timeout),
            stall: Duration::from_secs(self.stall),
            drain: Duration::from_secs(self.drain.unwrap_or(self.timeout).min(DAY)),
        }
    }

    /// What marks replays is taken away from requests, so the service would not learn who sends them.
    fn check_marker(&self, policy: &Policy) -> Result<(), Fault> {
        let (marker, tenant) = (policy.replay_header.as_str(), self.tenant_header.as_deref());
        let mut names = tenant.into_iter().chain([self.principal_header.as_str()]);
        if names.any(|name| name.eq_ignore_ascii_case(marker)) {
            let why = format!("replay_header: {marker} tells callers apart, and cannot mark replays, too");
            return Err(Fault::new(Class::Config, why));
        }
        Ok(())
    }

    fn gate<S: ReceiptsSeam>(&self, store: S) -> Result<Gate<S>, Fault> {
        let file = self.routes.as_deref().map(RoutesFile::read).transpose()?.unwrap_or_default();
        let (policy, mut routes) = file.policies(self.profile, |profile| self.policy(profile))?;
        for prefix in &self.require {
            if !prefix.starts_with('/') {
                return Err(Fault::new(Class::Input, format!("--require {prefix}: a prefix begins with /")));
            }
            routes::require(prefix, &policy, &mut routes);
        }
        for policy in routes.iter().map(|(_, policy)| policy).chain([&policy]) {
            self.check_marker(policy)?;
        }
        let mut gate = Gate::new(store).cache(self.cache).secret(self.secret.as_bytes()).policy(policy)?;
        for (prefix, policy) in routes {
            gate = gate.route(&prefix, policy)?;
        }
        if self.unscoped {
            return Ok(gate.unscoped());
        }
        let (principal, tenant) = (self.principal_header.clone(), self.tenant_header.clone());
        let anonymous = self.anonymous;
        Ok(gate.scope(move |request| {
            let value = |name: &str| text(&request.headers, name);
            let tenant = tenant.as_deref().map(value).unwrap_or_default();
            let caller = Caller { tenant, principal: value(&principal) };
            Some(caller).filter(|caller| anonymous || !caller.principal.is_empty())
        }))
    }
}

/// All values of a header; what is no text is told apart by its bytes.
fn text(headers: &HeaderMap, name: &str) -> String {
    let values = headers.get_all(name).iter().map(|value| value.as_bytes().escape_ascii().to_string());
    values.collect::<Vec<_>>().join("\n")
}

pub(crate) async fn run(args: ProxyArgs) -> Result<ExitCode, Fault> {
    if args.store == "memory" {
        tracing::warn!(
            "receipts are kept in memory: a restart forgets them, and other gates do not see them"
        );
    }
    if args.secret.is_empty() {
        tracing::warn!("without --secret, whoever reads the database can try out keys");
    }
    let limits = (Duration::from_secs(args.stall), Duration::from_secs(args.timeout));
    let link_local = if args.allow_link_local { LinkLocal::Allow } else { LinkLocal::Refuse };
    let upstream = Upstream::new(&args.upstream, limits, link_local)?;
    let receipts = Receipts::open(&args.store, &args.schema, 256 << 20).await?;
    let listener = bind(args.listen).await?;
    let admin = match args.admin {
        Some(address) => Some(Admin::start(bind(address).await?)?),
        None => None,
    };
    with_store!(receipts, store => {
        if let Some(admin) = admin.clone() {
            tokio::spawn(admin.watch(store.clone()));
        }
        let gate = args.gate(store)?;
        eprintln!("gate listens on http://{} for {}", listener.local_addr()?, args.upstream);
        let draining = gate.clone();
        let deadline = listen::serve(listener, gate.layer(upstream), args.bounds(), drained(admin)).await;
        // Requests whose client has gone run on.
        if tokio::time::timeout_at(deadline, draining.drained()).await.is_err() {
            tracing::warn!("requests were still running; their keys are free when their leases are over");
        }
    });
    Ok(ExitCode::SUCCESS)
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Fault> {
    let failed = |error| Fault::new(Class::Config, format!("cannot listen on {address}: {error}"));
    TcpListener::bind(address).await.map_err(failed)
}

/// When it is time to stop; from then on the gate says that it is not ready.
async fn drained(admin: Option<Admin>) {
    stopped().await;
    if let Some(admin) = admin {
        admin.drain();
    }
}

/// SIGTERM or Ctrl-C: what runs is finished, nobody else comes in.
pub(super) async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use oncebox_flow::memory::MemoryStore;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ProxyArgs,
    }

    fn refused(own: &[&str]) -> Option<String> {
        let needed = ["gate", "--listen", "127.0.0.1:0", "--upstream", "http://x", "--db", "memory"];
        let line = Line::parse_from([&needed, own].concat());
        line.args.gate(MemoryStore::new()).err().map(|fault| fault.message().to_owned())
    }

    #[test]
    fn what_marks_replays_cannot_tell_callers_apart() {
        for flag in ["--principal-header", "--tenant-header"] {
            let why = refused(&[flag, "Idempotent-Replayed"]).expect(flag);
            assert!(why.contains("idempotent-replayed tells callers apart"), "{why}");
            assert_eq!(refused(&[flag, "x-user"]), None);
        }
    }
}
