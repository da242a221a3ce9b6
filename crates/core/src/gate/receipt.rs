//! Receipts: what is known of a request that was made under a key.
//!
//! A receipt is in flight while the request runs (under a lease, with a token
//! that fences off whoever lost it), then sealed with the reply, or in doubt if
//! nobody can tell whether the request took effect. One that is released or
//! past its time is gone: the next request under its key is the first.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::fingerprint::Fingerprint;
use super::reply::Reply;
use crate::timestamp::Timestamp;

/// What a receipt is found by. Both are hashes keyed by a secret, so that
/// whoever reads the table cannot try out what clients might have sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReceiptKey {
    /// Whose keys these are.
    pub scope: [u8; 32],
    /// The key, within its scope.
    pub key: [u8; 32],
}

/// It is a hash already, and a few bytes of it tell all apart.
impl Hash for ReceiptKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.key;
        state.write_u64(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl fmt::Debug for ReceiptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, third, fourth, ..] = self.key;
        write!(f, "ReceiptKey({first:02x}{second:02x}{third:02x}{fourth:02x}…)")
    }
}

/// The right to run a request and to say what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// Which receipt.
    pub key: ReceiptKey,
    /// Another one for each admission, so that whoever has lost a key and
    /// wakes up cannot be taken for whoever has it now.
    pub token: i64,
}

/// A request that wants to run.
#[derive(Clone, Copy, Debug)]
pub struct AdmitRequest {
    /// Its key.
    pub key: ReceiptKey,
    /// A number of its own, drawn for this admission.
    pub token: i64,
    /// What it is compared by.
    pub fingerprint: Fingerprint,
    /// How long it may run without a sign of life.
    pub lease: Duration,
    /// How long its receipt is kept.
    pub ttl: Duration,
    /// Whether a copy keeps the receipt for another `ttl`.
    pub sliding: bool,
    /// What to do if nobody knows what came of an earlier run.
    pub on_doubt: OnDoubt,
    /// What to do if the key was used for another request.
    pub on_mismatch: OnMismatch,
    /// Whether its admission waits for the disk.
    pub durability: Durability,
}

impl AdmitRequest {
    /// What it gets if it is let in.
    #[must_use]
    pub const fn pass(&self) -> Pass {
        Pass { key: self.key, token: self.token }
    }
}

/// What to do with a request whose earlier run may or may not have taken effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDoubt {
    /// Run it again: at least once.
    #[default]
    Retry,
    /// Refuse it: at most once. Also if whoever ran it is gone without a word.
    Block,
}

/// What to do with another request under a key that is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMismatch {
    /// Refuse it.
    #[default]
    Refuse,
    /// Run it, and keep its reply in place of the earlier one. Not while that runs.
    Replace,
}

/// Whether an admission outlives a crash of the database. A reply always does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk before the request runs.
    #[default]
    Full,
    /// It gets there with the reply at the latest, which saves one of two waits for the disk where a store can do so
    /// (PostgreSQL). If the database crashes in between, the request may be unknown afterwards: a copy of it runs at
    /// once, and the reply of the first is not kept.
    Relaxed,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It runs; the pass is needed to seal or release it.
    Proceed(Pass),
    /// It has run before.
    Replay {
        /// What it was answered with.
        reply: Reply,
        /// How long the receipt is kept from now on, at least.
        left: Duration,
    },
    /// It is running, at least for that long.
    InFlight {
        /// What is left of the lease.
        left: Duration,
    },
    /// The key was used for another request.
    Mismatch,
    /// It has run before, and nobody knows what came of it.
    InDoubt,
}

/// What became of a request that was to be admitted in a transaction of its own.
#[derive(Debug)]
pub enum Claiming<T> {
    /// It is admitted; until this transaction ends, nobody else is.
    Begun(T),
    /// It is not, and no transaction is open.
    Told(Admission),
}

/// Where a receipt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Somebody runs it, until the lease is over.
    InFlight {
        /// The end of the lease.
        until: Timestamp,
    },
    /// It has a reply.
    Sealed,
    /// It may or may not have taken effect.
    InDoubt,
}

/// What a store knows of a key, without the reply.
#[derive(Clone, Copy, Debug)]
pub struct Receipt {
    /// The request it was admitted for.
    pub fingerprint: Fingerprint,
    /// Where it stands.
    pub standing: Standing,
    /// The token of the latest admission.
    pub token: i64,
    /// When it is forgotten.
    pub expires_at: Timestamp,
}

/// What [`judge`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Write a receipt in flight, in place of what is there.
    Admit,
    /// Answer with the sealed reply.
    Replay,
    /// See [`Admission::InFlight`].
    InFlight {
        /// What is left of the lease.
        left: Duration,
    },
    /// See [`Admission::Mismatch`].
    Mismatch,
    /// See [`Admission::InDoubt`].
    InDoubt,
}

/// What becomes of a request, by what is known of its key. Another request
/// under the key is told so before anything else: to wait for the first one
/// would not help it.
#[must_use]
pub fn judge(found: Option<&Receipt>, request: &AdmitRequest, now: Timestamp) -> Ruling {
    let Some(receipt) = found else { return Ruling::Admit };
    let is_over = match receipt.standing {
        // One that still runs is not forgotten under its feet.
        Standing::InFlight { until } => until <= now,
        Standing::Sealed | Standing::InDoubt => true,
    };
    if is_over && receipt.expires_at <= now {
        return Ruling::Admit;
    }
    if receipt.fingerprint != request.fingerprint {
        let may_replace = request.on_mismatch == OnMismatch::Replace && is_over;
        return if may_replace { Ruling::Admit } else { Ruling::Mismatch };
    }
    match receipt.standing {
        // It is in already, and asks again because it was not told.
        Standing::InFlight { until } if until > now && receipt.token == request.token => Ruling::Admit,
        Standing::InFlight { until } if until > now => Ruling::InFlight { left: until.since(now) },
        Standing::Sealed => Ruling::Replay,
        // Whoever ran it is gone without a word: as good as a doubt.
        Standing::InFlight { .. } | Standing::InDoubt => match request.on_doubt {
            OnDoubt::Retry => Ruling::Admit,
            OnDoubt::Block => Ruling::InDoubt,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::fingerprint::Request;

    fn print(body: &[u8]) -> Fingerprint {
        Fingerprint::raw(&Request { method: "POST", path: "/", query: None, content_type: None, body })
    }

    fn request() -> AdmitRequest {
        AdmitRequest {
            key: ReceiptKey { scope: [1; 32], key: [2; 32] },
            token: 5,
            fingerprint: print(b"a"),
            lease: Duration::from_secs(30),
            ttl: Duration::from_secs(100),
            sliding: false,
            on_doubt: OnDoubt::Retry,
            on_mismatch: OnMismatch::Refuse,
            durability: Durability::Full,
        }
    }

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn receipt(standing: Standing) -> Receipt {
        Receipt { fingerprint: print(b"a"), standing, token: 4, expires_at: at(100) }
    }

    #[test]
    fn the_first_request_runs_and_a_copy_is_told_where_it_stands() {
        let running = receipt(Standing::InFlight { until: at(30) });
        let judged = |found: Option<&Receipt>, now| judge(found, &request(), at(now));

        assert_eq!(judged(None, 0), Ruling::Admit);
        assert_eq!(judged(Some(&running), 10), Ruling::InFlight { left: Duration::from_secs(20) });
        assert_eq!(judged(Some(&running), 30), Ruling::Admit, "whoever ran it is gone");
        assert_eq!(judged(Some(&receipt(Standing::Sealed)), 99), Ruling::Replay);
        assert_eq!(judged(Some(&receipt(Standing::Sealed)), 100), Ruling::Admit, "forgotten");
        assert_eq!(judged(Some(&receipt(Standing::InDoubt)), 1), Ruling::Admit);
    }

    #[test]
    fn who_is_in_already_may_ask_again_while_its_lease_lasts() {
        let receipt = |standing| Receipt { token: request().token, ..receipt(standing) };
        let careful = AdmitRequest { on_doubt: OnDoubt::Block, ..request() };
        let running = receipt(Standing::InFlight { until: at(30) });

        assert_eq!(judge(Some(&running), &careful, at(29)), Ruling::Admit);
        assert_eq!(judge(Some(&running), &careful, at(30)), Ruling::InDoubt);
        assert_eq!(judge(Some(&receipt(Standing::Sealed)), &careful, at(29)), Ruling::Replay);
    }

    #[test]
    fn another_request_is_refused_before_it_waits() {
        let other = AdmitRequest { fingerprint: print(b"b"), ..request() };
        for standing in [Standing::InFlight { until: at(30) }, Standing::Sealed, Standing::InDoubt] {
            assert_eq!(judge(Some(&receipt(standing)), &other, at(1)), Ruling::Mismatch, "{standing:?}");
        }
        let dead = receipt(Standing::InFlight { until: at(30) });
        assert_eq!(judge(Some(&dead), &other, at(31)), Ruling::Mismatch, "its key is still taken");
    }

    #[test]
    fn a_doubt_may_block_and_the_last_may_win() {
        let careful = AdmitRequest { on_doubt: OnDoubt::Block, ..request() };
        assert_eq!(judge(Some(&receipt(Standing::InDoubt)), &careful, at(1)), Ruling::InDoubt);
        let dead = receipt(Standing::InFlight { until: at(30) });
        assert_eq!(judge(Some(&dead), &careful, at(30)), Ruling::InDoubt, "it may have taken effect");

        let bold = AdmitRequest { fingerprint: print(b"b"), on_mismatch: OnMismatch::Replace, ..request() };
        assert_eq!(judge(Some(&receipt(Standing::Sealed)), &bold, at(1)), Ruling::Admit);
        let running = receipt(Standing::InFlight { until: at(30) });
        assert_eq!(judge(Some(&running), &bold, at(1)), Ruling::Mismatch, "not while the first one runs");
    }

    #[test]
    fn a_run_that_outlives_its_receipt_is_not_run_again_beside_itself() {
        let long = Receipt { expires_at: at(10), ..receipt(Standing::InFlight { until: at(30) }) };
        assert_eq!(
            judge(Some(&long), &request(), at(20)),
            Ruling::InFlight { left: Duration::from_secs(10) }
        );
    }
}
