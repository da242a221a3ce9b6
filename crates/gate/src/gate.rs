//! The layer, and what all its services share.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::request::Parts;
use oncebox_core::Result;
use oncebox_core::gate::{Caller, KeyMaker, Pass, ReceiptKey, Receipts};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tower_layer::Layer;

use crate::policy::Policy;
use crate::service::GateService;

/// Tells who a request comes from.
type Scope = dyn Fn(&Parts) -> Option<Caller> + Send + Sync;

/// A gate in the making: it needs to know whose keys it sees.
pub struct GateBuilder<S> {
    store: S,
    policy: Policy,
    routes: Vec<(String, Arc<Policy>)>,
    secret: Vec<u8>,
    is_transactional: bool,
}

impl<S: Receipts> GateBuilder<S> {
    /// The options for all requests that no route has others for.
    ///
    /// # Errors
    /// [`Kind::Config`](oncebox_core::Kind::Config) with what is unsafe about them.
    pub fn policy(mut self, policy: Policy) -> Result<Self> {
        policy.check()?;
        self.policy = policy;
        Ok(self)
    }

    /// Other options for paths that begin like this; the longest beginning counts.
    ///
    /// # Errors
    /// As [`policy`](Self::policy).
    pub fn route(mut self, prefix: &str, policy: Policy) -> Result<Self> {
        policy.check()?;
        self.routes.push((prefix.to_owned(), Arc::new(policy)));
        self.routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Ok(self)
    }

    /// A secret for the hashes of keys and callers, so that whoever can read the
    /// database cannot try out keys. Processes that share a store share it, too;
    /// with another secret all receipts are forgotten.
    #[must_use]
    pub fn secret(mut self, secret: &[u8]) -> Self {
        self.secret = secret.to_vec();
        self
    }

    /// The handlers claim and seal keys in transactions of their own, by a
    /// [`Claim`](crate::Claim). One that does not is not protected.
    #[must_use]
    pub const fn transactional(mut self) -> Self {
        self.is_transactional = true;
        self
    }

    /// Who a request comes from, by what an earlier layer has found out; `None`
    /// refuses it. Never by what the client says of itself.
    #[must_use]
    pub fn scope(self, scope: impl Fn(&Parts) -> Option<Caller> + Send + Sync + 'static) -> Gate<S> {
        Gate(Arc::new(Inner {
            policy: Arc::new(self.policy),
            routes: self.routes,
            keys: Arc::new(KeyMaker::new(&self.secret)),
            tokens: Tokens::default(),
            scope: Box::new(scope),
            is_transactional: self.is_transactional,
            landed: Notify::new(),
            running: AtomicUsize::new(0),
            heart: Heart::default(),
            store: self.store,
        }))
    }

    /// All callers share their keys: whoever sends the key and the body of
    /// another gets the other's reply. For services with one caller.
    #[must_use]
    pub fn unscoped(self) -> Gate<S> {
        self.scope(|_| Some(Caller { tenant: String::new(), principal: String::new() }))
    }
}

/// The gate as a layer.
pub struct Gate<S>(pub(crate) Arc<Inner<S>>);

pub(crate) struct Inner<S> {
    pub(crate) store: S,
    policy: Arc<Policy>,
    routes: Vec<(String, Arc<Policy>)>,
    pub(crate) keys: Arc<KeyMaker>,
    pub(crate) tokens: Tokens,
    pub(crate) scope: Box<Scope>,
    pub(crate) is_transactional: bool,
    /// Some request has ended: whoever waits for one may look again.
    pub(crate) landed: Notify,
    /// Requests that run, whether their clients are still there or not.
    running: AtomicUsize,
    pub(crate) heart: Heart,
}

impl<S: Receipts> Gate<S> {
    /// A gate that keeps its receipts in this store.
    #[expect(clippy::new_ret_no_self, reason = "a gate is one only when it knows whose keys it sees")]
    pub fn new(store: S) -> GateBuilder<S> {
        GateBuilder {
            store,
            policy: Policy::default(),
            routes: Vec::new(),
            secret: Vec::new(),
            is_transactional: false,
        }
    }

    /// Waits until no request runs any more. A client that hangs up does not end
    /// its request, so a server that has closed all connections is not done yet.
    pub async fn drained(&self) {
        loop {
            let landed = self.0.landed.notified();
            tokio::pin!(landed);
            landed.as_mut().enable();
            if self.0.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            landed.await;
        }
    }

    /// Deletes receipts whose time is over, a batch at a time, until none is left or `stop` is done.
    pub async fn sweep(&self, every: Duration, stop: impl Future<Output = ()>) {
        const BATCH: usize = 1_000;
        tokio::pin!(stop);
        loop {
            match self.0.store.forget(BATCH, None).await {
                Ok(BATCH..) => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(error = %error.chain(), "old receipts could not be deleted"),
            }
            tokio::select! {
                () = &mut stop => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }
}

impl<S> Inner<S> {
    pub(crate) fn policy(&self, path: &str) -> &Arc<Policy> {
        let route = self.routes.iter().find(|(prefix, _)| path.starts_with(prefix.as_str()));
        route.map_or(&self.policy, |(_, policy)| policy)
    }
}

impl<S> Clone for Gate<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("policy", &self.0.policy).finish_non_exhaustive()
    }
}

impl<S, I> Layer<I> for Gate<S> {
    type Service = GateService<S, I>;

    fn layer(&self, inner: I) -> Self::Service {
        GateService { gate: self.clone(), inner }
    }
}

/// Draws the tokens of admissions. Nobody draws one twice, and those of two
/// processes are as far apart as random numbers, without asking the kernel for
/// one each time.
#[derive(Default)]
pub(crate) struct Tokens {
    /// Keyed at random.
    state: RandomState,
    drawn: AtomicU64,
}

impl Tokens {
    pub(crate) fn draw(&self) -> i64 {
        self.state.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed)).cast_signed()
    }
}

/// Renews the leases of all requests that take long, in one statement. Those
/// that are quick are never renewed.
#[derive(Default)]
pub(crate) struct Heart {
    flights: Mutex<HashMap<ReceiptKey, Beat>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Beat {
    pass: Pass,
    lease: Duration,
    renewed: Instant,
}

impl Heart {
    fn flights(&self) -> MutexGuard<'_, HashMap<ReceiptKey, Beat>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self, pass: &Pass) {
        let mut flights = self.flights();
        if flights.get(&pass.key).is_some_and(|beat| beat.pass == *pass) {
            flights.remove(&pass.key);
        }
    }

    /// Whether this process runs the request of this key.
    pub(crate) fn has(&self, key: &ReceiptKey) -> bool {
        self.flights().contains_key(key)
    }
}

/// A request that runs; dropped, it has ended, however that came about.
pub(crate) struct Running<S>(Arc<Inner<S>>);

impl<S> Running<S> {
    pub(crate) fn begin(gate: &Arc<Inner<S>>) -> Self {
        gate.running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(gate))
    }
}

impl<S> Drop for Running<S> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.landed.notify_waiters();
    }
}

impl<S: Receipts> Inner<S> {
    /// Keeps the lease until it is told to forget it.
    pub(crate) fn keep(self: &Arc<Self>, pass: Pass, lease: Duration) {
        let beat = Beat { pass, lease, renewed: Instant::now() };
        self.heart.flights().insert(pass.key, beat);
        let mut task = self.heart.task.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended with the runtime that it was started on.
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(beat_on(Arc::downgrade(self))));
        }
    }

    async fn beat(&self) {
        let due: Vec<(Pass, Duration)> = {
            let flights = self.heart.flights();
            let late = flights.values().filter(|beat| beat.renewed.elapsed() >= beat.lease / 3);
            late.map(|beat| (beat.pass, beat.lease)).collect()
        };
        let mut leases: Vec<Duration> = due.iter().map(|(_, lease)| *lease).collect();
        leases.sort_unstable();
        leases.dedup();
        for lease in leases {
            let passes: Vec<Pass> = due.iter().filter(|due| due.1 == lease).map(|due| due.0).collect();
            match tokio::time::timeout(lease / 3, self.store.prolong(&passes, lease, None)).await {
                Ok(Ok(_)) => {
                    let mut flights = self.heart.flights();
                    for pass in &passes {
                        if let Some(beat) = flights.get_mut(&pass.key) {
                            beat.renewed = Instant::now();
                        }
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = %error.chain(), "leases of requests could not be renewed");
                }
                Err(_elapsed) => tracing::warn!("leases of requests could not be renewed in time"),
            }
        }
    }

    /// How long until somebody's lease should be renewed.
    fn pause(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(1);
        let flights = self.heart.flights();
        let next = flights.values().map(|beat| (beat.lease / 3).saturating_sub(beat.renewed.elapsed())).min();
        next.unwrap_or(LONGEST).clamp(Duration::from_millis(20), LONGEST)
    }
}

async fn beat_on<S: Receipts>(gate: Weak<Inner<S>>) {
    loop {
        let Some(pause) = gate.upgrade().map(|gate| gate.pause()) else { return };
        tokio::time::sleep(pause).await;
        let Some(gate) = gate.upgrade() else { return };
        gate.beat().await;
    }
}
