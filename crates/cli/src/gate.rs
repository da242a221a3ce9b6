//! `oncebox gate`: a reverse proxy that gives any service `Idempotency-Key`,
//! the checker that tells what a gate gets right, and the service it is tried on.

mod admin;
mod call;
mod cases;
mod check;
mod client;
mod dying;
mod entry;
mod fixture;
mod key;
mod listen;
mod proxy;
mod refusal;
mod routes;
mod upload;
mod upstream;
mod wire;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use oncebox_flow::memory::MemoryStore;
use oncebox_gate::{Policy, Profile};

use crate::database::Database;
use crate::fault::Fault;
use crate::output::Format;

#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    proxy: Option<proxy::ProxyArgs>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Try a gate, of any make, with a list of cases, and tell what it gets right
    Check(check::Args),
    /// Make keys for clients, or tell whether something is one
    Key(key::Args),
    /// Serve what `check` is tried on: a small service behind the gate
    Fixture(fixture::Args),
}

/// A set of defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProfileName {
    /// As the IETF draft has it
    Ietf,
    /// Keys tenant:app:unique, required; 409 for another payload
    Atp,
}

impl ProfileName {
    fn policy(self) -> Policy {
        Policy::of(match self {
            Self::Ietf => Profile::Ietf,
            Self::Atp => Profile::Atp,
        })
    }
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    match (args.verb, args.proxy) {
        (Some(Verb::Check(args)), _) => check::run(args, format).await,
        (Some(Verb::Key(args)), _) => key::run(args, format),
        (Some(Verb::Fixture(args)), _) => fixture::run(args).await,
        (None, Some(args)) => proxy::run(args).await,
        (None, None) => Err(Fault::new(crate::fault::Class::Input, "what should the gate do?")
            .help("oncebox gate --listen ADDRESS --upstream URL --db URL")),
    }
}

/// Where receipts are kept.
#[derive(Clone, Debug)]
enum Receipts {
    Memory(MemoryStore),
    Kept(Database),
}

/// Does the same with whichever store there is: their types differ.
macro_rules! with_store {
    ($receipts:expr, $store:ident => $body:expr) => {
        match $receipts {
            Receipts::Memory($store) => $body,
            Receipts::Kept($crate::database::Database::Sqlite($store)) => $body,
            Receipts::Kept($crate::database::Database::Postgres($store)) => $body,
        }
    };
}
use with_store;

impl Receipts {
    /// `memory`, or a database that has the tables.
    async fn open(url: &str, schema: &str, memory_bytes: usize) -> Result<Self, Fault> {
        if url == "memory" {
            return Ok(Self::Memory(MemoryStore::new().receipt_capacity(memory_bytes)));
        }
        let database = Database::open(url, schema, false).await?;
        Ok(Self::Kept(database.verified().await?))
    }
}
