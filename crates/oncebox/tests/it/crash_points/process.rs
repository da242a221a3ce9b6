//! C11: a message whose handling kills the process, with real processes.
//!
//! The parent is the broker: it hands the message to one child after the other.
//! Either it counts a delivery whenever the child did not live to answer, and
//! from that count the inbox gives up; or it does not count, and the inbox
//! counts for itself, before it enters the handler.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;

use oncebox::stores::{postgres::PostgresStore, sqlite::SqliteStore};
use oncebox::verdict::RetryPolicy;
use oncebox::{Dedup, HandlerError, Identifier, Inbox, Mailbox, Verdict};
use oncebox_conformance::path::scene::{HANDLER, arrived, swift};
use oncebox_conformance::sample::{DESTINATION, Posted};

use super::ground::Ground;
use super::stage::{Stage, order};

const DATABASE: &str = "ONCEBOX_CHILD_DATABASE";
const SCHEMA: &str = "ONCEBOX_CHILD_SCHEMA";
/// The number of the delivery; empty if the broker does not count.
const ATTEMPT: &str = "ONCEBOX_CHILD_ATTEMPT";
const CHILD: &str = "crash_points::process::a_child_dies_of_its_message_or_buries_it";
const LIMIT: u32 = 3;
const SIGABRT: i32 = 6;

/// No test by itself: what the parent starts, and dead before it can pass
/// unless it does not enter the handler.
#[test]
fn a_child_dies_of_its_message_or_buries_it() {
    let Ok(database) = std::env::var(DATABASE) else { return };
    let schema = Identifier::new(std::env::var(SCHEMA).unwrap()).unwrap();
    let attempt = std::env::var(ATTEMPT).unwrap().parse().ok();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let verdict = runtime.block_on(async {
        if database.starts_with("postgres") {
            let store = PostgresStore::connect(&database).await.unwrap().schema(schema);
            deliver(store, attempt).await
        } else {
            deliver(SqliteStore::connect(&database).await.unwrap().prefix(schema), attempt).await
        }
    });
    assert_eq!(verdict, Verdict::Done);
}

async fn deliver<S: Mailbox + Dedup>(store: S, attempt: Option<u32>) -> Verdict
where
    S::Tx: 'static,
{
    async fn abort<Tx>(_tx: &mut Tx, _message: Posted) -> Result<(), HandlerError> {
        std::process::abort()
    }
    let policy = RetryPolicy { max_attempts: Some(LIMIT), ..swift() };
    let inbox = Inbox::builder(store, DESTINATION).retry(policy).on::<Posted, _>(HANDLER, abort::<S::Tx>);
    let inbox = inbox.count_deaths(attempt.is_none()).build().unwrap();
    inbox.deliver(arrived("poison", &order(1)), attempt.unwrap_or(1)).await
}

fn start_child(database: &str, schema: &str, attempt: Option<u32>) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([CHILD, "--exact", "--test-threads=1"]).env(DATABASE, database).env(SCHEMA, schema);
    let attempt = attempt.map(|attempt| attempt.to_string()).unwrap_or_default();
    child.env(ATTEMPT, attempt).output().unwrap()
}

/// Delivers to one child after the other, until one answers.
async fn deliver_until_answered<F: Ground>(stage: &Stage<F>, counts: bool) {
    let (database, schema) = stage.fixture.place();

    let mut killed = 0;
    let answered = loop {
        let (database, schema) = (database.clone(), schema.clone());
        let attempt = counts.then_some(killed + 1);
        let start = tokio::task::spawn_blocking(move || start_child(&database, &schema, attempt));
        let output = start.await.unwrap();
        if output.status.signal() != Some(SIGABRT) {
            break output;
        }
        killed += 1;
        assert!(killed <= LIMIT, "it goes on killing");
    };

    let said = String::from_utf8_lossy(&answered.stdout);
    assert!(answered.status.success(), "{}\n{said}", answered.status);
    assert_eq!(killed, LIMIT, "as often as allowed, and not once more");
    let status = stage.status().await;
    assert_eq!((status.dead_letters, status.markers), (1, 0));
    assert!(stage.fixture.effects().await.is_empty());
}

pub(super) async fn c11_a_message_that_kills_its_process_is_buried_after_the_allowed_starts<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    deliver_until_answered(&stage, true).await;
}

pub(super) async fn c11_deaths_are_counted_where_the_transport_does_not_count<F: Ground>(
    stage: Arc<Stage<F>>,
) {
    deliver_until_answered(&stage, false).await;
}
