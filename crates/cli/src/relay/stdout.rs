//! Standard output as a destination: a line is confirmed once it is flushed.

use oncebox_core::transport::{Failure, Publisher};
use oncebox_core::{Envelope, Result, cloudevents};
use tokio::io::{AsyncWriteExt, Stdout};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// Writes one CloudEvents JSON object per line.
pub(crate) struct StdoutPublisher {
    out: Mutex<Stdout>,
    closed: CancellationToken,
}

impl Default for StdoutPublisher {
    fn default() -> Self {
        Self { out: Mutex::new(tokio::io::stdout()), closed: CancellationToken::new() }
    }
}

impl StdoutPublisher {
    /// Cancelled when nobody reads any more.
    pub(crate) fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }
}

impl Publisher for StdoutPublisher {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let mut lines = Vec::new();
        for envelope in batch {
            lines.extend_from_slice(cloudevents::to_json(envelope).to_string().as_bytes());
            lines.push(b'\n');
        }
        let mut out = self.out.lock().await;
        let written = async {
            out.write_all(&lines).await?;
            out.flush().await
        };
        match written.await {
            Ok(()) => vec![Ok(()); batch.len()],
            Err(error) => {
                self.closed.cancel();
                vec![Err(Failure::unknown(format!("standard output: {error}"))); batch.len()]
            }
        }
    }
}
