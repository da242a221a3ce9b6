//! The children's side of the broker: a publisher and a feed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::{Acknowledge, Delivery, Envelope, Error, Failure, Feed, Kind, Publisher, Result};
use oncebox_flow::{CrashPoint, Probe};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Mutex, mpsc};

use super::wire::{Answer, Parcel, Request, line, receive, send};

/// Publishes over one connection and waits for every confirm.
pub(super) struct SocketPublisher {
    path: PathBuf,
    idle: Mutex<Option<BufReader<UnixStream>>>,
    probe: Probe,
}

impl SocketPublisher {
    pub(super) fn new(path: PathBuf, probe: Probe) -> Self {
        Self { path, idle: Mutex::new(None), probe }
    }

    async fn send_all(&self, batch: &[Envelope], confirmed: &mut usize) -> std::io::Result<()> {
        let mut idle = self.idle.lock().await;
        // Taken out: a call that is dropped half-way must not leave its
        // connection, with confirms still to come, to the next call.
        let mut stream = match idle.take() {
            Some(stream) => stream,
            None => BufReader::new(UnixStream::connect(&self.path).await?),
        };
        let lines: Vec<u8> =
            batch.iter().flat_map(|envelope| line(&Request::Publish(Parcel::of(envelope)))).collect();
        stream.write_all(&lines).await?;
        while *confirmed < batch.len() {
            let Some(Answer::Confirm) = receive(&mut stream).await? else {
                return Err(std::io::ErrorKind::ConnectionReset.into());
            };
            *confirmed += 1;
            if *confirmed == batch.len().div_ceil(2) {
                self.probe.reach(CrashPoint::R7).await.ok();
            }
        }
        self.probe.reach(CrashPoint::R4).await.ok();
        *idle = Some(stream);
        Ok(())
    }
}

impl Publisher for SocketPublisher {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let mut confirmed = 0;
        let sent = self.send_all(batch, &mut confirmed).await;
        let mut results = vec![Ok(()); confirmed];
        if let Err(error) = sent {
            results.resize(batch.len(), Err(Failure::unknown(error.to_string())));
        }
        results
    }
}

type Arrived = (u64, u32, Parcel);
type Writer = Arc<Mutex<OwnedWriteHalf>>;

/// Deliveries of one connection, which is made anew when it breaks.
pub(super) struct SocketFeed {
    path: PathBuf,
    open: Option<(mpsc::Receiver<Arrived>, Writer)>,
}

impl SocketFeed {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    async fn connect(&self) -> std::io::Result<(mpsc::Receiver<Arrived>, Writer)> {
        let (reader, mut writer) = UnixStream::connect(&self.path).await?.into_split();
        send(&mut writer, &Request::Subscribe).await?;
        let (sender, receiver) = mpsc::channel(1);
        let mut reader = BufReader::new(reader);
        tokio::spawn(async move {
            while let Ok(Some(Answer::Deliver { tag, attempt, parcel })) = receive(&mut reader).await {
                if sender.send((tag, attempt, parcel)).await.is_err() {
                    return;
                }
            }
        });
        Ok((receiver, Arc::new(Mutex::new(writer))))
    }
}

impl Feed for SocketFeed {
    type Ack = SocketAck;

    async fn next(&mut self) -> Result<Option<Delivery<SocketAck>>> {
        if self.open.is_none() {
            let opened = self.connect().await;
            self.open = Some(opened.map_err(|error| unavailable(error.to_string()))?);
        }
        let Some((receiver, writer)) = &mut self.open else { return Ok(None) };
        let Some((tag, attempt, parcel)) = receiver.recv().await else {
            self.open = None;
            return Err(unavailable("the broker hung up".into()));
        };
        let ack = SocketAck { tag, writer: Arc::clone(writer) };
        Ok(Some(Delivery { envelope: parcel.envelope(), attempt, ack }))
    }
}

/// Answers one delivery on the connection it came by.
pub(super) struct SocketAck {
    tag: u64,
    writer: Writer,
}

impl SocketAck {
    async fn answer(self, request: Request) -> Result<()> {
        let mut writer = self.writer.lock().await;
        send(&mut *writer, &request).await.map_err(|error| unavailable(error.to_string()))
    }
}

impl Acknowledge for SocketAck {
    async fn ack(self) -> Result<()> {
        let tag = self.tag;
        self.answer(Request::Ack(tag)).await
    }

    async fn nack(self, after: Duration, spent: bool) -> Result<()> {
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let tag = self.tag;
        self.answer(Request::Nack { tag, after_ms, spent }).await
    }
}

fn unavailable(reason: String) -> Error {
    Error::new(Kind::Unavailable, reason)
}
