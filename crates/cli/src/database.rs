//! Which database a command works on.

use clap::Args;
use oncebox_core::Identifier;
use oncebox_core::inspect::Inspect;
use oncebox_stores::postgres::PostgresStore;
use oncebox_stores::sqlite::SqliteStore;

use crate::fault::{Class, Fault};

/// Where the oncebox tables are.
#[derive(Clone, Debug, Args)]
pub(crate) struct DatabaseArgs {
    /// The database: a PostgreSQL URL, or the path of a SQLite file
    #[arg(long = "db", env = "ONCEBOX_DB", value_name = "URL", hide_env_values = true)]
    url: Option<String>,
    /// The schema (PostgreSQL) or table prefix (SQLite) of the oncebox tables
    #[arg(long, env = "ONCEBOX_SCHEMA", default_value = "oncebox", value_name = "NAME")]
    schema: String,
}

/// An open store of either kind.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

impl DatabaseArgs {
    /// Opens the database; a SQLite file is created only if `create` says so.
    pub(crate) async fn open(&self, create: bool) -> Result<Database, Fault> {
        let fallback = std::env::var("DATABASE_URL").ok();
        let Some(url) = self.url.clone().or(fallback) else {
            return Err(Fault::new(Class::Input, "no database was named")
                .help("pass --db URL, or set ONCEBOX_DB or DATABASE_URL"));
        };
        let schema = Identifier::new(self.schema.as_str())?;
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Database::Postgres(PostgresStore::connect(&url).await?.schema(schema)));
        }
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        if let Some(other) = scheme.filter(|scheme| *scheme != "sqlite") {
            return Err(Fault::new(
                Class::Input,
                format!("oncebox does not know databases of the kind {other:?}"),
            )
            .help("use postgres://… or the path of a SQLite file"));
        }
        let store = match create {
            true => SqliteStore::create(&url).await?,
            false => SqliteStore::connect(&url).await?,
        };
        Ok(Database::Sqlite(store.prefix(schema)))
    }

    /// Opens the database and makes sure its tables are what this build expects.
    pub(crate) async fn open_verified(&self) -> Result<Database, Fault> {
        let database = self.open(false).await?;
        match &database {
            Database::Sqlite(store) => store.verify().await,
            Database::Postgres(store) => store.verify().await,
        }
        .map_err(|error| Fault::schema(&error))?;
        Ok(database)
    }
}

impl Database {
    pub(crate) fn inspect(&self) -> &dyn Inspect {
        match self {
            Self::Sqlite(store) => store,
            Self::Postgres(store) => store,
        }
    }
}
