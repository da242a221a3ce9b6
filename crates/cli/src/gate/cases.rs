//! What a gate must get right, case by case. A case sends requests to the
//! fixture's service through the gate, and looks at the answers and at how
//! often the service ran.

mod ability;
mod callers;
mod calls;
mod crashes;
mod faults;
mod flights;
mod keys;
mod payloads;
mod replies;
mod stand;
mod strategies;

use std::fmt::Display;
use std::pin::Pin;
use std::time::Duration;

use super::client::Answer;

pub(super) use ability::Ability;
pub(super) use stand::Stand;

/// Holds, or what was seen instead.
pub(super) type Outcome = Result<(), String>;
type Run = fn(Stand) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;

pub(super) struct Case {
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    pub(super) needs: &'static [Ability],
    /// A gate that is one of these cannot do it, by design.
    bars: &'static [Ability],
    /// Nothing else may go on meanwhile: it takes the time, or takes the gate or the service away.
    pub(super) is_quiet: bool,
    pub(super) run: Run,
}

impl Case {
    /// Why a gate with these abilities is not asked, if it is not.
    pub(super) fn reason_against(&self, abilities: &[Ability]) -> Option<&'static str> {
        let lacking = self.needs.iter().find(|need| !abilities.contains(need)).map(|need| need.lacking());
        let barring = || self.bars.iter().find(|bar| abilities.contains(bar)).map(|bar| bar.barring());
        lacking.or_else(barring)
    }
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conclusion {
    Passed,
    Failed(String),
    NotApplicable(&'static str),
}

impl Conclusion {
    pub(super) const fn letter(&self) -> &'static str {
        match self {
            Self::Passed => "P",
            Self::Failed(_) => "F",
            Self::NotApplicable(_) => "N/A",
        }
    }

    pub(super) fn why(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Failed(why) => Some(why),
            Self::NotApplicable(why) => Some(why),
        }
    }
}

impl From<Outcome> for Conclusion {
    fn from(outcome: Outcome) -> Self {
        outcome.map_or_else(Self::Failed, |()| Self::Passed)
    }
}

macro_rules! cases {
    ($($id:ident $what:literal [$($need:ident)*] $module:ident::$run:ident $(not [$($bar:ident)*])? $(, $quiet:ident)?;)*) => {
        /// All of them, in the order they are listed.
        pub(super) static CASES: &[Case] = &[$(Case {
            id: stringify!($id),
            what: $what,
            needs: &[$(Ability::$need),*],
            bars: &[$($(Ability::$bar),*)?],
            is_quiet: matches!(stringify!($($quiet)?).as_bytes(), b"quiet"),
            run: |stand| Box::pin($module::$run(stand)),
        }),*];
    };
}

cases! {
    A01 "a route that requires a key refuses a request without one" [Routes] keys::required;
    A02 "without a key every request runs" [] keys::optional;
    A03 "GET is never replayed" [] keys::safe_method;
    A04 "a key is the same with and without quotes" [] keys::quotes;
    A05 "an empty key and one that cannot be printed are refused" [] keys::malformed;
    A06 "the longest key is taken, a longer one refused" [] keys::length;
    A07 "two keys are refused" [] keys::two;
    A09 "keys are told apart by case" [] keys::case;
    B01 "a copy gets the same status and bytes, and is marked" [] replies::replay;
    B02 "headers come back, repeated ones in order" [] replies::headers;
    B03 "a cookie is not replayed" [] replies::cookie;
    B05 "an empty and a binary body come back" [] replies::bytes;
    B06 "a compressed body comes back compressed" [] replies::compressed;
    B07 "a streamed body comes back whole" [] replies::streamed;
    B08 "a reply too large to keep is not run again" [Limits] replies::too_large;
    B09 "a final refusal is replayed" [] replies::not_found;
    B10 "a passing failure is not kept" [] replies::unavailable;
    B11 "a reply to one who may not yet is not kept" [] replies::unauthorised;
    C01 "another body under the key is refused" [] payloads::other_body;
    C02 "the first request survives that" [] payloads::original_survives;
    C03 "another path under the key never gets the first reply" [] payloads::other_path;
    C04 "nor does another method" [] payloads::other_method;
    C05 "nor another query" [] payloads::other_query;
    C06 "JSON may be written differently" [] payloads::reordered;
    C07 "a member that is excluded may differ" [Routes] payloads::excluded;
    C08 "byte by byte, JSON may not be written differently" [Routes] payloads::raw;
    C09 "null is not nothing, and a type is part of a request" [] payloads::absent;
    C10 "large numbers keep their digits" [] payloads::numbers;
    C11 "a member that comes twice is not merged" [] payloads::doubled;
    C12 "bodies that are no good JSON are compared all the same" [] payloads::odd;
    D01 "a copy of a running request is told to come back, at once" [] flights::refused not [OneWriter], quiet;
    D02 "or waits for the reply" [Wait] flights::waits;
    D03 "of fifty at once one runs" [] flights::fifty;
    D04 "another body is refused while the first one runs" [] flights::other_in_flight not [OneWriter];
    D05 "different keys do not wait for each other" [] flights::parallel not [OneWriter], quiet;
    D06 "a wait has an end" [Wait] flights::short_wait;
    D07 "a client that hangs up does not cause a second run" [] flights::hung_up;
    E01 "a handler that falls over frees the key" [] faults::raises;
    E02 "a killed gate frees its keys when their lease is over" [Persist Routes] crashes::killed not [Tx], quiet;
    E04 "a handler that takes longer than its lease keeps its key" [Routes] faults::longer_than_lease not [OneWriter];
    E05 "a service that cannot be reached costs nothing" [Proxy] crashes::unreachable, quiet;
    E06 "a service that hangs up leaves a doubt, which is retried or blocks" [Proxy] crashes::hangs_up;
    E07 "a request that is cut off does not use up its key" [] faults::half_a_request;
    E08 "without its store a gate refuses, or says that it protects nothing" [Faults] faults::store_down;
    E09 "a reply that cannot be kept is given, and not made again" [Faults] faults::store_dies;
    E10 "a reply survives a restart of the gate" [Persist] crashes::restarted, quiet;
    E11 "a reply that is cut off is not taken for one" [] faults::truncated;
    E12 "another gate replays what the first one sealed, and no longer than that holds" [Multi] crashes::elsewhere;
    F01 "after its time a key is new" [Routes] faults::expired;
    F02 "copies do not keep a key for longer, unless that is wanted" [Routes] faults::not_extended;
    F03 "after its time a key is refused, where that is wanted" [Routes] faults::refused_later;
    G01 "tenants with the same key do not meet" [Tenants] callers::tenants;
    G02 "nor do callers, or one without credentials" [Tenants] callers::principals;
    G03 "a key cannot name another tenant" [Atp Tenants] callers::foreign_tenant;
    G05 "what only a gate says is not believed of a client" [] callers::spoofed;
    G06 "bodies above the limit are refused, and ten thousand keys leave room for what runs" [Limits] callers::too_much, quiet;
    P01 "calls of gRPC are judged by their status, and their trailers come back" [Grpc] calls::unary;
    P02 "events flow before they end; the key is passed on, what is meant for one connection is not" [] replies::events not [Tx], quiet;
    S1 "where the last write wins, its reply is kept" [Strategies] strategies::last_wins;
    S2 "where another request is let through, it is warned and the first reply kept" [Strategies] strategies::warned;
    S3 "a key of a content must be that of the body" [Strategies] strategies::of_content;
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, seen: T, expected: T) -> Outcome {
    if seen == expected { Ok(()) } else { Err(format!("{what}: {seen:?} instead of {expected:?}")) }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn is_problem(answer: &Answer, status: u16) -> Outcome {
    expect("status", answer.status, status)?;
    ensure(answer.is_problem(), || format!("no application/problem+json: {:?}", answer.get("content-type")))
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// The result of a task that must not fall over.
async fn joined<T>(task: tokio::task::JoinHandle<Result<T, String>>) -> Result<T, String> {
    task.await.unwrap_or_else(|error| Err(describe(&error)))
}

fn describe(error: &impl Display) -> String {
    format!("a request fell over: {error}")
}
