//! What a suite needs of a backend.
//!
//! A fixture is made fresh for every case and owns whatever the case touches,
//! so cases never meet. Suites take a fixture type and call it; nothing is
//! inherited, so nothing can be overridden by accident.

use std::future::Future;
use std::time::Duration;

use oncebox_core::inspect::Inspect;
use oncebox_core::{
    Capabilities, Dedup, Error, HandlerError, Kind, Mailbox, Publisher, Result, Retention, Store, Subscriber,
};
use oncebox_flow::memory::{MemoryStore, MemoryTransport, MemoryTx};

use crate::capabilities::Guarantees;
use crate::ledger::Entry;

/// How long an impatient store waits for a lock.
pub const IMPATIENCE: Duration = Duration::from_millis(200);
/// A case has acknowledged by then what it was going to.
const ACKNOWLEDGED: Duration = Duration::from_secs(60);
/// The table of a fixture's effects.
pub const LEDGER: &str = "ledger";

/// One store of its own, with a table of effects beside it.
pub trait StoreFixture: Send + Sync + Sized + 'static {
    /// The store under test.
    type Store: Mailbox + Dedup + Retention + Inspect;

    /// What the store promises beyond its traits.
    const GUARANTEES: Guarantees;

    /// A fresh store, or `None` if its service is not there to be tested.
    fn fresh() -> impl Future<Output = Option<Self>> + Send;

    /// A handle on the store.
    fn store(&self) -> Self::Store;

    /// A handle that waits for locks no longer than [`IMPATIENCE`].
    fn impatient(&self) -> Self::Store;

    /// Writes one row to the ledger, in the given transaction.
    fn effect(
        &self,
        tx: &mut <Self::Store as Store>::Tx,
        effect: &Entry,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// The committed rows of the ledger, in the order they were written.
    fn effects(&self) -> impl Future<Output = Vec<Entry>> + Send;

    /// How many there are, for those who wait for many.
    fn effect_count(&self) -> impl Future<Output = usize> + Send {
        async { self.effects().await.len() }
    }

    /// Removes everything the fixture made. Called whether the case held or not.
    fn clean(&self) -> impl Future<Output = ()> + Send;
}

/// One transport of its own.
pub trait TransportFixture: Send + Sync + Sized + 'static {
    /// The transport under test.
    type Transport: Publisher + Subscriber + Clone;

    /// What it can do; cases about anything else are left out.
    const CAPABILITIES: Capabilities;

    /// A fresh transport, or `None` if its service is not there to be tested.
    fn fresh() -> impl Future<Output = Option<Self>> + Send;

    /// A handle on the transport.
    fn transport(&self) -> Self::Transport;

    /// A transport that keeps at most `messages` for a group, if it can be told so.
    fn bounded(&self, messages: usize) -> Option<Self::Transport>;

    /// Ends all feeds, if the transport has such an end.
    fn close(&self) -> bool;

    /// Removes everything the fixture made.
    fn clean(&self) -> impl Future<Output = ()> + Send;
}

/// The memory store.
#[derive(Debug, Default)]
pub struct MemoryFixture {
    store: MemoryStore,
}

impl StoreFixture for MemoryFixture {
    type Store = MemoryStore;

    const GUARANTEES: Guarantees = Guarantees {
        name: "memory",
        survives_process: false,
        survives_power_loss: false,
        concurrent_writers: false,
        shared_by_processes: false,
    };

    async fn fresh() -> Option<Self> {
        Some(Self::default())
    }

    fn store(&self) -> MemoryStore {
        self.store.clone()
    }

    fn impatient(&self) -> MemoryStore {
        self.store.clone().lock_wait(IMPATIENCE)
    }

    async fn effect(&self, tx: &mut MemoryTx, effect: &Entry) -> Result<(), HandlerError> {
        let row = serde_json::to_string(effect)?;
        tx.append(LEDGER, row);
        Ok(())
    }

    async fn effects(&self) -> Vec<Entry> {
        let rows = self.store.rows(LEDGER).await;
        rows.iter().map(|row| serde_json::from_str(row).expect("only entries are written")).collect()
    }

    async fn clean(&self) {}
}

/// The in-process transport.
#[derive(Debug, Default)]
pub struct MemoryTransportFixture {
    transport: MemoryTransport,
}

impl TransportFixture for MemoryTransportFixture {
    type Transport = MemoryTransport;

    const CAPABILITIES: Capabilities = MemoryTransport::CAPABILITIES;

    async fn fresh() -> Option<Self> {
        Some(Self { transport: MemoryTransport::new().confirm_timeout(ACKNOWLEDGED) })
    }

    fn transport(&self) -> MemoryTransport {
        self.transport.clone()
    }

    fn bounded(&self, messages: usize) -> Option<MemoryTransport> {
        Some(MemoryTransport::new().capacity(messages).confirm_timeout(ACKNOWLEDGED))
    }

    fn close(&self) -> bool {
        self.transport.close();
        true
    }

    async fn clean(&self) {}
}

/// Whether a test that needs the service named by the environment variable
/// can run; says so if not, or panics where skipping is not allowed.
#[must_use]
pub fn service_url(variable: &str, case: &str) -> Option<String> {
    if let Some(url) = std::env::var(variable).ok().filter(|url| !url.is_empty()) {
        return Some(url);
    }
    assert!(
        std::env::var_os("ONCEBOX_NO_SKIP").is_none(),
        "{variable} is not set and nothing may be skipped"
    );
    println!("SKIP {case}: {variable} is not set");
    None
}

/// The kind of an error, for assertions that read as sentences.
pub fn kind<T>(result: Result<T>) -> Option<Kind> {
    result.err().as_ref().map(Error::kind)
}
