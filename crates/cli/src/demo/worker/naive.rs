//! The service as it is often written: store the order, then publish; apply
//! whatever arrives, then ack.

use std::sync::Arc;

use sqlx::SqlitePool;

use super::broker_pipe::BrokerPipe;
use super::{apply, store_order};
use crate::demo::wire::{FromWorker, KillPoint, Parcel, ToWorker};
use crate::fault::Fault;

pub(super) async fn serve(pool: SqlitePool, pipe: Arc<BrokerPipe>) -> Result<(), Fault> {
    pipe.say(&FromWorker::Ready).await;
    while let Some(message) = pipe.next().await {
        let (pool, pipe) = (pool.clone(), Arc::clone(&pipe));
        tokio::spawn(async move {
            let done = match message {
                ToWorker::Place { order, amount, kill } => place(&pool, &pipe, (order, amount), kill).await,
                ToWorker::Deliver { tag, parcel, kill, .. } => {
                    handle(&pool, &pipe, tag, (parcel, kill)).await
                }
                _ => Ok(()),
            };
            if let Err(error) = done {
                tracing::warn!(%error, "naive.failed");
            }
        });
    }
    Ok(())
}

async fn place(
    pool: &SqlitePool,
    pipe: &BrokerPipe,
    (order, amount): (u32, i64),
    kill: Option<KillPoint>,
) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    store_order(&mut connection, order, amount).await?;
    drop(connection);
    if kill == Some(KillPoint::Committed) {
        pipe.await_death(KillPoint::Committed, order).await;
    }
    let parcel = Parcel {
        id: format!("ord-{order:04}"),
        source: "shop".into(),
        kind: "order.placed.v1".into(),
        body: serde_json::json!({ "order_id": order, "amount": amount }).to_string(),
        order,
    };
    // The order is stored: what could the service do about a broker that says no?
    if !pipe.publish(parcel).await.await.unwrap_or(false) {
        tracing::info!(order, "naive.publish_failed");
    }
    if kill == Some(KillPoint::Published) {
        pipe.await_death(KillPoint::Published, order).await;
    }
    pipe.say(&FromWorker::Placed { order }).await;
    Ok(())
}

async fn handle(
    pool: &SqlitePool,
    pipe: &BrokerPipe,
    tag: u64,
    (parcel, kill): (Parcel, Option<KillPoint>),
) -> Result<(), sqlx::Error> {
    let body: serde_json::Value = serde_json::from_str(&parcel.body).unwrap_or_default();
    let amount = body.get("amount").and_then(serde_json::Value::as_i64).unwrap_or_default();
    let mut connection = pool.acquire().await?;
    apply(&mut connection, i64::from(parcel.order), amount).await?;
    if let Some(point) = kill {
        pipe.await_death(point, parcel.order).await;
    }
    pipe.say(&FromWorker::Ack { tag }).await;
    Ok(())
}
