//! Keys for clients: how to make good ones.

use oncebox_core::Digest;
use oncebox_core::gate::{Excluded, json};

/// A key that nobody has used before and nobody can guess: a UUID of version
/// 7, so that keys made later sort later.
#[must_use]
pub fn random() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// As [`random`], written as a ULID: 26 letters and digits in which none looks like another.
#[must_use]
pub fn ulid() -> String {
    const LETTERS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    // Both begin with the time in 48 bits; what follows is random here as there, but for six bits.
    let number = uuid::Uuid::now_v7().as_u128();
    let letter = |place: u32| LETTERS.get((number >> (5 * place)) as usize % LETTERS.len()).copied();
    (0..26).rev().filter_map(letter).map(char::from).collect()
}

/// A key of a thing that has a name and steps of its own, such as the third
/// payment of an order: made again, it is the same.
#[must_use]
pub fn of_step(operation: &str, step: u64) -> String {
    format!("{operation}-{step}")
}

/// The key of a content: the same content is the same request. Two requests
/// that happen to say the same are taken for one. JSON may be written in another way.
#[must_use]
pub fn of_content(body: &[u8]) -> String {
    let mut hashes = content_hashes(body);
    format!("content:{}", hashes.next_back().unwrap_or_default())
}

/// As [`of_content`], in the form of the profile `atp`: `{tenant}:content:{hash}`.
#[must_use]
pub fn atp_of_content(tenant: &str, body: &[u8]) -> String {
    format!("{tenant}:{}", of_content(body))
}

/// The hashes that a key may name: SHA-256 of the bytes as they are, and, of JSON, of its form without spaces, with
/// sorted members.
pub(crate) fn content_hashes(body: &[u8]) -> impl DoubleEndedIterator<Item = String> {
    let form = json::canonical(body, &Excluded::default());
    [Some(Digest::of(body)), form.map(|form| Digest::of(&form))]
        .into_iter()
        .flatten()
        .map(|hash| hash.to_string())
}

/// A key of the form `{tenant}:{app}:{unique}`.
#[must_use]
pub fn atp(tenant: &str, app: &str) -> String {
    format!("{tenant}:{app}:{}", uuid::Uuid::now_v7().simple())
}

#[cfg(test)]
mod tests {
    use oncebox_core::gate::{KeySyntax, RequestKey};

    use super::*;

    #[test]
    fn every_way_makes_a_key_that_is_accepted() {
        for key in [random(), ulid(), of_step("order-7", 3), of_content(b"x")] {
            assert!(RequestKey::parse([key.as_bytes()], KeySyntax::Lenient).unwrap().is_some(), "{key}");
        }
        assert!(RequestKey::parse([atp("acme", "shop").as_bytes()], KeySyntax::Atp).unwrap().is_some());
        assert_ne!(random(), random());
        let (first, second) = (ulid(), ulid());
        assert!(first < second && first.len() == 26, "{first} {second}");
        assert_eq!(of_content(b"x"), of_content(b"x"));
        let again = of_content(b"{ \"b\": 1, \"a\": 2 }");
        assert_eq!(of_content(b"{\"a\":2,\"b\":1}"), again, "written in another way");
        assert!(
            content_hashes(b"{ }").any(|hash| hash == Digest::of(b"{ }").to_string()),
            "as the bytes are"
        );
        let atp = atp_of_content("acme", b"x");
        assert!(RequestKey::parse([atp.as_bytes()], KeySyntax::Atp).unwrap().unwrap().content().is_some());
    }
}
