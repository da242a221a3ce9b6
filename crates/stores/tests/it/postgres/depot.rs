//! The durable inbox where only PostgreSQL can go wrong: several who work at
//! once, and connections that break.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use oncebox_conformance::dice::Dice;
use oncebox_core::depot::{
    Assignment, Deposit, Deposited, Fate, Finish, Standing, TakeRequest, Taken, Ticket, Want,
};
use oncebox_core::letters::{LetterFilter, LetterId, Letters, Requeued};
use oncebox_core::{Depot, Result};
use tokio::time::{sleep, timeout};

use super::*;

const HANDLERS: [Want<'static>; 1] = [Want { handler: "h", limit: 100 }];
const LEASE: Duration = Duration::from_secs(30);
/// So short that a lease is over at once.
const BLINK: Duration = Duration::from_micros(1);
/// What a task does at once it does within this.
const SOON: Duration = Duration::from_secs(30);

fn assignment<'a>(envelope: &Envelope, lane: Option<&'a str>) -> Assignment<'a> {
    let key = MessageKey { source: envelope.source.clone(), id: envelope.id.clone() };
    Assignment { handler: "h", marker: "h", key, lane, window: None, refused: None, frees_lane: false }
}

async fn try_deposit(store: &PostgresStore, batch: &[(Envelope, Option<&str>)]) -> Result<Vec<Deposited>> {
    let mut tx = store.begin().await?;
    let deposited = deposit_in(store, &mut tx, batch).await?;
    store.commit(tx).await?;
    Ok(deposited)
}

async fn deposit_in(
    store: &PostgresStore,
    tx: &mut sqlx::PgConnection,
    batch: &[(Envelope, Option<&str>)],
) -> Result<Vec<Deposited>> {
    let deposit = |(envelope, lane)| {
        let assignments = vec![assignment(envelope, lane)];
        Deposit { scope: "", channel: "c", envelope, assignments }
    };
    let deposits: Vec<Deposit<'_>> =
        batch.iter().map(|(envelope, lane)| deposit((envelope, *lane))).collect();
    store.deposit(tx, &deposits, None).await
}

async fn deposit(store: &PostgresStore, id: &str, lane: Option<&str>) {
    try_deposit(store, &[(envelope(id), lane)]).await.unwrap();
}

fn wish(holder: &str, lease: Duration) -> TakeRequest<'_> {
    TakeRequest { scope: "", holder, lease, limit: 100, seats: 100, wants: &HANDLERS, suspects: false }
}

async fn take(store: &PostgresStore) -> Vec<Taken> {
    store.take(&wish("w", LEASE), None).await.unwrap()
}

fn finishing(taken: &Taken) -> Finish<'_> {
    let mark =
        Mark { tenant: "", handler: "h", key: &taken.key, digest: taken.digest, time: None, window: None };
    let frees_lane = taken.lane.is_some();
    Finish { ticket: taken.ticket, mark: Some(mark), result: None, frees_lane, next: None }
}

async fn try_finish(store: &PostgresStore, taken: &Taken) -> Result<Marked> {
    let mut tx = store.begin().await?;
    let marked = store.finish(&mut tx, &finishing(taken), None).await?;
    store.commit(tx).await?;
    Ok(marked)
}

async fn states(store: &PostgresStore, schema: &str) -> Vec<(String, String)> {
    let text = format!(
        "SELECT key_id, state FROM ( \
         SELECT number, key_id, CASE WHEN lease_until IS NULL THEN state ELSE 'leased' END FROM {schema}.delivery \
         UNION ALL SELECT number, key_id, 'done' FROM {schema}.finished) AS each (number, key_id, state) \
         ORDER BY number"
    );
    sqlx::query_as(AssertSqlSafe(text)).fetch_all(store.pool()).await.unwrap()
}

fn named(states: &[(String, String)]) -> Vec<(&str, &str)> {
    states.iter().map(|(id, state)| (id.as_str(), state.as_str())).collect()
}

#[tokio::test]
async fn workers_that_take_at_once_never_take_the_same() {
    on_tables("workers_that_take_at_once_never_take_the_same", |store, _| async move {
        let batch: Vec<_> = (0..400).map(|n| (envelope(&n.to_string()), None)).collect();
        try_deposit(&store, &batch).await.unwrap();
        let worker = |n: usize| {
            let store = store.clone();
            tokio::spawn(async move {
                let (holder, mut mine) = (n.to_string(), Vec::new());
                loop {
                    let request = TakeRequest { limit: 7, ..wish(&holder, LEASE) };
                    let taken = store.take(&request, None).await.unwrap();
                    if taken.is_empty() {
                        return mine;
                    }
                    mine.extend(taken.into_iter().map(|taken| taken.ticket.number));
                }
            })
        };
        let workers: Vec<_> = (0..8).map(worker).collect();

        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.await.unwrap());
        }

        // A worker that finds everything locked may leave early, but somebody is there to the end.
        all.sort_unstable();
        let found = all.len();
        all.dedup();
        assert_eq!((all.len(), found), (400, 400));
    })
    .await;
}

#[tokio::test]
async fn a_deposit_waits_for_a_finish_of_its_lane() {
    on_tables("a_deposit_waits_for_a_finish_of_its_lane", |store, schema| async move {
        deposit(&store, "1", Some("l")).await;
        let first = take(&store).await.remove(0);
        let mut tx = store.begin().await.unwrap();
        store.finish(&mut tx, &finishing(&first), None).await.unwrap();

        let other = store.clone();
        let second = tokio::spawn(async move { deposit(&other, "2", Some("l")).await });
        deposit(&store, "3", Some("elsewhere")).await;
        assert!(!second.is_finished());
        store.commit(tx).await.unwrap();
        timeout(SOON, second).await.unwrap().unwrap();

        let states = states(&store, &schema).await;
        assert!(named(&states).contains(&("2", "ready")), "{states:?}");
    })
    .await;
}

#[tokio::test]
async fn a_finish_waits_for_a_deposit_into_its_lane_and_frees_it() {
    on_tables("a_finish_waits_for_a_deposit_into_its_lane_and_frees_it", |store, schema| async move {
        deposit(&store, "1", Some("l")).await;
        let first = take(&store).await.remove(0);
        let mut tx = store.begin().await.unwrap();
        deposit_in(&store, &mut tx, &[(envelope("2"), Some("l"))]).await.unwrap();

        let other = store.clone();
        let finished = tokio::spawn(async move { try_finish(&other, &first).await });
        sleep(Duration::from_millis(50)).await;
        assert!(!finished.is_finished());
        store.commit(tx).await.unwrap();
        assert_eq!(timeout(SOON, finished).await.unwrap().unwrap().unwrap(), Marked::First);

        assert_eq!(named(&states(&store, &schema).await), [("1", "done"), ("2", "ready")]);
    })
    .await;
}

#[tokio::test]
async fn one_behind_a_share_that_was_left_out_does_not_wait_for_ever() {
    on_tables("one_behind_a_share_that_was_left_out", |store, schema| async move {
        deposit(&store, "1", Some("l")).await;
        let first = take(&store).await.remove(0);
        try_finish(&store, &first).await.unwrap();
        // The same key for the handler, in another message: it is left out.
        let again = Deposit {
            scope: "",
            channel: "other",
            envelope: &envelope("1"),
            assignments: vec![assignment(&envelope("1"), Some("l"))],
        };
        let next = Deposit {
            scope: "",
            channel: "other",
            envelope: &envelope("2"),
            assignments: vec![assignment(&envelope("2"), Some("l"))],
        };

        let mut tx = store.begin().await.unwrap();
        store.deposit(&mut tx, &[again, next], None).await.unwrap();
        store.commit(tx).await.unwrap();

        assert_eq!(named(&states(&store, &schema).await), [("1", "done"), ("2", "ready")]);
    })
    .await;
}

#[tokio::test]
async fn a_finish_that_waited_for_a_new_owner_is_refused() {
    on_tables("a_finish_that_waited_for_a_new_owner_is_refused", |store, schema| async move {
        deposit(&store, "1", None).await;
        let taken = take(&store).await.remove(0);
        // Somebody takes it over, and has not committed yet.
        let mut rival = store.begin().await.unwrap();
        let text = format!("UPDATE {schema}.delivery SET fence = fence + 1");
        rival.execute(sqlx::raw_sql(AssertSqlSafe(text))).await.unwrap();

        let other = store.clone();
        let finished = tokio::spawn(async move { try_finish(&other, &taken).await });
        sleep(Duration::from_millis(50)).await;
        assert!(!finished.is_finished());
        store.commit(rival).await.unwrap();

        assert_eq!(kind(timeout(SOON, finished).await.unwrap().unwrap()), Kind::Fenced);
        let markers = format!("SELECT count(*) FROM {schema}.marker");
        let markers: i64 = sqlx::query_scalar(AssertSqlSafe(markers)).fetch_one(store.pool()).await.unwrap();
        assert_eq!(markers, 0);
    })
    .await;
}

#[tokio::test]
async fn several_that_are_finished_at_once_are_told_apart() {
    on_tables("several_that_are_finished_at_once_are_told_apart", |store, schema| async move {
        for id in ["1", "2", "3", "4"] {
            deposit(&store, id, None).await;
        }
        let taken = take(&store).await;
        let mut tx = store.begin().await.unwrap();
        store.mark(&mut tx, &finishing(&taken[1]).mark.unwrap(), None).await.unwrap();
        let other = Mark { digest: Digest::of(b"other"), ..finishing(&taken[2]).mark.unwrap() };
        store.mark(&mut tx, &other, None).await.unwrap();
        store.commit(tx).await.unwrap();
        let mut finishes: Vec<Finish<'_>> = taken.iter().rev().map(finishing).collect();
        finishes[0].mark = None;

        let mut tx = store.begin().await.unwrap();
        let answers = store.finish_all(&mut tx, &finishes, None).await.unwrap();
        store.rollback(tx).await.unwrap();

        let duplicate = Marked::Duplicate { result: None };
        assert_eq!(answers, [Marked::First, Marked::Conflict, duplicate, Marked::First]);
        let mut tx = store.begin().await.unwrap();
        let both = [finishes[0].clone(), Finish { result: Some(b"reply"), ..finishes[3].clone() }];
        assert_eq!(store.finish_all(&mut tx, &both, None).await.unwrap(), [Marked::First, Marked::First]);
        store.commit(tx).await.unwrap();
        let states = states(&store, &schema).await;
        assert_eq!(named(&states), [("1", "done"), ("2", "leased"), ("3", "leased"), ("4", "done")]);
        let mut tx = store.begin().await.unwrap();
        assert_eq!(kind(store.finish_all(&mut tx, &finishes, None).await), Kind::Fenced);
        store.rollback(tx).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        let marked = store.mark(&mut tx, &finishing(&taken[0]).mark.unwrap(), None).await.unwrap();
        assert_eq!(marked, Marked::Duplicate { result: Some(b"reply".to_vec()) });
    })
    .await;
}

#[tokio::test]
async fn where_a_delivery_stands_is_known_once_its_commit_is_decided() {
    on_tables("where_a_delivery_stands_is_known_once_its_commit_is_decided", |store, _| async move {
        deposit(&store, "1", None).await;
        let taken = take(&store).await.remove(0);
        let impatient = store.clone().lock_wait(Duration::from_millis(50));
        assert_eq!(store.standing(taken.ticket).await.unwrap(), Standing::Held);
        let mut tx = store.begin().await.unwrap();
        store.finish(&mut tx, &finishing(&taken), None).await.unwrap();

        assert_eq!(kind(impatient.standing(taken.ticket).await), Kind::Busy);
        let other = store.clone();
        let standing = tokio::spawn(async move { other.standing(taken.ticket).await });
        sleep(Duration::from_millis(50)).await;
        store.commit(tx).await.unwrap();

        assert_eq!(timeout(SOON, standing).await.unwrap().unwrap().unwrap(), Standing::Done);
        let lost = Ticket { fence: taken.ticket.fence + 1, ..taken.ticket };
        assert_eq!(store.standing(lost).await.unwrap(), Standing::Lost);
    })
    .await;
}

#[tokio::test]
async fn leases_are_renewed_while_handlers_hold_every_connection_and_row() {
    on_tables("leases_are_renewed_while_handlers_hold_everything", |store, schema| async move {
        for id in ["1", "2"] {
            deposit(&store, id, None).await;
        }
        let taken = take(&store).await;
        let tickets = [taken[0].ticket, taken[1].ticket, Ticket { number: 99, fence: 1 }];
        let options = (*store.pool().connect_options()).clone();
        let pool = pool_options().max_connections(1).connect_with(options).await.unwrap();
        let small = PostgresStore::new(pool).schema(Identifier::new(&schema).unwrap());
        let mut tx = small.begin().await.unwrap();
        small.finish(&mut tx, &finishing(&taken[0]), None).await.unwrap();

        for _ in 0..2 {
            let renewed = timeout(SOON, small.renew(&tickets, LEASE * 10, None)).await.unwrap().unwrap();
            assert_eq!(renewed, [true, true, false], "the first is not decided yet");
        }
        small.commit(tx).await.unwrap();
        assert_eq!(small.renew(&tickets, LEASE, None).await.unwrap(), [false, true, false]);

        // The connection dies while it is idle.
        let renewals = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
        let text = format!("{renewals} AND query LIKE '%{schema}%SKIP LOCKED%' AND query LIKE '%renewed%'");
        let gone = sqlx::query(AssertSqlSafe(text)).fetch_all(store.pool()).await.unwrap();
        assert_eq!(gone.len(), 1);
        assert_eq!(small.renew(&tickets, LEASE, None).await.unwrap(), [false, true, false]);
    })
    .await;
}

#[test]
fn leases_are_renewed_from_another_runtime_after_the_first_is_gone() {
    let Some(url) = url("leases_are_renewed_from_another_runtime") else { return };
    let schema = random_schema();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let main = runtime();
    let (store, ticket) = main.block_on(async {
        let store = PostgresStore::connect(&url).await.unwrap().schema(Identifier::new(&schema).unwrap());
        migrate::up(&store).await.unwrap();
        deposit(&store, "1", None).await;
        let ticket = take(&store).await.remove(0).ticket;
        (store, ticket)
    });

    for _ in 0..3 {
        let other = runtime();
        let renewed = other.block_on(store.renew(&[ticket], LEASE, None));
        assert_eq!(renewed.unwrap(), [true]);
    }

    main.block_on(execute(&store, &format!("DROP SCHEMA {schema} CASCADE")));
}

#[tokio::test]
async fn a_stored_message_that_cannot_be_read_keeps_nobody_back() {
    on_tables("a_stored_message_that_cannot_be_read_keeps_nobody_back", |store, schema| async move {
        for id in ["1", "2"] {
            deposit(&store, id, None).await;
        }
        execute(&store, &format!("UPDATE {schema}.message SET attributes = '[' WHERE id = '1'")).await;

        let taken = take(&store).await;

        assert_eq!(taken.iter().map(|taken| taken.key.id.as_str()).collect::<Vec<_>>(), ["2"]);
        let letters = store.letters(&LetterFilter::default(), 10).await.unwrap();
        assert_eq!((letters[0].code.as_str(), letters[0].attempts), ("corrupt", 0));
        assert_eq!(letters[0].envelope.payload, b"{}");
    })
    .await;
}

#[tokio::test]
async fn texts_that_postgres_cannot_hold_are_kept_where_it_can() {
    on_tables("texts_that_postgres_cannot_hold_are_kept_where_it_can", |store, _| async move {
        let mut odd =
            Envelope { id: "a\0b".into(), tenant: "t\0".into(), kind: "k\0".into(), ..envelope("") };
        odd.headers.insert("h\0".into(), "v\0".into());
        let shares = Assignment { key: MessageKey::business("x\0"), ..assignment(&odd, Some("lane\0")) };
        let deposit = Deposit { scope: "", channel: "c", envelope: &odd, assignments: vec![shares] };
        let mut tx = store.begin().await.unwrap();
        store.deposit(&mut tx, &[deposit], None).await.unwrap();
        store.commit(tx).await.unwrap();

        let taken = take(&store).await.remove(0);
        assert_eq!(taken.envelope, odd);
        let fate = Fate::Dead { spent: true, code: "c\0", reason: "r\0", frees_lane: false };
        store.conclude(taken.ticket, &fate, None, None).await.unwrap();
        let id = LetterId::Delivery(taken.ticket.number);
        assert_eq!(store.letter(id).await.unwrap().unwrap().history[0].reason, "r\u{fffd}");
        assert_eq!(store.requeue_letter(id, None, None).await.unwrap(), Requeued::Ready);
        let again = take(&store).await.remove(0);
        let mut tx = store.begin().await.unwrap();
        let finish = Finish {
            mark: Some(Mark { tenant: &again.envelope.tenant, ..finishing(&again).mark.unwrap() }),
            ..finishing(&again)
        };
        assert_eq!(store.finish(&mut tx, &finish, None).await.unwrap(), Marked::First);
        store.commit(tx).await.unwrap();
    })
    .await;
}

/// What the workers of the next test have seen.
#[derive(Default)]
struct Seen {
    running: HashMap<String, String>,
    done: BTreeMap<String, Vec<i64>>,
}

/// Works until everything is done, and now and then loses what it has taken.
async fn work(store: PostgresStore, n: usize, seed: u64, (seen, total): (Arc<Mutex<Seen>>, usize)) {
    let (mut dice, holder) = (Dice::new(seed), n.to_string());
    let done = || seen.lock().unwrap().done.values().map(Vec::len).sum::<usize>();
    while done() < total {
        let lease = if dice.once_in(4) { BLINK } else { LEASE };
        let seats = dice.below(3);
        let request = TakeRequest { limit: 1 + dice.below(3), seats, ..wish(&holder, lease) };
        let mut held = store.take(&request, None).await.unwrap();
        let suspects = TakeRequest { suspects: true, limit: 1, ..request };
        held.extend(store.take(&suspects, None).await.unwrap());
        for (place, taken) in held.iter().enumerate() {
            let next = held.get(place + 1).map(|next| next.ticket);
            match dice.below(6) {
                0 => store.give_back(&[taken.ticket], None).await.unwrap(),
                1 => {
                    let fate = Fate::Retry { after: Duration::ZERO, spent: true, code: "c", reason: "r" };
                    match store.conclude(taken.ticket, &fate, next, None).await {
                        Ok(()) => {}
                        Err(error) => assert_eq!(error.kind(), Kind::Fenced, "{}", error.chain()),
                    }
                }
                _ => run(&store, taken, next, &seen).await,
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Finishes one, and writes down that it was the next of its lane and alone.
async fn run(store: &PostgresStore, taken: &Taken, next: Option<Ticket>, seen: &Mutex<Seen>) {
    let lane = taken.lane.clone().unwrap();
    let mut tx = store.begin().await.unwrap();
    let finish = Finish { next, ..finishing(taken) };
    match store.finish(&mut tx, &finish, None).await {
        Ok(Marked::First) => {
            // Under the lane's lock, so what is seen here is the order of commits.
            {
                let mut seen = seen.lock().unwrap();
                assert!(seen.running.insert(lane.clone(), taken.key.id.clone()).is_none(), "two at once");
                seen.done.entry(lane.clone()).or_default().push(taken.ticket.number);
            }
            tokio::task::yield_now().await;
            seen.lock().unwrap().running.remove(&lane);
            store.commit(tx).await.unwrap();
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => {
            assert!(
                matches!(error.kind(), Kind::Fenced | Kind::Contention | Kind::Busy),
                "{}",
                error.chain()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_keep_their_order_and_never_stop_whoever_meets_in_them() {
    const MESSAGES: usize = 240;
    on_tables("lanes_keep_their_order_and_never_stop", |store, schema| async move {
        let seed = Dice::seed("lanes_keep_their_order_and_never_stop_whoever_meets_in_them");
        let seen = Arc::<Mutex<Seen>>::default();
        let depositor = |n: usize| {
            let (store, mut dice) = (store.clone(), Dice::new(seed + n as u64));
            async move {
                let mut at = 0;
                while at < MESSAGES / 3 {
                    let size = (1 + dice.below(5)).min(MESSAGES / 3 - at);
                    let lanes = ["a", "b", "c", "d"];
                    let one = |k| (envelope(&format!("{n}-{k}")), dice.pick(&lanes).copied());
                    let batch: Vec<_> = (at..at + size).map(one).collect();
                    match try_deposit(&store, &batch).await {
                        Ok(_) => at += size,
                        Err(error) => assert!(error.kind().is_transient(), "{}", error.chain()),
                    }
                }
            }
        };
        let depositors: Vec<_> = (0..3).map(|n| tokio::spawn(depositor(n))).collect();
        let worker =
            |n| tokio::spawn(work(store.clone(), n, seed + 100 + n as u64, (seen.clone(), MESSAGES)));
        let workers: Vec<_> = (0..3).map(worker).collect();
        for depositor in depositors {
            depositor.await.unwrap();
        }

        for worker in workers {
            let ended = timeout(Duration::from_secs(60), worker).await;
            if ended.is_err() {
                panic!("a lane stands still: {:?}", states(&store, &schema).await);
            }
            ended.unwrap().unwrap();
        }

        let done = &seen.lock().unwrap().done;
        assert!(done.values().all(|numbers| numbers.is_sorted()), "{done:?}");
    })
    .await;
}
