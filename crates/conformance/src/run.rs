//! Runs one case on a fixture of its own.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use crate::fixture::{StoreFixture, TransportFixture};
use crate::path::scene::Scene;
use crate::size::sized;

/// No case may take longer: one that waits for ever has found a bug.
fn patience() -> Duration {
    Duration::from_secs(sized(300, 3_600))
}

/// Runs a case of the store suite, or of the path suite if it makes its scenes itself.
pub fn on_store<F, C, Fut>(case: C)
where
    F: StoreFixture,
    C: FnOnce(Arc<F>) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    runtime().block_on(async {
        let Some(fixture) = F::fresh().await.map(Arc::new) else { return };
        let outcome = bounded(case(Arc::clone(&fixture))).await;
        fixture.clean().await;
        conclude(outcome);
    });
}

/// Runs a case of the transport suite.
pub fn on_transport<F, C, Fut>(case: C)
where
    F: TransportFixture,
    C: FnOnce(Arc<F>) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    runtime().block_on(async {
        let Some(fixture) = F::fresh().await.map(Arc::new) else { return };
        let outcome = bounded(case(Arc::clone(&fixture))).await;
        fixture.clean().await;
        conclude(outcome);
    });
}

/// Runs a case of the path suite over the in-process transport.
pub fn on_path<F, C, Fut>(case: C)
where
    F: StoreFixture,
    C: FnOnce(Scene<F>) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    on_store(|fixture: Arc<F>| case(Scene::new(&fixture)));
}

/// Runs a case of the path suite on a store and over a transport.
pub fn on_pair<F, T, C, Fut>(case: C)
where
    F: StoreFixture,
    T: TransportFixture,
    C: FnOnce(Scene<F, T::Transport>) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    runtime().block_on(async {
        let Some(transports) = T::fresh().await else { return };
        let Some(stores) = F::fresh().await.map(Arc::new) else { return transports.clean().await };
        let outcome = bounded(case(Scene::over(&stores, transports.transport()))).await;
        transports.clean().await;
        stores.clean().await;
        conclude(outcome);
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

type Outcome = Result<Result<(), tokio::task::JoinError>, tokio::time::error::Elapsed>;

/// In a task, so that a case that panics is still cleaned up after.
async fn bounded(case: impl Future<Output = ()> + Send + 'static) -> Outcome {
    tokio::time::timeout(patience(), tokio::spawn(case)).await
}

fn conclude(outcome: Outcome) {
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(died)) => resume_unwind(died.into_panic()),
        Err(_elapsed) => panic!("the case was not over after {:?}", patience()),
    }
}
