//! probe
use oncebox::stores::{postgres, sqlite};
use oncebox::*;
use serde::{Deserialize, Serialize};
#[derive(Serialize, Deserialize, Message)]
#[message(name = "a.v1")]
struct A;
struct P;
impl Publisher for P {
    async fn publish(&self, b: &[Envelope]) -> Vec<Result<(), Failure>> { vec![Ok(()); b.len()] }
}
async fn probe<S: Mailbox>(name: &str, store: S) {
    let outbox = Outbox::new(store.clone()).source("shop");
    let mut tx = store.begin().await.unwrap();
    let d = outbox.message(&A).unwrap().id("x1");
    let e = d.envelope().clone();
    d.put(&mut tx).await.unwrap();
    store.commit(tx).await.unwrap();
    println!("{name} holds(draft envelope): {:?}", outbox.holds(&e).await.map_err(|e| e.chain()));
    let full = Envelope { source: "shop".into(), ..e };
    println!("{name} holds(with source): {:?}", outbox.holds(&full).await.map_err(|e| e.chain()));
    let mut tx = store.begin().await.unwrap();
    outbox.message(&A).unwrap().id("s1").delay(std::time::Duration::from_secs(3600)).put(&mut tx).await.unwrap();
    println!("{name} at once under scheduled id: {:?}", outbox.message(&A).unwrap().id("s1").put(&mut tx).await.map_err(|e| e.kind()));
    store.rollback(tx).await.unwrap();
    let err = outbox.transact(|u| Box::pin(async move { let _ = u; Err::<(), _>(HandlerError::retry(std::io::Error::other("mine"))) })).await.unwrap_err();
    println!("{name} transact error: {:?} {} source {}", err.kind(), err, std::error::Error::source(&err).is_some());
}
#[tokio::main]
async fn main() {
    let s = sqlite::SqliteStore::create("/tmp/obx/probe.db").await.unwrap();
    sqlite::migrate::up(&s).await.unwrap();
    probe("sqlite", s.clone()).await;
    // unreadable row, requeued
    sqlx::query("INSERT INTO oncebox_outbox (type, destination, payload, schema_version, ordering_key) VALUES ('t','d','{}', -5, 'k')").execute(s.pool()).await.unwrap();
    sqlx::query("INSERT INTO oncebox_outbox (type, destination, payload, ordering_key) VALUES ('t','d','{}', 'k')").execute(s.pool()).await.unwrap();
    let mut r = Relay::builder(s.clone(), P).build().unwrap();
    println!("{:?}", r.step().await);
    let rows: Vec<(i64, String, String)> = sqlx::query_as("SELECT position, state, coalesce(reason,'') FROM oncebox_parked").fetch_all(s.pool()).await.unwrap();
    println!("{rows:?}");
    if let Some((p, ..)) = rows.first() { println!("requeue {:?}", s.requeue("default", *p, None).await); }
    for _ in 0..3 { println!("{:?}", r.step().await); }
    let rows: Vec<(i64, String, String)> = sqlx::query_as("SELECT position, state, coalesce(reason,'') FROM oncebox_parked").fetch_all(s.pool()).await.unwrap();
    println!("{rows:?}");
    let url = std::env::var("ONCEBOX_TEST_POSTGRES_URL").unwrap();
    let pg = postgres::PostgresStore::connect(&url).await.unwrap().schema(Identifier::new("zz_probe").unwrap());
    postgres::migrate::up(&pg).await.unwrap();
    probe("postgres", pg.clone()).await;
    sqlx::raw_sql("DROP SCHEMA zz_probe CASCADE").execute(pg.pool()).await.unwrap();
}
