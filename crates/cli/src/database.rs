//! Which database a command works on.

use std::str::FromStr;

use clap::Args;
use oncebox_core::Identifier;
use oncebox_core::inspect::Inspect;
use oncebox_stores::postgres::PostgresStore;
use oncebox_stores::sqlite::SqliteStore;
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::sqlite::SqlitePool;

use crate::fault::{Class, Fault};

const URL_FORM: &str = "write postgres://user@host:port/database; the password may stand in PGPASSWORD";

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
        let (place, schema) = self.place()?;
        let unreachable = |error| Fault::unreachable(&error);
        match place {
            Place::Postgres(url) => {
                let store = PostgresStore::connect(&url).await.map_err(unreachable)?;
                Ok(Database::Postgres(store.schema(schema)))
            }
            Place::Sqlite(url) => {
                let store = match create {
                    true => SqliteStore::create(&url).await,
                    false => SqliteStore::connect(&url).await,
                };
                Ok(Database::Sqlite(store.map_err(unreachable)?.prefix(schema)))
            }
        }
    }

    /// The store without looking for the database, which may not exist yet.
    pub(crate) fn unopened(&self) -> Result<Database, Fault> {
        let (place, schema) = self.place()?;
        Ok(match place {
            Place::Postgres(url) => {
                Database::Postgres(PostgresStore::new(PgPool::connect_lazy(&url)?).schema(schema))
            }
            Place::Sqlite(_) => Database::Sqlite(
                SqliteStore::new(SqlitePool::connect_lazy("sqlite::memory:")?).prefix(schema),
            ),
        })
    }

    fn place(&self) -> Result<(Place, Identifier), Fault> {
        let fallback = std::env::var("DATABASE_URL").ok();
        let Some(url) = self.url.clone().or(fallback) else {
            return Err(Fault::new(Class::Input, "no database was named")
                .help("pass --db URL, or set ONCEBOX_DB or DATABASE_URL"));
        };
        let schema = Identifier::new(self.schema.as_str())?;
        Ok((Place::of(url)?, schema))
    }

    /// Opens the database and makes sure its tables are what this build expects.
    pub(crate) async fn open_verified(&self) -> Result<Database, Fault> {
        let database = self.open(false).await?;
        let verified = match &database {
            Database::Sqlite(store) => store.verify().await,
            Database::Postgres(store) => store.verify().await,
        };
        let Err(error) = verified else { return Ok(database) };
        // Whether it is the tables or the server decides what a person has to do.
        let schema = match &database {
            Database::Sqlite(store) => store.verify_schema().await,
            Database::Postgres(store) => store.verify_schema().await,
        };
        Err(schema.map_or_else(|error| Fault::schema(&error), |()| Fault::from(&error)))
    }
}

/// Which kind of database a URL means.
enum Place {
    Sqlite(String),
    Postgres(String),
}

impl Place {
    /// Never quotes the URL: it may carry a password.
    fn of(url: String) -> Result<Self, Fault> {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        let has_authority = url.starts_with(&format!("{scheme}://"));
        match scheme {
            "postgres" | "postgresql" => match PgConnectOptions::from_str(&url) {
                Ok(_) if has_authority => Ok(Self::Postgres(url)),
                Ok(_) => Err(Fault::new(Class::Input, "the PostgreSQL URL has no //").help(URL_FORM)),
                Err(error) => {
                    let text = format!("the PostgreSQL URL cannot be understood: {error}");
                    Err(Fault::new(Class::Input, text).help(URL_FORM))
                }
            },
            "sqlite" => Ok(Self::Sqlite(url)),
            other if has_authority => {
                let text = format!("oncebox does not know databases of the kind {other:?}");
                Err(Fault::new(Class::Input, text).help("use postgres://… or the path of a SQLite file"))
            }
            _ => Ok(Self::Sqlite(url)),
        }
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
