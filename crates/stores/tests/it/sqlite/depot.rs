//! The durable inbox: what SQLite's planner makes of its statements, and what
//! the file keeps.

use oncebox_core::depot::{
    Assigned, Assignment, Deposit, Deposited, Fate, Finish, Savepoint, TakeRequest, Taken, Want,
};
use oncebox_core::letters::{LetterId, Letters, Requeued};
use oncebox_core::{Depot, depot};

use super::*;

const WANTS: [Want<'static>; 1] = [Want { handler: "h", limit: 100 }];

fn assignment<'a>(envelope: &Envelope, lane: Option<&'a str>) -> Assignment<'a> {
    let key = MessageKey { source: envelope.source.clone(), id: envelope.id.clone() };
    Assignment { handler: "h", marker: "h", key, lane, window: None, refused: None, frees_lane: false }
}

async fn accept(store: &SqliteStore, envelopes: &[Envelope], lane: Option<&str>, now: i64) -> Vec<Deposited> {
    let deposits: Vec<_> = envelopes
        .iter()
        .map(|envelope| Deposit {
            scope: "",
            channel: "orders",
            envelope,
            assignments: vec![assignment(envelope, lane)],
        })
        .collect();
    let mut tx = store.begin().await.unwrap();
    let answers = store.deposit(tx.connection(), &deposits, at(now)).await.unwrap();
    store.commit(tx).await.unwrap();
    answers
}

async fn take(store: &SqliteStore, suspects: bool, now: i64) -> Vec<Taken> {
    let request =
        TakeRequest { scope: "", holder: "w", lease: MINUTE, limit: 100, seats: 1, wants: &WANTS, suspects };
    store.take(&request, at(now)).await.unwrap()
}

async fn finish(store: &SqliteStore, taken: &Taken, now: i64) -> Marked {
    let mark =
        Mark { tenant: "", handler: "h", key: &taken.key, digest: taken.digest, time: None, window: None };
    let finish =
        Finish { ticket: taken.ticket, mark: Some(mark), result: None, frees_lane: true, next: None };
    let mut tx = store.begin().await.unwrap();
    let marked = store.finish(tx.connection(), &finish, at(now)).await.unwrap();
    store.commit(tx).await.unwrap();
    marked
}

#[tokio::test]
async fn a_stored_message_that_cannot_be_read_keeps_nobody_back() {
    let database = Database::new();
    let store = database.store().await;
    accept(&store, &[envelope("1", None), envelope("2", None)], None, 10).await;
    let spoil = "UPDATE oncebox_message SET attributes = '[' WHERE id = '1'";
    sqlx::query(spoil).execute(store.pool()).await.unwrap();

    let taken = take(&store, false, 20).await;

    assert_eq!(taken.iter().map(|taken| taken.key.id.as_str()).collect::<Vec<_>>(), ["2"]);
    let letters = store.letters(&Default::default(), 10).await.unwrap();
    assert_eq!((letters[0].code.as_str(), letters[0].attempts), ("corrupt", 0));
}

#[tokio::test]
async fn a_message_goes_through_the_inbox_once() {
    let database = Database::new();
    let store = database.store().await;
    let mut message = envelope("1", Some("k"));
    message.headers.insert("x\0".into(), "v\0\n".into());
    message.time = at(5);

    let first = accept(&store, &[message.clone()], None, 10).await;
    let again = accept(&store, &[message.clone()], None, 10).await;
    let other = Envelope { payload: b"other".to_vec(), ..message.clone() };
    let conflict = accept(&store, &[other], None, 10).await;
    let taken = take(&store, false, 10).await;

    assert!(matches!(&first[0], Deposited::Stored { assigned, .. } if assigned == &[Assigned::New]));
    assert_eq!((again, conflict), (vec![Deposited::Duplicate], vec![Deposited::Conflict]));
    assert_eq!(taken[0].envelope, message);
    assert_eq!(finish(&store, &taken[0], 11).await, Marked::First);
    assert!(take(&store, false, 1000).await.is_empty());
    assert!(store.status().await.unwrap().handlers.is_empty());
}

#[tokio::test]
async fn a_lane_goes_one_by_one_and_a_gap_keeps_nobody_back() {
    let database = Database::new();
    let store = database.store().await;
    let all: Vec<_> = (1..=4).map(|n| envelope(&n.to_string(), None)).collect();
    accept(&store, &all, Some("L"), 10).await;

    let taken = take(&store, false, 10).await;
    assert_eq!(taken.iter().map(|t| t.envelope.id.as_str()).collect::<Vec<_>>(), ["1"]);
    let gap = Fate::Dead { spent: true, code: "c", reason: "r", frees_lane: true };
    store.conclude(taken[0].ticket, &gap, None, at(11)).await.unwrap();
    let second = take(&store, false, 11).await;
    finish(&store, &second[0], 12).await;
    let third = take(&store, false, 12).await;
    let stuck = Fate::Dead { spent: true, code: "c", reason: "r", frees_lane: false };
    store.conclude(third[0].ticket, &stuck, None, at(13)).await.unwrap();

    assert!(take(&store, false, 13).await.is_empty());
    let letters = store.letters(&Default::default(), 10).await.unwrap();
    assert_eq!(
        letters.iter().map(|l| (l.envelope.id.as_str(), l.blocks)).collect::<Vec<_>>(),
        [("1", 0), ("3", 1)]
    );
    let edited = Envelope { id: "3b".into(), ..all[2].clone() };
    let new = store.amend_letter(letters[1].id, &edited, at(14)).await.unwrap().unwrap();
    let amended = take(&store, false, 14).await;
    assert_eq!((amended.len(), amended[0].ticket.number), (1, new));
    finish(&store, &amended[0], 15).await;
    assert_eq!(take(&store, false, 15).await[0].envelope.id, "4");
    assert_eq!(store.requeue_letter(letters[0].id, None, at(16)).await.unwrap(), Requeued::Ready);
    assert_eq!(take(&store, false, 16).await[0].envelope.id, "1");
}

#[tokio::test]
async fn a_run_that_died_with_its_lease_makes_a_suspect() {
    let database = Database::new();
    let store = database.store().await;
    accept(&store, &[envelope("1", None), envelope("2", None)], None, 10).await;
    let taken = take(&store, false, 10).await;
    assert_eq!(taken.iter().map(|t| (t.started, t.attempt)).collect::<Vec<_>>(), [(true, 1), (false, 1)]);

    let untouched = take(&store, false, 100).await;
    assert!(store.has_suspects("", &WANTS, at(100)).await.unwrap());
    let suspects = take(&store, true, 100).await;

    assert_eq!(untouched.iter().map(|t| t.envelope.id.as_str()).collect::<Vec<_>>(), ["2"]);
    assert_eq!((suspects[0].deaths, suspects[0].attempt, suspects[0].ticket.fence), (1, 2, 2));
    assert_eq!(store.start(&[taken[0].ticket, suspects[0].ticket]).await.unwrap(), [false, true]);
    let lost = store.conclude(taken[0].ticket, &Fate::Duplicate, None, at(101)).await.unwrap_err();
    assert_eq!(lost.kind(), Kind::Fenced);
    for n in 0..depot::HISTORY + 5 {
        let now = 1_000 + i64::try_from(n).unwrap() * 100;
        let retry = Fate::Retry { after: Duration::ZERO, spent: true, code: "c", reason: "r\0" };
        let ticket = if n == 0 { suspects[0].ticket } else { take(&store, false, now).await[0].ticket };
        store.conclude(ticket, &retry, None, at(now)).await.unwrap();
    }
    let last = take(&store, false, 90_000).await;
    let one = last.iter().find(|t| t.envelope.id == "1").unwrap();
    let dead = Fate::Dead { spent: false, code: "d", reason: "x", frees_lane: true };
    store.start(&[one.ticket]).await.unwrap();
    store.conclude(one.ticket, &dead, None, at(90_001)).await.unwrap();
    let letter = store.letter(LetterId::Delivery(one.ticket.number)).await.unwrap().unwrap();
    assert_eq!((letter.history.len(), letter.history[18].reason.as_str()), (depot::HISTORY, "r\u{fffd}"));
}

#[tokio::test]
async fn what_is_over_costs_takers_and_lookers_nothing() {
    let database = Database::new();
    let store = database.store().await;
    accept(&store, &[envelope("1", None)], None, 10).await;
    let many = "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20000) \
        INSERT INTO oncebox_delivery (message, scope, handler, tenant, key_source, key_id, digest, state, due_at, ended_at) \
        SELECT 1, '', 'h', '', 's', 'k' || i, x'00', 'done', i, i FROM n";
    sqlx::raw_sql(many).execute(store.pool()).await.unwrap();
    for (text, index) in [
        (include_str!("../../../src/sqlite/sql/take_due.sql"), "oncebox_delivery_open"),
        (include_str!("../../../src/sqlite/sql/take_suspects.sql"), "oncebox_delivery_suspect"),
        (include_str!("../../../src/sqlite/sql/status_handlers.sql"), "oncebox_delivery_open"),
        (include_str!("../../../src/sqlite/sql/park_handlers.sql"), "oncebox_delivery_open"),
        (include_str!("../../../src/sqlite/sql/lane_free.sql"), "oncebox_delivery_lane"),
        (include_str!("../../../src/sqlite/sql/letters_delivered.sql"), "oncebox_delivery_dead"),
        (include_str!("../../../src/sqlite/sql/purge_deliveries.sql"), "oncebox_delivery_ended"),
    ] {
        let plan: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {text}")))
                .fetch_all(store.pool())
                .await
                .unwrap();
        let steps: Vec<_> = plan.into_iter().map(|(.., step)| step).collect();

        assert!(steps.iter().any(|step| step.contains(index)), "{text}\n{steps:#?}");
        let scans = ["SCAN oncebox_delivery", "SCAN d", "SCAN later"];
        let is_whole = |step: &&String| scans.contains(&step.as_str());
        assert_eq!(steps.iter().find(is_whole), None, "{text}");
    }
}

#[tokio::test]
async fn what_is_undone_to_a_savepoint_leaves_what_came_before() {
    let database = Database::new();
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();
    let put = async |tx: &mut _, id: &str| {
        store.put(tx, &[envelope(id, None)], None).await.unwrap();
    };

    store.savepoint(tx.connection(), Savepoint::Set).await.unwrap();
    put(tx.connection(), "1").await;
    store.savepoint(tx.connection(), Savepoint::Next).await.unwrap();
    for id in ["2", "3"] {
        put(tx.connection(), id).await;
        store.savepoint(tx.connection(), Savepoint::Undo).await.unwrap();
    }
    put(tx.connection(), "4").await;
    store.commit(tx).await.unwrap();

    let rows = store.read(window(&ALL, 0, 10)).await.unwrap().rows;
    let ids: Vec<_> = rows.into_iter().map(|row| row.envelope.unwrap().id).collect();
    assert_eq!(ids, ["1", "4"]);
}
