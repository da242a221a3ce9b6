//! Claims on connections that stand ready for them: how often the server is asked, and what becomes of
//! those connections.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use oncebox_conformance::receipts::steps::{reply, request};
use oncebox_core::gate::{Admission, AdmitRequest, Claiming, Receipts as _, Reply};
use sqlx::Postgres;
use sqlx::postgres::PgConnectOptions;

use super::receipts::Counter;
use super::*;

/// How often something is tried that may be disturbed by what goes on in the background.
const TRIES: usize = 400;

type Begun = sqlx::Transaction<'static, Postgres>;

/// A store with a pool of its own, past a counter of answers.
struct Rig {
    gate: PostgresStore,
    counter: Counter,
    next: AtomicU32,
}

impl Rig {
    async fn new(store: &PostgresStore, schema: &str, pool: PgPoolOptions) -> Self {
        let options = PgConnectOptions::clone(&store.pool().connect_options()).application_name(schema);
        // Neither a backslash nor bytes need look as they do by default.
        let options = options.options([("standard_conforming_strings", "off"), ("bytea_output", "escape")]);
        let counter = Counter::before(&options).await;
        let gate = PostgresStore::with_pool(pool, counter.options(options));
        let gate = gate.schema(Identifier::new(schema).unwrap()).lock_wait(Duration::from_secs(30));
        Self { gate, counter, next: AtomicU32::new(0) }
    }

    async fn claim(&self, request: &AdmitRequest) -> Begun {
        match self.gate.begin_claim(request, None).await.unwrap() {
            Claiming::Begun(tx) => tx,
            Claiming::Told(told) => panic!("{told:?}"),
        }
    }

    /// Claims and seals a request that nobody has made before; how often the server was asked for that.
    async fn one(&self) -> usize {
        let name = format!("one-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let (request, before) = (request(&name, "body"), self.counter.answers());
        let tx = self.claim(&request).await;
        self.gate.seal_claim(tx, &request, &reply("done"), None).await.unwrap();
        self.counter.answers() - before
    }

    /// Until a connection stands ready. What is asked meanwhile in the background counts, too, so it may
    /// take a few.
    async fn warm_up(&self) {
        for _ in 0..TRIES {
            if self.one().await == 2 {
                return;
            }
            // A connection is being made ready.
            self.counter.next().await;
        }
        panic!("claims go on taking more than two round trips");
    }

    /// Whether a copy is told, sooner or later, in one round trip, and lets go of the key in another.
    async fn is_told_quickly(&self, name: &str, body: &str, so: fn(&Admission) -> bool) -> bool {
        for _ in 0..TRIES {
            let before = self.counter.answers();
            let told = self.told(&request(name, body)).await;
            assert!(so(&told), "{told:?}");
            if self.counter.answers() - before == 2 {
                return true;
            }
            self.one().await;
        }
        false
    }

    async fn told(&self, request: &AdmitRequest) -> Admission {
        match self.gate.begin_claim(request, None).await.unwrap() {
            Claiming::Begun(_) => panic!("it may run"),
            Claiming::Told(told) => told,
        }
    }
}

#[tokio::test]
async fn one_round_trip_claims_and_one_seals() {
    on_tables("one_round_trip_claims_and_one_seals", |store, schema| async move {
        let rig = Rig::new(&store, &schema, pool_options()).await;
        rig.warm_up().await;

        let is_replay = |told: &Admission| matches!(told, Admission::Replay { .. });
        assert!(rig.is_told_quickly("one-0", "body", is_replay).await);
        assert!(rig.is_told_quickly("one-0", "other", |told| matches!(told, Admission::Mismatch)).await);
        rig.warm_up().await;
        rig.gate.pool().close().await;
    })
    .await;
}

#[tokio::test]
async fn another_request_is_told_so_by_a_claim_on_a_connection_that_stood_ready() {
    on_tables("another_request_is_told_so_by_a_claim", |store, schema| async move {
        let rig = Rig::new(&store, &schema, pool_options()).await;
        rig.warm_up().await;
        let asked = request("a", "body");
        let tx = rig.claim(&asked).await;
        assert!(rig.gate.is_claimed(&asked).await.unwrap());

        for gate in [&store, &rig.gate] {
            for (body, is_other) in [("other", true), ("body", false), ("other", true)] {
                let told = gate.begin_claim(&request("a", body), None).await.unwrap();
                let is_right = match &told {
                    Claiming::Told(Admission::Mismatch) => is_other,
                    Claiming::Told(Admission::InFlight { .. }) => !is_other,
                    _ => false,
                };
                assert!(is_right, "{body}: {told:?}");
            }
        }

        rig.gate.rollback(tx).await.unwrap();
        assert!(!rig.gate.is_claimed(&asked).await.unwrap());
        rig.gate.pool().close().await;
    })
    .await;
}

#[tokio::test]
async fn a_reply_is_sealed_byte_for_byte_on_a_connection_that_stood_ready() {
    on_tables("a_reply_is_sealed_byte_for_byte_on_a_connection", |store, schema| async move {
        let rig = Rig::new(&store, &schema, pool_options()).await;
        let odd: Vec<u8> = (0..=255).chain(*b"'\\x27 \\ $1; COMMIT; --").collect();
        for (name, body) in [("odd", Some(odd)), ("none", None), ("large", Some(vec![b'x'; 100_000]))] {
            rig.warm_up().await;
            let (request, reply) = (request(name, "body"), Reply { body, ..reply("done") });
            let tx = rig.claim(&request).await;

            rig.gate.seal_claim(tx, &request, &reply, None).await.unwrap();

            rig.warm_up().await;
            for gate in [&store, &rig.gate] {
                let told = gate.begin_claim(&request, None).await.unwrap();
                let Claiming::Told(Admission::Replay { reply: replayed, .. }) = told else {
                    panic!("{name}: {told:?}")
                };
                assert_eq!(replayed, reply, "{name}");
            }
        }
        rig.gate.pool().close().await;
    })
    .await;
}

#[tokio::test]
async fn a_doomed_or_ended_claim_is_not_sealed_on_a_connection_that_stood_ready() {
    on_tables("a_doomed_or_ended_claim_is_not_sealed", |store, schema| async move {
        let rig = Rig::new(&store, &schema, pool_options()).await;
        let spoilers =
            [("SELECT 1 / 0", Kind::Rejected), ("ROLLBACK", Kind::Fenced), ("ROLLBACK; BEGIN", Kind::Fenced)];
        for (spoiled_by, kind) in spoilers {
            rig.warm_up().await;
            let request = request("a", "body");
            let mut tx = rig.claim(&request).await;
            tx.execute(sqlx::raw_sql(spoiled_by)).await.ok();

            let sealed = rig.gate.seal_claim(tx, &request, &reply("done"), None).await;

            assert_eq!(sealed.unwrap_err().kind(), kind, "{spoiled_by}");
        }
        drop(rig.claim(&request("a", "body")).await);
        rig.gate.pool().close().await;
    })
    .await;
}

#[tokio::test]
async fn handlers_may_nest_transactions_in_a_claim() {
    on_tables("handlers_may_nest_transactions_in_a_claim", |store, schema| async move {
        execute(&store, &format!("CREATE TABLE {schema}.booked (n int)")).await;
        let rig = Rig::new(&store, &schema, pool_options()).await;
        rig.warm_up().await;
        let nesting = request("a", "body");
        let mut tx = rig.claim(&nesting).await;
        for (number, is_kept) in [(1, true), (2, false)] {
            let mut inner = tx.begin().await.unwrap();
            let insert = format!("INSERT INTO {schema}.booked VALUES ({number})");
            inner.execute(AssertSqlSafe(insert)).await.unwrap();
            if is_kept { inner.commit().await.unwrap() } else { inner.rollback().await.unwrap() }
        }

        rig.gate.seal_claim(tx, &nesting, &reply("done"), None).await.unwrap();

        let booked = format!("SELECT n FROM {schema}.booked");
        let booked: Vec<i32> =
            sqlx::query_scalar(AssertSqlSafe(booked)).fetch_all(store.pool()).await.unwrap();
        assert_eq!(booked, [1]);
        rig.gate.pool().close().await;
    })
    .await;
}

/// Dropped at any point, a claim leaves neither its key nor a transaction behind.
#[tokio::test]
async fn a_claim_that_is_dropped_leaves_nothing_behind() {
    on_tables("a_claim_that_is_dropped_leaves_nothing_behind", |store, schema| async move {
        let rig = Rig::new(&store, &schema, pool_options()).await;
        for polls in 0..6 {
            rig.warm_up().await;
            let request = request(&format!("dropped-{polls}"), "body");
            {
                let mut claim = pin!(rig.gate.begin_claim(&request, None));
                for _ in 0..polls {
                    let poll = poll_fn(|context| Poll::Ready(claim.as_mut().poll(context).is_ready()));
                    if poll.await {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            // Its rollback is under way.
            let free = async {
                while let Claiming::Told(told) = rig.gate.begin_claim(&request, None).await.unwrap() {
                    assert!(matches!(told, Admission::InFlight { .. }), "{told:?}");
                    rig.counter.next().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), free).await.unwrap();
        }
        rig.gate.pool().close().await;
    })
    .await;
}

#[tokio::test]
async fn claims_survive_that_connections_die_while_they_stand_ready() {
    on_tables("claims_survive_that_connections_die", |store, schema| async move {
        let rig = Rig::new(&store, &schema, pool_options()).await;
        for _ in 0..3 {
            rig.warm_up().await;
            let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
            let killed = sqlx::query(kill).bind(&schema).fetch_all(store.pool()).await.unwrap();
            assert!(!killed.is_empty());

            rig.one().await;
        }
        rig.gate.pool().close().await;
    })
    .await;
}

/// A request that is claimed once more may be so on another kind of connection.
#[tokio::test]
async fn a_request_that_is_claimed_again_is_sealed_where_it_is() {
    on_tables("a_request_that_is_claimed_again_is_sealed_where_it_is", |store, schema| async move {
        let rig = Rig::new(&store, &schema, pool_options()).await;
        rig.warm_up().await;
        let again = request("a", "body");
        drop(rig.claim(&again).await);
        let held = rig.claim(&request("b", "body")).await;

        let tx = rig.claim(&again).await;
        rig.gate.seal_claim(tx, &again, &reply("done"), None).await.unwrap();

        drop(held);
        rig.gate.pool().close().await;
    })
    .await;
}

/// Whoever waits for the pool gets its turn, however many claims come.
#[tokio::test]
async fn claims_do_not_keep_a_pool_to_themselves() {
    on_tables("claims_do_not_keep_a_pool_to_themselves", |store, schema| async move {
        let small = pool_options().max_connections(4).acquire_timeout(Duration::from_secs(60));
        let rig = Arc::new(Rig::new(&store, &schema, small).await);
        let is_over = Arc::new(AtomicBool::new(false));
        let claiming: Vec<_> = (0..8)
            .map(|_| {
                let (rig, is_over) = (Arc::clone(&rig), Arc::clone(&is_over));
                tokio::spawn(async move {
                    while !is_over.load(Ordering::Relaxed) {
                        rig.one().await;
                    }
                })
            })
            .collect();

        let slowest = async {
            let mut slowest = Duration::ZERO;
            for _ in 0..20 {
                let asked = Instant::now();
                let tx = rig.gate.pool().begin().await.unwrap();
                slowest = slowest.max(asked.elapsed());
                tx.rollback().await.unwrap();
            }
            slowest
        };
        let slowest = slowest.await;
        is_over.store(true, Ordering::Relaxed);
        for one in claiming {
            one.await.unwrap();
        }

        // Until a connection's term is over it would be a minute.
        assert!(slowest < Duration::from_secs(20), "{slowest:?}");
        rig.gate.pool().close().await;
    })
    .await;
}

/// As behind a pooler that hands every transaction to another connection of its own.
#[tokio::test]
async fn where_prepared_statements_get_lost_claims_do_without() {
    on_tables("where_prepared_statements_get_lost_claims_do_without", |store, schema| async move {
        let rig = Rig::new(&store, &schema, pool_options()).await;
        rig.warm_up().await;
        let lost = request("a", "body");
        let mut tx = rig.claim(&lost).await;
        let names = "SELECT name FROM pg_prepared_statements WHERE name LIKE 'oncebox_lock%'";
        let name: String = sqlx::query_scalar(names).fetch_one(&mut *tx).await.unwrap();
        tx.execute(sqlx::raw_sql(AssertSqlSafe(format!("DEALLOCATE {name}")))).await.unwrap();
        rig.gate.seal_claim(tx, &lost, &reply("done"), None).await.unwrap();

        for _ in 0..10 {
            assert!(rig.one().await > 2, "no connection stands ready any more");
            rig.counter.next().await;
        }
        rig.gate.pool().close().await;
    })
    .await;
}

#[tokio::test]
async fn what_stands_ready_is_the_pools_again_when_nobody_claims() {
    on_tables("what_stands_ready_is_the_pools_again", |store, schema| async move {
        let small = pool_options().max_connections(4).acquire_timeout(Duration::from_secs(30));
        let rig = Rig::new(&store, &schema, small).await;
        rig.warm_up().await;

        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(rig.gate.begin().await.unwrap());
        }

        for one in all {
            rig.gate.rollback(one).await.unwrap();
        }
        rig.warm_up().await;
        let closing = Instant::now();
        rig.gate.pool().close().await;
        assert!(closing.elapsed() < Duration::from_secs(20), "{:?}", closing.elapsed());
    })
    .await;
}
