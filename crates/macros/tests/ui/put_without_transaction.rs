use oncebox::stores::sqlite::SqliteStore;
use oncebox::{Message, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::{SqliteConnection, SqlitePool};

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1")]
struct OrderPlaced;

fn into_a_pool(outbox: Outbox<SqliteStore>, mut pool: SqlitePool) {
    _ = outbox.put(&mut pool, &OrderPlaced);
}

fn into_a_bare_connection(outbox: Outbox<SqliteStore>, connection: &mut SqliteConnection) {
    _ = outbox.put(connection, &OrderPlaced);
}

fn main() {}
