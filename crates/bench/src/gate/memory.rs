//! Receipts in memory: what a request, a copy, a million receipts and a storm of copies cost.

use super::child::{Child, Place};
use super::load::{self, Keys};
use super::server::{Before, Service};
use super::{Run, of};
use crate::report::Target;

const MIB: f64 = 1_048_576.0;

pub(super) async fn measure(run: &mut Run) {
    let (gated, off) = (Service::new(Before::Memory), Service::new(Before::Off));
    for connections in [8, 64] {
        unique(run, &format!("memory.unique.{connections}"), connections, (&gated, &off)).await;
    }
    replay(run, "memory.replay.64", (&gated, &off)).await;
    // Any layer costs something, whatever it does: this is what a service pays that had none before.
    unique(run, "memory.unique_over_bare.64", 64, (&gated, &Service::new(Before::Nothing))).await;
    let deaf = |service: &Service| Service { ignores_body: true, ..service.clone() };
    let (deaf_gated, deaf_off) = (deaf(&gated), deaf(&off));
    unique(run, "memory.unique_unread.64", 64, (&deaf_gated, &deaf_off)).await;
    replay(run, "memory.replay_unread.64", (&deaf_gated, &deaf_off)).await;
    if run.wants("memory.flat.cpu") {
        let roomy = Service { capacity: Some(4 << 30), ..gated.clone() };
        let large = Service { receipts: run.sizes.many, ..roomy.clone() };
        let small = Service { receipts: 1_000, ..roomy };
        let load = run.quick(64, Keys::Unique);
        let rounds = run.compare((&large, load), (&small, load)).await;
        let rounds = of(&rounds, |report| report.cpu_micros);
        run.report("memory.flat.cpu", "us/request", rounds, Target::AtMost(1.15));
    }
    storm(run, &gated).await;
    peak(run, &gated).await;
}

/// A key for each request, the same requests without the gate.
async fn unique(run: &mut Run, name: &str, connections: usize, (gated, off): (&Service, &Service)) {
    let (cpu, rate) = (format!("{name}.cpu"), format!("{name}.rate"));
    if run.wants_any(&[&cpu, &rate]) {
        let load = run.quick(connections, Keys::Unique);
        let rounds = run.compare((gated, load), (off, load)).await;
        run.report(&cpu, "us/request", of(&rounds, |report| report.cpu_micros), Target::AtMost(1.6));
        run.report(&rate, "requests/s", of(&rounds, |report| report.rate), Target::AtLeast(0.7));
    }
}

/// The same request again; without the gate, where nothing is the same, one as long.
async fn replay(run: &mut Run, name: &str, (gated, off): (&Service, &Service)) {
    let (cpu, rate) = (format!("{name}.cpu"), format!("{name}.rate"));
    if run.wants_any(&[&cpu, &rate]) {
        let (ours, other) = (run.quick(64, Keys::Same), run.quick(64, Keys::Unique));
        let rounds = run.compare((gated, ours), (off, other)).await;
        run.report(&rate, "requests/s", of(&rounds, |report| report.rate), Target::AtLeast(1.0));
        run.report(&cpu, "us/request", of(&rounds, |report| report.cpu_micros), Target::AtMost(1.0));
    }
}

async fn storm(run: &mut Run, gated: &Service) {
    if !run.wants_any(&["memory.storm.runs", "memory.storm.refused_p99"]) {
        return;
    }
    let slow = Service { millis: 2_000, ..gated.clone() };
    let (mut runs, mut waits) = (Vec::new(), Vec::new());
    for _ in 0..run.sizes.rounds {
        let child = Child::start(&slow.command(), run.place(Place::Alone));
        let (ran, p99) = load::storm(&child, 50, 20).await;
        // As a ratio to what it may be: one run, 5 ms.
        runs.push((ran, 1.0));
        waits.push((p99, 5.0));
    }
    run.report("memory.storm.runs", "runs", runs, Target::AtMost(1.0));
    run.report("memory.storm.refused_p99", "ms", waits, Target::Below(1.0));
}

/// How far memory rises while more replies come than fit into it.
async fn peak(run: &mut Run, gated: &Service) {
    const NAME: &str = "memory.peak_rss_mib";
    if !run.wants(NAME) {
        return;
    }
    let capped = Service { capacity: Some(64 << 20), reply_bytes: 1024, ..gated.clone() };
    let child = Child::start(&capped.command(), run.place(Place::Alone));
    let before = child.peak();
    let load = load::Load { requests: run.sizes.replies, ..run.quick(64, Keys::Unique) };
    load::run(&child, &child.address, load);
    let grown = (child.peak() - before) as f64 / MIB;
    run.report(NAME, "MiB over base", vec![(grown, 96.0)], Target::AtMost(1.0));
}
