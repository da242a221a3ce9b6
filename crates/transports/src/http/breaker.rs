//! Whether a destination is worth asking: after some failures in a row it is
//! left alone for a while, then one message tries it.

use std::time::Duration;

use tokio::time::Instant;

/// This many failures in a row open the circuit.
const THRESHOLD: u32 = 5;
/// How long it stays open the first time; doubled with every failed probe.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest it stays open by itself.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The longest a destination may ask to be left alone.
const LONGEST_WISH: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
enum Circuit {
    #[default]
    Closed,
    Open {
        until: Instant,
    },
    /// One message is on its way to find out.
    Probing,
}

/// The circuit breaker of one destination.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    circuit: Circuit,
    failures: u32,
    /// Times it was opened in a row.
    openings: u32,
    reason: String,
}

/// Why a message is not sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Until somebody may ask again.
    pub(super) wait: Duration,
    /// The last failure.
    pub(super) reason: String,
}

impl Breaker {
    /// Whether a message may go. Who may go must report what came of it.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), Refusal> {
        let wait = match self.circuit {
            Circuit::Closed => return Ok(()),
            Circuit::Open { until } if until <= now => {
                self.circuit = Circuit::Probing;
                return Ok(());
            }
            Circuit::Open { until } => until - now,
            Circuit::Probing => SHORTEST_PAUSE,
        };
        Err(Refusal { wait, reason: self.reason.clone() })
    }

    /// The destination answered for itself, whatever it said of the message.
    pub(super) fn succeed(&mut self) {
        *self = Self::default();
    }

    /// The destination failed; `wish` is how long it asks to be left alone.
    pub(super) fn fail(&mut self, now: Instant, reason: &str, wish: Option<Duration>) {
        self.failures = self.failures.saturating_add(1);
        reason.clone_into(&mut self.reason);
        let wished_until = wish.map(|wish| now + wish.min(LONGEST_WISH));
        match self.circuit {
            // Sent before it opened: no news.
            Circuit::Open { until } => {
                self.circuit = Circuit::Open { until: wished_until.map_or(until, |wish| wish.max(until)) };
            }
            Circuit::Closed if self.failures < THRESHOLD && wish.is_none() => {}
            Circuit::Closed | Circuit::Probing => {
                let pause = SHORTEST_PAUSE.saturating_mul(1 << self.openings.min(10)).min(LONGEST_PAUSE);
                self.openings = self.openings.saturating_add(1);
                self.circuit = Circuit::Open { until: wished_until.unwrap_or(now + pause) };
            }
        }
    }

    /// Nobody heard what came of it; somebody else may try.
    pub(super) fn abandon(&mut self, now: Instant) {
        if matches!(self.circuit, Circuit::Probing) {
            self.circuit = Circuit::Open { until: now };
        }
    }

    /// Whether there is nothing to remember.
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.circuit, Circuit::Closed) && self.failures == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn broken(now: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..THRESHOLD {
            assert_eq!(breaker.admit(now), Ok(()));
            breaker.fail(now, "down", None);
        }
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_a_success_between_does_not_count_on() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..3 {
            (0..THRESHOLD - 1).for_each(|_| breaker.fail(now, "down", None));
            breaker.succeed();
        }
        assert_eq!(breaker.admit(now), Ok(()));

        assert_eq!(broken(now).admit(now), Err(Refusal { wait: SECOND, reason: "down".into() }));
    }

    #[test]
    fn one_message_probes_and_the_pause_grows_up_to_a_minute() {
        let mut now = Instant::now();
        let mut breaker = broken(now);

        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = breaker.admit(now).unwrap_err().wait;
            pauses.push(pause.as_secs());
            now += pause;
            assert_eq!(breaker.admit(now), Ok(()), "the probe");
            assert!(breaker.admit(now).is_err(), "no second probe beside it");
            breaker.fail(now, "still down", None);
        }

        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn a_probe_that_succeeds_closes_it_for_everybody() {
        let now = Instant::now();
        let mut breaker = broken(now);

        assert_eq!(breaker.admit(now + SECOND), Ok(()));
        breaker.succeed();

        assert_eq!((breaker.admit(now), breaker.admit(now)), (Ok(()), Ok(())));
        assert!(breaker.is_idle());
    }

    #[test]
    fn a_probe_that_is_given_up_leaves_the_place_to_the_next() {
        let now = Instant::now();
        let mut breaker = broken(now);

        breaker.admit(now + SECOND).unwrap();
        breaker.abandon(now + SECOND);

        assert_eq!(breaker.admit(now + SECOND), Ok(()));
    }

    #[test]
    fn a_destination_that_names_a_time_is_left_alone_at_once_and_that_long() {
        let now = Instant::now();
        let mut breaker = Breaker::default();

        breaker.fail(now, "busy", Some(30 * SECOND));
        breaker.fail(now, "sent before that", None);

        assert_eq!(breaker.admit(now).unwrap_err().wait, 30 * SECOND);
        breaker.fail(now, "for ever", Some(Duration::MAX));
        assert_eq!(breaker.admit(now).unwrap_err().wait, LONGEST_WISH);
    }
}
