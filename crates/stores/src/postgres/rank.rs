//! Connections that have served a claim and stand ready for the next, as cabs do.
//!
//! The driver throws away what a statement tells that begins a transaction, and
//! a pool asks before it lends and when it gets back. To the driver the
//! transaction of a connection here is open all the time, so a claim begins it
//! on the server together with its first question, and ends it together with
//! its seal: a round trip each. The statements are prepared by name, because
//! one message that holds several takes no arguments.
//!
//! What stands here is the pool's. So it is half of the pool at most, none while
//! the pool has nothing else to lend, and what nobody takes goes back soon.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use oncebox_core::{Digest, Kind, Result};
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Executor as _, Postgres};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::error::failed;

/// How long one stands here before it goes back to the pool.
const IDLE: Duration = Duration::from_secs(1);
/// How long one goes on, so that the pool can end those that it has had for long enough.
const TERM: Duration = Duration::from_secs(60);
/// For how long and how many at a time it is remembered which claims run on such a connection. One that is
/// forgotten is sealed the longer way.
const MEMORY: Duration = Duration::from_secs(60);
const MOST_REMEMBERED: usize = 10_000;

/// How long a connection may take to go back.
const PATIENCE: Duration = Duration::from_secs(5);

type Begun = sqlx::Transaction<'static, Postgres>;

/// Statements that are prepared, by what they are called and what they do.
pub(super) type Statements = [(&'static str, String); 3];

/// The rank of one store.
#[derive(Default)]
pub(super) struct Rank {
    /// How many stand ready in all ranks of this pool.
    parked: Arc<AtomicUsize>,
    names: OnceLock<[String; 3]>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The one that came last goes first, so that no more stay than are needed.
    idle: Vec<Cab>,
    /// Claims that were begun on one of these, by their tokens; when that was, and when the connection came.
    out: HashMap<i64, (Instant, Came)>,
    /// Something between us and the server does not keep prepared statements.
    is_closed: bool,
    sweeper: Option<JoinHandle<()>>,
    /// Where the latest one came from: the pool takes none back without a runtime.
    runtime: Option<Handle>,
}

/// When a connection came from the pool.
#[derive(Clone, Copy)]
pub(super) struct Came(Instant);

struct Cab {
    begun: Begun,
    came: Came,
    since: Instant,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let (idle, runtime) = {
            let mut state = self.state();
            (std::mem::take(&mut state.idle), state.runtime.take())
        };
        self.parked.fetch_sub(idle.len(), Ordering::Relaxed);
        let _inside = runtime.as_ref().map(Handle::enter);
        idle.into_iter().for_each(|cab| give_back_soon(cab.begun));
    }
}

/// The name of a prepared statement tells what it does: behind a pooler another process, of another schema or an
/// older build, may have prepared one on the same connection.
fn name(called: &str, text: &str) -> String {
    let digest = Digest::of(text.as_bytes()).to_string();
    format!("oncebox_{called}_{}", digest.get(..16).unwrap_or_default())
}

impl Rank {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That of another store on the same pool.
    pub(super) fn beside(&self) -> Self {
        Self { parked: Arc::clone(&self.parked), names: OnceLock::new(), state: Mutex::default() }
    }

    /// What its statements are called.
    pub(super) fn names(&self, statements: impl FnOnce() -> Statements) -> &[String; 3] {
        self.names.get_or_init(|| statements().map(|(called, text)| name(called, &text)))
    }

    /// A connection, if one stands ready.
    pub(super) fn take(&self) -> Option<(Begun, Came)> {
        let cab = self.state().idle.pop()?;
        self.parked.fetch_sub(1, Ordering::Relaxed);
        Some((cab.begun, cab.came))
    }

    /// One of them leads nowhere, so the others may, too: let nobody find that out one after the other.
    pub(super) fn distrust(&self) {
        let idle = std::mem::take(&mut self.state().idle);
        self.parked.fetch_sub(idle.len(), Ordering::Relaxed);
        idle.into_iter().for_each(|cab| give_back_soon(cab.begun));
    }

    /// The claim with this token runs on such a connection.
    pub(super) fn remember(&self, token: i64, came: Came) {
        let mut state = self.state();
        if state.out.len() >= MOST_REMEMBERED {
            state.out.retain(|_, (since, _)| since.elapsed() < MEMORY);
        }
        if state.out.len() < MOST_REMEMBERED {
            state.out.insert(token, (Instant::now(), came));
        }
    }

    /// Whether it does; from now on that is forgotten.
    pub(super) fn recall(&self, token: i64) -> Option<Came> {
        self.state().out.remove(&token).map(|(_, came)| came)
    }

    /// No more connections come to stand here.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
    }

    /// A connection that was here before comes back, its transaction ended on the server.
    pub(super) fn put(self: &Arc<Self>, pool: &PgPool, begun: Begun, came: Came) {
        if let Some(begun) = self.refused(pool, begun, came) {
            give_back_soon(begun);
        }
    }

    /// One that never was here comes along, likewise; its statements are prepared when nobody waits for it.
    pub(super) fn welcome(self: &Arc<Self>, pool: &PgPool, mut begun: Begun, statements: Statements) {
        let (rank, pool) = (Arc::clone(self), pool.clone());
        tokio::spawn(async move {
            match prepare(&mut begun, statements).await {
                Ok(()) => rank.put(&pool, begun, Came(Instant::now())),
                Err(error) => {
                    if error.kind() == Kind::Rejected {
                        tracing::debug!(error = %error.chain(), "claims cannot prepare their statements");
                        rank.close();
                    }
                    give_back_soon(begun);
                }
            }
        });
    }

    /// Whether one more may stand here: not if somebody may be waiting for one in the pool.
    pub(super) fn has_room(&self, pool: &PgPool) -> bool {
        let most = pool.options().get_max_connections();
        let has_others = pool.size() < most || pool.num_idle() > 0;
        let is_closed = self.state().is_closed || pool.is_closed();
        !is_closed && has_others && self.parked.load(Ordering::Relaxed) < most as usize / 2
    }

    /// What there is no room for.
    fn refused(self: &Arc<Self>, pool: &PgPool, begun: Begun, came: Came) -> Option<Begun> {
        if !self.has_room(pool) || came.0.elapsed() >= TERM {
            return Some(begun);
        }
        let mut state = self.state();
        // Under the lock: whoever closes the pool from here on wakes a sweeper that finds it.
        if pool.is_closed() {
            return Some(begun);
        }
        self.parked.fetch_add(1, Ordering::Relaxed);
        state.runtime = Handle::try_current().ok();
        state.idle.push(Cab { begun, came, since: Instant::now() });
        // It may have ended with the runtime that it was started on.
        if state.sweeper.as_ref().is_none_or(JoinHandle::is_finished) {
            state.sweeper = Some(tokio::spawn(sweep(Arc::downgrade(self), pool.clone())));
        }
        None
    }

    /// Those that have stood here for too long, and whether that is all of them.
    fn tired(&self, is_over: bool) -> (Vec<Begun>, bool) {
        let mut state = self.state();
        let is_tired = |cab: &mut Cab| is_over || cab.since.elapsed() >= IDLE;
        let tired: Vec<Begun> = state.idle.extract_if(.., is_tired).map(|cab| cab.begun).collect();
        self.parked.fetch_sub(tired.len(), Ordering::Relaxed);
        state.out.retain(|_, (since, _)| since.elapsed() < MEMORY);
        let is_done = state.idle.is_empty();
        if is_done {
            state.sweeper = None;
        }
        (tired, is_done)
    }
}

/// Gives back what nobody takes, and everything as soon as the pool closes: it waits for that.
async fn sweep(rank: Weak<Rank>, pool: PgPool) {
    let closed = pool.close_event();
    tokio::pin!(closed);
    loop {
        let is_over = tokio::select! {
            () = &mut closed => true,
            () = tokio::time::sleep(IDLE / 2) => false,
        };
        let Some(rank) = rank.upgrade() else { return };
        let (tired, is_done) = rank.tired(is_over);
        drop(rank);
        tired.into_iter().for_each(give_back_soon);
        if is_done {
            return;
        }
    }
}

/// To the driver its transaction is open. The server would warn of a ROLLBACK without one.
fn give_back_soon(mut begun: Begun) {
    tokio::spawn(timeout(PATIENCE, async move {
        if begun.execute(sqlx::raw_sql("BEGIN")).await.is_ok() {
            begun.rollback().await.ok();
        }
    }));
}

/// Prepares statements, unless they are there from an earlier time.
async fn prepare(on: &mut Begun, statements: Statements) -> Result<()> {
    for (called, text) in statements {
        let name = name(called, &text);
        let known = sqlx::query(include_str!("sql/prepared.sql")).bind(&name).fetch_optional(&mut **on);
        if known.await.map_err(failed("cannot look for prepared statements"))?.is_some() {
            continue;
        }
        // The name is ours, the text is in `sql/`.
        let text = AssertSqlSafe(format!("PREPARE {name} {text}"));
        on.execute(sqlx::raw_sql(text)).await.map_err(failed("cannot prepare statements"))?;
    }
    Ok(())
}
