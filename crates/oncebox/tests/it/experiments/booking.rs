//! A handler that books by what a message says, not by its id: whoever sends
//! the same booking twice under two ids is found out by the ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncebox::{Context, Envelope, Handler, HandlerError, HandlerKey, Message, Store};
use oncebox_conformance::sample::Posted;
use oncebox_conformance::{Entry, StoreFixture};

use super::bodies::HANDLER;

/// Books each message as the operation it stands for.
pub(super) struct Booking<F> {
    fixture: Arc<F>,
    /// How often it ran.
    pub(super) runs: Arc<AtomicUsize>,
}

impl<F> Booking<F> {
    pub(super) fn new(fixture: &Arc<F>) -> Self {
        Self { fixture: Arc::clone(fixture), runs: Arc::default() }
    }
}

/// The effect an operation must have on this ledger, once.
pub(super) fn operation(handler: &str, message: &Posted) -> Entry {
    let account = message.account.as_deref().unwrap_or_default();
    Entry {
        handler: handler.into(),
        id: format!("{account}/{}", message.sequence),
        key: message.account.clone(),
        sequence: message.sequence,
        amount: message.amount,
    }
}

/// The operation an envelope carries.
pub(super) fn booked(envelope: &Envelope) -> Entry {
    operation(HANDLER, &Posted::decode(&envelope.payload).unwrap())
}

impl<F: StoreFixture> Handler<<F::Store as Store>::Tx> for Booking<F> {
    type Message = Posted;

    fn key(&self) -> HandlerKey {
        HandlerKey::new(HANDLER)
    }

    async fn handle(
        &self,
        cx: &mut Context<'_, <F::Store as Store>::Tx>,
        message: Posted,
    ) -> Result<(), HandlerError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.fixture.effect(cx.tx(), &operation(HANDLER, &message)).await
    }
}
