//! Every case of the checker: on every store, in both profiles, as a layer, as
//! a proxy and in the handler's own transaction. What is not applicable is named.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use serde_json::Value;

use super::Served;
use crate::database::{Database, fresh_folder};
use crate::program::{Ran, eventually, other};

/// The fixture's policies, for a proxy.
const ROUTES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/gate/routes.toml");

/// A gate that the checker may kill: a script kills it and starts it again, at the same address.
struct Mortal {
    address: String,
    script: PathBuf,
    pid: PathBuf,
}

impl Mortal {
    fn start(folder: &Path, name: &str, args: &[&str]) -> Self {
        static ONE_BY_ONE: Mutex<()> = Mutex::new(());
        // Two at once might be given the same port.
        let _turn = ONE_BY_ONE.lock();
        let address = format!("127.0.0.1:{}", oncebox_conformance::server::free_port());
        let [script, pid, log] = ["sh", "pid", "log"].map(|ending| folder.join(format!("{name}.{ending}")));
        let quoted: Vec<_> = args.iter().map(|arg| format!("'{arg}'")).collect();
        // A process that is being killed has its port until all its threads are gone; then it may be somebody else's.
        let text = format!(
            "pid=$(cat {pid} 2>/dev/null) && kill -9 $pid\n\
             runs() {{ [ -n \"$(ls /proc/$pid/fd 2>/dev/null)\" ]; }}\n\
             for try in $(seq 200); do\n\
               {program} gate {args} --listen {address} </dev/null >/dev/null 2>{log} &\n\
               pid=$!; echo $pid >{pid}\n\
               sleep 0.02\n\
               while runs && ! grep -q 'listens on' {log}; do sleep 0.02; done\n\
               runs && exit 0\n\
             done\n\
             exit 1\n",
            pid = pid.display(),
            log = log.display(),
            program = env!("CARGO_BIN_EXE_oncebox"),
            args = quoted.join(" "),
        );
        std::fs::write(&script, text).unwrap();
        other("sh", &[script.to_str().unwrap()], "");
        eventually("the gate listens", || std::net::TcpStream::connect(&address).is_ok());
        Self { address, script, pid }
    }

    fn check(&self, args: &[&str]) -> Ran {
        let restart = format!("sh {}", self.script.display());
        check(&self.address, &[&["--restart", &restart], args].concat())
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(&self.pid).unwrap();
        std::process::Command::new("kill").args(["-9", pid.trim()]).status().ok();
    }
}

fn check(address: &str, args: &[&str]) -> Ran {
    let target = format!("http://{address}");
    crate::program::oncebox([&["gate", "check", "--target", &target, "-o", "json"], args].concat())
}

/// The ids of cases with this verdict.
fn ids(report: &Value, verdict: &str) -> Vec<String> {
    let cases = report["cases"].as_array().unwrap().iter();
    cases.filter(|case| case["verdict"] == verdict).map(|case| case["id"].as_str().unwrap().into()).collect()
}

/// All cases hold but those that are not applicable, which are these.
#[track_caller]
fn all_hold(ran: Ran, but: &[&str]) {
    let report = ran.json();
    let failed: Vec<_> =
        report["cases"].as_array().unwrap().iter().filter(|case| case["verdict"] == "F").collect();
    assert!(failed.is_empty(), "seed {}: {failed:#?}", report["seed"]);
    assert_eq!(ids(&report, "N/A"), but);
    for case in report["cases"].as_array().unwrap() {
        let is_told = !case["observed"].as_array().unwrap().is_empty();
        assert_eq!(is_told, case["verdict"] == "P", "{case}");
    }
    ran.exits(0);
}

/// Suites wait most of the time, so both profiles are tried at once.
fn in_both_profiles(suite: impl Fn(&str) + Sync) {
    thread::scope(|scope| {
        for profile in ["ietf", "atp"] {
            let suite = &suite;
            scope.spawn(move || suite(profile));
        }
    });
}

/// These, and what one profile leaves out by itself.
fn but<'a>(profile: &str, before: &[&'a str], after: &[&'a str]) -> Vec<&'a str> {
    let own: &[&str] = if profile == "ietf" { &["G03"] } else { &[] };
    [before, own, after].concat()
}

#[test]
fn every_case_holds_for_a_layer_in_memory() {
    in_both_profiles(|profile| {
        let fixture = Served::fixture(&["--profile", profile]);
        // Ten thousand keys are enough once.
        let with: &[&str] = if profile == "ietf" { &[] } else { &["--with", LAYER] };

        let ran = fixture.check(&[&["--profile", profile], with].concat());

        all_hold(ran, &but(profile, &["E02", "E05", "E06", "E10", "E12"], &[]));
    });
}

const LAYER: &str = "routes,wait,tenants,limits,strategies,faults,grpc";

fn layer_holds(database: Option<Database>) {
    let Some(database) = database.map(Database::migrated) else { return };
    in_both_profiles(|profile| {
        let (url, name) = (database.url(), &database.name);
        let args = ["fixture", "--store", &url, "--schema", name, "--profile", profile];
        let fixture = Mortal::start(database.folder(), profile, &args);

        let ran = fixture.check(&["--profile", profile, "--with", LAYER]);

        all_hold(ran, &but(profile, &["E05", "E06", "E12"], &[]));
    });
}

#[test]
fn every_case_holds_for_a_layer_on_sqlite() {
    layer_holds(Database::sqlite("every_case_holds_for_a_layer"));
}

#[test]
fn every_case_holds_for_a_layer_on_postgres() {
    layer_holds(Database::postgres("every_case_holds_for_a_layer"));
}

const PROXY: &str = "routes,wait,tenants,limits,strategies,proxy";

fn proxy_args<'a>(upstream: &'a str, url: &'a str, name: &'a str, profile: &'a str) -> Vec<&'a str> {
    let (to, scope) = (["--upstream", upstream], ["--anonymous", "--tenant-header", "x-fx-tenant"]);
    let own = ["--db", url, "--schema", name, "--profile", profile, "--routes", ROUTES];
    [&to[..], &scope, &own].concat()
}

#[test]
fn every_case_holds_for_a_proxy_in_memory() {
    in_both_profiles(|profile| {
        let service = Served::fixture(&["--bare"]);
        let upstream = format!("http://{}", service.address);
        let proxy = Served::start(&proxy_args(&upstream, "memory", "oncebox", profile));

        let ran = proxy.check(&["--profile", profile, "--with", PROXY]);

        let before = ["E02", "E08", "E09", "E10", "E12"];
        all_hold(ran, &but(profile, &before, &["P01"]));
    });
}

fn proxy_holds(database: Option<Database>) {
    let Some(database) = database.map(Database::migrated) else { return };
    in_both_profiles(|profile| {
        let (service, url) = (Served::fixture(&["--bare"]), database.url());
        let upstream = format!("http://{}", service.address);
        let args = proxy_args(&upstream, &url, &database.name, profile);
        let (proxy, second) = (Mortal::start(database.folder(), profile, &args), Served::start(&args));
        let beside = format!("http://{}", second.address);

        let ran = proxy.check(&["--profile", profile, "--with", PROXY, "--second", &beside]);

        all_hold(ran, &but(profile, &["E08", "E09"], &["P01"]));
    });
}

#[test]
fn every_case_holds_for_a_proxy_on_sqlite() {
    proxy_holds(Database::sqlite("every_case_holds_for_a_proxy"));
}

#[test]
fn every_case_holds_for_a_proxy_on_postgres() {
    proxy_holds(Database::postgres("every_case_holds_for_a_proxy"));
}

#[test]
fn every_case_holds_in_transactions_on_postgres() {
    let Some(database) = Database::postgres("every_case_holds_in_transactions") else { return };
    let database = database.migrated();
    in_both_profiles(|profile| {
        let (url, name) = (database.url(), &database.name);
        let args = ["fixture", "--tx", "--store", &url, "--schema", name, "--profile", profile];
        let fixture = Mortal::start(database.folder(), profile, &args);

        let ran =
            fixture.check(&["--profile", profile, "--with", "tx,routes,wait,tenants,limits,strategies,grpc"]);

        let before = ["E02", "E05", "E06", "E08", "E09", "E12"];
        all_hold(ran, &but(profile, &before, &["P02"]));
    });
}

#[test]
fn every_case_holds_in_transactions_on_sqlite() {
    in_both_profiles(|profile| {
        // One for each: whoever writes in a file keeps all others from it.
        let Some(database) = Database::sqlite("every_case_holds_in_transactions") else { return };
        let database = database.migrated();
        let url = database.url();
        let args = ["fixture", "--tx", "--store", &url, "--profile", profile];
        let fixture = Mortal::start(database.folder(), profile, &args);

        let with = "tx,one-writer,routes,tenants,limits,strategies,grpc";
        let ran = fixture.check(&["--profile", profile, "--with", with, "--workers", "1"]);

        let flights = ["D01", "D02", "D04", "D05", "D06"];
        let before = [&flights[..], &["E02", "E04", "E05", "E06", "E08", "E09", "E12"]].concat();
        all_hold(ran, &but(profile, &before, &["P02"]));
    });
}

#[test]
fn a_seed_is_an_order_and_a_wish_that_nobody_knows_is_refused() {
    let fixture = Served::fixture(&[]);

    let report = fixture.check(&["--only", "B01", "--seed", "7"]).exits(0).json();
    let (status, answer) = super::order(&fixture.address, "wish", "k", r#"{"slep":1}"#);

    assert_eq!(report["seed"], 7);
    assert_eq!(report["cases"][0]["observed"], serde_json::json!(["201", "201 replayed", "runs 1"]));
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("slep"), "{answer}");
    assert_eq!(super::runs(&fixture.address, "wish"), 0);
}

#[test]
fn sabotaged_a_service_without_a_gate_is_found_out() {
    let report = Served::fixture(&["--bare"]).check(&[]).exits(1).json();

    let failed = ids(&report, "F");
    assert!(failed.len() > 35, "{report}");
    let expected = ["B01", "B06", "C01", "D01", "D03", "D07", "F01", "G05", "G06", "P01"];
    assert!(expected.iter().all(|id| failed.contains(&(*id).to_owned())), "{report}");
}

#[test]
fn sabotaged_a_gate_that_forgets_with_its_process_is_found_out() {
    let folder = fresh_folder();
    let fixture = Mortal::start(&folder, "memory", &["fixture"]);

    for id in ["E02", "E10"] {
        let report = fixture.check(&["--only", id]).exits(1).json();
        assert_eq!(ids(&report, "F"), [id], "{report}");
    }

    drop(fixture);
    std::fs::remove_dir_all(folder).ok();
}
