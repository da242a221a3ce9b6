use oncebox::memory::MemoryTx;
use oncebox::{HandlerError, Message, handler};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1")]
struct OrderPlaced;

#[handler(key = "Ship order")]
async fn ship_order(_tx: &mut MemoryTx, _order: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
