//! What other programs tell a daemon.

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::fault::Fault;

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM or Ctrl-C: finish what is in flight.
    Stop,
    /// SIGHUP: read credentials again.
    Reload,
}

/// Signals from the moment this is made; none is lost in between.
pub(crate) struct Signals {
    terminate: Stream,
    interrupt: Stream,
    hangup: Stream,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, Fault> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hangup.recv() => Signal::Reload,
        }
    }

    /// The next one that says stop.
    pub(crate) async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }
}
