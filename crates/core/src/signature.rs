//! Who wrote a message: an HMAC over its identity and its body.
//!
//! Whoever can publish to a broker can publish under any source and id. A
//! message under somebody else's id would take that id's marker, and the real
//! one would be skipped as a duplicate. The signature ties the identity, the
//! type, the key, the time and the body to a secret that only producers and
//! consumers share; it is checked before any marker is written.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::envelope::Envelope;
use crate::error::{Error, Kind, Result};

/// The header that carries the signature.
pub const HEADER: &str = "oncebox-signature";
/// A secret shorter than this is refused: it could be guessed.
pub const MIN_SECRET_BYTES: usize = 16;
/// The version of the canonical form; part of what is signed.
const VERSION: &str = "v1";

/// Why a signature is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// There is none.
    Unsigned,
    /// It was made with a key that is not in the ring.
    UnknownKey,
    /// The message is not the one that was signed, or the secret is another one.
    Altered,
    /// It does not have the form of a signature.
    Malformed,
}

impl fmt::Display for Forgery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsigned => "the message is not signed",
            Self::UnknownKey => "the message is signed with an unknown key",
            Self::Altered => "the message does not match its signature",
            Self::Malformed => "the signature is malformed",
        })
    }
}

impl std::error::Error for Forgery {}

/// Keys that sign and verify. The first signs; all verify, so that a key is
/// changed by adding the next one to every consumer before a producer uses it.
///
/// Cheap to clone. `Debug` shows key ids only.
#[derive(Clone)]
pub struct Keyring {
    keys: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    id: String,
    secret: Arc<Secret>,
}

struct Secret(Vec<u8>);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Otherwise the compiler may leave out a write that nobody reads.
        std::hint::black_box(&self.0);
    }
}

impl Keyring {
    /// A ring with one key, which signs. The id is public and travels with every message.
    ///
    /// # Errors
    /// [`Kind::Config`] if the id is empty or not plain text, or the secret is
    /// shorter than [`MIN_SECRET_BYTES`].
    pub fn new(id: impl Into<String>, secret: impl Into<Vec<u8>>) -> Result<Self> {
        Ok(Self { keys: vec![Key::new(id.into(), secret.into())?] })
    }

    /// The same ring with one more key, which is accepted but does not sign.
    ///
    /// # Errors
    /// As [`new`](Self::new); also if the id is in the ring already.
    pub fn also(mut self, id: impl Into<String>, secret: impl Into<Vec<u8>>) -> Result<Self> {
        let key = Key::new(id.into(), secret.into())?;
        if self.keys.iter().any(|known| known.id == key.id) {
            return Err(Error::new(Kind::Config, format!("the key id {:?} is used twice", key.id)));
        }
        self.keys.push(key);
        Ok(self)
    }

    /// The value of [`HEADER`] for `envelope`: `v1;kid=ID;mac=HEX`.
    #[must_use]
    pub fn sign(&self, envelope: &Envelope) -> String {
        let Some((key, mac)) = self.keys.first().and_then(|key| Some((key, key.mac(envelope)?))) else {
            return String::new();
        };
        let mut text = format!("{VERSION};kid={};mac=", key.id);
        for byte in mac.finalize().into_bytes() {
            for digit in [byte >> 4, byte & 15] {
                text.extend(char::from_digit(u32::from(digit), 16));
            }
        }
        text
    }

    /// Whether `envelope` is what the owner of one of the keys signed.
    ///
    /// # Errors
    /// Why it is not.
    pub fn verify(&self, envelope: &Envelope) -> Result<(), Forgery> {
        let text = envelope.headers.get(HEADER).ok_or(Forgery::Unsigned)?;
        let (id, mac) = parse(text).ok_or(Forgery::Malformed)?;
        let key = self.keys.iter().find(|key| key.id == id).ok_or(Forgery::UnknownKey)?;
        // Compares in constant time.
        let is_genuine = key.mac(envelope).is_some_and(|expected| expected.verify_slice(&mac).is_ok());
        if is_genuine { Ok(()) } else { Err(Forgery::Altered) }
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

impl Key {
    fn new(id: String, secret: Vec<u8>) -> Result<Self> {
        let secret = Arc::new(Secret(secret));
        let is_plain = |c: char| c.is_ascii_graphic() && c != ';' && c != '"' && c != '%';
        if id.is_empty() || id.len() > 64 || !id.chars().all(is_plain) {
            return Err(Error::new(
                Kind::Config,
                format!("{id:?} is no key id: use up to 64 visible ASCII characters without ; \" and %"),
            ));
        }
        if secret.0.len() < MIN_SECRET_BYTES {
            return Err(Error::new(
                Kind::Config,
                format!("the secret of key {id:?} is shorter than {MIN_SECRET_BYTES} bytes"),
            ));
        }
        Ok(Self { id, secret })
    }

    /// The canonical form: each field behind its length in bytes as eight
    /// bytes, big end first, so that no two messages have the same form.
    /// `None` never happens: HMAC takes keys of every length.
    fn mac(&self, envelope: &Envelope) -> Option<Hmac<Sha256>> {
        let time = envelope.time.map(|time| time.micros().to_string()).unwrap_or_default();
        let digest = envelope.digest();
        let fields: [&[u8]; 8] = [
            VERSION.as_bytes(),
            envelope.tenant.as_bytes(),
            envelope.source.as_bytes(),
            envelope.id.as_bytes(),
            envelope.kind.as_bytes(),
            envelope.key.as_deref().unwrap_or_default().as_bytes(),
            time.as_bytes(),
            digest.as_bytes(),
        ];
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret.0).ok()?;
        for field in fields {
            mac.update(&(field.len() as u64).to_be_bytes());
            mac.update(field);
        }
        Some(mac)
    }
}

/// The key id and the MAC of a header value.
fn parse(text: &str) -> Option<(&str, Vec<u8>)> {
    let rest = text.strip_prefix(VERSION)?.strip_prefix(";kid=")?;
    let (id, hex) = rest.split_once(";mac=")?;
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let digits: Option<Vec<u8>> =
        hex.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let mac = digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
    Some((id, mac))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    const SECRET: &[u8] = b"a secret of 32 bytes, for tests.";

    fn envelope() -> Envelope {
        Envelope {
            id: "1".into(),
            source: "/shop".into(),
            kind: "order.placed".into(),
            tenant: "acme".into(),
            key: Some("cart-7".into()),
            time: Some(Timestamp::from_micros(1_700_000_000_123_456)),
            payload: b"{\"total\":1}".to_vec(),
            ..Envelope::default()
        }
    }

    fn signed(keyring: &Keyring, envelope: Envelope) -> Envelope {
        let signature = keyring.sign(&envelope);
        Envelope { headers: [(HEADER.to_owned(), signature)].into(), ..envelope }
    }

    fn ring() -> Keyring {
        Keyring::new("k1", SECRET).unwrap()
    }

    #[test]
    fn what_was_signed_is_accepted_and_what_is_not_covered_may_change() {
        let mut message = signed(&ring(), envelope());
        assert_eq!(ring().verify(&message), Ok(()));

        message.destination = "elsewhere".into();
        message.headers.insert("x-hop".into(), "1".into());
        message.traceparent = Some("00-1".into());

        assert_eq!(ring().verify(&message), Ok(()));
    }

    #[test]
    fn a_change_of_any_covered_field_is_seen() {
        type Spoil = fn(&mut Envelope);
        let spoils: [(&str, Spoil); 13] = [
            ("id", |e| e.id = "2".into()),
            ("source", |e| e.source = "/other".into()),
            ("type", |e| e.kind = "order.paid".into()),
            ("tenant", |e| e.tenant = "evil".into()),
            ("no tenant", |e| e.tenant.clear()),
            ("key", |e| e.key = Some("cart-8".into())),
            ("no key", |e| e.key = None),
            ("time", |e| e.time = Some(Timestamp::from_micros(1_700_000_000_123_457))),
            ("no time", |e| e.time = None),
            ("body", |e| e.payload[9] = b'2'),
            ("longer body", |e| e.payload.push(b' ')),
            ("no body", |e| e.payload.clear()),
            ("case", |e| e.tenant = "Acme".into()),
        ];

        for (what, spoil) in spoils {
            let mut message = signed(&ring(), envelope());
            spoil(&mut message);
            assert_eq!(ring().verify(&message), Err(Forgery::Altered), "{what}");
        }
    }

    #[test]
    fn every_bit_of_a_signature_counts() {
        let message = signed(&ring(), envelope());
        let text = message.headers.get(HEADER).unwrap().clone();
        let mac = text.len() - 64;

        for place in mac..text.len() {
            let digit = u32::from_str_radix(&text[place..=place], 16).unwrap();
            for bit in 0..4 {
                let other = char::from_digit(digit ^ 1 << bit, 16).unwrap();
                let mut spoiled = message.clone();
                let value = format!("{}{other}{}", &text[..place], &text[place + 1..]);
                spoiled.headers.insert(HEADER.into(), value);
                assert_eq!(ring().verify(&spoiled), Err(Forgery::Altered), "{place}");
            }
        }
    }

    #[test]
    fn text_that_moves_from_one_field_to_the_next_is_seen() {
        let of = |tenant: &str, source: &str, id: &str, kind: &str, key: Option<&str>| Envelope {
            tenant: tenant.into(),
            source: source.into(),
            id: id.into(),
            kind: kind.into(),
            key: key.map(Into::into),
            ..Envelope::default()
        };
        let length = "\0\0\0\0\0\0\0\u{1}";
        let alike = [
            of("ab", "c", "d", "e", None),
            of("a", "bc", "d", "e", None),
            of("", "abc", "d", "e", None),
            of("abc", "", "d", "e", None),
            of("ab", "", "cd", "e", None),
            of("ab", "c", "", "de", None),
            of("ab", "c", "d", "", Some("e")),
            of(&format!("a{length}b"), "c", "d", "e", None),
            of("a", &format!("b{length}c"), "d", "e", None),
        ];

        let signatures: std::collections::BTreeSet<String> =
            alike.iter().map(|envelope| ring().sign(envelope)).collect();

        assert_eq!(signatures.len(), alike.len());
    }

    #[test]
    fn a_key_is_changed_without_losing_a_message() {
        let (old, new) = ("an old secret, 24 bytes.", "the next secret, 25 bytes");
        let before = Keyring::new("old", old).unwrap();
        let during = Keyring::new("new", new).unwrap().also("old", old).unwrap();
        let after = Keyring::new("new", new).unwrap();
        let (early, late) = (signed(&before, envelope()), signed(&during, envelope()));

        assert_eq!((during.verify(&early), during.verify(&late)), (Ok(()), Ok(())));
        assert_eq!(after.verify(&late), Ok(()));
        assert_eq!(after.verify(&early), Err(Forgery::UnknownKey));
        assert_eq!(before.verify(&late), Err(Forgery::UnknownKey));
        let impostor = Keyring::new("new", "another secret, as long").unwrap();
        assert_eq!(after.verify(&signed(&impostor, envelope())), Err(Forgery::Altered));
    }

    #[test]
    fn what_is_no_signature_is_refused() {
        let good = ring().sign(&envelope());
        let mac = good.split_once("mac=").unwrap().1;
        assert_eq!(ring().verify(&envelope()), Err(Forgery::Unsigned));
        let cases = [
            String::new(),
            "v1".into(),
            mac.to_owned(),
            format!("v2;kid=k1;mac={mac}"),
            format!("v1;kid=k1;mac={mac}0"),
            format!("v1;kid=k1;mac={}", &mac[1..]),
            format!("v1;kid=k1;mac=g{}", &mac[1..]),
            format!("v1;kid=k1;mac=é{}", &mac[2..]),
            format!("v1;kid=k1; mac={mac}"),
            format!("v1,kid=k1,mac={mac}"),
            format!(" {good}"),
        ];

        for case in cases {
            let mut message = envelope();
            message.headers.insert(HEADER.into(), case.clone());
            assert_eq!(ring().verify(&message), Err(Forgery::Malformed), "{case}");
        }
    }

    #[test]
    fn a_secret_that_could_be_guessed_and_an_odd_key_id_are_refused() {
        let cases = [
            Keyring::new("k1", ""),
            Keyring::new("k1", "fifteen bytes.."),
            Keyring::new("", SECRET),
            Keyring::new("a;mac=", SECRET),
            Keyring::new("a b", SECRET),
            Keyring::new("ü", SECRET),
            Keyring::new("k".repeat(65), SECRET),
            ring().also("k1", SECRET),
        ];

        for result in cases {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(!error.to_string().contains("fifteen"), "{error}");
        }
    }

    #[test]
    fn nothing_shows_a_secret() {
        assert_eq!(format!("{:?}", ring().also("k2", SECRET).unwrap()), "[\"k1\", \"k2\"]");
    }
}
