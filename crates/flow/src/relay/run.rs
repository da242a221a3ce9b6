//! The relay as a service: steps until it is told to stop.

use std::time::Duration;

use oncebox_core::store::Mailbox;
use oncebox_core::transport::Publisher;
use oncebox_core::{Error, Kind, Result};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::heartbeat::Pulse;
use super::{Progress, Relay};
use crate::chance;
use crate::wakeup::Listener;

/// How long giving the leases back may take; otherwise they run out.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The first wait after something happened; doubled while nothing does.
const SHORTEST_WAIT: Duration = Duration::from_millis(2);

/// What a relay did while it ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayReport {
    /// Messages confirmed and settled.
    pub published: u64,
    /// Messages put beside the log.
    pub parked: u64,
    /// Passes that failed; each was tried again.
    pub errors: u64,
    /// Whether everything in flight was settled and the leases given back.
    pub drained: bool,
}

impl<S: Mailbox, P: Publisher> Relay<S, P> {
    /// Relays until `stop` is cancelled, then finishes what is in flight,
    /// gives its leases back and returns. Errors never end it: it waits and
    /// goes on.
    pub async fn run(self, stop: CancellationToken) -> RelayReport {
        let mut siblings = tokio::task::JoinSet::new();
        for _ in 1..self.options.workers {
            siblings.spawn(self.sibling().run_one(stop.clone()));
        }
        let mut report = self.run_one(stop).await;
        while let Some(other) = siblings.join_next().await {
            let other = other.unwrap_or_default();
            report.published += other.published;
            report.parked += other.parked;
            report.errors += other.errors;
            report.drained &= other.drained;
        }
        report
    }

    async fn run_one(mut self, stop: CancellationToken) -> RelayReport {
        let mut report = RelayReport::default();
        if !self.options.enabled {
            info!(sink = self.options.sink, "relay.disabled");
            stop.cancelled().await;
            return RelayReport { drained: true, ..report };
        }
        info!(sink = self.options.sink, holder = self.holder, "relay.started");
        self.stop = stop.clone();
        let drain = self.options.drain;
        let bounded = async {
            stop.cancelled().await;
            tokio::time::sleep(drain).await;
        };
        tokio::select! {
            () = self.serve(&mut report) => report.drained = true,
            () = bounded => warn!(sink = self.options.sink, "relay.drain_timed_out"),
        }
        let released = tokio::time::timeout(RELEASE_TIMEOUT, self.release()).await;
        report.drained &= matches!(released, Ok(Ok(())));
        info!(
            sink = self.options.sink,
            published = report.published,
            drained = report.drained,
            "relay.stopped"
        );
        report
    }

    async fn serve(&mut self, report: &mut RelayReport) {
        let mut hints = self.wakeup.listen();
        let pulse = self.heartbeat.worker(&self.holder);
        let mut wait = SHORTEST_WAIT;
        let mut failures = 0_u32;
        while !self.stopping() {
            let mut wish = Duration::ZERO;
            match self.bounded_step(&pulse).await {
                Ok(progress) => {
                    report.published += progress.published as u64;
                    report.parked += progress.parked as u64;
                    failures = self.note(&progress, failures);
                    wish = progress.retry_after.unwrap_or_default();
                    if progress.moved() {
                        wait = SHORTEST_WAIT;
                    }
                }
                // Another relay took over; what it holds is none of our business.
                Err(error) if error.kind() == Kind::Fenced => info!(sink = self.options.sink, "relay.fenced"),
                Err(error) => {
                    report.errors += 1;
                    failures += 1;
                    self.complain(&error, failures);
                }
            }
            if failures > 0 {
                let wait = self.failure_wait(failures).max(wish);
                pulse.expect(wait);
                self.pause(wait).await;
                continue;
            }
            pulse.expect(wait);
            if self.rest(wait, &mut hints).await {
                wait = SHORTEST_WAIT;
            } else {
                wait = (wait * 2).min(self.options.poll);
            }
        }
    }

    /// A pass that hangs, on a connection nobody answers on, is given up: its
    /// lease is over by then.
    async fn bounded_step(&mut self, pulse: &Pulse) -> Result<Progress> {
        let limit = self.options.lease * 2;
        pulse.expect(limit);
        match tokio::time::timeout(limit, self.step()).await {
            Ok(stepped) => stepped,
            Err(_elapsed) => {
                self.forget();
                Err(Error::new(Kind::Unavailable, format!("a pass took longer than {limit:?}")))
            }
        }
    }

    /// Counts outages in a row; says so once per outage.
    fn note(&self, progress: &Progress, failures: u32) -> u32 {
        match &progress.outage {
            None => 0,
            Some(reason) => {
                if failures == 0 {
                    warn!(sink = self.options.sink, reason, "relay.destination_unavailable");
                }
                failures + 1
            }
        }
    }

    fn complain(&self, error: &Error, failures: u32) {
        if failures == 1 || failures.is_multiple_of(60) {
            let (kind, error) = (error.kind().name(), error.chain());
            warn!(sink = self.options.sink, kind, error, failures, "relay.pass_failed");
        }
    }

    fn failure_wait(&self, failures: u32) -> Duration {
        let step = self.options.error_backoff * failures.min(10);
        step.mul_f64(0.5 + chance::draw() / 2.0)
    }

    async fn pause(&self, wait: Duration) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }

    /// Waits; true if a hint cut it short.
    async fn rest(&self, wait: Duration, hints: &mut Listener) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(wait) => false,
            () = hints.hinted() => true,
        }
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use oncebox_core::{Envelope, Failure, Store};
    use tokio::time::Instant;

    use super::*;
    use crate::memory::MemoryStore;

    /// Busy at first, with a wish for peace.
    #[derive(Clone, Default)]
    struct Busy(Arc<Mutex<Vec<Instant>>>);

    impl Publisher for Busy {
        async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
            let mut calls = self.0.lock().unwrap();
            calls.push(Instant::now());
            let busy = Err(Failure::destination("busy").after(Duration::from_secs(4)));
            vec![if calls.len() < 3 { busy } else { Ok(()) }; batch.len()]
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_destination_that_wants_to_be_left_alone_is() {
        let (store, busy, stop) = (MemoryStore::new(), Busy::default(), CancellationToken::new());
        let text = || "x".to_owned();
        let message =
            Envelope { id: text(), source: text(), kind: text(), destination: text(), ..Envelope::default() };
        let mut tx = store.begin().await.unwrap();
        store.put(&mut tx, &[message], None).await.unwrap();
        store.commit(tx).await.unwrap();

        let relay = Relay::builder(store, busy.clone()).error_backoff(Duration::from_millis(1));
        let running = tokio::spawn(relay.build().unwrap().run(stop.clone()));
        let calls = || busy.0.lock().unwrap().clone();
        tokio::time::timeout(Duration::from_secs(60), async {
            while calls().len() < 3 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
        .unwrap();
        stop.cancel();
        let report = running.await.unwrap();

        assert_eq!(report.published, 1);
        for pair in calls().windows(2) {
            let waited = pair[1] - pair[0];
            assert!((4..5).contains(&waited.as_secs()), "{waited:?}");
        }
    }
}
