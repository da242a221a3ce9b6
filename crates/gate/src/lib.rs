//! HTTP `Idempotency-Key`: a request takes effect once, however often a client
//! sends it, and every copy gets the reply of the first.
//!
//! [`Gate`] is a [`tower_layer::Layer`]. It goes behind authentication, since
//! it must know whose key it sees:
//!
//! ```
//! # use oncebox_gate::{Caller, Gate};
//! # fn app<S: oncebox_core::gate::Receipts>(store: S) {
//! let gate = Gate::new(store).scope(|request| {
//!     let user = request.extensions.get::<String>()?;
//!     Some(Caller { tenant: String::new(), principal: user.clone() })
//! });
//! # }
//! ```
//!
//! # Layout, in reading order
//!
//! - [`gate`](Gate): the layer and what it is made of; [`policy`]: its options; `rule`: what is made of them.
//! - `service`: one request, from its `arrival`, with key and body, through the `entrance`, where the store is
//!   asked, to its answer; `flight`: the run in between, which a client that hangs up does not end; `future`: what becomes of it then; `patience`: waiting.
//! - `heart`: leases of those that run long; `strays`: admissions that nobody heard of; `broom`: receipts whose time is over.
//! - `quota`: how many keys a caller may have. `cache`: replies that need no question. `record`: what is kept of a reply; `marker`: what a replay is marked by; `answer`: what the gate itself says, and `grpc`: how it says that to a gRPC call.
//! - [`claim`]: keys that are claimed and sealed in the handler's own transaction.
//! - `extract`: the same for axum. [`carry`]: what messages inherit from a request.

mod answer;
mod arrival;
mod body;
mod broom;
mod cache;
mod carry;
pub mod claim;
mod entrance;
#[cfg(feature = "axum")]
mod extract;
mod flight;
mod future;
mod gate;
mod grpc;
mod heart;
pub mod keys;
mod marker;
mod patience;
pub mod policy;
mod quota;
mod record;
mod rule;
mod service;
mod strays;
mod telemetry;

pub use answer::{Problem, REPLAYED};
pub use body::GateBody;
pub use carry::carry;
pub use claim::{Claim, Claimed};
pub use flight::{Doubt, Untouched};
pub use future::GateFuture;
pub use gate::{Gate, GateBuilder};
pub use oncebox_core::gate::{Caller, Durability, KeySyntax, OnDoubt, RequestKey};
pub use policy::{InFlight, Policy, Profile, Store, Strategy};
pub use service::{GateService, IdempotencyKey};
