//! Signs what leaves, with keys that can be changed while it runs.

use std::sync::{Arc, PoisonError, RwLock};

use oncebox_core::signature::Keyring;
use oncebox_core::transport::{Failure, Publisher};
use oncebox_core::{Envelope, Result};
use oncebox_flow::signing::Signing;

/// A publisher that signs if it has keys. Clones share them.
#[derive(Clone)]
pub(crate) struct Signer<P> {
    publisher: P,
    keyring: Arc<RwLock<Option<Keyring>>>,
}

impl<P: Publisher + Clone> Signer<P> {
    pub(crate) fn new(publisher: P, keyring: Option<Keyring>) -> Self {
        Self { publisher, keyring: Arc::new(RwLock::new(keyring)) }
    }

    /// Signs with these keys from the next batch on.
    pub(crate) fn replace(&self, keyring: Option<Keyring>) {
        *self.keyring.write().unwrap_or_else(PoisonError::into_inner) = keyring;
    }
}

impl<P: Publisher + Clone> Publisher for Signer<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let keyring = self.keyring.read().unwrap_or_else(PoisonError::into_inner).clone();
        match keyring {
            None => self.publisher.publish(batch).await,
            Some(keyring) => Signing::new(self.publisher.clone(), keyring).publish(batch).await,
        }
    }
}
