//! What stands between a broker's stream and a feed: order by key and delayed
//! retries where the broker offers neither.
//!
//! A delivery is kept here until the broker has heard its answer. When ordered,
//! one delivery of a (tenant, key) is out at a time and a refused one is handed
//! out again, after its delay, before the next of its key. The feed pushes what
//! arrives while there is room, takes what may go, and otherwise waits for
//! [`Lanes::changed`].
//!
//! Order costs room: the messages of a key that waits for a long delay stay
//! here, and once they fill the prefetch the other keys wait too.

mod shelf;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use oncebox_core::log::LaneKey;
use oncebox_core::{Acknowledge, Delivery, Error, Kind, Result};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;

use self::shelf::{Number, Shelf};

/// How long a delivery waits here when the broker did not hear its answer.
const UNHEARD_DELAY: Duration = Duration::from_secs(1);
/// A delay that means "never" to every clock: some thirty years.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// How one broker is told what became of a delivery.
///
/// A call that failed or was dropped half-way is made again later, so an answer
/// the broker would take amiss twice must remember that it was given. Calls
/// bound their own time.
pub trait Answer: Send + Sync + 'static {
    /// It is done; never deliver it again.
    ///
    /// # Errors
    /// [`Kind::Unavailable`]: it is handed out again.
    fn ack(&self) -> impl Future<Output = Result<()>> + Send;

    /// The broker's turn to deliver it again, not before `after`. It was handed
    /// out as `attempt` and comes next as that plus one if `spent`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`]: it waits here instead.
    fn give_back(
        &self,
        after: Duration,
        spent: bool,
        attempt: u32,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Tells the broker that somebody is still at it.
    fn keep_alive(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// What the broker calls the message, if it may deliver it again while it
    /// is still here: such a copy is dropped.
    fn identity(&self) -> Option<u64> {
        None
    }
}

/// What a feed wants of its lanes.
#[derive(Clone, Copy, Debug)]
pub struct LanesOptions {
    /// One delivery of a key out at a time, in order.
    pub ordered: bool,
    /// The longest delay of an unordered delivery that is waited for here; the
    /// broker sees to longer ones.
    pub hold: Duration,
    /// The most deliveries that are here or out at once.
    pub prefetch: usize,
    /// How often the broker is told that somebody is still at it, if it must be.
    pub keep_alive: Option<Duration>,
}

impl Default for LanesOptions {
    fn default() -> Self {
        Self { ordered: true, hold: Duration::from_secs(10), prefetch: 100, keep_alive: None }
    }
}

/// The deliveries of one feed. Dropped with the feed, it gives back to the
/// broker, in order, what is not out; what is out can still be answered.
pub struct Lanes<A: Answer> {
    shared: Arc<Shared<A>>,
}

struct Shared<A> {
    shelf: Mutex<Shelf<A>>,
    changed: Notify,
    options: LanesOptions,
}

impl<A: Answer> Lanes<A> {
    /// Lanes without deliveries. Within a runtime, if it is to keep alive.
    #[must_use]
    pub fn new(options: LanesOptions) -> Self {
        let shared = Arc::new(Shared { shelf: Mutex::default(), changed: Notify::new(), options });
        if let Some(every) = options.keep_alive {
            // A task of its own: nobody waits for the next delivery while all handlers are busy.
            in_background(keep_alive(Arc::downgrade(&shared), every));
        }
        Self { shared }
    }

    /// How many more deliveries may be pushed.
    #[must_use]
    pub fn room(&self) -> usize {
        self.shared.options.prefetch.max(1).saturating_sub(self.shared.shelf().len())
    }

    /// Takes in what the broker delivered. The caller keeps to [`Self::room`].
    pub fn push(&mut self, delivery: Delivery<A>) {
        let lane = if self.shared.options.ordered { LaneKey::of(&delivery.envelope) } else { None };
        if !self.shared.shelf().push(delivery, lane) {
            debug!("lanes.copy_dropped");
        }
    }

    /// A delivery that may go now.
    pub fn take(&mut self) -> Option<Delivery<LaneAck<A>>> {
        let Delivery { envelope, attempt, ack: number } = self.shared.shelf().take(Instant::now())?;
        let ack = LaneAck { shared: Arc::clone(&self.shared), number, is_answered: false };
        Some(Delivery { envelope, attempt, ack })
    }

    /// Waits until [`Self::take`] or [`Self::room`] may have something. Cancel
    /// safe; may return for nothing.
    pub async fn changed(&self) {
        let due = self.shared.shelf().next_due();
        match due {
            None => self.shared.changed.notified().await,
            Some(until) => tokio::select! {
                () = self.shared.changed.notified() => {}
                () = sleep_until(until) => {}
            },
        }
    }

    /// The connection is gone and the broker will deliver everything again:
    /// forgets what is here. What is out goes on blocking its key until it is
    /// answered; the answer itself is lost.
    pub fn reset(&mut self) {
        self.shared.shelf().reset();
    }

    /// Closes the lanes and hands over what is not out, in order of arrival, for
    /// a feed that knows a quicker way back than one by one.
    pub fn drain_unanswered(&mut self) -> Vec<Delivery<Arc<A>>> {
        self.shared.shelf().close()
    }
}

impl<A: Answer> Drop for Lanes<A> {
    fn drop(&mut self) {
        let rest = self.drain_unanswered();
        if rest.is_empty() {
            return;
        }
        in_background(async move {
            for Delivery { attempt, ack, .. } in rest {
                if let Err(error) = ack.give_back(Duration::ZERO, false, attempt).await {
                    debug!(error = error.chain(), "lanes.not_given_back");
                }
            }
        });
    }
}

impl<A: Answer> fmt::Debug for Lanes<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl<A> Shared<A> {
    /// No operation of the shelf panics half-way.
    fn shelf(&self) -> MutexGuard<'_, Shelf<A>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to one delivery; valid even when its feed is gone. Dropped
/// unanswered, the delivery is handed out again at once.
pub struct LaneAck<A: Answer> {
    shared: Arc<Shared<A>>,
    number: Number,
    is_answered: bool,
}

impl<A: Answer> Acknowledge for LaneAck<A> {
    /// The next of the key goes when the broker was told.
    async fn ack(mut self) -> Result<()> {
        let (answer, _) = self.standing()?;
        match answer.ack().await {
            Ok(()) => {
                self.finish();
                Ok(())
            }
            Err(error) => {
                self.put_back(UNHEARD_DELAY, false);
                Err(error)
            }
        }
    }

    async fn nack(mut self, after: Duration, spent: bool) -> Result<()> {
        let (answer, attempt) = self.standing()?;
        let may_stay = {
            let mut shelf = self.shared.shelf();
            let may_stay = self.may_stay(&shelf, after);
            if !may_stay {
                shelf.leave(self.number);
            }
            may_stay
        };
        if may_stay {
            self.put_back(after, spent);
            return Ok(());
        }
        match answer.give_back(after, spent, attempt).await {
            Ok(()) => {
                self.finish();
                Ok(())
            }
            Err(error) => {
                self.put_back(after, spent);
                Err(error)
            }
        }
    }
}

impl<A: Answer> LaneAck<A> {
    /// How to answer, and the attempt; an error if the connection was lost meanwhile.
    fn standing(&self) -> Result<(Arc<A>, u32)> {
        self.shared.shelf().standing(self.number).ok_or_else(|| {
            Error::new(Kind::Unavailable, "the connection it came by is gone; it will be delivered again")
        })
    }

    /// A key that keeps its order has to wait here; what has none may, as long
    /// as it leaves room for others.
    fn may_stay(&self, shelf: &Shelf<A>, after: Duration) -> bool {
        let options = &self.shared.options;
        let is_crowded = shelf.delayed() >= options.prefetch.div_ceil(2);
        let is_short = after.is_zero() || (after <= options.hold && !is_crowded);
        !shelf.is_closed() && (shelf.is_in_lane(self.number) || is_short)
    }

    fn finish(&mut self) {
        self.is_answered = true;
        self.shared.shelf().finish(self.number);
        self.shared.changed.notify_one();
    }

    fn put_back(&mut self, after: Duration, spent: bool) {
        self.is_answered = true;
        let until = (!after.is_zero()).then(|| Instant::now() + after.min(FOREVER));
        let returned = self.shared.shelf().put_back(self.number, until, spent);
        self.shared.changed.notify_one();
        // The feed is gone, so that nobody would hand it out again.
        if let Some(Delivery { attempt, ack, .. }) = returned {
            in_background(async move {
                if let Err(error) = ack.give_back(after, false, attempt).await {
                    debug!(error = error.chain(), "lanes.not_given_back");
                }
            });
        }
    }
}

impl<A: Answer> Drop for LaneAck<A> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.put_back(Duration::ZERO, false);
        }
    }
}

impl<A: Answer> fmt::Debug for LaneAck<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneAck").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Ends when the lanes and the last answer are gone.
async fn keep_alive<A: Answer>(lanes: Weak<Shared<A>>, every: Duration) {
    loop {
        sleep(every).await;
        let Some(shared) = lanes.upgrade() else { return };
        let answers = shared.shelf().answers();
        drop(shared);
        let round = async {
            for answer in &answers {
                answer.keep_alive().await;
            }
        };
        if timeout(every, round).await.is_err() {
            debug!(answers = answers.len(), "lanes.keep_alive_slow");
        }
    }
}

/// Without a runtime nothing can be said to the broker; it notices by itself.
fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(work));
    }
}
