//! A relay process that polls once a minute is woken by a put in this one.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use oncebox_core::{Envelope, Identifier, Store as _};
use oncebox_flow::{CancellationToken, Outbox, Wakeup};
use oncebox_stores::postgres::PostgresStore;
use oncebox_stores::postgres::wakeup::notify;

use crate::database::Database;
use crate::program::{command, eventually};

/// A relay pauses for 2, 4, 8 … ms between two looks, so that it has just looked
/// for the twelfth time, and its next look is 8 s away.
const PATIENT: Duration = Duration::from_millis(8_600);
/// It does not look by itself within this.
const UNLOOKED: Duration = Duration::from_secs(5);
/// It polls less often than this.
const UNPOLLED: Duration = Duration::from_secs(20);

/// A relay process; ends with the test.
struct Daemon {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Daemon {
    fn start(database: &Database) -> Self {
        let verb = ["relay", "--to", "stdout", "--poll", "60000"];
        let mut child =
            command(database.args(&verb)).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, lines }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

async fn put(outbox: &Outbox<PostgresStore>, id: &str) {
    let envelope = Envelope {
        id: id.into(),
        kind: "order.placed.v1".into(),
        schema_version: 1,
        destination: "orders".into(),
        content_type: "application/json".into(),
        payload: b"{}".to_vec(),
        ..Envelope::default()
    };
    let mut tx = outbox.store().begin().await.unwrap();
    outbox.put_envelopes(&mut tx, vec![envelope]).await.unwrap();
    outbox.store().commit(tx).await.unwrap();
}

#[test]
fn a_relay_process_that_polls_once_a_minute_prints_within_a_second_of_a_put_elsewhere() {
    let case = "a_relay_process_that_polls_once_a_minute_prints_within_a_second_of_a_put_elsewhere";
    let Some(database) = Database::postgres(case).map(Database::migrated) else { return };
    let daemon = Daemon::start(&database);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let outbox = runtime.block_on(async {
        let schema = Identifier::new(database.name.as_str()).unwrap();
        let store = PostgresStore::connect(&database.url()).await.unwrap().schema(schema);
        let wakeup = Wakeup::new();
        tokio::spawn(notify(store.clone(), wakeup.clone(), CancellationToken::new()));
        Outbox::new(store).wakeup(wakeup)
    });
    let listening =
        format!("SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN \"{}_outbox\"'", database.name);
    eventually("the relay listens", || database.sql(&listening).trim() == "1");
    std::thread::sleep(PATIENT);

    let mut quickest = Duration::MAX;
    for (id, window) in [("1", UNLOOKED), ("2", UNPOLLED), ("3", UNPOLLED)] {
        let begun = Instant::now();
        runtime.block_on(put(&outbox, id));
        let line = daemon.lines.recv_timeout(window).expect("before the relay looks by itself");
        println!("message {id} came out after {:?}", begun.elapsed());
        quickest = quickest.min(begun.elapsed());
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["id"], id);
    }
    // One may meet a stall of the machine; not all do.
    assert!(quickest < Duration::from_secs(1), "within a second: {quickest:?}");

    let killed = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query = 'LISTEN \"{}_outbox\"'",
        database.name
    );
    assert_eq!(database.sql(&killed).trim(), "1");
    runtime.block_on(put(&outbox, "4"));
    let line = daemon.lines.recv_timeout(UNPOLLED).expect("soon after it listens again");
    assert!(line.contains("\"id\":\"4\""), "{line}");
}
