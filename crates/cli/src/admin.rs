//! A port for operators beside the work. It is answered from a thread of its
//! own, so that it answers whatever the others are busy with.

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;

use crate::fault::Fault;

/// Answers as long as the process lives: while it drains, too, and while a
/// blocked thread holds up everything else.
pub(crate) fn serve(listener: TcpListener, router: Router) -> Result<(), Fault> {
    let listener = listener.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = async move {
        let listener = TcpListener::from_std(listener)?;
        axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
    };
    let thread = std::thread::Builder::new().name("admin".into());
    thread.spawn(move || {
        if let Err(error) = runtime.block_on(served) {
            tracing::error!(%error, "admin.stopped");
        }
    })?;
    Ok(())
}
