//! The signature of a request in the shape of Standard Webhooks: an
//! HMAC-SHA256 over `id.timestamp.body`, one per key, so that a receiver
//! accepts the old and the new key while they are changed.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use oncebox_core::signature::MIN_SECRET_BYTES;
use oncebox_core::{Error, Kind, Result};
use sha2::Sha256;

/// What a secret in base64 begins with.
const PREFIX: &str = "whsec_";

/// Secrets that sign requests, all of them each request. `Debug` shows how many.
#[derive(Clone)]
pub struct WebhookKeys {
    secrets: Vec<Arc<Secret>>,
}

struct Secret(Vec<u8>);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Otherwise the compiler may leave out a write that nobody reads.
        std::hint::black_box(&self.0);
    }
}

impl WebhookKeys {
    /// One secret: base64 behind `whsec_`, or any other text as it is.
    ///
    /// # Errors
    /// [`Kind::Config`] if it is no base64 or too short to be a secret.
    pub fn new(secret: &str) -> Result<Self> {
        Ok(Self { secrets: vec![Arc::new(Secret::parse(secret)?)] })
    }

    /// One more secret, while receivers change from one to the other.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn also(mut self, secret: &str) -> Result<Self> {
        self.secrets.push(Arc::new(Secret::parse(secret)?));
        Ok(self)
    }

    /// The value of `webhook-signature`.
    #[must_use]
    pub fn sign(&self, id: &str, timestamp_seconds: u64, body: &[u8]) -> String {
        let signatures = self.secrets.iter().filter_map(|secret| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).ok()?;
            mac.update(format!("{id}.{timestamp_seconds}.").as_bytes());
            mac.update(body);
            Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

impl Secret {
    fn parse(text: &str) -> Result<Self> {
        let secret = Self(match text.strip_prefix(PREFIX) {
            Some(encoded) => STANDARD.decode(encoded).map_err(|_| {
                Error::new(Kind::Config, "what follows whsec_ in a web hook secret is no base64")
            })?,
            None => text.as_bytes().to_vec(),
        });
        if secret.0.len() < MIN_SECRET_BYTES {
            let message = format!("a web hook secret must have at least {MIN_SECRET_BYTES} bytes");
            return Err(Error::new(Kind::Config, message));
        }
        Ok(secret)
    }
}

impl fmt::Debug for WebhookKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookKeys").field("secrets", &self.secrets.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn the_published_example_is_signed_alike() {
        let keys = WebhookKeys::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();

        let signature = keys.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);

        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn every_key_signs_and_no_key_is_shown() {
        let keys =
            WebhookKeys::new("the old secret of ours").unwrap().also("the new secret of ours").unwrap();

        let signature = keys.sign("1", 2, b"body");

        assert_eq!(signature.split(' ').count(), 2);
        assert!(signature.split(' ').all(|part| part.starts_with("v1,")));
        assert!(!format!("{keys:?}").contains("secret of"));
    }

    #[test]
    fn a_secret_that_is_none_is_refused_without_quoting_it() {
        for text in ["", "short", "whsec_", "whsec_not base64 at all!", "whsec_c2hvcnQ="] {
            let refused = WebhookKeys::new(text).unwrap_err();
            assert_eq!(refused.kind(), Kind::Config);
            assert!(
                text.len() < 7 || !refused.chain().contains(text.trim_start_matches(PREFIX)),
                "{refused}"
            );
        }
    }
}
