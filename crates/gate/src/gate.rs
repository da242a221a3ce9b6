//! The layer, and what all its services share.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::request::Parts;
use oncebox_core::Result;
use oncebox_core::crash::Probe;
use oncebox_core::gate::{Caller, KeyMaker, Receipts, path::plain};
use tokio::sync::Notify;
use tower_layer::Layer;

use crate::broom::Broom;
use crate::cache::Cache;
use crate::heart::Heart;
use crate::policy::{Policy, Strategy};
use crate::quota::Quota;
use crate::rule::Rule;
use crate::service::GateService;
use crate::strays::Strays;

/// The room for replies that need not be asked for.
const CACHE: usize = 16 << 20;
/// The time between two looks for receipts whose time is over.
const SWEEPS: Duration = Duration::from_secs(60);

/// Tells who a request comes from.
type Scope = dyn Fn(&Parts) -> Option<Caller> + Send + Sync;

/// A gate in the making: it needs to know whose keys it sees.
pub struct GateBuilder<S> {
    store: S,
    rule: Arc<Rule>,
    routes: Vec<(String, Arc<Rule>)>,
    secret: Vec<u8>,
    is_transactional: bool,
    cache: usize,
    sweeps: Duration,
    probe: Probe,
}

impl<S: Receipts> GateBuilder<S> {
    /// The options for all requests that no route has others for.
    ///
    /// # Errors
    /// [`Kind::Config`](oncebox_core::Kind::Config) with what is unsafe about them.
    pub fn policy(mut self, policy: Policy) -> Result<Self> {
        self.rule = Arc::new(Rule::new(policy)?);
        Ok(self)
    }

    /// Other options for paths that begin like this; the longest beginning counts. A path is looked up as services
    /// understand it: `/%70ay`, `//pay` and `/x/../pay` begin like `/pay`.
    ///
    /// # Errors
    /// As [`policy`](Self::policy).
    pub fn route(mut self, prefix: &str, policy: Policy) -> Result<Self> {
        self.routes.push((plain(prefix).into_owned(), Arc::new(Rule::new(policy)?)));
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

    /// How many bytes of sealed replies this process keeps, to replay them without asking the store: 16 MiB;
    /// with 0 it always asks. Nothing is kept before a store in memory, nor where the last write wins.
    #[must_use]
    pub const fn cache(mut self, bytes: usize) -> Self {
        self.cache = bytes;
        self
    }

    /// How often this gate deletes receipts whose time is over, from its first request on: every minute; with zero
    /// never, which leaves it to [`Gate::sweep`] or to the gates of other processes.
    #[must_use]
    pub const fn sweep_every(mut self, interval: Duration) -> Self {
        self.sweeps = interval;
        self
    }

    /// The crash points of tests.
    #[must_use]
    pub fn probe(mut self, probe: Probe) -> Self {
        self.probe = probe;
        self
    }

    /// A reply that another request may replace is not one to remember, and a
    /// route on which the last write wins may replace those of all who share its keys.
    fn cache_size(&self) -> usize {
        let rules = self.routes.iter().map(|(_, rule)| rule).chain([&self.rule]);
        let replaces = rules
            .map(|rule| &rule.policy)
            .any(|policy| policy.strategy == Strategy::LastWriteWins && !policy.key_per_route);
        if replaces || S::IN_MEMORY { 0 } else { self.cache }
    }

    /// Who a request comes from, by what an earlier layer has found out; `None`
    /// refuses it. Never by what the client says of itself.
    #[must_use]
    pub fn scope(self, scope: impl Fn(&Parts) -> Option<Caller> + Send + Sync + 'static) -> Gate<S> {
        Gate(Arc::new(Inner {
            cache: Cache::new(self.cache_size()),
            rule: self.rule,
            routes: self.routes,
            keys: Arc::new(KeyMaker::new(&self.secret)),
            tokens: Tokens::default(),
            scope: Box::new(scope),
            is_transactional: self.is_transactional,
            landed: Notify::new(),
            running: AtomicUsize::new(0),
            heart: Heart::default(),
            broom: Broom::new(self.sweeps),
            strays: Strays::default(),
            quota: Quota::default(),
            probe: self.probe,
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
    rule: Arc<Rule>,
    routes: Vec<(String, Arc<Rule>)>,
    pub(crate) keys: Arc<KeyMaker>,
    pub(crate) tokens: Tokens,
    pub(crate) scope: Box<Scope>,
    pub(crate) is_transactional: bool,
    /// Some request has ended: whoever waits for one may look again.
    pub(crate) landed: Notify,
    /// Requests that run, whether their clients are still there or not.
    running: AtomicUsize,
    pub(crate) heart: Heart,
    pub(crate) broom: Broom,
    pub(crate) strays: Strays,
    pub(crate) quota: Quota,
    pub(crate) cache: Cache,
    pub(crate) probe: Probe,
}

impl<S: Receipts> Gate<S> {
    /// A gate that keeps its receipts in this store.
    #[expect(clippy::new_ret_no_self, reason = "a gate is one only when it knows whose keys it sees")]
    pub fn new(store: S) -> GateBuilder<S> {
        GateBuilder {
            store,
            rule: Arc::default(),
            routes: Vec::new(),
            secret: Vec::new(),
            is_transactional: false,
            cache: CACHE,
            sweeps: SWEEPS,
            probe: Probe::default(),
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

    /// Deletes receipts whose time is over, in batches; tells how many. A gate does so by itself
    /// ([`sweep_every`](GateBuilder::sweep_every)); this is for cron jobs and tests.
    ///
    /// # Errors
    /// By kind of the failed statement; what was deleted stays deleted.
    pub async fn sweep(&self) -> Result<usize> {
        self.0.sweep().await
    }
}

impl<S> Inner<S> {
    pub(crate) fn rule(&self, path: &str) -> &Arc<Rule> {
        if self.routes.is_empty() {
            return &self.rule;
        }
        let path = plain(path);
        let route = self.routes.iter().find(|(prefix, _)| path.starts_with(prefix.as_str()));
        route.map_or(&self.rule, |(_, rule)| rule)
    }
}

impl<S> Clone for Gate<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("policy", &self.0.rule.policy).finish_non_exhaustive()
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
