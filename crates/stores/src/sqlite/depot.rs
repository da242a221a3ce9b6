//! The durable inbox: what it stores, who works on it, and what becomes of it.
//!
//! From: `Depot` of `oncebox_core`. To: the statements in `sql/`.

pub(super) mod deposit;
mod effect;
mod finish;
mod handlers;
pub(super) mod lane;
mod renew;
mod take;

use std::time::Duration;

use oncebox_core::depot::{
    Assigned, Assignment, Deposit, Deposited, Fate, Finish, Number, Savepoint, Standing, Stored, StoredPage,
    TakeRequest, Taken, Ticket, Want,
};
use oncebox_core::store::Marked;
use oncebox_core::{Depot, Error, Kind, Result, Timestamp};
use serde_json::json;
use sqlx::sqlite::{SqliteConnection, SqliteQueryResult};

use super::SqliteStore;

impl Depot for SqliteStore {
    async fn deposit(
        &self,
        tx: &mut SqliteConnection,
        deposits: &[Deposit<'_>],
        now: Option<Timestamp>,
    ) -> Result<Vec<Deposited>> {
        deposit::deposit(self, tx, deposits, now).await
    }

    async fn take(&self, request: &TakeRequest<'_>, now: Option<Timestamp>) -> Result<Vec<Taken>> {
        take::take(self, request, now).await
    }

    async fn has_suspects(&self, scope: &str, wants: &[Want<'_>], now: Option<Timestamp>) -> Result<bool> {
        take::has_suspects(self, (scope, wants), now).await
    }

    async fn start(&self, tickets: &[Ticket]) -> Result<Vec<bool>> {
        take::start(self, tickets).await
    }

    async fn renew(&self, tickets: &[Ticket], lease: Duration, now: Option<Timestamp>) -> Result<Vec<bool>> {
        renew::renew(self, tickets, lease, now).await
    }

    async fn finish(
        &self,
        tx: &mut SqliteConnection,
        finish: &Finish<'_>,
        now: Option<Timestamp>,
    ) -> Result<Marked> {
        finish::finish(self, tx, finish, now).await
    }

    async fn savepoint(&self, tx: &mut SqliteConnection, step: Savepoint) -> Result<()> {
        finish::savepoint(tx, step).await
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
        tx: &mut SqliteConnection,
        message: Number,
        assignment: &Assignment<'_>,
        now: Option<Timestamp>,
    ) -> Result<Assigned> {
        deposit::assign(self, tx, message, assignment, now).await
    }
}

/// Nothing was changed if the ticket was no longer good.
fn held(ticket: Ticket, done: &SqliteQueryResult) -> Result<()> {
    if done.rows_affected() == 0 { Err(fenced(ticket)) } else { Ok(()) }
}

fn fenced(ticket: Ticket) -> Error {
    Error::new(Kind::Fenced, format!("the lease of delivery {} was lost", ticket.number))
}

/// Tickets as statements take them.
fn text(tickets: &[Ticket]) -> String {
    let pairs: Vec<_> = tickets.iter().map(|ticket| (ticket.number, ticket.fence)).collect();
    json!(pairs).to_string()
}

/// Which tickets are still good, told by the rows that a statement found.
fn good(tickets: &[Ticket], found: &[(Number, i64)]) -> Vec<bool> {
    tickets.iter().map(|ticket| found.contains(&(ticket.number, ticket.fence))).collect()
}
