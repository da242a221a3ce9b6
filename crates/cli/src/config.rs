//! What a relay daemon does: `oncebox.toml`, the environment and flags, laid
//! over each other and checked as a whole before anything starts.

mod file;
mod keys;
mod overlay;
mod secret;
mod show;
mod span;
mod values;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use oncebox_core::cloudevents::Mode;
use oncebox_core::plan::OnDead;
use oncebox_core::preflight::Grade;
use oncebox_core::routes::{Routes, Rule};
use oncebox_core::signature::Keyring;
use oncebox_core::verdict::RetryPolicy;
use oncebox_flow::relay::RelayOptions;

pub(crate) use overlay::Flags;
pub(crate) use secret::{Reference, masked, shown};
pub(crate) use span::parse as parse_span;

use crate::fault::{Class, Fault};
use file::{SinkTable, Tables};
use secret::has_password;
use values::{Origin, Values, unknown};

/// Looked for where the program is started.
const DEFAULT_FILE: &str = "oncebox.toml";

/// The kinds of destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    RabbitMq,
    Nats,
    Http,
    Stdout,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Nats => "nats",
            Self::Http => "http",
            Self::Stdout => "stdout",
        }
    }

    /// The kind a URL is for.
    pub(crate) fn of_url(url: &str) -> Option<Self> {
        match url.split_once("://")?.0 {
            "amqp" | "amqps" => Some(Self::RabbitMq),
            "nats" | "tls" | "ws" | "wss" => Some(Self::Nats),
            "http" | "https" => Some(Self::Http),
            _ => None,
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        [Self::RabbitMq, Self::Nats, Self::Http, Self::Stdout].into_iter().find(|kind| kind.name() == name)
    }
}

/// A database with oncebox tables.
#[derive(Clone, Debug)]
pub(crate) struct StoreConfig {
    pub(crate) name: String,
    pub(crate) url: Reference,
    pub(crate) schema: String,
    /// How long settled messages are kept; `None` leaves them alone.
    pub(crate) keep: Option<Duration>,
}

/// A destination with progress of its own.
#[derive(Clone, Debug)]
pub(crate) struct SinkConfig {
    /// The store's place in [`Config::stores`].
    pub(crate) store: usize,
    pub(crate) kind: Kind,
    pub(crate) url: Option<Reference>,
    pub(crate) declare: bool,
    pub(crate) mode: Mode,
    pub(crate) window: usize,
    pub(crate) require: Grade,
    pub(crate) horizon: Duration,
    pub(crate) destinations: Vec<String>,
    pub(crate) routes: Routes,
    pub(crate) signing: Option<SigningConfig>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) rabbitmq: RabbitMqConfig,
    pub(crate) nats: NatsConfig,
    pub(crate) http: HttpConfig,
    pub(crate) relay: RelayOptions,
}

/// What only sinks to RabbitMQ have.
#[derive(Clone, Debug)]
pub(crate) struct RabbitMqConfig {
    pub(crate) exchange: Option<String>,
    pub(crate) groups: Vec<String>,
    pub(crate) management: Option<Reference>,
}

/// What only sinks to NATS have.
#[derive(Clone, Debug)]
pub(crate) struct NatsConfig {
    pub(crate) credentials: Option<Reference>,
    pub(crate) prefix: Option<String>,
    pub(crate) replicas: Option<usize>,
}

/// What only sinks to HTTP have.
#[derive(Clone, Debug)]
pub(crate) struct HttpConfig {
    pub(crate) authorization: Option<Reference>,
    pub(crate) webhook_secret: Option<Reference>,
    pub(crate) is_plain: bool,
}

impl SinkConfig {
    pub(crate) fn name(&self) -> &str {
        &self.relay.sink
    }
}

/// The keys of a sink: the first signs.
#[derive(Clone, Debug)]
pub(crate) struct SigningConfig {
    keys: Vec<(String, Reference)>,
}

impl SigningConfig {
    /// Reads the secrets.
    pub(crate) fn keyring(&self) -> Result<Option<Keyring>, Fault> {
        let mut ring: Option<Keyring> = None;
        for (id, secret) in &self.keys {
            let (id, secret) = (id.as_str(), secret.read()?.reveal().as_bytes().to_vec());
            ring = Some(match ring {
                None => Keyring::new(id, secret)?,
                Some(ring) => ring.also(id, secret)?,
            });
        }
        Ok(ring)
    }
}

/// Everything, checked.
pub(crate) struct Config {
    pub(crate) log_filter: String,
    pub(crate) log_json: bool,
    pub(crate) health: Option<SocketAddr>,
    pub(crate) stores: Vec<StoreConfig>,
    pub(crate) sinks: Vec<SinkConfig>,
    /// What works but should be otherwise.
    pub(crate) warnings: Vec<String>,
    tables: Tables,
}

impl Config {
    /// Reads `file`, or `oncebox.toml` if it is there, and lays environment and flags over it.
    pub(crate) fn load(file: Option<&Path>, flags: &Flags) -> Result<Self, Fault> {
        let found = PathBuf::from(DEFAULT_FILE);
        let tables = match file {
            Some(path) => file::read(path)?,
            None if found.is_file() => file::read(&found)?,
            None => Tables::default(),
        };
        Self::of(overlay::over(tables, flags, |name| std::env::var(name).ok())?)
    }

    fn of(tables: Tables) -> Result<Self, Fault> {
        let stores = tables.stores.iter().map(store).collect::<Result<Vec<_>, _>>()?;
        twice(stores.iter().map(|store| ("stores", store.name.clone())))?;
        let sinks =
            tables.sinks.iter().map(|table| sink(table, &stores)).collect::<Result<Vec<SinkConfig>, _>>()?;
        twice(sinks.iter().map(|sink| ("sinks of one store", format!("{}/{}", sink.store, sink.name()))))?;
        if sinks.iter().filter(|sink| sink.kind == Kind::Stdout).count() > 1 {
            return Err(Fault::new(
                Class::Input,
                "two sinks write to standard output, their lines would mix",
            ));
        }
        let health = tables.health.text("listen").map(|text| {
            let what = format!("{}: {text:?} is not an address with a port", tables.health.place("listen"));
            text.parse().map_err(|_| Fault::new(Class::Input, what).help("write 127.0.0.1:8080"))
        });
        let warnings = tables.stores.iter().chain(tables.sinks.iter().map(|sink| &sink.values));
        Ok(Self {
            log_filter: tables.log.word("filter"),
            log_json: tables.log.word("format") == "json",
            health: health.transpose()?,
            stores,
            sinks,
            warnings: warnings.filter_map(plain_password).collect(),
            tables,
        })
    }

    /// Every value and where it came from, without secrets.
    pub(crate) fn show(&self, as_json: bool) -> String {
        match as_json {
            true => show::json(&self.tables),
            false => show::text(&self.tables),
        }
    }
}

fn plain_password(values: &Values) -> Option<String> {
    let given = values.get("url")?;
    let is_in_file = matches!(given.origin, Origin::File { .. });
    (is_in_file && has_password(&given.text)).then(|| {
        format!(
            "{}: the url carries a password in plain sight; url_env or url_file keep it out of this file",
            given.origin
        )
    })
}

fn twice(names: impl Iterator<Item = (&'static str, String)>) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    for (what, name) in names {
        let shown = name.rsplit('/').next().unwrap_or_default().to_owned();
        if !seen.insert(name) {
            return Err(Fault::new(Class::Input, format!("two {what} are called {shown:?}")));
        }
    }
    Ok(())
}

fn store(values: &Values) -> Result<StoreConfig, Fault> {
    let name = values.word("name");
    let Some(url) = Reference::of(values, "url") else {
        let text = match values.place("name").as_str() {
            "default" => "no database was named".to_owned(),
            place => format!("{place}: store {name:?} has no url"),
        };
        return Err(Fault::new(Class::Input, text).help(
            "pass --db URL, set ONCEBOX_DB or DATABASE_URL, or give [[store]] a url, url_env or url_file",
        ));
    };
    let keep = match values.word("keep").as_str() {
        "off" => None,
        _ => values.span("keep"),
    };
    Ok(StoreConfig { name, url, schema: values.word("schema"), keep })
}

fn sink(table: &SinkTable, stores: &[StoreConfig]) -> Result<SinkConfig, Fault> {
    let values = &table.values;
    let Some(kind) = values.text("to").and_then(|to| Kind::of_name(&to)) else {
        return Err(Fault::new(Class::Input, "no destination was named").help(
            "pass --to amqp://… | nats://… | https://… | stdout, set ONCEBOX_TO, or give [[sink]] a `to`",
        ));
    };
    let url = Reference::of(values, "url");
    if url.is_none() && matches!(kind, Kind::RabbitMq | Kind::Nats) {
        let text = format!("{}: a sink to {} needs a url", values.place("to"), kind.name());
        return Err(Fault::new(Class::Input, text).help("give it url, url_env or url_file"));
    }
    if let Some(Reference::Literal(literal)) = &url
        && Kind::of_url(literal.reveal()).is_some_and(|of_url| of_url != kind)
    {
        let text =
            format!("{}: the url of a sink to {} is for something else", values.place("url"), kind.name());
        return Err(Fault::new(Class::Input, text));
    }
    if let Some((key, origin)) = values.misplaced(kind.name()) {
        let text = format!(
            "{origin}: `{}` is for sinks to {}, this one goes to {}",
            key.name,
            key.only,
            kind.name()
        );
        return Err(Fault::new(Class::Input, text));
    }
    Ok(SinkConfig {
        store: store_of(values, stores)?,
        kind,
        url,
        declare: values.word("topology") == "declare",
        mode: Mode::from_str(&values.word("mode"))?,
        window: values.count("window").unwrap_or(1000),
        require: Grade::from_str(&values.word("require"))?,
        horizon: values.span("horizon").unwrap_or_default(),
        destinations: values.list("destinations"),
        routes: routes(&table.routes)?,
        signing: signing(table)?,
        ca_file: values.text("ca_file").map(PathBuf::from),
        rabbitmq: RabbitMqConfig {
            exchange: values.text("exchange"),
            groups: values.list("groups"),
            management: Reference::of(values, "management_url"),
        },
        nats: NatsConfig {
            credentials: Reference::of(values, "credentials"),
            prefix: values.text("prefix"),
            replicas: values.count("replicas"),
        },
        http: HttpConfig {
            authorization: Reference::of(values, "authorization"),
            webhook_secret: Reference::of(values, "webhook_secret"),
            is_plain: values.word("plain_http") == "true",
        },
        relay: relay_options(values, kind),
    })
}

fn relay_options(values: &Values, kind: Kind) -> RelayOptions {
    let retry = RetryPolicy {
        max_attempts: values.count("max_attempts").and_then(|count| u32::try_from(count).ok()),
        ..RetryPolicy::default()
    };
    let defaults = RelayOptions::default();
    RelayOptions {
        sink: values.text("name").unwrap_or_else(|| kind.name().to_owned()),
        batch: values.count("batch").unwrap_or(defaults.batch),
        poll: values.span("poll").unwrap_or(defaults.poll),
        lease: values.span("lease").unwrap_or(defaults.lease),
        publish_timeout: values.span("publish_timeout").unwrap_or(defaults.publish_timeout),
        retry,
        on_dead: if values.word("on_dead") == "skip_key" { OnDead::SkipKey } else { OnDead::BlockKey },
        workers: values.count("workers").unwrap_or(defaults.workers),
        ..defaults
    }
}

fn store_of(values: &Values, stores: &[StoreConfig]) -> Result<usize, Fault> {
    match (values.text("store"), stores.len()) {
        (None, 1) => Ok(0),
        (None, _) => {
            Err(Fault::new(Class::Input, format!("{}: which store does the sink read?", values.place("to")))
                .help("give [[sink]] the name of a `store`"))
        }
        (Some(name), _) => stores.iter().position(|store| store.name == name).ok_or_else(|| {
            let known = stores.iter().map(|store| store.name.as_str());
            unknown(&name, &format!("{}: the list of stores", values.place("store")), known)
        }),
    }
}

fn routes(tables: &[Values]) -> Result<Routes, Fault> {
    let rule = |values: &Values| {
        let Some(pattern) = values.text("message") else {
            return Err(Fault::new(
                Class::Input,
                format!("{}: [[sink.route]] needs a `message`", values.place("to")),
            ));
        };
        let skips = values.word("skip") == "true";
        if skips && values.text("to").is_some() {
            let text =
                format!("{}: a route either skips messages or sends them somewhere", values.place("to"));
            return Err(Fault::new(Class::Input, text));
        }
        // A route that only limits the size leaves the destination as it is.
        let to = values.text("to").unwrap_or_else(|| "{destination}".to_owned());
        Ok(Rule { pattern, to: (!skips).then_some(to), max_bytes: values.count("max_bytes") })
    };
    Ok(Routes::new(tables.iter().map(rule).collect::<Result<Vec<_>, _>>()?)?)
}

fn signing(table: &SinkTable) -> Result<Option<SigningConfig>, Fault> {
    if table.signing.is_empty() && table.also.is_empty() {
        return Ok(None);
    }
    let key = |values: &Values| match (values.text("key_id"), Reference::of(values, "secret")) {
        (Some(id), Some(secret)) => Ok((id, secret)),
        _ => {
            let text = format!(
                "{}: a signing key needs a key_id and a secret_env or secret_file",
                values.place("key_id")
            );
            Err(Fault::new(Class::Input, text))
        }
    };
    let keys = std::iter::once(&table.signing).chain(&table.also).map(key);
    Ok(Some(SigningConfig { keys: keys.collect::<Result<_, _>>()? }))
}

#[cfg(test)]
mod tests;
