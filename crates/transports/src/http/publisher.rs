//! Posts batches: messages of one key one after the other, different keys side
//! by side, and no more at once than a destination can take.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use oncebox_core::log::LaneKey;
use oncebox_core::transport::Class;
use oncebox_core::{Envelope, Failure, Publisher, Result};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::breaker::Breaker;
use super::connection::{BoundedConnector, HttpClient, client};
use super::error::{self, Blame};
use super::options::{Directory, HttpOptions, Place};
use super::wire::{self, Form};

/// The most requests at once, over all destinations.
const MAX_REQUESTS: usize = 64;
/// The most destinations remembered.
const MAX_SITES: usize = 1_000;
/// The most of an answer's body that is read; a connection with more is closed.
const MAX_BODY_BYTES: usize = 16 * 1024;
/// How long the rest of an answer is waited for.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Posts messages. Clones share their connections and what they know of destinations.
#[derive(Clone)]
pub struct Http {
    inner: Arc<Inner>,
}

struct Inner {
    options: HttpOptions,
    directory: Directory,
    client: HttpClient,
    connector: BoundedConnector,
    seats: Semaphore,
    sites: Mutex<HashMap<String, Arc<Site>>>,
}

/// What is known of one destination.
struct Site {
    seats: Semaphore,
    breaker: Mutex<Breaker>,
}

impl Http {
    /// A publisher. Connects when there is something to send.
    ///
    /// # Errors
    /// [`Kind::Config`](oncebox_core::Kind::Config) if a URL, a header, a timeout or a certificate cannot be used.
    pub fn new(options: HttpOptions) -> Result<Self> {
        let directory = options.directory()?;
        let connector = BoundedConnector::new(&options)?;
        let client = client(connector.clone(), options.concurrency);
        let seats = Semaphore::new(MAX_REQUESTS);
        let sites = Mutex::default();
        Ok(Self { inner: Arc::new(Inner { options, directory, client, connector, seats, sites }) })
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.inner.directory
    }

    pub(super) fn connector(&self) -> BoundedConnector {
        self.inner.connector.clone()
    }

    /// Sends messages of one key until one fails; the others must not overtake it.
    async fn post_lane(
        &self,
        batch: &[Envelope],
        lane: Vec<usize>,
        deadline: Instant,
    ) -> Vec<(usize, Result<(), Failure>)> {
        let mut results = Vec::with_capacity(lane.len());
        let mut failed = None;
        for index in lane {
            let Some(envelope) = batch.get(index) else { continue };
            let result = match failed {
                None => self.post(envelope, deadline).await,
                Some(Class::Pending) => Err(Failure::pending("it is behind one of its key that waits")),
                // A refused message says nothing about its destination, so neither do those behind it.
                Some(Class::Message) => Err(Failure::pending("it is behind one of its key that was refused")),
                Some(Class::Destination | Class::Unknown) => {
                    Err(Failure::destination("it is behind one of its key that failed"))
                }
            };
            failed = failed.or(result.as_ref().err().map(|failure| failure.class));
            results.push((index, result));
        }
        results
    }

    async fn post(&self, envelope: &Envelope, deadline: Instant) -> Result<(), Failure> {
        let place = self.inner.directory.find(&envelope.destination)?;
        let site = self.site(&envelope.destination);
        let seated = timeout_at(deadline, async {
            Some((site.seats.acquire().await.ok()?, self.inner.seats.acquire().await.ok()?))
        });
        // A seat that is free is given even after the deadline.
        let Some(_seats) = seated.await.ok().flatten().filter(|_| Instant::now() < deadline) else {
            return Err(Failure::pending(format!(
                "{} is slow; the message has to wait its turn",
                place.label
            )));
        };
        let options = &self.inner.options;
        let form = Form { mode: options.mode, keys: options.keys.as_ref(), now: SystemTime::now() };
        let request = wire::request(envelope, &place, form)?;
        let attempt = Attempt::begin(&site, &place)?;
        let outcome = match timeout(options.timeout, self.inner.client.request(request)).await {
            Err(_elapsed) => Err(error::too_slow(&place.label, options.timeout)),
            Ok(Err(failed)) => Err(error::no_answer(&place.label, &failed)),
            Ok(Ok(response)) => read(response, &place).await,
        };
        attempt.end(outcome)
    }

    /// Forgets destinations that work rather than remember any number of them.
    fn site(&self, destination: &str) -> Arc<Site> {
        let mut sites = lock(&self.inner.sites);
        if let Some(site) = sites.get(destination) {
            return Arc::clone(site);
        }
        if sites.len() >= MAX_SITES {
            sites.retain(|_, site| Arc::strong_count(site) > 1 || !lock(&site.breaker).is_idle());
        }
        if sites.len() >= MAX_SITES {
            sites.retain(|_, site| Arc::strong_count(site) > 1);
        }
        let seats = Semaphore::new(self.inner.options.concurrency);
        let site = Arc::new(Site { seats, breaker: Mutex::default() });
        sites.insert(destination.to_owned(), Arc::clone(&site));
        site
    }
}

impl Publisher for Http {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let deadline = Instant::now() + self.inner.options.window;
        let mut results = vec![Err(Failure::pending("it was not sent")); batch.len()];
        let lanes = lanes(batch).into_iter().map(|lane| self.post_lane(batch, lane, deadline));
        let mut posting: FuturesUnordered<_> = lanes.collect();
        while let Some(posted) = posting.next().await {
            for (index, result) in posted {
                if let Some(slot) = results.get_mut(index) {
                    *slot = result;
                }
            }
        }
        results
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

/// The places in the batch of each key's messages; what has no key is alone.
fn lanes(batch: &[Envelope]) -> Vec<Vec<usize>> {
    let mut lanes: Vec<Vec<usize>> = Vec::new();
    let mut by_key: HashMap<LaneKey, usize> = HashMap::new();
    for (index, envelope) in batch.iter().enumerate() {
        let lane = LaneKey::of(envelope).map_or(lanes.len(), |key| *by_key.entry(key).or_insert(lanes.len()));
        match lanes.get_mut(lane) {
            Some(lane) => lane.push(index),
            None => lanes.push(vec![index]),
        }
    }
    lanes
}

/// A request the breaker has let pass; dropped half-way, it leaves its place to another.
struct Attempt<'s> {
    site: &'s Site,
    is_over: bool,
}

impl<'s> Attempt<'s> {
    fn begin(site: &'s Site, place: &Place) -> Result<Self, Failure> {
        lock(&site.breaker).admit(Instant::now()).map_err(|refusal| {
            let reason =
                format!("{} is left alone after failures, the last: {}", place.label, refusal.reason);
            Failure::destination(reason).after(refusal.wait)
        })?;
        Ok(Self { site, is_over: false })
    }

    fn end(mut self, outcome: Result<(), Blame>) -> Result<(), Failure> {
        self.is_over = true;
        let mut breaker = lock(&self.site.breaker);
        match outcome {
            Err(Blame { failure, is_down: true, wish }) => {
                breaker.fail(Instant::now(), &failure.reason, wish);
                Err(failure)
            }
            Err(Blame { failure, .. }) => {
                breaker.succeed();
                Err(failure)
            }
            Ok(()) => {
                breaker.succeed();
                Ok(())
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            lock(&self.site.breaker).abandon(Instant::now());
        }
    }
}

/// Judges an answer. Its head decides; the body is read to quote from it and to
/// have the connection back, neither of which is worth a long wait.
async fn read(response: hyper::Response<Incoming>, place: &Place) -> Result<(), Blame> {
    let (head, mut body) = response.into_parts();
    let mut begin = Vec::new();
    _ = timeout(BODY_TIMEOUT, async {
        while let Some(Ok(frame)) = body.frame().await {
            begin.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            if begin.len() > MAX_BODY_BYTES {
                return;
            }
        }
    })
    .await;
    if head.status.is_success() {
        return Ok(());
    }
    let (status, headers, now) = (head.status, &head.headers, SystemTime::now());
    Err(error::Refusal { status, headers, body: &begin, now }.blame(&place.label))
}

/// Nothing here panics while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use oncebox_conformance::sample::{keyed, plain};

    use super::*;

    #[test]
    fn messages_of_a_key_share_a_lane_and_others_have_their_own() {
        let of = |tenant: &str| Envelope { tenant: tenant.into(), ..keyed("x", "a") };
        let batch = [keyed("1", "a"), plain("2"), keyed("3", "b"), keyed("4", "a"), plain("5"), of("other")];

        assert_eq!(lanes(&batch), [vec![0, 3], vec![1], vec![2], vec![4], vec![5]]);
    }

    #[tokio::test]
    async fn the_number_of_remembered_destinations_is_bounded() {
        let http = Http::new(HttpOptions::new()).unwrap();

        for n in 0..3 * MAX_SITES {
            lock(&http.site(&n.to_string()).breaker).fail(Instant::now(), "down", None);
        }

        assert!(lock(&http.inner.sites).len() <= MAX_SITES);
    }
}
