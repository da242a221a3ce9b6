//! Leases are renewed from a thread of their own: a handler that computes
//! without ever yielding holds up the runtime's threads, but not this one.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

static HEART: OnceLock<Option<Handle>> = OnceLock::new();

/// Runs `beat` on the heart's thread, or here if there can be none, for as
/// long as the answer is held: nobody's leases are renewed without an owner.
pub(super) fn spawn(beat: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(match HEART.get_or_init(start) {
        Some(heart) => heart.spawn(beat),
        None => tokio::spawn(beat),
    })
}

fn start() -> Option<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let handle = runtime.handle().clone();
    let body = move || runtime.block_on(std::future::pending::<()>());
    std::thread::Builder::new().name("oncebox-heart".into()).spawn(body).ok()?;
    Some(handle)
}
