//! The gate's receipts: how often the server is asked, and over which connections.

use std::str::FromStr as _;

use oncebox_conformance::proxy::Proxy;
use oncebox_conformance::receipts::steps::{admitted, reply, request};
use oncebox_core::gate::{Admission, Receipts as _};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;

/// Sits before a server and counts how often it has said that it is ready for the next question.
pub(super) struct Counter {
    port: u16,
    answers: watch::Sender<usize>,
}

impl Counter {
    pub(super) async fn before(options: &PgConnectOptions) -> Self {
        let server = (options.get_host().to_owned(), options.get_port());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (port, answers) = (listener.local_addr().unwrap().port(), watch::Sender::new(0));
        let counter = Self { port, answers: answers.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                // Or each message would wait for the last one to be acknowledged.
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (mut asking, told) = client.into_split();
                let (telling, mut asked) = server.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut asking, &mut asked).await });
                tokio::spawn(counted(telling, told, answers.clone()));
            }
        });
        counter
    }

    pub(super) fn answers(&self) -> usize {
        *self.answers.borrow()
    }

    /// Waits for the next answer, but not for long: the server may have nothing left to say.
    pub(super) async fn next(&self) {
        let mut heard = self.answers.subscribe();
        tokio::time::timeout(Duration::from_millis(100), heard.changed()).await.ok();
    }

    /// How to get to the server past it.
    pub(super) fn options(&self, options: PgConnectOptions) -> PgConnectOptions {
        options.host("127.0.0.1").port(self.port).ssl_mode(PgSslMode::Disable)
    }
}

/// A message of the server is a letter, its length and so many bytes less four.
async fn counted(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    answers: watch::Sender<usize>,
) -> std::io::Result<()> {
    loop {
        let (letter, length) = (server.read_u8().await?, server.read_u32().await?);
        let mut rest = vec![0; usize::try_from(length).unwrap() - 4];
        server.read_exact(&mut rest).await?;
        if letter == b'Z' {
            answers.send_modify(|count| *count += 1);
        }
        let message = [&[letter], length.to_be_bytes().as_slice(), &rest].concat();
        client.write_all(&message).await?;
    }
}

#[tokio::test]
async fn one_round_trip_admits_one_seals_and_one_replays() {
    on_tables("one_round_trip_admits_one_seals_and_one_replays", |store, schema| async move {
        let options = PgConnectOptions::clone(&store.pool().connect_options());
        let counter = Counter::before(&options).await;
        let store = PostgresStore::with_pool(pool_options(), counter.options(options))
            .schema(Identifier::new(&schema).unwrap());
        // The first time it connects and has its statements planned.
        for name in ["warm", "measured"] {
            let before = counter.answers();
            let pass = admitted(&store, &request(name, "body"), 0).await;
            store.seal(&pass, &reply("done")).await.unwrap();
            let copy = store.admit(&request(name, "body"), None).await.unwrap();

            assert!(matches!(copy, Admission::Replay { .. }));
            if name == "measured" {
                assert_eq!(counter.answers() - before, 3);
            }
        }
        store.pool().close().await;
    })
    .await;
}

#[tokio::test]
async fn receipts_survive_that_their_connections_die_while_idle() {
    on_tables("receipts_survive_that_their_connections_die_while_idle", |store, schema| async move {
        let url = url("receipts").unwrap();
        let own = PgConnectOptions::from_str(&url).unwrap().application_name(&schema);
        let gate = PostgresStore::with_pool(pool_options(), own).schema(Identifier::new(&schema).unwrap());
        let kill = async || {
            let text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
            sqlx::query(text).bind(&schema).fetch_all(store.pool()).await.unwrap().len()
        };
        let open = async || {
            let text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
            sqlx::query_scalar::<_, i64>(text).bind(&schema).fetch_one(store.pool()).await.unwrap()
        };
        // Several at once open several, sooner or later: nobody waits for that who can have one.
        for burst in 0.. {
            assert!(burst < 100, "{} connections", open().await);
            let names: Vec<String> = (0..50).map(|number| format!("many-{burst}-{number}")).collect();
            let many: Vec<_> = names.iter().map(|name| request(name, "body")).collect();
            let admissions = futures_util::future::join_all(many.iter().map(|one| gate.admit(one, None)));
            for admission in admissions.await {
                assert!(matches!(admission.unwrap(), Admission::Proceed(_)));
            }
            if open().await > 1 {
                break;
            }
        }
        let opened = kill().await;
        assert!((2..=8).contains(&opened), "{opened} connections");

        let pass = admitted(&gate, &request("a", "body"), 0).await;
        assert_eq!(kill().await, 1, "the dead were thrown away");
        gate.seal(&pass, &reply("done")).await.unwrap();
        assert_eq!(kill().await, 1);

        let copy = gate.admit(&request("a", "body"), None).await.unwrap();
        assert!(matches!(copy, Admission::Replay { .. }), "{copy:?}");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_falls_silent_costs_one_wait_and_not_one_for_each_connection() {
    on_tables("a_server_that_falls_silent", |store, schema| async move {
        let options = PgConnectOptions::clone(&store.pool().connect_options());
        let proxy = Proxy::before(format!("{}:{}", options.get_host(), options.get_port())).await.unwrap();
        let options = options.host("127.0.0.1").port(proxy.address().port()).ssl_mode(PgSslMode::Disable);
        let gate =
            PostgresStore::with_pool(pool_options(), options).schema(Identifier::new(&schema).unwrap());
        let at_once = async |names: &[String]| {
            let requests: Vec<_> = names.iter().map(|name| request(name, "body")).collect();
            futures_util::future::join_all(requests.iter().map(|one| gate.admit(one, None))).await
        };
        for burst in 0.. {
            assert!(burst < 100, "{} connections", proxy.connections());
            let names: Vec<String> = (0..4).map(|number| format!("many-{burst}-{number}")).collect();
            at_once(&names).await.into_iter().for_each(|admission| drop(admission.unwrap()));
            if proxy.connections() > 1 {
                break;
            }
        }
        let opened = proxy.connections();

        proxy.silence(true);
        let silent = gate.admit(&request("e", "body"), None).await.unwrap_err();
        proxy.silence(false);

        assert_eq!(silent.kind(), Kind::Unavailable);
        admitted(&gate, &request("f", "body"), 0).await;
        assert_eq!(proxy.connections(), opened + 1, "none of the old ones was trusted");
    })
    .await;
}

/// A burst needs several connections, but nobody waits for one to be opened who can have one that is open.
#[tokio::test]
async fn a_burst_of_receipts_does_not_wait_for_connections_to_be_opened() {
    on_tables("a_burst_of_receipts_does_not_wait", |store, schema| async move {
        let options = PgConnectOptions::clone(&store.pool().connect_options());
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = options
            .host("127.0.0.1")
            .port(listener.local_addr().unwrap().port())
            .ssl_mode(PgSslMode::Disable);
        // The first one gets through; whoever comes later is never answered.
        let door = tokio::spawn(async move {
            let mut first = listener.accept().await.unwrap().0;
            let mut server = TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut first, &mut server).await });
            let mut shut_out = Vec::new();
            loop {
                shut_out.push(listener.accept().await.unwrap().0);
            }
        });
        let gate =
            PostgresStore::with_pool(pool_options(), options).schema(Identifier::new(&schema).unwrap());
        let names: Vec<String> = (0..50).map(|number| format!("burst-{number}")).collect();
        let many: Vec<_> = names.iter().map(|name| request(name, "body")).collect();

        let burst = futures_util::future::join_all(many.iter().map(|one| gate.admit(one, None))).await;

        for admission in burst {
            assert!(matches!(admission.unwrap(), Admission::Proceed(_)));
        }
        door.abort();
    })
    .await;
}

#[tokio::test]
async fn receipts_do_not_wait_for_a_pool_that_handlers_have_used_up() {
    on_tables("receipts_do_not_wait_for_a_pool_that_handlers_have_used_up", |store, schema| async move {
        let small = pool_options().max_connections(1);
        let options = PgConnectOptions::clone(&store.pool().connect_options());
        let gate = PostgresStore::with_pool(small, options).schema(Identifier::new(&schema).unwrap());
        let handler = gate.begin().await.unwrap();

        let pass = admitted(&gate, &request("a", "body"), 0).await;
        gate.seal(&pass, &reply("done")).await.unwrap();

        gate.rollback(handler).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_closed_store_asks_nothing_over_connections_beside_its_pool() {
    on_tables("a_closed_store_asks_nothing", |store, schema| async move {
        let options = PgConnectOptions::clone(&store.pool().connect_options());
        let gate =
            PostgresStore::with_pool(pool_options(), options).schema(Identifier::new(&schema).unwrap());
        admitted(&gate, &request("a", "body"), 0).await;

        gate.pool().close().await;

        let refused = gate.admit(&request("b", "body"), None).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Unavailable);
    })
    .await;
}

#[tokio::test]
async fn on_a_pool_of_the_callers_own_receipts_use_its_connections() {
    on_tables("on_a_pool_of_the_callers_own", |store, schema| async move {
        let options = PgConnectOptions::clone(&store.pool().connect_options()).application_name(&schema);
        let pool = pool_options().max_connections(1).connect_with(options).await.unwrap();
        let gate = PostgresStore::new(pool).schema(Identifier::new(&schema).unwrap());

        let pass = admitted(&gate, &request("a", "body"), 0).await;
        gate.seal(&pass, &reply("done")).await.unwrap();

        let text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
        let open: i64 = sqlx::query_scalar(text).bind(&schema).fetch_one(store.pool()).await.unwrap();
        assert_eq!(open, 1);
    })
    .await;
}
