//! Hints between processes: a relay that polls once a minute is woken by a put elsewhere.

use oncebox_conformance::proxy::{Cut, Proxy, Sender};
use oncebox_core::{Failure, Publisher};
use oncebox_flow::wakeup::Listener;
use oncebox_flow::{CancellationToken, Outbox, Relay, Wakeup};
use oncebox_stores::postgres::wakeup::{listen, notify};
use sqlx::postgres::PgListener;
use tokio::sync::mpsc;

use super::*;

/// So long that nothing in here happens because of a poll.
const POLL: Duration = Duration::from_secs(60);
/// How soon a hint has its effect, unless the machine is slow.
const SOON: Duration = Duration::from_secs(1);
/// On a slow machine, and still no poll.
const PATIENCE: Duration = Duration::from_secs(30);
/// A relay pauses for 2, 4, 8 … ms between two looks. So it has looked for the
/// twelfth time after 8.2 s, or up to 1.8 s later where looks take their time,
/// and the next look is not before 16.4 s.
const PATIENT: Duration = Duration::from_secs(10);
/// It does not look by itself within this.
const UNLOOKED: Duration = Duration::from_secs(5);

/// Tells the test what was published.
struct Telling(mpsc::UnboundedSender<String>);

impl Publisher for Telling {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        batch
            .iter()
            .map(|envelope| self.0.send(envelope.id.clone()).map_err(|_| Failure::unknown("")))
            .collect()
    }
}

/// A relay that polls once a minute.
struct Slow {
    published: mpsc::UnboundedReceiver<String>,
    stop: CancellationToken,
}

impl Slow {
    fn start(store: &PostgresStore, sink: &str, wakeup: Wakeup) -> Self {
        let (tell, published) = mpsc::unbounded_channel();
        let relay = Relay::builder(store.clone(), Telling(tell)).sink(sink).poll(POLL).wakeup(wakeup);
        let stop = CancellationToken::new();
        tokio::spawn(relay.build().unwrap().run(stop.clone()));
        Self { published, stop }
    }

    async fn next(&mut self, within: Duration) -> Option<String> {
        tokio::time::timeout(within, self.published.recv()).await.ok().flatten()
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A pool of its own on the same tables: another process, to the server.
async fn elsewhere(store: &PostgresStore, schema: &str) -> PostgresStore {
    let options = (*store.pool().connect_options()).clone();
    let pool = pool_options().max_connections(8).connect_with(options).await.unwrap();
    PostgresStore::new(pool).schema(Identifier::new(schema).unwrap())
}

/// A producer whose hints go out as notifications until the test ends.
fn producer(store: &PostgresStore) -> Outbox<PostgresStore> {
    let wakeup = Wakeup::new();
    tokio::spawn(notify(store.clone(), wakeup.clone(), CancellationToken::new()));
    Outbox::new(store.clone()).wakeup(wakeup)
}

async fn commit(outbox: &Outbox<PostgresStore>, id: &str) {
    let mut tx = outbox.store().begin().await.unwrap();
    outbox.put_envelopes(&mut tx, vec![envelope(id)]).await.unwrap();
    outbox.store().commit(tx).await.unwrap();
}

/// The server process that listens to this schema, once it is not `gone`.
async fn listening(store: &PostgresStore, schema: &str, gone: Option<i32>) -> i32 {
    let end = Instant::now() + PATIENCE;
    loop {
        let text = "SELECT pid FROM pg_stat_activity WHERE query = $1 AND state = 'idle' AND pid <> $2";
        let found: Option<i32> = sqlx::query_scalar(text)
            .bind(format!("LISTEN \"{schema}_outbox\""))
            .bind(gone.unwrap_or(0))
            .fetch_optional(store.pool())
            .await
            .unwrap();
        if let Some(pid) = found {
            return pid;
        }
        assert!(Instant::now() < end, "nobody listens");
    }
}

async fn is_hinted(hints: &mut Listener) -> bool {
    tokio::time::timeout(PATIENCE, hints.hinted()).await.is_ok()
}

/// How many notifications come until none does for a while.
async fn heard(listener: &mut PgListener) -> usize {
    let mut count = 0;
    while tokio::time::timeout(Duration::from_millis(600), listener.recv()).await.is_ok() {
        count += 1;
    }
    count
}

/// The same where one is due, however long it takes.
async fn heard_at_last(listener: &mut PgListener) -> usize {
    let first = tokio::time::timeout(PATIENCE, listener.recv()).await;
    usize::from(first.is_ok()) + heard(listener).await
}

async fn ear(store: &PostgresStore, schema: &str) -> PgListener {
    let mut listener = PgListener::connect_with(store.pool()).await.unwrap();
    listener.listen(&format!("{schema}_outbox")).await.unwrap();
    listener
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_polls_once_a_minute_publishes_within_a_second_of_a_put_elsewhere() {
    on_tables("a_relay_that_polls_once_a_minute_publishes_within_a_second", |store, schema| async move {
        let wakeup = Wakeup::new();
        tokio::spawn(listen(store.clone(), wakeup.clone(), CancellationToken::new()));
        let mut woken = Slow::start(&store, "woken", wakeup);
        let mut deaf = Slow::start(&store, "deaf", Wakeup::new());
        let outbox = producer(&elsewhere(&store, &schema).await);
        listening(&store, &schema, None).await;
        tokio::time::sleep(PATIENT).await;

        let begun = Instant::now();
        commit(&outbox, "1").await;
        let first = woken.next(UNLOOKED).await;
        let quickest = begun.elapsed();
        let has_deaf_looked = !deaf.published.is_empty();
        let begun = Instant::now();
        commit(&outbox, "2").await;
        let second = woken.next(PATIENCE).await;
        let quickest = quickest.min(begun.elapsed());

        assert_eq!((first.as_deref(), second.as_deref()), (Some("1"), Some("2")));
        // One may meet a stall of the machine; not both do.
        assert!(quickest < SOON, "{quickest:?}");
        assert!(!has_deaf_looked, "a relay that does not listen had not looked after the first");
        let late = deaf.next(PATIENCE).await;
        assert_eq!(late.as_deref(), Some("1"), "but it finds by polling what it was not told of");
    })
    .await;
}

#[tokio::test]
async fn a_listener_whose_server_process_is_killed_listens_again() {
    on_tables("a_listener_whose_server_process_is_killed_listens_again", |store, schema| async move {
        let (wakeup, outbox) = (Wakeup::new(), producer(&store));
        let mut hints = wakeup.listen();
        tokio::spawn(listen(store.clone(), wakeup.clone(), CancellationToken::new()));
        let pid = listening(&store, &schema, None).await;
        assert!(is_hinted(&mut hints).await, "a new listener looks at once");

        sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(store.pool()).await.unwrap();
        listening(&store, &schema, Some(pid)).await;

        assert!(is_hinted(&mut hints).await, "nobody told it what came meanwhile");
        commit(&outbox, "1").await;
        assert!(is_hinted(&mut hints).await);
    })
    .await;
}

#[tokio::test]
async fn a_notification_lost_with_its_connection_costs_a_moment_and_no_poll() {
    on_tables("a_notification_lost_with_its_connection_costs_a_moment", |store, schema| async move {
        let options = (*store.pool().connect_options()).clone();
        let proxy = Proxy::before(format!("{}:{}", options.get_host(), options.get_port())).await.unwrap();
        let through = options.host("127.0.0.1").port(proxy.address().port());
        let pool = pool_options().max_connections(2).connect_with(through).await.unwrap();
        let remote = PostgresStore::new(pool).schema(Identifier::new(&schema).unwrap());
        let (wakeup, outbox) = (Wakeup::new(), producer(&store));
        let mut hints = wakeup.listen();
        tokio::spawn(listen(remote, wakeup.clone(), CancellationToken::new()));
        listening(&store, &schema, None).await;
        assert!(is_hinted(&mut hints).await);

        // The connection breaks with the notification half way, and no word from the server.
        proxy.cut(Cut { sender: Sender::Server, pattern: format!("{schema}_outbox").into_bytes() });
        commit(&outbox, "1").await;

        assert!(is_hinted(&mut hints).await);
        assert_eq!(proxy.cuts(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_listener_leaves_every_connection_of_the_pool_to_others() {
    on_tables("a_listener_leaves_every_connection_of_the_pool_to_others", |store, schema| async move {
        let options = (*store.pool().connect_options()).clone();
        let pool =
            pool_options().max_connections(1).acquire_timeout(PATIENCE).connect_with(options).await.unwrap();
        let single = PostgresStore::new(pool).schema(Identifier::new(&schema).unwrap());
        tokio::spawn(listen(single.clone(), Wakeup::new(), CancellationToken::new()));
        listening(&store, &schema, None).await;

        put(&single, &[envelope("1")]).await;

        assert_eq!(read(&single, 0, &[]).await.rows.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_put_notifies_nobody_from_inside_its_transaction() {
    on_tables("a_put_notifies_nobody_from_inside_its_transaction", |store, schema| async move {
        let mut silent = ear(&store, &schema).await;
        // Hints that nobody passes on: whatever is heard came with the commit.
        let mute = Outbox::new(store.clone());
        for n in 0..20 {
            commit(&mute, &n.to_string()).await;
        }
        let with_commits = heard(&mut silent).await;

        let outbox = producer(&store);
        let mut tx = store.begin().await.unwrap();
        outbox.put_envelopes(&mut tx, vec![envelope("open")]).await.unwrap();
        let while_open = heard_at_last(&mut silent).await;
        store.commit(tx).await.unwrap();
        let after_commit = heard(&mut silent).await;

        assert_eq!(with_commits, 0);
        assert_eq!(
            (while_open, after_commit),
            (1, 0),
            "it is sent beside the transaction, not with its commit"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_puts_is_told_in_few_notifications() {
    on_tables("a_burst_of_puts_is_told_in_few_notifications", |store, schema| async move {
        let mut listener = ear(&store, &schema).await;
        let outbox = producer(&store);
        let begun = Instant::now();
        let tasks: Vec<_> = (0..6)
            .map(|writer| {
                let outbox = outbox.clone();
                tokio::spawn(async move {
                    for n in 0..100 {
                        let mut tx = outbox.store().begin().await.unwrap();
                        let pair = ["a", "b"].map(|name| envelope(&format!("{writer}-{n}-{name}")));
                        outbox.put_envelopes(&mut tx, pair.to_vec()).await.unwrap();
                        outbox.store().commit(tx).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let took = begun.elapsed();

        let heard = heard_at_last(&mut listener).await;

        let most = usize::try_from(took.as_millis()).unwrap() / 5 + 2;
        assert!((1..=most).contains(&heard), "{heard} notifications in {took:?}");
        println!("600 transactions in {took:?}: {heard} notifications, at most {most}");
        // Hints that come faster than any database: one per interval all the same.
        let (wakeup, begun) = (Wakeup::new(), Instant::now());
        tokio::spawn(notify(store.clone(), wakeup.clone(), CancellationToken::new()));
        for _ in 0..100_000 {
            wakeup.hint();
        }
        let most = usize::try_from(begun.elapsed().as_millis()).unwrap() / 5 + 2;
        let heard = heard_at_last(&mut listener).await;
        assert!((1..=most).contains(&heard), "{heard} notifications of 100000 hints, at most {most}");
    })
    .await;
}
