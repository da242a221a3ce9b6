//! F12 skewed-worker: the clock of one of three worker processes jumps between
//! an hour ahead and an hour behind. Nobody's lease is taken early, and nothing
//! is purged early, as only the database's clock is asked.
//!
//! Sabotage: workers that go by their own clock.

use std::sync::Arc;
use std::time::Duration;

use oncebox::inspect::Inspect as _;
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::Posted;
use oncebox_conformance::size::sized;
use oncebox_conformance::{Findings, StoreFixture};

use super::bodies::HANDLER;
use super::booking::operation;
use super::children::Killed;
use super::workshop::{Orders, Role, Surroundings, Workshop, deposit, inbox, libfaketime, settled};
use crate::conformance::postgres::PostgresFixture;

fn messages() -> i64 {
    sized(16, 20_000)
}

/// Messages that a worker has under way.
fn seats() -> usize {
    sized(4, 64)
}

/// How often the clock jumps: each side of a jump meets a renewal.
fn jump() -> Duration {
    sized(Duration::from_millis(2_500), Duration::from_secs(5))
}

fn orders(role: Role) -> Orders {
    Orders {
        role,
        // Longer than a process may be stalled between two renewals.
        lease: Duration::from_secs(6),
        // Long enough for others to find it held.
        pause: Duration::from_secs(7),
        timeout: Duration::from_secs(30),
        attempts: None,
        // What is held is run, so that whoever takes it runs it once more.
        seats: (seats(), 0),
    }
}

struct Report {
    findings: Findings,
    /// Bodies beyond the first of each message.
    takeovers: usize,
    /// Purges of what was only just handled.
    purges: usize,
    markers: i64,
}

/// A clock that jumps, as a file that libfaketime reads.
struct Skew(std::path::PathBuf);

impl Skew {
    fn new() -> Self {
        let file = std::env::temp_dir().join(format!("oncebox-skew-{}", std::process::id()));
        std::fs::write(&file, "+1h").unwrap();
        Self(file)
    }

    async fn jump(file: std::path::PathBuf) {
        for offset in ["-1h", "+1h"].iter().cycle() {
            tokio::time::sleep(jump()).await;
            std::fs::write(&file, offset).unwrap();
        }
    }
}

impl Drop for Skew {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// `None` if nobody's clock can be skewed here.
async fn run(fixture: &Arc<PostgresFixture>, role: Role) -> Option<Report> {
    if libfaketime().is_none() {
        assert!(std::env::var_os("ONCEBOX_NO_SKIP").is_none(), "libfaketime is not installed");
        println!("SKIP F12: libfaketime is not installed");
        return None;
    }
    let (shop, inbox, skew) = (Workshop::open(&**fixture), inbox(fixture), Skew::new());
    let start = |around: &Surroundings| shop.start(orders(role), around);
    let mut children: Vec<Killed> = (0..2).map(|_| start(&Surroundings::Ordinary)).collect();
    let messages: Vec<Posted> = (0..messages()).map(|n| Posted::on(&format!("account-{n}"), n)).collect();
    // When the third comes, the others have all hands full.
    let (first, others) = messages.split_at(2 * seats());
    deposit(&inbox, first).await;
    while shop.diary().len() < first.len() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    children.push(start(&Surroundings::Skewed(skew.0.clone())));
    let jumping = tokio::spawn(Skew::jump(skew.0.clone()));
    // Little by little, so that somebody has always nothing to do and looks around.
    for some in others.chunks(sized(3, 12)) {
        tokio::time::sleep(sized(Duration::from_millis(500), orders(role).pause / seats() as u32)).await;
        deposit(&inbox, some).await;
    }
    let expected: Vec<_> = messages.iter().map(|message| operation(HANDLER, message)).collect();
    // Nothing moves for as long as a body takes.
    let rest = role.rest().max(orders(role).pause * 2);
    let findings = settled(&**fixture, &expected, rest).await;
    // Both sides of a jump have a chance to purge what is done.
    tokio::time::sleep(jump() * 2).await;
    jumping.abort();
    drop(children);
    let purges = shop.diary().iter().filter(|line| line.starts_with("purged")).count();
    let takeovers = shop.diary().len() - purges - messages.len().min(shop.diary().len() - purges);
    let markers = fixture.store().status().await.unwrap().markers;
    println!("F12 {role:?}: {takeovers} early takeovers, {purges} early purges, {findings}");
    Some(Report { findings, takeovers, purges, markers })
}

#[test]
fn a_worker_with_a_wrong_clock_takes_and_purges_nothing_early() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(report) = run(&fixture, Role::Sweeper).await else { return };

        report.findings.assert_clean();
        assert_eq!((report.takeovers, report.purges, report.markers), (0, 0, messages()));
    });
}

#[test]
fn sabotaged_workers_that_go_by_their_own_clock_take_and_purge_early() {
    on_store::<PostgresFixture, _, _>(|fixture| async move {
        let Some(report) = run(&fixture, Role::OwnClock).await else { return };

        assert!(report.takeovers > 0 && report.purges > 0, "{} {}", report.takeovers, report.purges);
    });
}
