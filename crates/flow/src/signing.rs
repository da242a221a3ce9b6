//! Signs what a relay sends.

use std::borrow::Cow;
use std::time::Duration;

use oncebox_core::signature::HEADER;
use oncebox_core::{Envelope, Failure, Inspection, Keyring, Preflight, Publisher, Result};

/// A publisher whose messages carry a signature of their identity and body.
///
/// A message is signed when it is sent and not when it is put, because its time
/// is part of what is signed and the database fills it in.
#[derive(Clone, Debug)]
pub struct Signing<P> {
    publisher: P,
    keyring: Keyring,
}

impl<P> Signing<P> {
    /// Signs everything `publisher` sends with the first key of `keyring`.
    pub const fn new(publisher: P, keyring: Keyring) -> Self {
        Self { publisher, keyring }
    }
}

impl<P: Publisher> Publisher for Signing<P> {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        let signed: Vec<Envelope> = batch
            .iter()
            .map(|envelope| {
                let mut signed = envelope.clone();
                signed.headers.insert(HEADER.to_owned(), self.keyring.sign(envelope));
                signed
            })
            .collect();
        self.publisher.publish(&signed).await
    }

    fn destination<'e>(&'e self, envelope: &'e Envelope) -> Option<Cow<'e, str>> {
        self.publisher.destination(envelope)
    }
}

impl<P: Preflight + Sync> Preflight for Signing<P> {
    async fn inspect(&self, destinations: &[String], horizon: Duration) -> Result<Vec<Inspection>> {
        self.publisher.inspect(destinations, horizon).await
    }
}
