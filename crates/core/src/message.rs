//! A message as the user's code knows it: a type with a stable name.

use std::borrow::Cow;

use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Error, Kind, Result};

/// A typed payload.
///
/// The name is part of the stored data and of the wire format: it is written
/// out, never derived from the type, so that renaming a type orphans nothing.
///
/// ```
/// use oncebox_core::Message;
/// use serde::{Deserialize, Serialize};
/// use std::borrow::Cow;
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { order_id: i64 }
///
/// impl Message for OrderPlaced {
///     const NAME: &'static str = "order.placed.v1";
///     fn key(&self) -> Option<Cow<'_, str>> { Some(self.order_id.to_string().into()) }
/// }
/// ```
pub trait Message: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The stable name, for instance `order.placed.v1`.
    const NAME: &'static str;
    /// The version of the payload's schema.
    const VERSION: u32 = 1;
    /// Where messages of this type go unless a route says otherwise; the name if `None`.
    const DESTINATION: Option<&'static str> = None;
    /// The media type of [`encode`](Self::encode)'s bytes.
    const CONTENT_TYPE: &'static str = "application/json";

    /// The ordering key: messages with equal keys keep their order.
    fn key(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// The payload as bytes. JSON unless overridden.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if the value has no such form.
    fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(Kind::Invalid, format!("cannot encode message {}", Self::NAME)).because(error)
        })
    }

    /// The value back from its bytes. JSON unless overridden.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if the bytes are not such a message.
    fn decode(payload: &[u8]) -> Result<Self> {
        serde_json::from_slice(payload).map_err(|error| {
            Error::new(Kind::Corrupt, format!("cannot decode message {}", Self::NAME)).because(error)
        })
    }
}
