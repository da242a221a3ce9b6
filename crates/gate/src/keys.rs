//! Keys for clients: how to make good ones.

use oncebox_core::Digest;

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
/// that happen to say the same are taken for one.
#[must_use]
pub fn of_content(body: &[u8]) -> String {
    format!("content:{}", Digest::of(body))
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
    }
}
