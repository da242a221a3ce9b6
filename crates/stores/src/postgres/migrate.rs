//! Numbered migrations, and the check that the tables are what they made.

use oncebox_core::{Error, Kind, Result, Store, Timestamp};
use sqlx::{AssertSqlSafe, Executor, PgConnection, SqlStr};

use super::error::failed;
use super::row::Time;
use super::store::{DEFAULT_SCHEMA, PostgresStore};
use crate::migration::Migration;

pub use crate::migration::{Applied, MigrationState, MigrationStatus};

/// What the migrations of this build make, as [`snapshot`] tells it.
const EXPECTED: &str = include_str!("schema.snapshot");
/// What to run when tables are missing or old.
const COMMAND: &str = "run `oncebox migrate up --db <url>`";
/// Applying waits for other migrators, and for readers to let go of a table.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '60s'";

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "once", text: include_str!("migrations/0001_once.sql") },
    Migration { version: 2, name: "outage", text: include_str!("migrations/0002_outage.sql") },
    Migration { version: 3, name: "depot", text: include_str!("migrations/0003_depot.sql") },
    Migration { version: 4, name: "gate", text: include_str!("migrations/0004_gate.sql") },
    Migration { version: 5, name: "finished", text: include_str!("migrations/0005_finished.sql") },
    Migration { version: 6, name: "identity", text: include_str!("migrations/0006_identity.sql") },
];

/// One row of the table of migrations.
struct Recorded {
    version: i32,
    name: String,
    checksum: String,
    applied_at: Timestamp,
}

/// Applies what is missing, each migration in a transaction of its own. Several
/// callers may do this at once; each migration is applied by one of them.
///
/// # Errors
/// [`Kind::Config`] if the database is newer than this build or its tables come
/// from other migrations; otherwise by kind of the failed statement.
pub async fn up(store: &PostgresStore) -> Result<Vec<Applied>> {
    let mut applied = Vec::new();
    while let Some(one) = up_one(store).await? {
        applied.push(one);
    }
    Ok(applied)
}

async fn up_one(store: &PostgresStore) -> Result<Option<Applied>> {
    let mut tx = store.begin_with(SqlStr::from_static(BEGIN)).await?;
    sqlx::query(store.sql(include_str!("sql/migration_lock.sql")))
        .bind(store.schema_name())
        .execute(&mut *tx)
        .await
        .map_err(failed("cannot get the migration lock"))?;
    create_record(store, &mut tx).await?;
    let recorded = recorded(store, &mut tx).await?;
    refuse_strangers(&recorded)?;
    let Some(migration) = missing(&recorded).next() else {
        return Ok(None);
    };
    tx.execute(sqlx::raw_sql(AssertSqlSafe(store.adapted(migration.text))))
        .await
        .map_err(failed("cannot apply a migration"))?;
    sqlx::query(store.sql(include_str!("sql/migration_add.sql")))
        .bind(migration.version)
        .bind(migration.name)
        .bind(migration.checksum())
        .execute(&mut *tx)
        .await
        .map_err(failed("cannot record a migration"))?;
    store.commit(tx).await?;
    Ok(Some(Applied { version: migration.version, name: migration.name.to_owned() }))
}

/// Looks before it creates: a role that may not create schemas can still
/// migrate inside one that was made for it.
async fn create_record(store: &PostgresStore, tx: &mut PgConnection) -> Result<()> {
    let has_schema: bool = sqlx::query_scalar(store.sql(include_str!("sql/schema_exists.sql")))
        .bind(store.schema_name())
        .fetch_one(&mut *tx)
        .await
        .map_err(failed("cannot look for the schema"))?;
    if !has_schema {
        let create = sqlx::raw_sql(AssertSqlSafe(schema_text(store)));
        tx.execute(create).await.map_err(failed("cannot create the schema"))?;
    }
    if !has_record(store, &mut *tx).await? {
        let create = sqlx::raw_sql(store.sql(include_str!("sql/migration_create.sql")));
        tx.execute(create).await.map_err(failed("cannot create the table of migrations"))?;
    }
    Ok(())
}

fn schema_text(store: &PostgresStore) -> String {
    include_str!("sql/schema_create.sql").replace(DEFAULT_SCHEMA, &store.quoted_schema())
}

async fn has_record(store: &PostgresStore, connection: &mut PgConnection) -> Result<bool> {
    sqlx::query_scalar(store.sql(include_str!("sql/migration_exists.sql")))
        .fetch_one(connection)
        .await
        .map_err(failed("cannot look for the table of migrations"))
}

async fn recorded(store: &PostgresStore, connection: &mut PgConnection) -> Result<Vec<Recorded>> {
    let rows: Vec<(i32, String, String, Time)> =
        sqlx::query_as(store.sql(include_str!("sql/migration_list.sql")))
            .fetch_all(connection)
            .await
            .map_err(failed("cannot read the table of migrations"))?;
    let recorded = |(version, name, checksum, at): (_, _, _, Time)| Recorded {
        version,
        name,
        checksum,
        applied_at: at.0,
    };
    Ok(rows.into_iter().map(recorded).collect())
}

fn known(version: i32) -> Option<&'static Migration> {
    MIGRATIONS.iter().find(|migration| migration.version == version)
}

fn missing(recorded: &[Recorded]) -> impl Iterator<Item = &'static Migration> {
    MIGRATIONS.iter().filter(|migration| recorded.iter().all(|row| row.version != migration.version))
}

/// Refuses a database that a newer or a different build has migrated.
fn refuse_strangers(recorded: &[Recorded]) -> Result<()> {
    let newest = MIGRATIONS.last().map_or(0, |migration| migration.version);
    if let Some(ahead) = recorded.iter().map(|row| row.version).max().filter(|version| *version > newest) {
        return Err(config(format!(
            "the database is at schema version {ahead}, this build knows {newest}; upgrade oncebox"
        )));
    }
    let is_altered = |row: &&Recorded| known(row.version).is_none_or(|it| it.checksum() != row.checksum);
    match recorded.iter().find(is_altered) {
        None => Ok(()),
        Some(row) => Err(config(format!(
            "migration {} ({}) was applied from another text than this build has; restore it or start from an empty schema",
            row.version, row.name
        ))),
    }
}

/// Every migration this build or the database knows of, by number.
///
/// # Errors
/// By kind of the failed statement.
pub async fn status(store: &PostgresStore) -> Result<Vec<MigrationStatus>> {
    let mut connection = store.pool().acquire().await.map_err(failed("cannot reach the database"))?;
    let recorded = match has_record(store, &mut connection).await? {
        true => recorded(store, &mut connection).await?,
        false => Vec::new(),
    };
    let pending = missing(&recorded).map(|migration| MigrationStatus {
        version: migration.version,
        name: migration.name.to_owned(),
        applied_at: None,
        state: MigrationState::Pending,
    });
    let applied = recorded.iter().map(|row| MigrationStatus {
        version: row.version,
        name: row.name.clone(),
        applied_at: Some(row.applied_at),
        state: if known(row.version).is_some() { MigrationState::Applied } else { MigrationState::Unknown },
    });
    let mut all: Vec<_> = applied.chain(pending).collect();
    all.sort_by_key(|migration| migration.version);
    Ok(all)
}

/// The migrations above `from` as text, for those who run SQL by hand. Zero is
/// an empty database.
#[must_use]
pub fn sql(store: &PostgresStore, from: i32) -> String {
    let mut text = format!(
        "BEGIN;\n\n{};\n{};\n",
        schema_text(store).trim_end().trim_end_matches(';'),
        store.adapted(include_str!("sql/migration_create.sql")).trim_end()
    );
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > from) {
        let (version, name, checksum) = (migration.version, migration.name, migration.checksum());
        text.push_str(&format!("\n{}\n", store.adapted(migration.text).trim_end()));
        text.push_str(&format!(
            "INSERT INTO {}.migration (version, name, checksum) VALUES ({version}, '{name}', '{checksum}');\n",
            store.quoted_schema()
        ));
    }
    text.push_str("\nCOMMIT;\n");
    text
}

/// Columns, indexes and constraints of the tables as sorted lines, without the schema's name.
///
/// # Errors
/// By kind of the failed statement.
pub async fn snapshot(store: &PostgresStore) -> Result<String> {
    let mut tx = store.begin().await?;
    sqlx::query(store.sql(include_str!("sql/snapshot_path.sql")))
        .bind(store.schema_name())
        .execute(&mut *tx)
        .await
        .map_err(failed("cannot set the search path"))?;
    let lines: Vec<String> = sqlx::query_scalar(store.sql(include_str!("sql/snapshot.sql")))
        .bind(store.schema_name())
        .fetch_all(&mut *tx)
        .await
        .map_err(failed("cannot read the schema"))?;
    store.rollback(tx).await?;
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

pub(super) async fn verify(store: &PostgresStore) -> Result<()> {
    let mut connection = store.pool().acquire().await.map_err(failed("cannot reach the database"))?;
    let recorded = match has_record(store, &mut connection).await? {
        true => recorded(store, &mut connection).await?,
        false => Vec::new(),
    };
    drop(connection);
    if recorded.is_empty() {
        return Err(config(format!("the oncebox tables are missing; {COMMAND}")));
    }
    refuse_strangers(&recorded)?;
    let missing: Vec<String> = missing(&recorded).map(|it| format!("{} ({})", it.version, it.name)).collect();
    if !missing.is_empty() {
        return Err(config(format!("the database lacks migration {}; {COMMAND}", missing.join(", "))));
    }
    compare(&snapshot(store).await?)
}

fn compare(live: &str) -> Result<()> {
    let surplus = live.lines().find(|line| EXPECTED.lines().all(|expected| expected != *line));
    let lacking = EXPECTED.lines().find(|expected| live.lines().all(|line| line != *expected));
    let difference = match (lacking, surplus) {
        (None, None) => return Ok(()),
        (Some(lacking), None) => format!("it lacks `{lacking}`"),
        (None, Some(surplus)) => format!("it has `{surplus}`"),
        (Some(lacking), Some(surplus)) => format!("it lacks `{lacking}` and has `{surplus}`"),
    };
    Err(config(format!(
        "the oncebox tables were changed by hand: {difference}; undo that, or drop the schema and {COMMAND}"
    )))
}

fn config(text: String) -> Error {
    Error::new(Kind::Config, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_from_one_without_gaps() {
        let versions: Vec<i32> = MIGRATIONS.iter().map(|migration| migration.version).collect();

        assert_eq!(versions, (1..).take(MIGRATIONS.len()).collect::<Vec<_>>());
    }

    #[test]
    fn drift_is_named_by_its_line() {
        let (first, rest) = EXPECTED.split_once('\n').unwrap();

        let lacking = compare(rest).unwrap_err().to_string();
        let surplus = compare(&format!("{EXPECTED}column outbox.extra text\n")).unwrap_err().to_string();

        assert!(lacking.contains(first), "{lacking}");
        assert!(surplus.contains("it has `column outbox.extra text`"), "{surplus}");
        assert!(compare(EXPECTED).is_ok());
    }
}
