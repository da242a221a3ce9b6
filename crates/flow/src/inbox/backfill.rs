//! A handler that was added later can be given the messages that were stored
//! before it was.

use oncebox_core::depot::{Assigned, Depot, StoredPage};
use oncebox_core::store::Mailbox;
use oncebox_core::{Error, Kind, Result, Timestamp};

use super::Inbox;
use super::handler::Mode;

/// Messages of one transaction.
const PAGE: usize = 200;

impl<S: Mailbox + Depot> Inbox<S> {
    /// Gives the handler `key` the messages of this channel that were accepted
    /// since then and are still stored. What it has already, or has handled,
    /// it is not given again. Tells how many deliveries were added.
    ///
    /// # Errors
    /// [`Kind::Config`] if there is no such durable handler; by kind of the
    /// failed statement. What was added stays added; calling again goes on.
    pub async fn backfill(&self, key: &str, since: Timestamp) -> Result<usize> {
        let inner = &self.inner;
        let handler = inner.handlers.iter().find(|handler| handler.key().as_str() == key);
        let Some(handler) = handler.filter(|handler| inner.mode_of(handler.as_ref()) == Mode::Durable) else {
            let text = format!("channel {} has no durable handler {key}", inner.channel);
            return Err(Error::new(Kind::Config, text));
        };
        let (mut after, mut added) = (0, 0);
        loop {
            let page = StoredPage {
                scope: &inner.scope,
                channel: &inner.channel,
                kind: handler.name(),
                since,
                after,
                limit: PAGE,
            };
            let stored = inner.store.stored(&page).await?;
            let Some(last) = stored.last() else { break };
            after = last.number;
            let mut begun = inner.store.begin().await?;
            for message in &stored {
                let share = inner.share(handler.as_ref(), &message.envelope);
                let assignment = share.assignment();
                let assigned =
                    inner.store.assign(&mut begun, message.number, &assignment, inner.clock.now()).await?;
                added += usize::from(assigned == Assigned::New);
            }
            inner.store.commit(begun).await?;
            inner.stored.hint();
        }
        Ok(added)
    }
}
