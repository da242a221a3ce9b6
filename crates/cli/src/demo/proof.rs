//! The proof: SQL over a lane's own tables.

use std::path::Path;
use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use super::lane::LaneReport;
use crate::fault::Fault;

const TOTALS: &str = "SELECT count(*), count(DISTINCT order_id), coalesce(sum(amount), 0) FROM ledger";
const ORDERS: &str = "SELECT count(*), coalesce(sum(amount), 0) FROM orders";
const LOST: &str = "SELECT count(*) FROM orders WHERE order_id NOT IN (SELECT order_id FROM ledger)";
const PHANTOM: &str = "SELECT count(*) FROM ledger WHERE order_id NOT IN (SELECT order_id FROM orders)";
const PENDING: &str = "SELECT (SELECT count(*) FROM oncebox_outbox o WHERE o.position > \
    coalesce((SELECT min(position) FROM oncebox_relay_cursor), 0)) + \
    (SELECT count(*) FROM oncebox_relay_cursor WHERE holes <> '[]') + (SELECT count(*) FROM oncebox_parked)";
const TIMELINE: &str = "SELECT order_id, applied_at FROM ledger ORDER BY applied_at";
const PLACED: &str =
    "SELECT placed_at FROM orders WHERE order_id NOT IN (SELECT order_id FROM ledger) ORDER BY placed_at";

/// What a lane's tables say.
#[derive(Debug, Default)]
pub(super) struct Proof {
    pub(super) orders: i64,
    pub(super) effects: i64,
    pub(super) lost: i64,
    pub(super) doubled: i64,
    pub(super) phantom: i64,
    /// In cents; what the ledger says beyond what was ordered.
    pub(super) money_off: i64,
    /// Milliseconds since the first order: each effect, and whether it was a repetition.
    pub(super) timeline: Vec<(f64, bool)>,
    /// When the lost orders were placed.
    pub(super) lost_at: Vec<f64>,
}

async fn open(database: &Path) -> Result<sqlx::SqlitePool, sqlx::Error> {
    let options =
        SqliteConnectOptions::new().filename(database).read_only(true).busy_timeout(Duration::from_secs(5));
    SqlitePoolOptions::new().max_connections(1).connect_with(options).await
}

impl Proof {
    pub(super) async fn of(database: &Path) -> Result<Self, Fault> {
        let pool = open(database).await?;
        let (effects, distinct, sum): (i64, i64, i64) = sqlx::query_as(TOTALS).fetch_one(&pool).await?;
        let (orders, due): (i64, i64) = sqlx::query_as(ORDERS).fetch_one(&pool).await?;
        let (lost,): (i64,) = sqlx::query_as(LOST).fetch_one(&pool).await?;
        let (phantom,): (i64,) = sqlx::query_as(PHANTOM).fetch_one(&pool).await?;
        let mut proof = Self {
            orders,
            effects,
            lost,
            doubled: effects - distinct,
            phantom,
            money_off: sum - due,
            ..Self::default()
        };
        let mut seen = std::collections::HashSet::new();
        for row in sqlx::query(TIMELINE).fetch_all(&pool).await? {
            let (order, at): (i64, f64) = (row.try_get(0)?, row.try_get(1)?);
            proof.timeline.push((at, !seen.insert(order)));
        }
        for row in sqlx::query(PLACED).fetch_all(&pool).await? {
            proof.lost_at.push(row.try_get(0)?);
        }
        pool.close().await;
        Ok(proof)
    }

    /// Effects so far, for the progress bar.
    pub(super) async fn effects(database: &Path) -> Result<u32, sqlx::Error> {
        let pool = open(database).await?;
        let (effects,): (i64,) = sqlx::query_as("SELECT count(*) FROM ledger").fetch_one(&pool).await?;
        pool.close().await;
        Ok(u32::try_from(effects).unwrap_or(u32::MAX))
    }

    /// Whether nothing waits in the outbox any more.
    pub(super) async fn is_drained(database: &Path) -> Result<bool, Fault> {
        let pool = open(database).await?;
        let (pending,): (i64,) = sqlx::query_as(PENDING).fetch_one(&pool).await?;
        pool.close().await;
        Ok(pending == 0)
    }

    pub(super) fn holds(&self, orders: u32) -> bool {
        let orders = i64::from(orders);
        self.orders == orders
            && self.effects == orders
            && self.lost == 0
            && self.doubled == 0
            && self.phantom == 0
            && self.money_off == 0
    }

    pub(super) fn money(&self) -> String {
        let sign = if self.money_off > 0 {
            "+"
        } else if self.money_off < 0 {
            "-"
        } else {
            ""
        };
        let cents = self.money_off.unsigned_abs();
        format!("{sign}{}.{:02}", cents / 100, cents % 100)
    }
}

/// The table people see.
pub(super) fn table(
    (naive_run, naive): (&LaneReport, &Proof),
    (run, proof): (&LaneReport, &Proof),
    seconds: f64,
) -> String {
    let passed = if proof.holds(u32::try_from(proof.orders).unwrap_or(0)) { "PASS" } else { "FAIL" };
    let line = |name: &str, p: &Proof, end: &str| {
        format!(
            "  {name:<9}{:>9}{:>10}{:>7}{:>10}{:>15}   {end}",
            p.orders,
            p.effects,
            p.lost,
            p.doubled,
            p.money()
        )
    };
    [
        format!(
            " faults in each lane: {} workers killed, {} broker outages, {} duplicates, {} reordered ({seconds:.1} s)",
            run.kills, run.outages, run.duplicates, run.reordered
        ),
        String::new(),
        format!(" PROOF  {TOTALS};"),
        format!("        {LOST};"),
        format!("  {:<9}{:>9}{:>10}{:>7}{:>10}{:>15}", "", "orders", "effects", "lost", "doubled", "money off by"),
        line(naive_run.service.name(), naive, ""),
        line(run.service.name(), proof, passed),
        String::new(),
    ]
    .join("\n")
}
