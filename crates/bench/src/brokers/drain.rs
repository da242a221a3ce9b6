//! A backlog relayed to a broker, against the lower of two ceilings: a loop that
//! only reads, and a loop that only publishes with as many under way.

use oncebox_core::Publisher as _;
use oncebox_flow::Relay;
use serde_json::json;

use super::bus::{Bus, Dress};
use super::{Run, WINDOW};
use crate::lab::Lab as _;
use crate::lab::postgres::PostgresLab;
use crate::order::deliveries;
use crate::path::BATCH;
use crate::report::{self, Measure, Target, median};
use crate::rounds::{interleave, rate};

pub(super) async fn measure<B: Bus>(run: &mut Run, lab: &PostgresLab, bus: &B) {
    let name = format!("postgres.relay_to_{}", B::NAME);
    if !run.wants(&name) {
        return;
    }
    let backlog = run.sizes.backlog;
    // Connected before the first round, as the clients of the other side are.
    let transport = bus.transport();
    let (mut reading, mut publishing) = (Vec::new(), Vec::new());
    let (mut bare, mut alone) = (Vec::new(), Vec::new());
    let pairs = interleave(
        run.sizes.rounds,
        async || {
            // Messages that NATS has not seen: it would only compare ids.
            let start = lab.append(backlog).await;
            bus.empty().await;
            lab.rewind(start).await;
            rate(relay::<B>(lab, &transport, backlog)).await
        },
        async || {
            let start = lab.append(backlog).await;
            bus.empty().await;
            lab.rewind(start).await;
            let read = rate(lab.drain_by_hand(BATCH, backlog)).await;
            let published = rate(bus.publish_by_hand(backlog, WINDOW, Dress::Full)).await;
            bare.push(rate(bus.publish_by_hand(backlog, WINDOW, Dress::Bare)).await);
            reading.push(read);
            publishing.push(published);
            alone.push(rate(publish_alone::<B>(&transport, backlog)).await);
            read.min(published)
        },
    )
    .await;
    bus.empty().await;
    let facts = json!({
        "raw_drain": median(reading).round(),
        "raw_publish": median(publishing).round(),
        "raw_publish_without_headers": median(bare).round(),
        "our_publisher_alone": median(alone).round(),
    });
    report::note(&format!("{name}.ceilings"), &facts, run.output);
    run.report(&Measure::new(name, pairs, Target::AtLeast(0.6)));
}

/// Relays everything there is.
async fn relay<B: Bus>(lab: &PostgresLab, transport: &B::Transport, backlog: u64) -> u64 {
    let mut relay = Relay::builder(lab.store().clone(), transport.clone()).build().expect("a relay");
    let mut published = 0;
    while published < backlog {
        let progress = relay.step().await.expect("a pass");
        assert!(progress.outage.is_none(), "{progress:?}");
        published += progress.published as u64;
    }
    assert_eq!(published, backlog);
    published
}

/// The product's publisher without a relay: tells which of the two costs what.
async fn publish_alone<B: Bus>(transport: &B::Transport, messages: u64) -> u64 {
    let envelopes = deliveries(messages);
    for batch in envelopes.chunks(WINDOW) {
        let results = transport.publish(batch).await;
        assert!(results.iter().all(Result::is_ok), "{:?}", results.iter().find(|result| result.is_err()));
    }
    messages
}
