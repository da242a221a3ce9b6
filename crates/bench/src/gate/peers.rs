//! axum-idempotent before the same handler, in the same run. It lives in a
//! program of its own (`crates/bench/peers`).
//!
//! It keeps replies in sessions, in memory (moka): each connection has one. By
//! default it compares requests by a hash of all of them; told to go by the key
//! alone, it reads no body and answers another request under the same key with
//! the reply of the first. Copies that arrive while the first one runs, run too.

use std::process::Command;

use serde_json::json;

use super::child::{Child, Place};
use super::load::{self, Keys, Load, Report};
use super::server::{Before, Service};
use super::{Run, of};
use crate::report::{Target, note};
use crate::rounds::interleave;

/// Where `./dev bench` has put the program.
const PROGRAM: &str = "ONCEBOX_PEERS";
const VERSION: &str = "axum-idempotent 0.6.0, ruts 0.13.0 with its moka store";
const CONNECTIONS: usize = 64;

pub(super) async fn measure(run: &mut Run) {
    let mut is_noted = false;
    // What it does, whether ours compares bodies byte by byte, as a hash of them would, and what that is called.
    let modes = [
        ("axum-idempotent", false, ""),
        ("axum-idempotent-by-key", false, ""),
        ("axum-idempotent-by-key", true, "_raw"),
    ];
    for (mode, is_raw, end) in modes {
        for (what, keys) in [("first", Keys::Unique), ("replay", Keys::Same)] {
            let name = format!("peer.{}{end}.{what}", mode.replace('-', "_"));
            let (cpu, rate) = (format!("{name}.cpu"), format!("{name}.rate"));
            if !run.wants_any(&[&cpu, &rate]) {
                continue;
            }
            let Ok(program) = std::env::var(PROGRAM) else {
                run.not_available(&name, "run it by `./dev bench gate`, which builds the peers");
                continue;
            };
            if !std::mem::replace(&mut is_noted, true) {
                let facts = json!({"version": VERSION, "sessions": CONNECTIONS, "ours": "scoped by session"});
                note("peer.axum_idempotent.settings", &facts, run.output);
            }
            let ours = Service { ignores_body: true, is_raw, ..Service::new(Before::Memory) };
            let load = Load { with_session: true, ..run.quick(CONNECTIONS, keys) };
            let rounds = interleave(
                run.sizes.rounds,
                async || run.once(&ours, load).await,
                async || theirs(run, &program, mode, load).await,
            )
            .await;
            run.report(&cpu, "us/request", of(&rounds, |report| report.cpu_micros), Target::Below(1.0));
            run.report(&rate, "requests/s", of(&rounds, |report| report.rate), Target::Above(1.0));
        }
    }
}

async fn theirs(run: &Run, program: &str, mode: &str, load: Load) -> Report {
    let mut command = Command::new(program);
    command.arg(mode);
    let child = Child::start(&command, run.place(Place::Alone));
    load::run(&child, &child.address, load)
}
