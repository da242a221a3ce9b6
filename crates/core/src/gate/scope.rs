//! Whose keys: two callers who choose the same key never meet.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::fingerprint::Fingerprint;
use super::key::RequestKey;
use super::receipt::ReceiptKey;

/// Who a request comes from, as the service knows it: never what the client says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The tenant; empty where there is only one.
    pub tenant: String,
    /// The authenticated user or client; empty where anybody may call.
    pub principal: String,
}

/// Makes receipt keys, with a secret that is not in the database.
#[derive(Clone)]
pub struct KeyMaker {
    mac: Hmac<Sha256>,
    /// The scope of a caller without a name, which is all there is where callers share their keys.
    nobody: [u8; 32],
}

impl KeyMaker {
    /// The same secret always makes the same keys; another one forgets all receipts.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        // Any length is taken, so the other arm cannot happen.
        let mac = Hmac::new_from_slice(secret)
            .unwrap_or_else(|_| Hmac::new(&hmac::digest::Key::<Hmac<Sha256>>::default()));
        let mut maker = Self { mac, nobody: [0; 32] };
        maker.nobody = maker.scope("", "");
        maker
    }

    fn scope(&self, tenant: &str, principal: &str) -> [u8; 32] {
        self.hash(&[b"scope", tenant.as_bytes(), principal.as_bytes()])
    }

    /// What the receipt of this caller's key is found by. `route` keeps the
    /// keys of several routes apart; empty if they are shared.
    #[must_use]
    pub fn make(&self, caller: &Caller, route: &str, key: &RequestKey) -> ReceiptKey {
        let scope = match (caller.tenant.as_str(), caller.principal.as_str()) {
            ("", "") => self.nobody,
            (tenant, principal) => self.scope(tenant, principal),
        };
        ReceiptKey {
            scope,
            key: self.hash(&[
                b"key",
                caller.tenant.as_bytes(),
                caller.principal.as_bytes(),
                route.as_bytes(),
                key.as_str().as_bytes(),
            ]),
        }
    }

    /// A key for a call that the request causes elsewhere: stable, so that a
    /// second run sends it again, and not the client's own, whose scope ends here.
    #[must_use]
    pub fn derive(&self, key: &ReceiptKey, purpose: &str) -> String {
        let hash = self.hash(&[b"derived", &key.scope, &key.key, purpose.as_bytes()]);
        hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// A fingerprint as it is stored: whoever reads the database cannot try out what a body might have been, and
    /// whoever measures how long a comparison takes learns nothing of use.
    #[must_use]
    pub fn print(&self, fingerprint: &Fingerprint) -> Fingerprint {
        Fingerprint::from_bytes(self.hash(&[b"request", fingerprint.as_bytes()]))
    }

    /// Lengths go first: no text can look like two.
    fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = self.mac.clone();
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl std::fmt::Debug for KeyMaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyMaker")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::key::KeySyntax;

    fn key(text: &str) -> RequestKey {
        RequestKey::parse([text.as_bytes()], KeySyntax::Lenient).unwrap().unwrap()
    }

    fn caller(tenant: &str, principal: &str) -> Caller {
        Caller { tenant: tenant.into(), principal: principal.into() }
    }

    #[test]
    fn callers_routes_keys_and_secrets_are_apart() {
        let maker = KeyMaker::new(b"secret");
        let nobody = maker.make(&caller("", ""), "", &key("k"));
        assert_eq!(nobody.scope, maker.scope("", ""));
        let keys = [
            nobody,
            maker.make(&caller("a", "b"), "", &key("k")),
            maker.make(&caller("ab", ""), "", &key("k")),
            maker.make(&caller("", "ab"), "", &key("k")),
            maker.make(&caller("a", "c"), "", &key("k")),
            maker.make(&caller("a", "b"), "/orders", &key("k")),
            maker.make(&caller("a", "b"), "", &key("K")),
            KeyMaker::new(b"other").make(&caller("a", "b"), "", &key("k")),
        ];
        let distinct: std::collections::HashSet<[u8; 32]> = keys.iter().map(|key| key.key).collect();

        assert_eq!(distinct.len(), keys.len());
        assert_eq!(keys[1], maker.make(&caller("a", "b"), "", &key("k")));
        assert_eq!(keys[1].scope, keys[6].scope);
    }

    #[test]
    fn a_stored_fingerprint_cannot_be_made_without_the_secret() {
        let print = Fingerprint::from_bytes([7; 32]);
        let [maker, other] = [b"secret", b"others"].map(|secret| KeyMaker::new(secret));

        assert_eq!(maker.print(&print), maker.print(&print));
        assert_ne!(maker.print(&print), maker.print(&Fingerprint::from_bytes([8; 32])));
        assert_ne!(maker.print(&print), other.print(&print));
        assert_ne!(maker.print(&print), print);
    }

    #[test]
    fn a_derived_key_is_stable_and_tells_nothing_of_the_clients_key() {
        let maker = KeyMaker::new(b"secret");
        let receipt = maker.make(&caller("a", "b"), "", &key("k"));

        assert_eq!(maker.derive(&receipt, "charge"), maker.derive(&receipt, "charge"));
        assert_ne!(maker.derive(&receipt, "charge"), maker.derive(&receipt, "ship"));
        assert_eq!(maker.derive(&receipt, "charge").len(), 32);
    }
}
