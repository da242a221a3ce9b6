//! `pgmq`: its own client on its own SQL, read and delete in batches.

use pgmq::PGMQueueExt;
use serde_json::Value;

use super::super::BATCH;
use crate::lab::postgres::PostgresLab;
use crate::order::Order;
use crate::rounds::rate;

const QUEUE: &str = "bench";
const HIDDEN_SECONDS: i32 = 300;

/// A queue of theirs.
pub(super) struct Peer {
    client: PGMQueueExt,
}

impl Peer {
    pub(super) async fn create(lab: &PostgresLab) -> Result<Self, String> {
        let client = PGMQueueExt::new_with_pool(lab.pool().clone()).await;
        client.install_sql_from_embedded().await.map_err(|error| error.to_string())?;
        client.create(QUEUE).await.map_err(|error| error.to_string())?;
        Ok(Self { client })
    }

    pub(super) async fn drain(&self, lab: &PostgresLab, backlog: u64) -> f64 {
        self.client.purge_queue(QUEUE).await.expect("an empty queue");
        let order = Order::nth(1);
        let orders: Vec<&Order> = (0..1000).map(|_| &order).collect();
        for _ in 0..backlog / 1000 {
            self.client.send_batch(QUEUE, &orders).await.expect("their backlog");
        }
        sqlx::raw_sql("VACUUM ANALYZE pgmq.q_bench").execute(lab.pool()).await.expect("a vacuum");
        rate(async {
            let batch = i32::try_from(BATCH).expect("a batch");
            let mut moved = 0;
            loop {
                let read: Vec<pgmq::Message<Value>> =
                    self.client.read_batch(QUEUE, HIDDEN_SECONDS, batch).await.expect("their read");
                if read.is_empty() {
                    return moved;
                }
                let ids: Vec<i64> = read.iter().map(|message| message.msg_id).collect();
                self.client.delete_batch(QUEUE, &ids).await.expect("their delete");
                moved += ids.len() as u64;
            }
        })
        .await
    }
}
