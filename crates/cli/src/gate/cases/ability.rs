//! What a gate may be able to do, and what it may be.

use clap::ValueEnum;

/// Named by `--with`, or by another flag that gives what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::gate) enum Ability {
    /// It has the paths of `oncebox gate fixture`, each with a policy of its own
    Routes,
    /// It has those of them where copies wait for the reply
    Wait,
    /// It tells callers apart by `authorization` and tenants by `x-fx-tenant`
    Tenants,
    /// It has the fixture's limits for bodies
    Limits,
    /// It has the fixture's paths for other requests under a key
    Strategies,
    /// It has the fixture's paths whose store is down
    Faults,
    /// It is a proxy
    Proxy,
    /// Handlers claim keys in their own transactions: no leases, no streams
    Tx,
    /// Its transactions come one after the other, as those of SQLite do
    OneWriter,
    /// It has the fixture's path whose store is in memory, and small
    Capped,
    /// It speaks HTTP/2, and knows calls of gRPC
    Grpc,
    /// There is a second one on the same store; `--second` says so by itself
    Multi,
    /// Its receipts outlive a kill; `--restart` says so by itself
    Persist,
    /// It has the profile of that name: `--profile`
    #[value(skip)]
    Atp,
}

impl Ability {
    /// Why a case is left out without it.
    pub(in crate::gate) const fn lacking(self) -> &'static str {
        match self {
            Self::Routes => "needs the fixture's paths: --with routes",
            Self::Wait => "needs paths where copies wait: --with wait",
            Self::Tenants => "needs callers to be told apart: --with tenants",
            Self::Limits => "needs the fixture's limits: --with limits",
            Self::Strategies => "needs the fixture's strategies: --with strategies",
            Self::Faults => "needs stores that are down: --with faults",
            Self::Proxy => "needs a proxy: --with proxy",
            Self::Tx => "needs claims in transactions: --with tx",
            Self::OneWriter => "needs a single writer: --with one-writer",
            Self::Capped => "needs a small store in memory: --with capped",
            Self::Grpc => "needs HTTP/2 and calls of gRPC: --with grpc",
            Self::Multi => "needs another gate on the same store: --second",
            Self::Persist => "needs a way to kill the gate and start it again: --restart",
            Self::Atp => "is about keys that name a tenant: --profile atp",
        }
    }

    /// Why a case is left out for a gate that is this.
    pub(in crate::gate) const fn barring(self) -> &'static str {
        match self {
            Self::Tx => "a transaction has no lease and no stream",
            Self::OneWriter => "transactions come one after the other there",
            _ => "not of such a gate",
        }
    }
}
