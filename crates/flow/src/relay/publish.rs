//! One call to the transport, bounded in time and contained if it panics.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use oncebox_core::plan::{Batch, Decision, decide};
use oncebox_core::store::Mailbox;
use oncebox_core::transport::{Failure, Publisher};
use oncebox_core::{Envelope, Result};

use super::Relay;
use crate::chance;

impl<S: Mailbox, P: Publisher> Relay<S, P> {
    pub(super) async fn publish(&self, envelopes: &[Envelope]) -> Vec<Result<(), Failure>> {
        if envelopes.is_empty() {
            return Vec::new();
        }
        let call = AssertUnwindSafe(self.publisher.publish(envelopes)).catch_unwind();
        let failure = match tokio::time::timeout(self.options.publish_timeout, call).await {
            Ok(Ok(results)) => return results,
            Ok(Err(_panic)) => Failure::unknown("the transport panicked"),
            Err(_elapsed) => {
                Failure::unknown(format!("no confirm within {:?}", self.options.publish_timeout))
            }
        };
        vec![Err(failure); envelopes.len()]
    }

    /// Decides what came of a batch.
    pub(super) fn decide(&self, batch: &mut Batch, results: Vec<Result<(), Failure>>) -> Decision {
        if results.iter().any(Result::is_err) {
            batch.redirect(|envelope| self.publisher.destination(envelope).map(Cow::into_owned));
        }
        decide(batch, results, &self.options.retry, self.options.on_dead, chance::draw())
    }
}
