use oncebox::memory::MemoryTx;
use oncebox::{HandlerError, Message, handler};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(name = "order.placed.v1")]
struct Order;

#[handler(key = "a")]
fn not_async(_tx: &mut MemoryTx, _order: Order) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "a")]
async fn one_parameter(_tx: &mut MemoryTx) -> Result<(), HandlerError> {
    Ok(())
}

struct Service;

impl Service {
    #[handler(key = "a")]
    async fn method(&self, _order: Order) -> Result<(), HandlerError> {
        Ok(())
    }
}

#[handler(key = "a")]
async fn shared_reference(_tx: &MemoryTx, _order: Order) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "a")]
async fn borrowed_message(_tx: &mut MemoryTx, _order: &Order) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "a")]
async fn generic<T>(_tx: &mut T, _order: Order) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "a")]
async fn no_result(_tx: &mut MemoryTx, _order: Order) {}

#[handler(retention = "7d")]
async fn no_key(_tx: &mut MemoryTx, _order: Order) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "a", retention = "a week")]
async fn bad_duration(_tx: &mut MemoryTx, _order: Order) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "a", missing_id = "maybe")]
async fn bad_word(_tx: &mut MemoryTx, _order: Order) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "a", selector = "header:")]
async fn bad_selector(_tx: &mut MemoryTx, _order: Order) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "a", retries = 3)]
async fn unknown_option(_tx: &mut MemoryTx, _order: Order) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(key = "a")]
struct NotAFunction;

fn main() {}
