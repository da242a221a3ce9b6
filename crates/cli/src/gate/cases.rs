//! What a gate must get right, case by case. A case sends requests to the
//! fixture's service through the gate, and looks at the answers and at how
//! often the service ran.

mod callers;
mod faults;
mod flights;
mod keys;
mod payloads;
mod replies;
mod strategies;

use std::fmt::Display;
use std::pin::Pin;
use std::time::Duration;

use super::ProfileName;
use super::check::Ability;
use super::client::{Answer, Message, Target};

/// Holds, or what was seen instead.
pub(super) type Outcome = Result<(), String>;
type Run = fn(Stand) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;

pub(super) struct Case {
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    pub(super) needs: &'static [Ability],
    pub(super) run: Run,
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conclusion {
    Passed,
    Failed(String),
    NotApplicable,
}

impl Conclusion {
    pub(super) const fn letter(&self) -> &'static str {
        match self {
            Self::Passed => "P",
            Self::Failed(_) => "F",
            Self::NotApplicable => "N/A",
        }
    }

    pub(super) fn observed(&self) -> Option<&str> {
        match self {
            Self::Failed(observed) => Some(observed),
            Self::Passed | Self::NotApplicable => None,
        }
    }
}

impl From<Outcome> for Conclusion {
    fn from(outcome: Outcome) -> Self {
        outcome.map_or_else(Self::Failed, |()| Self::Passed)
    }
}

macro_rules! cases {
    ($($id:ident $what:literal [$($need:ident)*] $module:ident::$run:ident;)*) => {
        /// All of them, in the order they are listed.
        pub(super) static CASES: &[Case] = &[$(Case {
            id: stringify!($id),
            what: $what,
            needs: &[$(Ability::$need),*],
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
    D01 "a copy of a running request is told to come back, at once" [] flights::refused;
    D02 "or waits for the reply" [Routes] flights::waits;
    D03 "of fifty at once one runs" [] flights::fifty;
    D04 "another body is refused while the first one runs" [] flights::other_in_flight;
    D05 "different keys do not wait for each other" [] flights::parallel;
    D06 "a wait has an end" [Routes] flights::short_wait;
    D07 "a client that hangs up does not cause a second run" [] flights::hung_up;
    E01 "a handler that falls over frees the key" [] faults::raises;
    E04 "a handler that takes longer than its lease keeps its key" [Routes] faults::longer_than_lease;
    E06 "a reply that is cut off is not taken for one" [] faults::truncated;
    E07 "a request that is cut off does not use up its key" [] faults::half_a_request;
    E08 "without its store a gate refuses, or says that it protects nothing" [Faults] faults::store_down;
    E09 "a reply that cannot be kept is given, and not made again" [Faults] faults::store_dies;
    E10 "another process replays what the first one sealed" [Second] faults::elsewhere;
    F01 "after its time a key is new" [Routes] faults::expired;
    F02 "copies do not keep a key for longer, unless that is wanted" [Routes] faults::not_extended;
    G01 "tenants with the same key do not meet" [Tenants] callers::tenants;
    G02 "nor do callers, or one without credentials" [Tenants] callers::principals;
    G03 "a key cannot name another tenant" [Tenants] callers::foreign_tenant;
    G05 "what only a gate says is not believed of a client" [] callers::spoofed;
    G06 "a body above the limit is refused and not run" [Limits] callers::large_request;
    P01 "the key reaches the service, what is meant for one connection does not" [Proxy] callers::forwarded;
    P02 "events flow before they end" [] replies::events;
    S1 "where the last write wins, its reply is kept" [Strategies] strategies::last_wins;
    S2 "where another request is let through, it is warned and the first reply kept" [Strategies] strategies::warned;
    S3 "a key of a content must be that of the body" [Strategies] strategies::of_content;
}

/// Where a case stands: its target, its profile and a counter of its own.
#[derive(Clone, Debug)]
pub(super) struct Stand {
    target: Target,
    /// Another gate on the same store.
    second: Option<Target>,
    profile: ProfileName,
    case: String,
}

impl Stand {
    pub(super) fn new(target: &Target, id: &str, profile: ProfileName) -> Self {
        let case = format!("{id}-{}", uuid::Uuid::new_v4().simple());
        Self { target: target.clone(), second: None, profile, case }
    }

    pub(super) fn beside(self, second: Option<&Target>) -> Self {
        Self { second: second.cloned(), ..self }
    }

    /// The same case at the other gate.
    fn elsewhere(&self) -> Result<Self, String> {
        let target = self.second.clone().ok_or("there is no second gate")?;
        Ok(Self { target, ..self.clone() })
    }

    fn is_atp(&self) -> bool {
        self.profile == ProfileName::Atp
    }

    /// A key that nobody has used.
    fn key(&self) -> String {
        let unique = uuid::Uuid::new_v4();
        if self.is_atp() { format!("t:check:{unique}") } else { unique.to_string() }
    }

    /// A message that is counted for this case.
    fn message(&self, path: &str) -> Message {
        let message = Message::post(path, "{\"item\":1,\"count\":2}").header("x-fx-case", &self.case);
        if self.is_atp() { message.header("x-fx-tenant", "t") } else { message }
    }

    /// An order, which the handler is told something about.
    fn order(&self, wish: &str) -> Message {
        self.message("/orders").header("x-fx", wish)
    }

    async fn send(&self, message: &Message) -> Result<Answer, String> {
        self.target
            .send(message)
            .await
            .map_err(|error| format!("{} {}: {error}", message.method, message.path))
    }

    /// How often the handler has run for this case.
    async fn runs(&self) -> Result<u64, String> {
        self.target.count(&self.case).await.map_err(|error| error.to_string())
    }

    /// Sends a message twice; answers with both answers, of which the second must be a replay.
    async fn twice(&self, message: &Message) -> Result<(Answer, Answer), String> {
        let (first, second) = (self.send(message).await?, self.send(message).await?);
        expect("runs", self.runs().await?, 1)?;
        self.is_replay(&first, &second)?;
        Ok((first, second))
    }

    fn is_replay(&self, first: &Answer, second: &Answer) -> Outcome {
        let status = if self.is_atp() && (200..300).contains(&first.status) { 200 } else { first.status };
        expect("status of the copy", second.status, status)?;
        expect("marker of the copy", second.get("idempotent-replayed"), Some("true"))?;
        expect("marker of the first", first.get("idempotent-replayed"), None)?;
        ensure(first.body == second.body, || "the body of the copy differs".into())
    }

    fn mismatch(&self) -> u16 {
        if self.is_atp() { 409 } else { 422 }
    }
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
