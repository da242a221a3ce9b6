//! The durable inbox: what it stores, who works on it, and what becomes of it.
//!
//! From: `Depot` of `oncebox_core`. To: the statements in `sql/`.

pub(super) mod deposit;
mod effect;
mod finish;
mod handlers;
pub(super) mod lane;
pub(super) mod renew;
mod take;

use std::collections::HashSet;
use std::time::Duration;

use oncebox_core::depot::{
    Assigned, Assignment, Deposit, Deposited, Fate, Finish, Number, Savepoint, Standing, Stored, StoredPage,
    TakeRequest, Taken, Ticket, Want,
};
use oncebox_core::store::Marked;
use oncebox_core::{Depot, Error, Kind, Result, Timestamp};
use sqlx::PgConnection;

use super::error::failed;
use super::store::PostgresStore;

impl Depot for PostgresStore {
    async fn deposit(
        &self,
        tx: &mut PgConnection,
        deposits: &[Deposit<'_>],
        now: Option<Timestamp>,
    ) -> Result<Vec<Deposited>> {
        deposit::deposit(self, tx, deposits, now).await
    }

    async fn take(&self, request: &TakeRequest<'_>, now: Option<Timestamp>) -> Result<Vec<Taken>> {
        take::take(self, request, now).await
    }

    async fn has_suspects(&self, scope: &str, wants: &[Want<'_>], now: Option<Timestamp>) -> Result<bool> {
        take::has_suspects(self, scope, wants, now).await
    }

    async fn start(&self, tickets: &[Ticket]) -> Result<Vec<bool>> {
        take::start(self, tickets).await
    }

    async fn renew(&self, tickets: &[Ticket], lease: Duration, now: Option<Timestamp>) -> Result<Vec<bool>> {
        renew::renew(self, tickets, lease, now).await
    }

    async fn finish(
        &self,
        tx: &mut PgConnection,
        finish: &Finish<'_>,
        now: Option<Timestamp>,
    ) -> Result<Marked> {
        finish::finish(self, tx, finish, now).await
    }

    async fn finish_all(
        &self,
        tx: &mut PgConnection,
        finishes: &[Finish<'_>],
        now: Option<Timestamp>,
    ) -> Result<Vec<Marked>> {
        finish::finish_all(self, tx, finishes, now).await
    }

    async fn savepoint(&self, tx: &mut PgConnection, step: Savepoint) -> Result<()> {
        let text = match step {
            Savepoint::Set => "SAVEPOINT oncebox_unit",
            Savepoint::Next => "RELEASE SAVEPOINT oncebox_unit; SAVEPOINT oncebox_unit",
            Savepoint::Undo => "ROLLBACK TO SAVEPOINT oncebox_unit",
        };
        sqlx::raw_sql(text).execute(tx).await.map_err(failed("cannot move the savepoint"))?;
        Ok(())
    }

    async fn conclude(
        &self,
        ticket: Ticket,
        fate: &Fate<'_>,
        next: Option<Ticket>,
        now: Option<Timestamp>,
    ) -> Result<()> {
        finish::conclude(self, ticket, fate, next, now).await
    }

    async fn give_back(&self, tickets: &[Ticket], now: Option<Timestamp>) -> Result<()> {
        take::give_back(self, tickets, now).await
    }

    async fn standing(&self, ticket: Ticket) -> Result<Standing> {
        finish::standing(self, ticket).await
    }

    async fn intend(&self, ticket: Ticket, name: &str, now: Option<Timestamp>) -> Result<Option<Vec<u8>>> {
        effect::intend(self, ticket, name, now).await
    }

    async fn record(&self, ticket: Ticket, name: &str, result: &[u8]) -> Result<()> {
        effect::record(self, ticket, name, result).await
    }

    async fn announce(&self, scope: &str, handlers: &[&str], now: Option<Timestamp>) -> Result<usize> {
        handlers::announce(self, scope, handlers, now).await
    }

    async fn park_orphans(&self, after: Duration, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        handlers::park_orphans(self, after, limit, now).await
    }

    async fn stored(&self, page: &StoredPage<'_>) -> Result<Vec<Stored>> {
        deposit::stored(self, page).await
    }

    async fn assign(
        &self,
        tx: &mut PgConnection,
        message: Number,
        assignment: &Assignment<'_>,
        now: Option<Timestamp>,
    ) -> Result<Assigned> {
        deposit::assign(self, tx, message, assignment, now).await
    }
}

fn fenced(ticket: Ticket) -> Error {
    Error::new(Kind::Fenced, format!("the lease of delivery {} was lost", ticket.number))
}

/// Tickets as statements take them.
fn columns(tickets: &[Ticket]) -> (Vec<Number>, Vec<i64>) {
    tickets.iter().map(|ticket| (ticket.number, ticket.fence)).unzip()
}

/// Which tickets are still good, told by the rows that a statement found.
fn good(tickets: &[Ticket], found: Vec<(Number, i64)>) -> Vec<bool> {
    let found: HashSet<Ticket> = found.into_iter().map(|(number, fence)| Ticket { number, fence }).collect();
    tickets.iter().map(|ticket| found.contains(ticket)).collect()
}
