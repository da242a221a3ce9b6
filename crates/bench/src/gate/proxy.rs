//! The proxy: `oncebox gate` with the gate on, against itself with the gate off.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use super::child::{Child, Place};
use super::load::{self, Keys, Report};
use super::server::{Before, Service};
use super::{Run, of};
use crate::machine::TempDir;
use crate::report::Target;
use crate::rounds::interleave;

/// Where `./dev bench gate` has put the program.
const PROGRAM: &str = "ONCEBOX_PROGRAM";
/// No method's keys count: every request goes past the gate.
const OFF: &str = "[defaults]\nmethods = []\n";

pub(super) async fn measure(run: &mut Run) {
    let names = ["proxy.unique.64.rate", "proxy.unique.64.cpu"];
    if !run.wants_any(&names) {
        return;
    }
    let Ok(program) = std::env::var(PROGRAM) else {
        run.not_available(names[0], "run it by `./dev bench gate`, which builds the program");
        return;
    };
    let folder = TempDir::new();
    let off = folder.0.join("off.toml");
    std::fs::write(&off, OFF).expect("a file");
    let rounds = interleave(
        run.sizes.rounds,
        async || once(run, &program, None).await,
        async || once(run, &program, Some(&off)).await,
    )
    .await;
    run.report(names[0], "requests/s", of(&rounds, |report| report.rate), Target::AtLeast(0.8));
    run.report(names[1], "us/request", of(&rounds, |report| report.cpu_micros), Target::AtMost(1.25));
}

/// The same requests, with keys, whether these count or not.
async fn once(run: &Run, program: &str, routes: Option<&Path>) -> Report {
    let service = Service { ignores_body: true, ..Service::new(Before::Nothing) };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("an option");
    let address = listener.local_addr().expect("an address").to_string();
    let mut command = Command::new(program);
    command.args(["gate", "--listen", "127.0.0.1:0", "--db", "memory", "--unscoped"]);
    command.args(["--upstream", &format!("http://{address}")]);
    if let Some(routes) = routes {
        command.arg("--routes").arg(routes);
    }
    let proxy = Child::start_saying(&command, run.place(Place::Alone), "gate listens on http://");
    // On the thread of the clients: as a process of its own it would have to be woken, and to wait for clients that
    // do not sleep.
    let answers = async move {
        service.answer(tokio::net::TcpListener::from_std(listener).expect("a socket")).await;
    };
    load::run_beside(&proxy, &address, run.quick(64, Keys::Unique), answers)
}
