//! What a gate insists on, keeps and answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use oncebox_core::gate::{Durability, Excluded, KeySyntax, OnDoubt};
use oncebox_core::{Error, Kind, Result};

use crate::answer::REPLAYED;
use crate::marker;

/// Clocks can count that far.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Members of a JSON body that say nothing about what is asked for.
const ATP_EXCLUDED: [&str; 7] =
    ["correlationId", "traceId", "traceparent", "requestId", "timestamp", "requestedAt", "clientVersion"];

/// A set of defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// As the IETF draft has it, and where it is silent, as most services do.
    #[default]
    Ietf,
    /// Keys of the form `{tenant}:{app}:{unique}`, required; 409 for another
    /// payload; only successes are kept, for as long as copies come.
    Atp,
}

/// Which replies are kept. Whatever is not lets the next copy run again.
#[derive(Clone, Default)]
pub enum Store {
    /// Successes, redirects, and refusals that would be the same again: not
    /// those about credentials (401, 403, 407), time (408, 425, 429) or place (421).
    #[default]
    Final,
    /// 2xx alone.
    Success,
    /// Everything, server errors too.
    All,
    /// What the function says.
    Custom(Arc<dyn Fn(StatusCode) -> bool + Send + Sync>),
}

impl Store {
    pub(crate) fn keeps(&self, status: StatusCode) -> bool {
        match self {
            Self::Final => {
                let passing = [401, 403, 407, 408, 421, 425, 429];
                !status.is_server_error() && !status.is_informational() && !passing.contains(&status.as_u16())
            }
            Self::Success => status.is_success(),
            Self::All => true,
            Self::Custom(keeps) => keeps(status),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Final => "Final",
            Self::Success => "Success",
            Self::All => "All",
            Self::Custom(_) => "Custom",
        })
    }
}

/// What a copy does while the first one runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlight {
    /// It is refused with 409 and `Retry-After`.
    #[default]
    Refuse,
    /// It waits for the reply, that long at most.
    Wait(Duration),
}

/// What becomes of another request under a key that is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// It is refused.
    #[default]
    Strict,
    /// As strict; and a key `content:` must be followed by the SHA-256 of the body.
    ContentBased,
    /// It runs, and its reply is kept in place of the first. Unsafe.
    LastWriteWins,
    /// It runs without protection, and its reply says so. Unsafe.
    WarnButAllow,
}

/// The options of a gate.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Methods that must have a key; none unless chosen.
    pub required: Vec<Method>,
    /// Methods whose keys count: POST, PATCH, PUT and DELETE.
    pub methods: Vec<Method>,
    /// How a key is written.
    pub key_syntax: KeySyntax,
    /// How long a run may take without a sign of life; it is renewed at a third of it. 30 s.
    pub lease: Duration,
    /// How long replies are kept. 24 h.
    pub ttl: Duration,
    /// Whether each copy keeps them for another `ttl`.
    pub sliding: bool,
    /// For how long after `ttl` a key is refused with 422 instead of being a new one. `None`: not at all.
    pub refuse_expired: Option<Duration>,
    /// Which replies are kept.
    pub store: Store,
    /// What a copy does while the first one runs.
    pub in_flight: InFlight,
    /// What becomes of another request under the key.
    pub strategy: Strategy,
    /// Whether the last two strategies may be chosen.
    pub allow_unsafe_strategies: bool,
    /// What becomes of a request whose earlier run may or may not have taken effect.
    pub on_doubt: OnDoubt,
    /// Whether a request's admission waits for the disk before the request runs.
    pub reserve_durability: Durability,
    /// Whether requests run unprotected while the store is down, instead of being refused.
    pub fail_open: bool,
    /// Whether JSON is compared byte by byte, too.
    pub raw_fingerprint: bool,
    /// Parts of a JSON body that are not compared: names of top-level members, in any case, and JSON pointers such as
    /// `/meta/traceId` to a member or an element at any depth.
    pub excluded: Vec<String>,
    /// Whether each route has keys of its own; otherwise one used for another route is refused.
    pub key_per_route: bool,
    /// How long a body may stand still: a request's, or a reply's at its source or on its way to the client. 60 s.
    pub stall: Duration,
    /// The largest request body. 1 MiB.
    pub max_request_body: usize,
    /// The largest reply body that is kept. 1 MiB.
    pub max_response_body: usize,
    /// Whether replies are kept whole; otherwise only their status and `Location` are at rest in the store, and a copy
    /// is told that the rest is gone, unless there was no body.
    pub keep_bodies: bool,
    /// The most keys that one caller may have at a time; more are refused with 429. No limit unless chosen.
    pub max_keys: Option<usize>,
    /// The status for another request under a key: 422.
    pub mismatch_status: StatusCode,
    /// The status of a replayed success; the original one if there is none.
    pub replay_status: Option<StatusCode>,
    /// The header that marks replays: `Idempotent-Replayed`. No client is believed who sends it.
    pub replay_header: HeaderName,
    /// Whether refusals have the codes of the profile `atp`: `IdempotencyKeyRequired`, `IdempotencyConflict`.
    pub atp_codes: bool,
    /// Where clients can read about all this; linked in refusals.
    pub docs: Option<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Self::of(Profile::Ietf)
    }
}

impl Policy {
    /// The options of a profile.
    #[must_use]
    pub fn of(profile: Profile) -> Self {
        let ietf = Self {
            required: Vec::new(),
            methods: vec![Method::POST, Method::PATCH, Method::PUT, Method::DELETE],
            key_syntax: KeySyntax::Lenient,
            lease: Duration::from_secs(30),
            ttl: Duration::from_secs(24 * 3600),
            sliding: false,
            refuse_expired: None,
            store: Store::Final,
            in_flight: InFlight::Refuse,
            strategy: Strategy::Strict,
            allow_unsafe_strategies: false,
            on_doubt: OnDoubt::Retry,
            reserve_durability: Durability::Full,
            fail_open: false,
            raw_fingerprint: false,
            excluded: Vec::new(),
            key_per_route: false,
            stall: Duration::from_secs(60),
            max_request_body: 1 << 20,
            max_response_body: 1 << 20,
            keep_bodies: true,
            max_keys: None,
            mismatch_status: StatusCode::UNPROCESSABLE_ENTITY,
            replay_status: None,
            replay_header: REPLAYED,
            atp_codes: false,
            docs: None,
        };
        match profile {
            Profile::Ietf => ietf,
            Profile::Atp => Self {
                required: vec![Method::POST, Method::PUT, Method::PATCH],
                methods: vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE],
                key_syntax: KeySyntax::Atp,
                sliding: true,
                store: Store::Success,
                excluded: ATP_EXCLUDED.map(str::to_owned).to_vec(),
                mismatch_status: StatusCode::CONFLICT,
                replay_status: Some(StatusCode::OK),
                atp_codes: true,
                ..ietf
            },
        }
    }

    /// How long a receipt is kept: a key that is to be refused afterwards must be known.
    pub(crate) fn kept(&self) -> Duration {
        self.ttl + self.refuse_expired.unwrap_or_default()
    }

    /// Whether a reply whose receipt is kept for that long is not given again.
    pub(crate) fn is_expired(&self, left: Duration) -> bool {
        self.refuse_expired.is_some_and(|refused| left <= refused)
    }

    /// How long a reply is still given again whose receipt is kept for that long.
    pub(crate) fn replays_for(&self, left: Duration) -> Duration {
        left.saturating_sub(self.refuse_expired.unwrap_or_default())
    }

    /// # Errors
    /// [`Kind::Config`] with what is unsafe or makes no sense.
    pub fn check(&self) -> Result<()> {
        let refuse = |reason: &str| Err(Error::new(Kind::Config, format!("gate: {reason}")));
        let is_unsafe = matches!(self.strategy, Strategy::LastWriteWins | Strategy::WarnButAllow);
        if is_unsafe && !self.allow_unsafe_strategies {
            return refuse(
                "this strategy lets a request take effect twice; set allow_unsafe_strategies to have it",
            );
        }
        if self.reserve_durability == Durability::Relaxed && self.on_doubt == OnDoubt::Block {
            return refuse(
                "a relaxed reservation may be lost when the database crashes, and a copy would run again: \
                 on_doubt = block needs a full one",
            );
        }
        if self.lease < Duration::from_secs(1) {
            return refuse("a lease below 1 s would be over while a request runs");
        }
        if self.ttl <= self.lease {
            return refuse("replies must be kept for longer than a run's lease");
        }
        let kept = self.ttl.checked_add(self.refuse_expired.unwrap_or_default());
        if self.stall.max(self.lease) > LONGEST || kept.is_none_or(|kept| kept > LONGEST) {
            return refuse("nothing lasts longer than a hundred years");
        }
        if self.sliding && self.refuse_expired.is_some() {
            return refuse(
                "a key that each copy keeps for longer has no time after which it could be refused",
            );
        }
        if self.stall.is_zero() {
            return refuse("a reply needs some time");
        }
        if self.max_request_body == 0 || self.max_response_body == 0 {
            return refuse("bodies need some room");
        }
        if self.max_keys == Some(0) {
            return refuse("a caller needs at least one key");
        }
        let is_missing = |method: &&Method| !self.methods.contains(method);
        if let Some(method) = self.required.iter().find(is_missing) {
            return refuse(&format!("{method} requires a key, but its keys do not count"));
        }
        if let Some(safe) = self.methods.iter().find(|method| method.is_safe()) {
            return refuse(&format!("{safe} changes nothing, and a replay of it would be an old answer"));
        }
        if !self.mismatch_status.is_client_error() {
            return refuse("another request under a key is the client's error: mismatch_status must be 4xx");
        }
        Excluded::new(&self.excluded)?;
        if !marker::is_free(&self.replay_header) {
            return refuse(&format!(
                "replays cannot be marked by {}, which means something else",
                self.replay_header
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_replies_are_kept_and_passing_ones_are_not() {
        let kept = |status: u16| Store::Final.keeps(StatusCode::from_u16(status).unwrap());
        assert!([200, 201, 204, 303, 400, 402, 404, 409, 410, 422].into_iter().all(kept));
        assert!(![401, 403, 408, 425, 429, 500, 502, 503].into_iter().any(kept));
        assert!(Store::All.keeps(StatusCode::INTERNAL_SERVER_ERROR));
        assert!(!Store::Success.keeps(StatusCode::NOT_FOUND));
    }

    #[test]
    fn profiles_are_safe_and_nonsense_is_refused() {
        for profile in [Profile::Ietf, Profile::Atp] {
            Policy::of(profile).check().unwrap();
        }
        let nonsense = [
            Policy { strategy: Strategy::LastWriteWins, ..Policy::default() },
            Policy { strategy: Strategy::WarnButAllow, ..Policy::default() },
            Policy { lease: Duration::from_millis(10), ..Policy::default() },
            Policy { ttl: Duration::from_secs(30), ..Policy::default() },
            Policy { ttl: Duration::MAX, ..Policy::default() },
            Policy { refuse_expired: Some(Duration::MAX), ..Policy::default() },
            Policy { stall: Duration::MAX, ..Policy::default() },
            Policy { sliding: true, refuse_expired: Some(Duration::from_secs(60)), ..Policy::default() },
            Policy { max_request_body: 0, ..Policy::default() },
            Policy { max_response_body: 0, ..Policy::default() },
            Policy { max_keys: Some(0), ..Policy::default() },
            Policy { reserve_durability: Durability::Relaxed, on_doubt: OnDoubt::Block, ..Policy::default() },
            Policy { methods: vec![Method::GET], ..Policy::default() },
            Policy { methods: vec![Method::POST], required: vec![Method::PUT], ..Policy::default() },
            Policy { mismatch_status: StatusCode::OK, ..Policy::default() },
            Policy { excluded: vec!["/meta/~traceId".into()], ..Policy::default() },
            Policy { replay_header: http::header::LOCATION, ..Policy::default() },
        ];
        for policy in nonsense {
            assert_eq!(policy.check().unwrap_err().kind(), Kind::Config, "{policy:?}");
        }
        let bold =
            Policy { allow_unsafe_strategies: true, strategy: Strategy::LastWriteWins, ..Policy::default() };
        bold.check().unwrap();
    }
}
