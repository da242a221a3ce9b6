//! What a request hands on to the messages that are put while it runs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, HeaderName};
use oncebox_core::Envelope;
use tokio::task::futures::TaskLocalFuture;

use crate::service::IdempotencyKey;

const CORRELATION: HeaderName = HeaderName::from_static("x-correlation-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

tokio::task_local! {
    /// The request that this task handles.
    static CURRENT: Arc<Current>;
}

pub(crate) struct Current {
    key: IdempotencyKey,
    correlation: Option<String>,
    traceparent: Option<String>,
    /// Messages so far: a second run puts them in the same order.
    messages: AtomicUsize,
}

/// What a handler does as such a request.
pub(crate) type Call<F> = TaskLocalFuture<Arc<Current>, Pin<Box<F>>>;

impl Current {
    pub(crate) fn of(key: IdempotencyKey, headers: &HeaderMap) -> Self {
        let (mut correlation, mut traceparent) = (None, None);
        // In one go: most requests have neither, and to look each up takes longer. The first of several counts.
        for (name, value) in headers {
            let field = match name {
                name if *name == CORRELATION => &mut correlation,
                name if *name == TRACEPARENT => &mut traceparent,
                _ => continue,
            };
            field.get_or_insert_with(|| value.to_str().ok().map(str::to_owned));
        }
        let (correlation, traceparent) = (correlation.flatten(), traceparent.flatten());
        Self { key, correlation, traceparent, messages: AtomicUsize::new(0) }
    }

    /// Calls a handler as this request. What it does is put into a box at once: a future takes its room in each that
    /// it is handed on to, and 17 KiB were moved for a request.
    pub(crate) fn call<F: Future>(self, handler: impl FnOnce() -> F) -> Call<F> {
        let this = Arc::new(self);
        let call = CURRENT.sync_scope(Arc::clone(&this), || Box::pin(handler()));
        CURRENT.scope(this, call)
    }
}

/// Fills in what an envelope does not say itself, from the request that is being
/// handled: its correlation id (the header `X-Correlation-Id`, else one derived
/// from the key), its trace, and a key of the message's own, the same whenever
/// this request runs and puts its messages in the same order. For [`Outbox::enrich`]; outside of a request it does nothing.
///
/// ```
/// # use oncebox_core::Envelope;
/// let mut envelope = Envelope::default();
/// oncebox_gate::carry(&mut envelope);
/// assert_eq!(envelope.correlation_id, None);
/// ```
///
/// [`Outbox::enrich`]: https://docs.rs/oncebox/latest/oncebox/struct.Outbox.html#method.enrich
pub fn carry(envelope: &mut Envelope) {
    CURRENT
        .try_with(|current| {
            let Current { key, correlation, traceparent, messages } = &**current;
            let derived = || key.derive("correlation");
            envelope.correlation_id.get_or_insert_with(|| correlation.clone().unwrap_or_else(derived));
            let purpose = format!("message {} {}", messages.fetch_add(1, Ordering::Relaxed), envelope.kind);
            envelope.idempotency_key.get_or_insert_with(|| key.derive(&purpose));
            if envelope.traceparent.is_none() {
                envelope.traceparent.clone_from(traceparent);
            }
        })
        .ok();
}
