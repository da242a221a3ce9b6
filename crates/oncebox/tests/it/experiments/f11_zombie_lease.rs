//! F11 zombie-lease: a worker sleeps past its lease, another takes the delivery,
//! and the first one wakes and goes on as if nothing had happened. It can
//! neither commit nor change anything about the delivery.
//!
//! Sabotage: a zombie whose fence is not looked at.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncebox::depot::{Fate, Finish, Standing, TakeRequest, Taken, Ticket, Want};
use oncebox::store::Marked;
use oncebox::{Clock, Depot, Inbox, Kind, Message as _, Result, Store, Timestamp};
use oncebox_conformance::dice::Dice;
use oncebox_conformance::fixture::kind;
use oncebox_conformance::run::on_store;
use oncebox_conformance::sample::{DESTINATION, Posted, moment};
use oncebox_conformance::{Ledger, StoreFixture};

use super::bodies::{HANDLER, tireless};
use super::booking::{Booking, operation};
use super::kills::unordered;
use super::workshop::deposit;
use crate::conformance::postgres::PostgresFixture;
use crate::conformance::sqlite::SqliteFixture;

const LEASE: Duration = Duration::from_secs(1);

/// When the zombie wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wakes {
    /// While the heir has only taken the delivery.
    BeforeTheHeir,
    /// When the heir has committed.
    AfterTheHeir,
    /// With a transaction that it had written in before the takeover.
    InItsTransaction,
    /// Just in time: it has finished when the heir comes, and commits meanwhile.
    InTime,
}

#[derive(Debug, Default)]
struct Report {
    /// Commits of zombies after the takeover.
    stale: usize,
    /// Commits of zombies that were refused.
    refused: usize,
    /// Commits in the last moment, before any takeover.
    in_time: usize,
}

struct Cycle<'a, F: StoreFixture> {
    fixture: &'a F,
    store: F::Store,
    now: Timestamp,
    is_fenced: bool,
}

impl<F: StoreFixture> Cycle<'_, F>
where
    F::Store: Depot,
{
    async fn take(&self, suspects: bool, later: i64) -> Option<Taken> {
        let wants = [Want { handler: HANDLER, limit: 1 }];
        let request = TakeRequest {
            scope: "",
            holder: if suspects { "heir" } else { "zombie" },
            lease: LEASE,
            limit: 1,
            seats: 1,
            wants: &wants,
            suspects,
        };
        let now = Timestamp::from_micros(self.now.micros() + later * 1_000_000);
        self.store.take(&request, Some(now)).await.unwrap().pop()
    }

    async fn book(&self, taken: &Taken) -> <F::Store as Store>::Begun {
        let mut tx = self.store.begin().await.unwrap();
        let message = Posted::decode(&taken.envelope.payload).unwrap();
        self.fixture.effect(&mut tx, &operation(HANDLER, &message)).await.unwrap();
        tx
    }

    async fn finish(&self, tx: &mut <F::Store as Store>::Begun, ticket: Ticket) -> Result<Marked> {
        let finish = Finish { ticket, mark: None, result: None, frees_lane: false, next: None };
        self.store.finish(tx, &finish, Some(self.now)).await
    }

    /// Finishes and commits; false if that is refused.
    async fn commit(&self, mut tx: <F::Store as Store>::Begun, ticket: Ticket) -> bool {
        match self.finish(&mut tx, ticket).await {
            Ok(Marked::First) => self.store.commit(tx).await.is_ok(),
            other => {
                assert_eq!(kind(other), Some(Kind::Fenced));
                self.store.rollback(tx).await.unwrap();
                false
            }
        }
    }

    /// The ticket a zombie shows: its own, or, where fences are not looked at, whichever is good.
    fn shown(&self, zombie: &Taken, heir: &Taken) -> Ticket {
        if self.is_fenced { zombie.ticket } else { heir.ticket }
    }

    /// Everything else a zombie could try.
    async fn try_the_rest(&self, zombie: &Taken, heir: &Taken) {
        let (store, ticket, now) = (&self.store, zombie.ticket, Some(self.now));
        let dead = Fate::Dead { spent: true, code: "zombie", reason: "late", frees_lane: false };
        assert_eq!(kind(store.conclude(ticket, &dead, None, now).await), Some(Kind::Fenced));
        assert_eq!(store.renew(&[ticket], LEASE, now).await.unwrap(), [false]);
        assert_eq!(store.start(&[ticket]).await.unwrap(), [false]);
        assert_eq!(kind(store.intend(ticket, "pay", now).await), Some(Kind::Fenced));
        assert_eq!(store.standing(ticket).await.unwrap(), Standing::Lost);
        store.give_back(&[ticket], now).await.unwrap();
        assert_eq!(store.standing(heir.ticket).await.unwrap(), Standing::Held, "the heir notices nothing");
    }

    async fn run(&self, wakes: Wakes, tries_the_rest: bool, report: &mut Report) {
        let zombie = self.take(false, 0).await.unwrap();
        if wakes == Wakes::InTime {
            let mut tx = self.book(&zombie).await;
            assert_eq!(self.finish(&mut tx, zombie.ticket).await.unwrap(), Marked::First);
            let (heir, committed) = tokio::join!(self.take(true, 2), self.store.commit(tx));
            committed.unwrap();
            assert_eq!(heir, None, "what is being committed is not taken");
            report.in_time += 1;
            return;
        }
        let early = if wakes == Wakes::InItsTransaction { Some(self.book(&zombie).await) } else { None };
        let heir = self.take(true, 2).await.unwrap();
        assert_eq!((heir.ticket.number, heir.attempt), (zombie.ticket.number, zombie.attempt + 1));
        if tries_the_rest && early.is_none() && self.is_fenced {
            self.try_the_rest(&zombie, &heir).await;
        }
        if wakes == Wakes::AfterTheHeir {
            assert!(self.commit(self.book(&heir).await, heir.ticket).await);
        }
        let tx = match early {
            Some(tx) => tx,
            None => self.book(&zombie).await,
        };
        let is_accepted = self.commit(tx, self.shown(&zombie, &heir)).await;
        report.stale += usize::from(is_accepted);
        report.refused += usize::from(!is_accepted);
        if wakes != Wakes::AfterTheHeir {
            self.commit(self.book(&heir).await, heir.ticket).await;
        }
    }
}

async fn run<F: StoreFixture>(fixture: &Arc<F>, cycles: i64, is_fenced: bool) -> Report
where
    F::Store: Depot,
{
    let inbox = Inbox::builder(fixture.store(), DESTINATION).handler(Booking::new(fixture)).durable();
    let inbox = inbox.clock(Clock::manual(moment(0))).retry(tireless()).build().unwrap();
    let messages: Vec<Posted> = (0..cycles).map(|n| Posted::on(&format!("account-{}", n % 7), n)).collect();
    deposit(&inbox, &messages).await;
    let mut ways = vec![Wakes::BeforeTheHeir, Wakes::AfterTheHeir, Wakes::InTime];
    // Elsewhere nobody could take anything while such a transaction is open.
    if F::GUARANTEES.concurrent_writers {
        ways.push(Wakes::InItsTransaction);
    }
    let (mut dice, mut report, start) = (Dice::new(Dice::seed("F11")), Report::default(), Instant::now());
    for number in 0..cycles {
        let now = moment(10 + 10 * number);
        let cycle = Cycle { fixture: &**fixture, store: fixture.store(), now, is_fenced };
        let (wakes, tries_the_rest) = (*dice.pick(&ways).unwrap(), dice.once_in(10));
        cycle.run(wakes, tries_the_rest, &mut report).await;
    }
    println!("F11 {}: {cycles} cycles in {:?}, {report:?}", F::GUARANTEES.name, start.elapsed());
    let expected: Vec<_> = messages.iter().map(|message| operation(HANDLER, message)).collect();
    unordered(Ledger::check(&expected, &fixture.effects().await)).assert_clean();
    report
}

async fn holds<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot,
{
    let report = run(&fixture, 1_000, true).await;

    assert_eq!(report.stale, 0, "{report:?}");
    assert!(report.refused > 500 && report.in_time > 100, "{report:?}");
}

async fn is_found_out<F: StoreFixture>(fixture: Arc<F>)
where
    F::Store: Depot,
{
    let report = run(&fixture, 50, false).await;

    assert!(report.stale > 0, "{report:?}");
}

#[test]
fn a_thousand_zombies_commit_nothing_on_postgres() {
    on_store::<PostgresFixture, _, _>(holds);
}

#[test]
fn a_thousand_zombies_commit_nothing_on_sqlite() {
    on_store::<SqliteFixture, _, _>(holds);
}

#[test]
fn sabotaged_without_a_look_at_the_fence_zombies_commit_on_postgres() {
    on_store::<PostgresFixture, _, _>(is_found_out);
}

#[test]
fn sabotaged_without_a_look_at_the_fence_zombies_commit_on_sqlite() {
    on_store::<SqliteFixture, _, _>(is_found_out);
}
