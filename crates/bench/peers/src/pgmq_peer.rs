//! `pgmq`: its own client on its own SQL, read and delete in batches.

use std::time::Instant;

use pgmq::PGMQueueExt;
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;

use crate::{Backlog, rate};

const QUEUE: &str = "bench";
const HIDDEN_SECONDS: i32 = 300;

pub(crate) async fn drain(backlog: &Backlog) -> Result<f64, Box<dyn std::error::Error>> {
    let pool = PgPoolOptions::new().max_connections(10).connect(&backlog.url).await?;
    let client = PGMQueueExt::new_with_pool(pool.clone()).await;
    client.install_sql_from_embedded().await?;
    client.create(QUEUE).await?;
    client.purge_queue(QUEUE).await?;
    let messages: Vec<&Value> = (0..1000).map(|_| &backlog.payload).collect();
    for _ in 0..backlog.messages / 1000 {
        client.send_batch(QUEUE, &messages).await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE pgmq.q_bench").execute(&pool).await?;
    let batch = i32::try_from(backlog.batch)?;
    let started = Instant::now();
    let mut moved = 0;
    loop {
        let read: Vec<pgmq::Message<Value>> = client.read_batch(QUEUE, HIDDEN_SECONDS, batch).await?;
        if read.is_empty() {
            return Ok(rate(moved, started));
        }
        let ids: Vec<i64> = read.iter().map(|message| message.msg_id).collect();
        client.delete_batch(QUEUE, &ids).await?;
        moved += ids.len() as u64;
    }
}
