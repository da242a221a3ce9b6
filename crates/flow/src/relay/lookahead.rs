//! What stands beyond a batch of which nothing could be sent.
//!
//! A destination that is down, or that does not take one kind of message, must
//! not hold up the others, but its backlog may be longer than a batch. Putting
//! all of it aside would be wrong if nothing works at all: an outage costs no
//! write. So the relay looks for messages of other kinds or to other
//! destinations and sends a few of them, one of each. Only if one is confirmed,
//! the batch steps aside. What was confirmed here is sent again in its turn: at
//! worst a duplicate.

use std::collections::HashSet;

use oncebox_core::log::{LaneKey, Shard};
use oncebox_core::store::Mailbox;
use oncebox_core::transport::{Class, Failure, Publisher};
use oncebox_core::{Envelope, Result};

use super::Relay;
use super::lane::Read;

/// How many batches are looked through.
const BATCHES: usize = 20;
/// How many messages are tried.
const TRIES: usize = 8;

/// Where a message goes, and its type: what a destination may refuse as a whole.
type Route = (String, String);

impl<S: Mailbox, P: Publisher> Relay<S, P> {
    /// Lets a batch step aside if its destinations are down and another works.
    pub(super) async fn look_ahead(
        &self,
        shards: &[Shard],
        current: &mut Read,
        results: &[Result<(), Failure>],
    ) -> Result<()> {
        let is_down =
            |result: &Result<(), Failure>| matches!(result, Err(Failure { class: Class::Destination, .. }));
        let is_dark = results.iter().any(is_down) && !results.iter().any(Result::is_ok);
        if !is_dark || !current.full || !self.has_time() {
            return Ok(());
        }
        let candidates = self.others(shards, current).await?;
        if candidates.is_empty() || self.stopping() || !self.has_time() {
            return Ok(());
        }
        if self.publish(&candidates).await.iter().any(Result::is_ok) {
            current.batch.overtaken();
        }
        Ok(())
    }

    /// The first message of each other route that nothing before it in its
    /// lane holds back. Positions that were not visible yet are looked up
    /// again with every batch: what appears there comes first in its lane.
    async fn others(&self, shards: &[Shard], current: &Read) -> Result<Vec<Envelope>> {
        let sent = &current.batch.envelopes;
        let route = |envelope: &Envelope| -> Option<Route> {
            Some((self.publisher.destination(envelope)?.into_owned(), envelope.kind.clone()))
        };
        let mut tried: HashSet<Route> = sent.iter().filter_map(route).collect();
        let mut passed: HashSet<LaneKey> = sent.iter().filter_map(LaneKey::of).collect();
        let mut found = Vec::new();
        let (mut after, mut holes) = (current.through, current.holes.clone());
        for _ in 0..BATCHES {
            let span = self.read(shards, after, &holes).await?;
            if span.full && span.through <= after {
                // More holes than one batch looks up: any lane may have a row among them.
                return Ok(Vec::new());
            }
            for envelope in span.rows.into_iter().filter_map(|row| row.envelope.ok()) {
                let is_first = LaneKey::of(&envelope).is_none_or(|lane| passed.insert(lane));
                let may_go = is_first && !self.blocked.holds_back(&envelope);
                if may_go && route(&envelope).is_some_and(|route| tried.insert(route)) {
                    found.push(envelope);
                }
            }
            if !span.full || found.len() >= TRIES || self.stopping() || !self.has_time() {
                break;
            }
            (after, holes) = (span.through, span.holes);
        }
        found.truncate(TRIES);
        Ok(found)
    }
}
