//! Which database a command works on.

use std::str::FromStr;

use clap::Args;
use oncebox_core::Identifier;
use oncebox_core::inspect::Inspect;
use oncebox_core::letters::Letters;
use oncebox_stores::postgres::PostgresStore;
use oncebox_stores::sqlite::SqliteStore;
use sqlx::ConnectOptions as _;
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
        Database::open(&self.url()?, &self.schema, create).await
    }

    /// The store without looking for the database, which may not exist yet.
    pub(crate) fn unopened(&self) -> Result<Database, Fault> {
        let schema = Identifier::new(self.schema.as_str())?;
        Ok(match Place::of(self.url()?)? {
            Place::Postgres(url) => {
                Database::Postgres(PostgresStore::new(PgPool::connect_lazy(&url)?).schema(schema))
            }
            Place::Sqlite(_) => Database::Sqlite(
                SqliteStore::new(SqlitePool::connect_lazy("sqlite::memory:")?).prefix(schema),
            ),
        })
    }

    /// Opens the database and makes sure its tables are what this build expects.
    pub(crate) async fn open_verified(&self) -> Result<Database, Fault> {
        self.open(false).await?.verified().await
    }

    /// Whether a database was named on purpose; `DATABASE_URL` may be there for others.
    pub(crate) const fn is_named(&self) -> bool {
        self.url.is_some()
    }

    fn url(&self) -> Result<String, Fault> {
        let fallback = || std::env::var("DATABASE_URL").ok();
        self.url.clone().or_else(fallback).ok_or_else(|| {
            Fault::new(Class::Input, "no database was named")
                .help("pass --db URL, or set ONCEBOX_DB or DATABASE_URL")
        })
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
    /// Opens the database at `url`; a SQLite file is created only if `create` says so.
    pub(crate) async fn open(url: &str, schema: &str, create: bool) -> Result<Self, Fault> {
        // The URL first: a command line without a database is the commoner mistake.
        let place = Place::of(url.to_owned())?;
        let schema = Identifier::new(schema)?;
        let unreachable = |error| Fault::unreachable(&error);
        match place {
            Place::Postgres(url) => {
                let store = PostgresStore::connect(&url).await.map_err(unreachable)?;
                Ok(Self::Postgres(store.schema(schema)))
            }
            Place::Sqlite(url) => {
                let store = match create {
                    true => SqliteStore::create(&url).await,
                    false => SqliteStore::connect(&url).await,
                };
                Ok(Self::Sqlite(store.map_err(unreachable)?.prefix(schema)))
            }
        }
    }

    /// The same, if its tables and settings are what this build expects.
    pub(crate) async fn verified(self) -> Result<Self, Fault> {
        let verified = match &self {
            Self::Sqlite(store) => store.verify().await,
            Self::Postgres(store) => store.verify().await,
        };
        let Err(error) = verified else { return Ok(self) };
        // Whether it is the tables or the server decides what a person has to do.
        let schema = match &self {
            Self::Sqlite(store) => store.verify_schema().await,
            Self::Postgres(store) => store.verify_schema().await,
        };
        Err(schema.map_or_else(|error| Fault::schema(&error), |()| Fault::from(&error)))
    }

    /// Lets new connections use the credentials of `url`; open ones stay.
    pub(crate) fn replace_url(&self, url: &str) -> Result<(), Fault> {
        match (self, Place::of(url.to_owned())?) {
            (Self::Postgres(store), Place::Postgres(url)) => {
                let unreadable = |_| Fault::new(Class::Input, "the PostgreSQL URL cannot be understood");
                let options = PgConnectOptions::from_str(&url).map_err(unreadable)?;
                let options = options.application_name("oncebox").disable_statement_logging();
                store.pool().set_connect_options(options);
                Ok(())
            }
            // A file has no credentials.
            (Self::Sqlite(_), Place::Sqlite(_)) => Ok(()),
            _ => Err(Fault::new(Class::Input, "the URL is for another kind of database")),
        }
    }

    pub(crate) fn letters(&self) -> &dyn Letters {
        match self {
            Self::Sqlite(store) => store,
            Self::Postgres(store) => store,
        }
    }

    pub(crate) fn inspect(&self) -> &dyn Inspect {
        match self {
            Self::Sqlite(store) => store,
            Self::Postgres(store) => store,
        }
    }
}
