//! The tables: making them, moving them forward, and telling whether they are
//! what this build expects.
//!
//! A migration is a numbered file that never changes once released. Each runs
//! in a transaction that first takes the write lock, so that several processes
//! may start at once. The schema that results is committed as a snapshot, one
//! definition per line, and a database that differs from it is refused.

use oncebox_core::{Error, Kind, Result, Store, Timestamp};
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnection;

use super::SqliteStore;
use super::error::failed;
use super::store::DEFAULT_PREFIX;
use crate::migration::Migration;

pub use crate::migration::{Applied, MigrationState, MigrationStatus};

const SNAPSHOT: &str = include_str!("schema.snapshot");
const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "once", text: include_str!("migrations/0001_once.sql") },
    Migration { version: 2, name: "outage", text: include_str!("migrations/0002_outage.sql") },
    Migration { version: 3, name: "depot", text: include_str!("migrations/0003_depot.sql") },
    Migration { version: 4, name: "gate", text: include_str!("migrations/0004_gate.sql") },
    Migration { version: 5, name: "place", text: include_str!("migrations/0005_place.sql") },
    Migration { version: 6, name: "receipt", text: include_str!("migrations/0006_receipt.sql") },
];
const TABLE: &str = include_str!("sql/migration_table.sql");
const READ: &str = "cannot read which migrations are applied";
/// SQLite's number for `PRAGMA synchronous = FULL`.
const SYNCHRONOUS_FULL: i64 = 2;

/// A row of the bookkeeping table: version, name, checksum, time.
type Record = (i32, String, String, i64);

/// Applies what is missing, oldest first, and tells what that was. Safe to run
/// from several processes at once.
///
/// # Errors
/// [`Kind::Config`] if the database is newer than this build, otherwise by kind
/// of the failed statement; migrations already reported stay applied.
pub async fn up(store: &SqliteStore) -> Result<Vec<Applied>> {
    const WHAT: &str = "cannot apply a migration";
    let mut done = Vec::new();
    loop {
        let mut tx = store.begin().await?;
        sqlx::query(store.sql(TABLE)).execute(&mut *tx).await.map_err(failed(WHAT))?;
        let records = records(store, &mut tx).await?;
        refuse_newer(&records)?;
        let Some(next) = pending(&records).next() else {
            store.rollback(tx).await?;
            return Ok(done);
        };
        // Sound because the text is ours and the prefix a checked `Identifier`.
        sqlx::raw_sql(AssertSqlSafe(store.named(next.text))).execute(&mut *tx).await.map_err(failed(WHAT))?;
        sqlx::query(store.sql(include_str!("sql/migration_record.sql")))
            .bind(next.version)
            .bind(next.name)
            .bind(next.checksum())
            .execute(&mut *tx)
            .await
            .map_err(failed(WHAT))?;
        store.commit(tx).await?;
        done.push(Applied { version: next.version, name: next.name.to_owned() });
    }
}

/// All migrations this build or the database knows, by version.
///
/// # Errors
/// By kind of the failed statement.
pub async fn status(store: &SqliteStore) -> Result<Vec<MigrationStatus>> {
    let records = recorded(store).await?;
    let applied = records.iter().map(|(version, name, _, at)| MigrationStatus {
        version: *version,
        name: name.clone(),
        applied_at: Some(Timestamp::from_micros(*at)),
        state: if known(*version).is_some() { MigrationState::Applied } else { MigrationState::Unknown },
    });
    let waiting = pending(&records).map(|migration| MigrationStatus {
        version: migration.version,
        name: migration.name.to_owned(),
        applied_at: None,
        state: MigrationState::Pending,
    });
    let mut all: Vec<_> = applied.chain(waiting).collect();
    all.sort_by_key(|status| status.version);
    Ok(all)
}

/// The SQL of all migrations above version `from`, with their bookkeeping, for
/// a person to run.
#[must_use]
pub fn sql(store: &SqliteStore, from: i32) -> String {
    let mut script = format!("BEGIN IMMEDIATE;\n\n{}\n", store.named(TABLE));
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > from) {
        let record = include_str!("sql/migration_record.sql")
            .replace("?1", &migration.version.to_string())
            .replace("?2", &format!("'{}'", migration.name))
            .replace("?3", &format!("'{}'", migration.checksum()));
        script.push_str(&store.named(migration.text));
        script.push_str(&format!("\n{}\n", store.named(&record)));
    }
    script.push_str("COMMIT;\n");
    script
}

/// The live schema, one definition per line, sorted, under the default prefix.
///
/// # Errors
/// By kind of the failed statement.
pub async fn snapshot(store: &SqliteStore) -> Result<String> {
    let objects: Vec<(String, String)> = sqlx::query_as(store.sql(include_str!("sql/snapshot.sql")))
        .fetch_all(store.pool())
        .await
        .map_err(failed("cannot read the schema"))?;
    let mut lines: Vec<String> = objects
        .iter()
        .flat_map(|(name, sql)| definitions(name, sql))
        .map(|line| renamed(&line, store.prefix_name()))
        .collect();
    lines.sort_unstable();
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

/// The start-up check of the tables behind [`SqliteStore::verify`].
pub(super) async fn verify_schema(store: &SqliteStore) -> Result<()> {
    let records = recorded(store).await?;
    refuse_newer(&records)?;
    refuse_older(store, &records)?;
    refuse_changed(&records)?;
    refuse_drift(&snapshot(store).await?)
}

/// The start-up check of everything else; the tables must be there.
pub(super) async fn verify_settings(store: &SqliteStore, must_be_durable: bool) -> Result<()> {
    if must_be_durable {
        refuse_unsafe(store).await?;
    }
    refuse_read_only(store).await
}

async fn recorded(store: &SqliteStore) -> Result<Vec<Record>> {
    let mut connection = store.pool().acquire().await.map_err(failed(READ))?;
    let exists: bool = sqlx::query_scalar(store.sql(include_str!("sql/migration_exists.sql")))
        .fetch_one(&mut *connection)
        .await
        .map_err(failed(READ))?;
    if exists { records(store, &mut connection).await } else { Ok(Vec::new()) }
}

async fn records(store: &SqliteStore, connection: &mut SqliteConnection) -> Result<Vec<Record>> {
    sqlx::query_as(store.sql(include_str!("sql/migration_list.sql")))
        .fetch_all(connection)
        .await
        .map_err(failed(READ))
}

fn known(version: i32) -> Option<&'static Migration> {
    MIGRATIONS.iter().find(|migration| migration.version == version)
}

fn pending(records: &[Record]) -> impl Iterator<Item = &'static Migration> {
    MIGRATIONS.iter().filter(|migration| records.iter().all(|record| record.0 != migration.version))
}

fn refuse_newer(records: &[Record]) -> Result<()> {
    let newest = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default();
    match records.iter().map(|record| record.0).max() {
        Some(found) if found > newest => Err(Error::new(
            Kind::Config,
            format!("the database is at migration {found}, this build knows {newest}; upgrade oncebox"),
        )),
        _ => Ok(()),
    }
}

fn refuse_older(store: &SqliteStore, records: &[Record]) -> Result<()> {
    let missing: Vec<String> =
        pending(records).map(|migration| format!("{:04}_{}", migration.version, migration.name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let options = store.pool().connect_options();
    let command = format!("run `oncebox migrate up --db sqlite:{}`", options.get_filename().display());
    let text = if records.is_empty() {
        format!("the {DEFAULT_PREFIX} tables are missing; {command}")
    } else {
        format!("the database lacks migration {}; {command}", missing.join(", "))
    };
    Err(Error::new(Kind::Config, text))
}

fn refuse_changed(records: &[Record]) -> Result<()> {
    let is_changed = |record: &&Record| known(record.0).is_some_and(|m| m.checksum() != record.2);
    match records.iter().find(is_changed) {
        Some((version, name, ..)) => Err(Error::new(
            Kind::Config,
            format!(
                "migration {version:04}_{name} in the database is not the one of this build; use the release that applied it or a later one"
            ),
        )),
        None => Ok(()),
    }
}

fn refuse_drift(live: &str) -> Result<()> {
    let mut pairs = (live.lines().map(Some).chain(std::iter::repeat(None)))
        .zip(SNAPSHOT.lines().map(Some).chain(std::iter::repeat(None)))
        .take_while(|(found, expected)| found.is_some() || expected.is_some());
    let Some((found, expected)) = pairs.find(|(found, expected)| found != expected) else {
        return Ok(());
    };
    let nothing = "nothing more";
    Err(Error::new(
        Kind::Config,
        format!(
            "the oncebox tables were changed by hand; the first difference is `{}` where `{}` is expected; undo it (`oncebox migrate sql` prints the definitions)",
            found.unwrap_or(nothing),
            expected.unwrap_or(nothing)
        ),
    ))
}

async fn refuse_unsafe(store: &SqliteStore) -> Result<()> {
    let (journal, synchronous): (String, i64) =
        sqlx::query_as(store.sql(include_str!("sql/verify_settings.sql")))
            .fetch_one(store.pool())
            .await
            .map_err(failed("cannot read the database's settings"))?;
    if journal != "wal" {
        let text = format!(
            "journal_mode is {journal}, readers and writers would block each other; set `PRAGMA journal_mode = WAL`"
        );
        return Err(Error::new(Kind::Config, text));
    }
    if synchronous < SYNCHRONOUS_FULL {
        let text = format!(
            "synchronous is {synchronous}, a power cut could undo a commit; set `PRAGMA synchronous = FULL` on every connection of the pool"
        );
        return Err(Error::new(Kind::Config, text));
    }
    Ok(())
}

async fn refuse_read_only(store: &SqliteStore) -> Result<()> {
    let probe = sqlx::query(store.sql(include_str!("sql/verify_write.sql"))).execute(store.pool()).await;
    match probe
        .map_err(failed("the database is read-only or cannot be written; oncebox needs to write to it"))
    {
        // Somebody else is writing, so it can be written.
        Err(error) if error.kind() == Kind::Contention => Ok(()),
        other => other.map(|_| ()),
    }
}

/// One line per index, and per column and constraint of a table.
fn definitions(name: &str, sql: &str) -> Vec<String> {
    let text = squeezed(sql);
    let body = text.starts_with("CREATE TABLE").then(|| text.split_once('(')).flatten();
    let Some((body, tail)) = body.and_then(|(_, body)| body.rsplit_once(')')) else {
        return vec![format!("{name}: {text}")];
    };
    let parts = top_level_parts(body);
    parts
        .iter()
        .map(String::as_str)
        .chain([tail])
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| format!("{name}: {part}"))
        .collect()
}

/// The text without comments and with single blanks.
fn squeezed(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut is_quoted = false;
    let mut characters = sql.chars().peekable();
    while let Some(c) = characters.next() {
        let is_comment = !is_quoted && c == '-' && characters.peek() == Some(&'-');
        if is_comment {
            characters.by_ref().find(|c| *c == '\n');
        }
        if is_comment || (!is_quoted && c.is_whitespace()) {
            if !text.is_empty() && !text.ends_with([' ', '(']) {
                text.push(' ');
            }
            continue;
        }
        if c == '\'' {
            is_quoted = !is_quoted;
        }
        if c == ')' && !is_quoted && text.ends_with(' ') {
            text.pop();
        }
        text.push(c);
    }
    text
}

/// The parts between commas that are in no parentheses and no quotes.
fn top_level_parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut depth, mut is_quoted) = (0_i32, false);
    for c in text.chars() {
        match c {
            '\'' => is_quoted = !is_quoted,
            '(' if !is_quoted => depth += 1,
            ')' if !is_quoted => depth -= 1,
            ',' if !is_quoted && depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

/// The line with the default prefix in the names of tables and their indexes;
/// other words that happen to begin with the prefix stay.
fn renamed(line: &str, prefix: &str) -> String {
    if prefix == DEFAULT_PREFIX {
        return line.to_owned();
    }
    let is_separator = |c: char| !(c.is_alphanumeric() || c == '_');
    line.split_inclusive(is_separator)
        .map(|piece| {
            let word = piece.trim_end_matches(is_separator);
            let rest = word.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_'));
            match rest {
                Some(rest) if SNAPSHOT.contains(&format!("{DEFAULT_PREFIX}_{rest}:")) => {
                    piece.replacen(word, &format!("{DEFAULT_PREFIX}_{rest}"), 1)
                }
                _ => piece.to_owned(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_one_line_per_definition() {
        let sql = "CREATE TABLE t (\n  a INTEGER, -- why\n  b TEXT DEFAULT ('x,  --y'),\n  CHECK (\n a > (1) )\n) WITHOUT ROWID";

        let lines = definitions("t", sql);

        let expected =
            ["t: a INTEGER", "t: b TEXT DEFAULT ('x,  --y')", "t: CHECK (a > (1))", "t: WITHOUT ROWID"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn only_table_and_index_names_lose_their_prefix() {
        let line =
            "outbox_marker_age: CREATE INDEX outbox_marker_age ON outbox_marker (outbox_identity, outbox)";

        let plain = renamed(line, "outbox");

        let expected =
            "oncebox_marker_age: CREATE INDEX oncebox_marker_age ON oncebox_marker (outbox_identity, outbox)";
        assert_eq!(plain, expected);
    }

    #[test]
    fn versions_grow_by_one() {
        let versions: Vec<i32> = MIGRATIONS.iter().map(|migration| migration.version).collect();

        assert_eq!(versions, (1..).take(MIGRATIONS.len()).collect::<Vec<_>>());
    }

    #[test]
    fn drift_names_the_first_difference() {
        let live = SNAPSHOT.replacen("channel  TEXT", "channel  BLOB", 1);
        let live = if live == SNAPSHOT { SNAPSHOT.replacen("TEXT", "BLOB", 1) } else { live };

        let error = refuse_drift(&live).unwrap_err().to_string();

        assert!(error.contains("BLOB") && error.contains("where"), "{error}");
        assert!(refuse_drift(&format!("{SNAPSHOT}zz: more\n")).unwrap_err().to_string().contains("zz: more"));
        assert!(refuse_drift(SNAPSHOT).is_ok());
    }
}
