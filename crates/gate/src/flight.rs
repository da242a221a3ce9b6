//! One admitted request, from its pass to its sealed reply. It comes to its
//! end: a client that hangs up ends its connection, not the request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::response::Parts;
use http::{HeaderMap, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use oncebox_core::crash::CrashPoint;
use oncebox_core::gate::{AdmitRequest, OnDoubt, Pass, Receipts, Reply};
use oncebox_core::{Error, Kind, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::answer::Problem;
use crate::body::{self, BoxError, GateBody, Gathered, Parcel, Piece};
use crate::gate::{Inner, Running};
use crate::patience::within;
use crate::policy::Policy;
use crate::record;
use crate::telemetry;

/// Pieces of a body on their way to a client that reads slowly.
const UNDER_WAY: usize = 8;
/// How long a client waits for the store to keep the reply that is there already.
const PATIENCE: Duration = Duration::from_secs(5);
/// Waits between attempts to seal while the store is down.
const AGAIN: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
];

/// How much of a reply that nobody reads is read to learn how a gRPC call ended.
const TO_ITS_TRAILERS: usize = 64 << 20;

/// In the extensions of a reply: nobody knows whether the request took effect.
#[derive(Clone, Copy, Debug)]
pub struct Doubt;

/// In the extensions of a reply: the request had no effect, so its key is free
/// again, whatever policy there is about replies like this.
#[derive(Clone, Copy, Debug)]
pub struct Untouched;

pub(crate) struct Flight<S: Receipts> {
    gate: Arc<Inner<S>>,
    policy: Arc<Policy>,
    admit: AdmitRequest,
    /// Before it was admitted, by the clock of the cache.
    asked: Timestamp,
    pass: Pass,
    /// Dropped after the lease is forgotten: whoever looks again then finds it so.
    _running: Running<S>,
}

/// However a flight ends, its lease is no longer renewed.
impl<S: Receipts> Drop for Flight<S> {
    fn drop(&mut self) {
        self.gate.heart.forget(&self.pass);
    }
}

impl<S: Receipts> Flight<S> {
    /// Keeps the lease from now on.
    pub(crate) fn begin(
        gate: Arc<Inner<S>>,
        policy: Arc<Policy>,
        (admit, asked): (AdmitRequest, Timestamp),
        pass: Pass,
    ) -> Arc<Self> {
        gate.keep(pass, policy.lease);
        let running = Running::begin(&gate);
        Arc::new(Self { gate, policy, admit, asked, pass, _running: running })
    }

    /// Runs the request to its end, whoever still listens. The call may have panicked before there was a future.
    pub(crate) async fn run<B, E, F>(
        self: Arc<Self>,
        call: thread::Result<F>,
    ) -> Result<Response<GateBody>, E>
    where
        F: Future<Output = Result<Response<B>, E>> + Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let ran = match call {
            Ok(call) => AssertUnwindSafe(call).catch_unwind().await,
            Err(panic) => Err(panic),
        };
        let landed = ran.map(|ran| ran.map(|response| Landing::of(Arc::clone(&self), response)));
        match landed {
            // In a box: until there is a reply, its way need not be carried along.
            Ok(Ok(landing)) => Ok(Box::pin(landing.land()).await),
            Ok(Err(error)) => {
                self.break_off().await;
                Err(error)
            }
            Err(_panic) => {
                self.break_off().await;
                Ok(Problem::Panicked.answer(&self.policy))
            }
        }
    }

    async fn dies_at(&self, point: CrashPoint) -> bool {
        self.gate.probe.reach(point).await.is_err()
    }

    /// The handler did not come to its end. What it did before, nobody knows.
    async fn break_off(&self) {
        match self.policy.on_doubt {
            OnDoubt::Retry => self.withdraw().await,
            OnDoubt::Block => self.doubt().await,
        }
    }

    async fn withdraw(&self) {
        if let Err(error) = self.gate.store.withdraw(&self.pass).await {
            tracing::warn!(error = %error.chain(), "a key could not be freed; it is when its lease is over");
        }
    }

    async fn pump<B>(
        self: Arc<Self>,
        parts: Box<Parts>,
        mut body: std::pin::Pin<Box<B>>,
        client: mpsc::UnboundedSender<Parcel>,
    ) where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut copy, room) = (Some(BytesMut::new()), Arc::new(Semaphore::new(UNDER_WAY)));
        let (mut trailers, mut last) = (None, None);
        // Until the client is gone, or does not read: then, how much it has missed.
        let (mut client, mut missed) = (Some(client), 0);
        while let Some(piece) = next_piece(&mut body, self.policy.stall).await {
            let frame = match piece {
                Ok(frame) => frame,
                Err(error) => {
                    self.doubt().await;
                    client.map(|client| client.send((Some(Err(error)), None)));
                    return;
                }
            };
            if let Some(data) = frame.data_ref() {
                let is_room = |copy: &BytesMut| copy.len() + data.len() <= self.policy.max_response_body;
                copy = copy.filter(is_room);
                if let Some(copy) = &mut copy {
                    copy.extend_from_slice(data);
                }
            }
            if let Some(all) = frame.trailers_ref() {
                trailers = Some(all.clone());
            }
            let Some(before) = last.replace(frame) else { continue };
            missed += before.data_ref().map_or(0, Bytes::len);
            // What is kept anyway need not wait for the client to read; a client that is gone misses it.
            let place = match (&copy, &client) {
                (Some(_), _) => Some(None),
                (None, Some(_)) => place(&room, self.policy.stall).await.map(Some),
                (None, None) => None,
            };
            client = client
                .filter(|client| place.is_some_and(|place| client.send((Some(Ok(before)), place)).is_ok()));
            if client.is_some() {
                missed = 0;
            } else if copy.is_none() && !(record::is_grpc(&parts.headers) && missed < TO_ITS_TRAILERS) {
                // Nobody reads it and nobody keeps it: there may be no end.
                break;
            }
        }
        let copy = copy.map(BytesMut::freeze);
        self.end(&parts, copy.as_ref(), trailers.as_ref()).await;
        // One that has missed something is not told that this was all.
        let Some(client) = client else { return };
        if let Some(last) = last {
            client.send((Some(Ok(last)), None)).ok();
        }
        client.send((None, None)).ok();
    }

    async fn doubt(&self) {
        if let Err(error) = self.gate.store.doubt(&self.pass).await {
            tracing::warn!(error = %error.chain(), "an unknown outcome could not be noted");
        }
    }

    /// Keeps the reply, or frees the key if it is none to keep.
    async fn end(self: Arc<Self>, parts: &Parts, body: Option<&Bytes>, trailers: Option<&HeaderMap>) {
        if self.dies_at(CrashPoint::H6).await {
            return;
        }
        // All others were judged by their heads.
        if record::is_grpc(&parts.headers) && !record::is_kept(parts, trailers, &self.policy) {
            return self.withdraw().await;
        }
        let reply = record::reply(parts, body, trailers, &self.policy);
        let late = |_| Err(Error::new(Kind::Unavailable, "the store did not answer"));
        let sealed = within(PATIENCE, self.gate.store.seal(&self.pass, &reply)).await;
        match sealed.unwrap_or_else(late) {
            Ok(()) => self.remember(reply).await,
            Err(error) if error.kind() == Kind::Fenced => {
                tracing::warn!(
                    "a request took longer than its lease and was admitted once more, or its receipt is gone"
                );
            }
            Err(error) => {
                tracing::warn!(error = %error.chain(), "a reply could not be kept yet");
                tokio::spawn(self.seal_later(reply));
            }
        }
    }

    /// It is sealed: from here on it stays as it is.
    async fn remember(&self, reply: Reply) {
        if self.dies_at(CrashPoint::H2).await {
            return;
        }
        self.gate.cache.keep(&self.admit, self.asked, self.policy.replays_for(self.admit.ttl), reply);
    }

    /// The client has its reply. As long as this goes on, copies are refused.
    async fn seal_later(self: Arc<Self>, reply: Reply) {
        for pause in AGAIN {
            tokio::time::sleep(pause).await;
            match self.gate.store.seal(&self.pass, &reply).await {
                Ok(()) => return self.remember(reply).await,
                Err(error) if error.kind() == Kind::Fenced => return,
                Err(_) => {}
            }
        }
        tracing::error!("a reply could not be kept; when the lease is over, the request may run again");
    }
}

/// A reply on its way to the client.
struct Landing<S: Receipts, B> {
    flight: Arc<Flight<S>>,
    /// In a box: each step of the way would carry its room along.
    parts: Box<Parts>,
    body: B,
}

impl<S: Receipts, B> Landing<S, B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    fn of(flight: Arc<Flight<S>>, response: Response<B>) -> Self {
        let (parts, body) = response.into_parts();
        Self { flight, parts: Box::new(parts), body }
    }

    async fn land(mut self) -> Response<GateBody> {
        let policy = &self.flight.policy;
        if self.parts.extensions.remove::<Doubt>().is_some() {
            self.flight.doubt().await;
            return self.hand_on();
        }
        if self.parts.extensions.remove::<Untouched>().is_some() {
            self.flight.withdraw().await;
            return self.hand_on();
        }
        if record::is_endless(&self.parts) {
            tracing::warn!("a reply whose end cannot be seen cannot be kept; its key is free again");
            telemetry::bypassed();
            self.flight.withdraw().await;
            return self.hand_on();
        }
        let may_be_kept = record::is_grpc(&self.parts.headers) || record::is_kept(&self.parts, None, policy);
        if !may_be_kept {
            self.flight.withdraw().await;
            return self.hand_on();
        }
        let size = self.body.size_hint().exact();
        if size.is_some_and(|size| size <= policy.max_response_body as u64) {
            self.collect().await
        } else {
            self.tee()
        }
    }

    /// As it is, kept or not.
    fn hand_on(self) -> Response<GateBody> {
        Response::from_parts(*self.parts, body::other(self.body))
    }

    /// The client gets its reply when it is kept.
    async fn collect(self) -> Response<GateBody> {
        let Self { flight, parts, body } = self;
        let Ok(Gathered { data, trailers }) = body::gather(body, flight.policy.stall, usize::MAX).await
        else {
            // It has run, and what it did nobody knows.
            flight.doubt().await;
            return Problem::ReplyBroken.answer(&flight.policy);
        };
        flight.end(&parts, Some(&data), trailers.as_ref()).await;
        Response::from_parts(*parts, body::whole(data, trailers))
    }

    /// The client gets each piece as it comes, but for the last one: that it
    /// gets when all of it is kept.
    fn tee(self) -> Response<GateBody> {
        let Self { flight, parts, body } = self;
        let (client, pieces) = mpsc::unbounded_channel();
        tokio::spawn(flight.pump(parts.clone(), Box::pin(body), client));
        Response::from_parts(*parts, body::handed(pieces))
    }
}

/// The next piece; one that does not come in time is an error.
async fn next_piece<B>(body: &mut std::pin::Pin<Box<B>>, patience: Duration) -> Option<Piece>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    match tokio::time::timeout(patience, body.frame()).await {
        Ok(piece) => piece.map(|piece| piece.map_err(Into::into)),
        Err(_elapsed) => Some(Err("the reply stood still".into())),
    }
}

/// Room on the way to a client, when it has read enough.
async fn place(room: &Arc<Semaphore>, patience: Duration) -> Option<OwnedSemaphorePermit> {
    tokio::time::timeout(patience, Arc::clone(room).acquire_owned()).await.ok()?.ok()
}
