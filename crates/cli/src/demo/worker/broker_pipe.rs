//! A worker's end of the pipes: requests and deliveries come in on standard
//! input, everything it says goes out on standard output.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin, Stdout};
use tokio::sync::oneshot;

use crate::demo::wire::{FromWorker, KillPoint, Parcel, ToWorker};

pub(super) struct BrokerPipe {
    input: tokio::sync::Mutex<Lines<BufReader<Stdin>>>,
    output: tokio::sync::Mutex<Stdout>,
    confirms: Mutex<HashMap<u64, oneshot::Sender<bool>>>,
    next_token: AtomicU64,
}

impl BrokerPipe {
    pub(super) fn new() -> Self {
        Self {
            input: tokio::sync::Mutex::new(BufReader::new(tokio::io::stdin()).lines()),
            output: tokio::sync::Mutex::new(tokio::io::stdout()),
            confirms: Mutex::new(HashMap::new()),
            next_token: AtomicU64::new(0),
        }
    }

    /// The next request or delivery; confirms are sorted out here. `None` at the end.
    pub(super) async fn next(&self) -> Option<ToWorker> {
        loop {
            let line = self.input.lock().await.next_line().await.ok()??;
            match serde_json::from_str(&line).ok()? {
                ToWorker::Confirm { token, stored } => {
                    let waiting = self.confirms.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
                    waiting.map(|waiting| waiting.send(stored));
                }
                ToWorker::Stop => return None,
                other => return Some(other),
            }
        }
    }

    /// Sends a message to the broker; the receiver tells whether it was stored.
    pub(super) async fn publish(&self, parcel: Parcel) -> oneshot::Receiver<bool> {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.confirms.lock().unwrap_or_else(PoisonError::into_inner).insert(token, sender);
        self.say(&FromWorker::Publish { token, parcel }).await;
        receiver
    }

    pub(super) async fn say(&self, message: &FromWorker) {
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        let mut output = self.output.lock().await;
        if output.write_all(&line).await.is_ok() {
            output.flush().await.ok();
        }
    }

    /// Stands at a kill point until the supervisor's SIGKILL comes.
    pub(super) async fn await_death(&self, point: KillPoint, order: u32) {
        self.say(&FromWorker::At { point, order }).await;
        std::future::pending::<()>().await;
    }
}
