//! Messages being handled in this process. A second copy is turned away here
//! at once instead of holding a connection while it waits on the marker.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use oncebox_core::HandlerKey;
use oncebox_core::handler::MessageKey;

type Flight = (HandlerKey, String, MessageKey);

/// The set of messages in flight. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights(Arc<Mutex<HashSet<Flight>>>);

impl Flights {
    /// A seat for this message, or `None` if a copy is in flight.
    pub(super) fn board(&self, handler: HandlerKey, tenant: &str, key: &MessageKey) -> Option<Seat> {
        let flight = (handler, tenant.to_owned(), key.clone());
        let boarded = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(flight.clone());
        boarded.then(|| Seat { flights: self.clone(), flight })
    }
}

/// Held while a message is in flight.
#[derive(Debug)]
pub(super) struct Seat {
    flights: Flights,
    flight: Flight,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.flights.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.flight);
    }
}
