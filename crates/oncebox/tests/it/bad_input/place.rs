//! Databases that are elsewhere, read-only, or full.

use std::path::{Path, PathBuf};
use std::process::Command;

use oncebox::inspect::Inspect;
use oncebox::{Envelope, Inbox, Kind, Outcome, Relay, Store, Verdict};
use oncebox_conformance::fixture::service_url;
use oncebox_stores::postgres::{self, PostgresStore};
use oncebox_stores::sqlite::{self, SqliteStore};

use super::ground::{self, Caught, Folder, Reader, assert_works, drain, drop_schema, note, put, run};

#[tokio::test]
async fn a_wrong_sqlite_place_is_told_without_quoting_a_foreign_url() {
    let folder = Folder::fresh();
    let letter = folder.file("letter.db");
    std::fs::write(&letter, "no database at all, but long enough to be looked at twice\n".repeat(99))
        .unwrap();
    let missing = folder.file("missing.db");
    let nowhere = folder.file("no/such/folder/app.db");
    let cases = [
        (SqliteStore::connect("mysql://u:hunter2@h/db").await, Kind::Config, "use sqlite:path or a path"),
        (SqliteStore::connect("sqlite:x?mode=sideways").await, Kind::Config, "cannot be understood"),
        (SqliteStore::connect(&missing).await, Kind::Config, "does not exist; run `oncebox migrate up"),
        (SqliteStore::create(&nowhere).await, Kind::Unavailable, "cannot open the SQLite database"),
        (SqliteStore::create(folder.path().to_str().unwrap()).await, Kind::Unavailable, "cannot open"),
        (SqliteStore::connect(&letter).await, Kind::Config, "not a database"),
    ];

    for (number, (opened, kind, text)) in cases.into_iter().enumerate() {
        let error = opened.unwrap_err();
        let chain = error.chain();
        assert_eq!(error.kind(), kind, "{number}: {chain}");
        assert!(chain.contains(text) && !chain.contains("hunter2"), "{number}: {chain}");
    }
    assert!(!Path::new(&missing).exists(), "looking makes no file");
}

#[tokio::test]
async fn a_wrong_postgres_place_is_told_without_the_password() {
    let dead = PostgresStore::connect("postgres://u:hunter2@127.0.0.1:1/app").await.unwrap_err();
    assert_eq!(dead.kind(), Kind::Unavailable);
    assert!(dead.chain().contains("database app at 127.0.0.1:1"), "{}", dead.chain());
    let malformed = PostgresStore::connect("postgres://u:hunter2@h:port/app").await.unwrap_err();
    assert_eq!(malformed.kind(), Kind::Config);
    for error in [&dead, &malformed] {
        assert!(!format!("{} {error:?}", error.chain()).contains("hunter2"), "{error:?}");
    }
    let Some(url) = service_url("ONCEBOX_TEST_POSTGRES_URL", "a_wrong_postgres_place_is_told") else {
        return;
    };
    let password = url.split_once("://").unwrap().1.split_once('@').unwrap().0.split_once(':').unwrap().1;
    let wrong = PostgresStore::connect(&url.replace(password, "hunter2hunter2")).await.unwrap_err();
    let elsewhere = format!("{}/nosuchdatabase", url.rsplit_once('/').unwrap().0);
    let elsewhere = PostgresStore::connect(&elsewhere).await.unwrap_err();

    for (error, text) in
        [(wrong, "password authentication failed"), (elsewhere, "\"nosuchdatabase\" does not exist")]
    {
        assert_eq!(error.kind(), Kind::Config, "{}", error.chain());
        assert!(error.chain().contains(text), "{}", error.chain());
        let all = format!("{} {error:?}", error.chain());
        assert!(!all.contains(password) && !all.contains("hunter2"), "{all}");
    }
}

#[tokio::test]
async fn a_read_only_sqlite_database_refuses_clearly_and_works_when_it_is_not() {
    let (made, folder) = ground::sqlite().await;
    sqlite::migrate::up(&made).await.unwrap();
    let waiting = put(&made, "waiting").await.unwrap();
    let by_url = SqliteStore::connect(&format!("sqlite:{}?mode=ro", folder.file("app.db"))).await.unwrap();
    let error = by_url.verify().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Config, "{}", error.chain());
    assert!(error.chain().contains("read-only"), "{}", error.chain());

    let options = (*made.pool().connect_options()).clone();
    let pool = sqlite::pool_options().max_connections(1).connect_with(options).await.unwrap();
    let store = SqliteStore::new(pool);
    refuses_then_works(&store, &waiting, ("PRAGMA query_only = ON", "PRAGMA query_only = OFF"), |sql| {
        let pool = store.pool().clone();
        async move { run(&pool, sql).await }
    })
    .await;
    store.verify().await.unwrap();
}

#[tokio::test]
async fn a_read_only_postgres_database_refuses_clearly_and_works_when_it_is_not() {
    let Some((made, schema)) = ground::postgres("a_read_only_postgres_database_refuses").await else {
        return;
    };
    postgres::migrate::up(&made).await.unwrap();
    let waiting = put(&made, "waiting").await.unwrap();
    let options = (*made.pool().connect_options()).clone();
    let pool = postgres::pool_options().max_connections(1).connect_with(options).await.unwrap();
    let store = PostgresStore::new(pool).schema(oncebox::Identifier::new(schema.as_str()).unwrap());
    run(store.pool(), "SET default_transaction_read_only = on").await;
    let error = store.verify().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Config, "{}", error.chain());
    assert!(error.chain().contains("read-only"), "{}", error.chain());

    let switch = ("SET default_transaction_read_only = on", "SET default_transaction_read_only = off");
    refuses_then_works(&store, &waiting, switch, |sql| {
        let pool = store.pool().clone();
        async move { run(&pool, sql).await }
    })
    .await;
    store.verify().await.unwrap();
    drop_schema(&made, &schema).await;
}

/// The same store, relay and inbox on a connection that is switched.
async fn refuses_then_works<S, Fut>(
    store: &S,
    waiting: &str,
    (on, off): (&'static str, &'static str),
    switch: impl Fn(&'static str) -> Fut,
) where
    S: oncebox::Mailbox + oncebox::Dedup + Inspect,
    Fut: Future<Output = ()>,
{
    let caught = Caught::default();
    let mut relay = Relay::builder(store.clone(), caught.clone()).build().unwrap();
    let inbox = Inbox::builder(store.clone(), "notes").handler(Reader).build().unwrap();
    let envelope = Envelope { source: "s".into(), ..Envelope::of("1", &note("x")).unwrap() };

    switch(on).await;
    let error = put(store, "refused").await.unwrap_err();
    assert!(error.chain().contains("read") && error.chain().contains("only"), "{}", error.chain());
    relay.step().await.unwrap_err();
    let verdict = inbox.deliver(envelope.clone(), 1).await;
    assert!(matches!(verdict, Verdict::Retry { spent: false, .. }), "no attempt is spent: {verdict:?}");
    assert_eq!(caught.ids(), Vec::<String>::new(), "nothing is sent that could not be settled");

    switch(off).await;
    drain(&mut relay).await;
    assert_eq!(caught.ids(), [waiting]);
    let outcome = inbox.receive(envelope, 1).await.single().unwrap();
    assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
    relay.release().await.unwrap();
    assert_works(store).await;
}

/// A file system of a few megabytes, unmounted when dropped.
pub(crate) struct SmallDisk(Folder);

impl SmallDisk {
    pub(crate) fn mount(case: &str) -> Option<Self> {
        let folder = Folder::fresh();
        let is_root = std::fs::read_to_string("/proc/self/status")
            .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t")));
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs", folder.path().to_str().unwrap()])
            .output();
        if mounted.as_ref().is_ok_and(|done| done.status.success()) {
            return Some(Self(folder));
        }
        let may_skip = std::env::var_os("ONCEBOX_NO_SKIP").is_none() || !is_root;
        assert!(may_skip, "cannot mount a tmpfs although this is root: {mounted:?}");
        println!("SKIP {case}: a tmpfs cannot be mounted");
        None
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.0.path()).status().ok();
    }
}

#[tokio::test]
async fn a_full_disk_loses_nothing_spends_nothing_and_passes() {
    let Some(disk) = SmallDisk::mount("a_full_disk_loses_nothing_spends_nothing_and_passes") else { return };
    // Room that is given back later.
    std::fs::write(disk.file("ballast"), vec![0; 3 << 20]).unwrap();
    let store = SqliteStore::create(disk.file("app.db").to_str().unwrap()).await.unwrap();
    sqlite::migrate::up(&store).await.unwrap();
    let caught = Caught::default();
    let mut relay = Relay::builder(store.clone(), caught.clone()).build().unwrap();
    let inbox = Inbox::builder(store.clone(), "notes").handler(Reader).build().unwrap();
    let envelope = |id: &str| Envelope { source: "s".into(), ..Envelope::of(id, &note("x")).unwrap() };

    let mut committed = Vec::new();
    let error = loop {
        match put(&store, &"x".repeat(20_000)).await {
            Ok(id) => committed.push(id),
            Err(error) => break error,
        }
        assert!(committed.len() < 1000, "the disk is never full");
    };
    assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
    assert!(error.chain().contains("full"), "{}", error.chain());
    // Fill what is left, so that even the smallest write fails.
    std::fs::write(disk.file("more"), vec![0; 6 << 20]).unwrap_err();
    let mut full = 0;
    for number in 0..20 {
        let verdict = inbox.deliver(envelope(&format!("early-{number}")), 1).await;
        match verdict {
            Verdict::Done => {}
            Verdict::Retry { spent: false, .. } => full += 1,
            other => panic!("a full disk is nobody's fault: {other:?}"),
        }
    }
    assert!(full > 0, "the disk was full");
    let stuck = relay.step().await;
    assert!(stuck.is_err() || caught.ids().len() == committed.len(), "{stuck:?}");

    std::fs::remove_file(disk.file("more")).unwrap();
    std::fs::remove_file(disk.file("ballast")).unwrap();
    drain(&mut relay).await;
    let mut arrived = caught.ids();
    arrived.sort();
    arrived.dedup();
    committed.sort();
    assert_eq!(arrived, committed, "all that was committed arrives, and nothing else");
    for number in 0..20 {
        assert_eq!(inbox.deliver(envelope(&format!("early-{number}")), 1).await, Verdict::Done);
    }
    let status = store.status().await.unwrap();
    assert_eq!((status.markers, status.dead_letters), (20, 0));
    relay.release().await.unwrap();
    assert_works(&store).await;
    store.verify().await.unwrap();
    store.rollback(store.begin().await.unwrap()).await.unwrap();
    store.pool().close().await;
}
