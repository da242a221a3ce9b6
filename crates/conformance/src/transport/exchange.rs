//! The steps transport cases are made of.

use std::time::Duration;

use oncebox_core::{Acknowledge, Delivery, Envelope, Failure, Feed, Publisher, Result, Subscriber};
use tokio::task::JoinHandle;

use crate::sample::DESTINATION;

/// A delivery that has not come by then does not come.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough to see that nothing comes.
const GLANCE: Duration = Duration::from_millis(80);

/// The answer type of a transport.
pub type AckOf<T> = <<T as Subscriber>::Feed as Feed>::Ack;

/// Publishes in a task: a transport may confirm as late as the acknowledgement.
pub fn publish<T: Publisher + Clone>(
    transport: &T,
    batch: Vec<Envelope>,
) -> JoinHandle<Vec<Result<(), Failure>>> {
    let transport = transport.clone();
    tokio::spawn(async move { transport.publish(&batch).await })
}

/// Joins `group` on the usual destination.
pub async fn join<T: Subscriber>(transport: &T, group: &str) -> T::Feed {
    transport.subscribe(DESTINATION, group).await.unwrap()
}

/// The next delivery.
pub async fn next<F: Feed>(feed: &mut F) -> Delivery<F::Ack> {
    let next = tokio::time::timeout(PATIENCE, feed.next()).await.expect("a delivery comes");
    next.unwrap().expect("the feed goes on")
}

/// Takes `count` deliveries without answering them.
pub async fn take<F: Feed>(feed: &mut F, count: usize) -> Vec<Delivery<F::Ack>> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(next(feed).await);
    }
    taken
}

/// Takes `count` deliveries, acknowledges each and tells their ids.
pub async fn finish<F: Feed>(feed: &mut F, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let delivery = next(feed).await;
        ids.push(delivery.envelope.id.clone());
        delivery.ack.ack().await.unwrap();
    }
    ids
}

/// Whether nothing comes for a while.
pub async fn is_quiet<F: Feed>(feed: &mut F) -> bool {
    tokio::time::timeout(GLANCE, feed.next()).await.is_err()
}

/// Whether everything was confirmed.
pub async fn all_confirmed(published: JoinHandle<Vec<Result<(), Failure>>>) -> bool {
    published.await.unwrap().iter().all(Result::is_ok)
}
