//! Workers of the durable inbox as processes of their own, made to be killed,
//! to kill themselves, or to live by a wrong clock.
//!
//! A child is this test binary, told by its environment what to do. Every run
//! of a body is written to a diary first, which outlives whatever the body does.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use oncebox::depot::{Finish, TakeRequest, Taken, Want};
use oncebox::inbox::{InboxBuilder, InboxOptions};
use oncebox::store::Purge;
use oncebox::stores::postgres::{PostgresStore, pool_options};
use oncebox::stores::sqlite::SqliteStore;
use oncebox::verdict::RetryPolicy;
use oncebox::{
    Clock, Context, Depot, Handler, HandlerError, HandlerKey, Identifier, Inbox, Message as _, Result,
    Retention as _, Store, Timestamp, WorkOptions, Worker,
};
use oncebox_conformance::sample::{DESTINATION, Posted};
use oncebox_conformance::{Entry, Findings, Ledger, StoreFixture};
use sqlx::postgres::PgConnectOptions;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bodies::{HANDLER, arriving, deliver_until_done, tireless};
use super::booking::operation;
use super::children::{Killed, report};
use super::kills::unordered;
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;
use crate::crash_points::ground::Ground;

const CHILD: &str = "experiments::workshop::a_child_works_on_what_is_stored";
const ORDERS: &str = "ONCEBOX_WORKSHOP_ORDERS";
const DATABASE: &str = "ONCEBOX_WORKSHOP_DATABASE";
const DIARY: &str = "ONCEBOX_WORKSHOP_DIARY";
/// Without progress for this long, nothing more will come. All effects end the
/// wait sooner, so that only a run that has lost some is patient to the end.
const REST: Duration = Duration::from_secs(30);
/// The same where a loss is what is looked for.
const SABOTAGED_REST: Duration = Duration::from_secs(6);
/// What a process may not purge, whatever its own clock says.
const KEPT: Duration = Duration::from_secs(1_800);
/// The memory of a bounded child, in KiB.
const MEMORY: u32 = 6 << 20;

/// What a child does, and what it does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Worker,
    /// Completes a delivery, and books afterwards.
    SettlesFirst,
    /// Counts an attempt when the body is over.
    CountsLate,
    /// A worker that also purges what is older than it is to be kept.
    Sweeper,
    /// The same, by its own clock instead of the database's.
    OwnClock,
}

const ROLES: [Role; 5] = [Role::Worker, Role::SettlesFirst, Role::CountsLate, Role::Sweeper, Role::OwnClock];

impl Role {
    /// How long it takes without progress until nothing more will come.
    pub(super) const fn rest(self) -> Duration {
        rest(!matches!(self, Self::Worker | Self::Sweeper))
    }
}

/// The same where the sabotage is not a child's.
pub(super) const fn rest(is_sabotaged: bool) -> Duration {
    if is_sabotaged { SABOTAGED_REST } else { REST }
}

/// What a child is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orders {
    pub(super) role: Role,
    pub(super) lease: Duration,
    /// How long a body takes.
    pub(super) pause: Duration,
    /// How long a body may take.
    pub(super) timeout: Duration,
    /// How often a message is tried; `None` is for ever.
    pub(super) attempts: Option<u32>,
    /// How many are run at once, and how many are held beside them.
    pub(super) seats: (usize, usize),
}

/// What is around a child.
#[derive(Clone, Debug)]
pub(super) enum Surroundings {
    Ordinary,
    /// Not all of the machine's memory, and no core files.
    Bounded,
    /// A clock that runs as the file says.
    Skewed(PathBuf),
}

/// Everything that children of one experiment share.
pub(super) struct Workshop {
    database: String,
    schema: String,
    diary: PathBuf,
}

impl Workshop {
    pub(super) fn open<F: Ground>(fixture: &F) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let diary = std::env::temp_dir().join(format!("oncebox-diary-{}-{number}", std::process::id()));
        let (database, schema) = fixture.place();
        std::fs::write(&diary, "").unwrap();
        Self { database, schema, diary }
    }

    /// Starts a child.
    pub(super) fn start(&self, orders: Orders, around: &Surroundings) -> Killed {
        let Orders { role, lease, pause, timeout, attempts, seats } = orders;
        let millis = [lease, pause, timeout].map(|span| span.as_millis().to_string()).join(" ");
        let attempts = attempts.unwrap_or(0);
        let words = format!("{role:?} {} {millis} {attempts} {} {}", self.schema, seats.0, seats.1);
        let exe = std::env::current_exe().unwrap();
        let mut child = match around {
            Surroundings::Bounded => {
                let mut shell = Command::new("sh");
                let script = format!("ulimit -c 0; ulimit -v {MEMORY}; exec \"$@\"");
                shell.args(["-c", &script, "sh"]).arg(exe);
                shell
            }
            Surroundings::Ordinary | Surroundings::Skewed(_) => Command::new(exe),
        };
        child.args([CHILD, "--exact", "--test-threads=1"]);
        child.env(ORDERS, words).env(DATABASE, &self.database).env(DIARY, &self.diary);
        if let Surroundings::Skewed(file) = around {
            // Only what time it is; how long something takes is as ever.
            child.env("LD_PRELOAD", libfaketime().unwrap()).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            child.env("FAKETIME_TIMESTAMP_FILE", file).env("FAKETIME_CACHE_DURATION", "1");
        }
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Killed::watch(child.spawn().unwrap())
    }

    /// The lines of the diary.
    pub(super) fn diary(&self) -> Vec<String> {
        std::fs::read_to_string(&self.diary).unwrap().lines().map(str::to_owned).collect()
    }

    /// How often the body ran for a message.
    pub(super) fn runs_of(&self, message: &Posted) -> usize {
        self.runs_among(&HashSet::from([run_of(message)]))
    }

    /// How often it ran for these, as the diary calls them.
    pub(super) fn runs_among(&self, runs: &HashSet<String>) -> usize {
        self.diary().iter().filter(|written| runs.contains(*written)).count()
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        std::fs::remove_file(&self.diary).ok();
    }
}

/// What makes a process live by another clock, if it is installed.
pub(super) fn libfaketime() -> Option<PathBuf> {
    let libraries = std::fs::read_dir("/usr/lib").ok()?.filter_map(std::result::Result::ok);
    let paths = libraries.map(|library| library.path().join("faketime/libfaketimeMT.so.1"));
    paths.into_iter().find(|path| path.exists())
}

pub(super) fn run_of(message: &Posted) -> String {
    format!("run {}", message.sequence)
}

/// Books a message, unless its account says what is to go wrong.
pub(super) struct Craft<F> {
    fixture: Arc<F>,
    diary: Option<PathBuf>,
    pause: Duration,
}

impl<F: StoreFixture> Craft<F> {
    /// The body, in the transaction it is given.
    async fn work(&self, tx: &mut <F::Store as Store>::Tx, message: &Posted) -> Result<(), HandlerError> {
        self.note(&run_of(message));
        report();
        go_wrong(message.account.as_deref().unwrap_or_default())?;
        self.fixture.effect(tx, &operation(HANDLER, message)).await?;
        tokio::time::sleep(self.pause).await;
        Ok(())
    }

    fn note(&self, line: &str) {
        let Some(diary) = &self.diary else { return };
        let mut diary = OpenOptions::new().append(true).open(diary).unwrap();
        diary.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// What handlers do that should not.
fn go_wrong(account: &str) -> Result<(), HandlerError> {
    match account {
        "error" => return Err(HandlerError::retry("it never works")),
        "panic" => panic!("it always panics"),
        // Without ever yielding; asleep, as others want to use the processor.
        "loop" => loop {
            std::thread::sleep(Duration::from_millis(10));
        },
        "abort" => std::process::abort(),
        "overflow" => assert!(descend(1) > 0, "there is no bottom"),
        "huge" => assert!(std::hint::black_box(vec![1_u8; 64 << 30]).len() > 1, "there is no such memory"),
        _well => {}
    }
    Ok(())
}

fn descend(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 512]);
    if depth == u64::MAX { frame[0] } else { descend(depth + 1).wrapping_add(frame[511]) }
}

impl<F: StoreFixture> Handler<<F::Store as Store>::Tx> for Craft<F> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        self.work(cx.tx(), &message).await
    }
}

/// An inbox to deposit to, for the parent.
pub(super) fn inbox<F: StoreFixture>(fixture: &Arc<F>) -> Inbox<F::Store>
where
    F::Store: Depot,
{
    let craft = Craft { fixture: Arc::clone(fixture), diary: None, pause: Duration::ZERO };
    let inbox = Inbox::builder(fixture.store(), DESTINATION).handler(craft).durable();
    inbox.retry(tireless()).build().unwrap()
}

/// Stores messages, as if they had arrived at the same time.
pub(super) async fn deposit<S: Depot + oncebox::Mailbox>(inbox: &Inbox<S>, messages: &[Posted]) {
    let envelopes: Vec<_> =
        messages.iter().map(|message| arriving(&message.sequence.to_string(), message)).collect();
    join_all(envelopes.iter().map(|envelope| deliver_until_done(inbox, envelope))).await;
}

/// Waits until everything has taken effect, or nothing has moved for as long as `rest`.
pub(super) async fn settled<F: StoreFixture>(fixture: &F, expected: &[Entry], rest: Duration) -> Findings {
    let (mut last, mut moved) = (0, Instant::now());
    loop {
        let effects = fixture.effects().await.len();
        if effects >= expected.len() || moved.elapsed() > rest {
            break;
        }
        if effects != last {
            (last, moved) = (effects, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A run that is still under way would double now.
    tokio::time::sleep(Duration::from_millis(300)).await;
    unordered(Ledger::check(expected, &fixture.effects().await))
}

/// No test by itself: what the parents start.
#[test]
fn a_child_works_on_what_is_stored() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(0);
    });
    let words: Vec<&str> = orders.split(' ').collect();
    let role = ROLES.into_iter().find(|role| format!("{role:?}") == words[0]).unwrap();
    let millis = |word: &str| Duration::from_millis(word.parse().unwrap());
    let attempts = Some(words[5].parse().unwrap()).filter(|attempts| *attempts > 0);
    let (lease, pause, timeout) = (millis(words[2]), millis(words[3]), millis(words[4]));
    let seats = (words[6].parse().unwrap(), words[7].parse().unwrap());
    let orders = Orders { role, lease, pause, timeout, attempts, seats };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(enter(orders, words[1].to_owned()));
}

async fn enter(orders: Orders, schema: String) {
    let (database, diary) = (std::env::var(DATABASE).unwrap(), PathBuf::from(std::env::var(DIARY).unwrap()));
    let identifier = Identifier::new(&schema).unwrap();
    if database.starts_with("postgres") {
        // A connection for each that is run, and some to look, to renew and to purge.
        let most = u32::try_from(orders.seats.0).unwrap() + 6;
        let options = PgConnectOptions::from_str(&database).unwrap();
        let store =
            PostgresStore::with_pool(pool_options().max_connections(most), options).schema(identifier);
        let pool = store.pool().clone();
        play(orders, PostgresFixture { store, pool, schema }, &diary).await;
    } else {
        let store = SqliteStore::connect(&database).await.unwrap().prefix(identifier);
        play(orders, SqliteFixture { store, folder: PathBuf::new() }, &diary).await;
    }
}

async fn play<F: StoreFixture>(orders: Orders, fixture: F, diary: &Path)
where
    F::Store: Depot,
{
    let fixture = Arc::new(fixture);
    let craft = Craft { fixture: Arc::clone(&fixture), diary: Some(diary.to_owned()), pause: orders.pause };
    let clock = if orders.role == Role::OwnClock { own_clock() } else { Clock::default() };
    match orders.role {
        Role::SettlesFirst => return settle_first(&craft, orders.lease).await,
        Role::CountsLate => return count_late(&craft, orders.lease).await,
        Role::Sweeper | Role::OwnClock => {
            let craft = Craft { fixture: Arc::clone(&fixture), diary: craft.diary.clone(), ..craft };
            tokio::spawn(sweep(craft, clock.clone()));
        }
        Role::Worker => {}
    }
    let builder: InboxBuilder<F::Store> = Inbox::builder(fixture.store(), DESTINATION);
    let builder = builder.handler(craft).durable().clock(clock);
    let builder = builder.options(InboxOptions { timeout: orders.timeout, ..InboxOptions::default() });
    let builder = builder.retry(RetryPolicy { max_attempts: orders.attempts, ..tireless() });
    let options = WorkOptions {
        concurrency: orders.seats.0,
        prefetch: orders.seats.1,
        lease: orders.lease,
        poll: Duration::from_millis(50),
        ..WorkOptions::default()
    };
    Worker::new(&builder.build().unwrap(), options).unwrap().run(CancellationToken::new()).await;
}

/// A clock that follows this process's own.
fn own_clock() -> Clock {
    let read = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        i64::try_from(since.as_micros()).unwrap()
    };
    let at = Arc::new(AtomicI64::new(Timestamp::from_micros(read()).micros()));
    let hand = Arc::clone(&at);
    std::thread::spawn(move || {
        loop {
            hand.store(read(), Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    Clock::Manual(at)
}

/// Purges what is old enough, and says so in the diary.
async fn sweep<F: StoreFixture>(craft: Craft<F>, clock: Clock) {
    loop {
        let (scope, handler, older_than) = (String::new(), HANDLER.to_owned(), KEPT);
        let deliveries = Purge::Deliveries { scope, handler: handler.clone(), older_than };
        for purge in [deliveries, Purge::Markers { handler, older_than }, Purge::Messages(KEPT)] {
            let purged = craft.fixture.store().purge(&purge, 1000, clock.now()).await.unwrap_or(0);
            if purged > 0 {
                craft.note(&format!("purged {purged}"));
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Leases one delivery, started or not.
pub(super) async fn take_one<S: Depot>(store: &S, lease: Duration, seats: usize) -> Option<Taken> {
    let wants = [Want { handler: HANDLER, limit: 1 }];
    let holder = format!("by hand {}", std::process::id());
    for suspects in [true, false] {
        let request =
            TakeRequest { scope: "", holder: &holder, lease, limit: 1, seats, wants: &wants, suspects };
        if let Some(taken) = store.take(&request, None).await.ok().and_then(|mut taken| taken.pop()) {
            return Some(taken);
        }
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    None
}

fn bare_finish(taken: &Taken) -> Finish<'_> {
    Finish { ticket: taken.ticket, mark: None, result: None, frees_lane: false, next: None }
}

/// The delivery is done before the booking is.
async fn settle_first<F: StoreFixture>(craft: &Craft<F>, lease: Duration)
where
    F::Store: Depot,
{
    let store = craft.fixture.store();
    loop {
        let Some(taken) = take_one(&store, lease, 1).await else { continue };
        let Ok(mut tx) = store.begin().await else { continue };
        if store.finish(&mut tx, &bare_finish(&taken), None).await.is_err() || store.commit(tx).await.is_err()
        {
            continue;
        }
        let message = Posted::decode(&taken.envelope.payload).unwrap();
        let Ok(mut tx) = store.begin().await else { continue };
        craft.work(&mut tx, &message).await.unwrap();
        store.commit(tx).await.ok();
    }
}

/// The attempt is counted when the body is over.
async fn count_late<F: StoreFixture>(craft: &Craft<F>, lease: Duration)
where
    F::Store: Depot,
{
    let store = craft.fixture.store();
    loop {
        let Some(taken) = take_one(&store, lease, 0).await else { continue };
        let Ok(mut tx) = store.begin().await else { continue };
        let message = Posted::decode(&taken.envelope.payload).unwrap();
        craft.work(&mut tx, &message).await.unwrap();
        store.finish(&mut tx, &bare_finish(&taken), None).await.unwrap();
        store.commit(tx).await.unwrap();
        store.start(&[taken.ticket]).await.unwrap();
    }
}
