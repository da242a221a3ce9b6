//! Sends what a relay reads where a sink's own routes say.

use std::borrow::Cow;
use std::time::Duration;

use oncebox_core::{Envelope, Failure, Inspection, Preflight, Publisher, Result, Route, Routes};

/// A publisher with routes of its own.
///
/// Several sinks read the same log, each with its own progress. Routes say what
/// each of them calls its destinations, and which messages are not for it:
/// those count as confirmed and are never sent.
#[derive(Clone, Debug)]
pub struct Routed<P> {
    publisher: P,
    routes: Routes,
}

impl<P> Routed<P> {
    /// Sends through `publisher` where `routes` say.
    pub const fn new(publisher: P, routes: Routes) -> Self {
        Self { publisher, routes }
    }
}

impl<P: Publisher> Publisher for Routed<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let routed = batch.iter().map(|envelope| match self.routes.find(envelope) {
            Route::Skip => None,
            Route::To(destination) => {
                Some(Envelope { destination: destination.into_owned(), ..envelope.clone() })
            }
        });
        let routed: Vec<Option<Envelope>> = routed.collect();
        let is_sent: Vec<bool> = routed.iter().map(Option::is_some).collect();
        let sent: Vec<Envelope> = routed.into_iter().flatten().collect();
        let mut answers =
            if sent.is_empty() { Vec::new() } else { self.publisher.publish(&sent).await }.into_iter();
        let mut answer =
            || answers.next().unwrap_or_else(|| Err(Failure::unknown("the transport gave no answer")));
        is_sent.into_iter().map(|is_sent| if is_sent { answer() } else { Ok(()) }).collect()
    }

    fn destination<'e>(&'e self, envelope: &'e Envelope) -> Option<Cow<'e, str>> {
        match self.routes.find(envelope) {
            Route::Skip => None,
            Route::To(destination) => Some(destination),
        }
    }
}

/// Destinations are inspected under the names the broker knows.
impl<P: Preflight + Sync> Preflight for Routed<P> {
    async fn inspect(&self, destinations: &[String], horizon: Duration) -> Result<Vec<Inspection>> {
        self.publisher.inspect(destinations, horizon).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use oncebox_core::Rule;

    use super::*;

    /// Remembers what it was given and refuses `bad`.
    #[derive(Default)]
    struct Wire {
        sent: Mutex<Vec<(String, String)>>,
        answers_short: bool,
    }

    impl Publisher for Wire {
        async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
            let sent = batch.iter().map(|envelope| (envelope.id.clone(), envelope.destination.clone()));
            self.sent.lock().unwrap().extend(sent);
            let answer = |envelope: &Envelope| match envelope.id.as_str() {
                "bad" => Err(Failure::message("bad")),
                _ => Ok(()),
            };
            batch.iter().map(answer).skip(usize::from(self.answers_short)).collect()
        }
    }

    fn message(id: &str, kind: &str) -> Envelope {
        Envelope { id: id.into(), kind: kind.into(), destination: "d".into(), ..Envelope::default() }
    }

    fn routed(wire: Wire) -> Routed<Wire> {
        let rules = [Rule::skip("audit.*"), Rule::to("order.*", "orders/{type}")];
        Routed::new(wire, Routes::new(rules).unwrap())
    }

    #[tokio::test]
    async fn skipped_messages_count_as_confirmed_and_answers_stay_in_place() {
        let routed = routed(Wire::default());
        let batch = [
            message("1", "audit.a"),
            message("bad", "order.b"),
            message("3", "audit.c"),
            message("4", "other"),
        ];

        let results = routed.publish(&batch).await;

        assert_eq!(results, [Ok(()), Err(Failure::message("bad")), Ok(()), Ok(())]);
        let sent = routed.publisher.sent.lock().unwrap().clone();
        assert_eq!(sent, [("bad".into(), "orders/order.b".into()), ("4".to_owned(), "d".to_owned())]);
    }

    #[tokio::test]
    async fn a_publisher_that_answers_short_confirms_nothing_it_did_not_answer() {
        let routed = routed(Wire { answers_short: true, ..Wire::default() });

        let results = routed.publish(&[message("1", "x"), message("2", "audit.a"), message("3", "x")]).await;

        assert!(results[0].is_ok() && results[1].is_ok() && results[2].is_err(), "{results:?}");
    }

    #[tokio::test]
    async fn nothing_is_sent_if_nothing_is_for_this_sink() {
        let routed = routed(Wire { answers_short: true, ..Wire::default() });

        assert_eq!(routed.publish(&[message("1", "audit.a")]).await, [Ok(())]);
        assert!(routed.publisher.sent.lock().unwrap().is_empty());
    }
}
