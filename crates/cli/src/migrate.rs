//! `oncebox migrate`: the tables, and what is missing of them.

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use oncebox_stores::{postgres, sqlite};
use serde_json::json;

use crate::database::{Database, DatabaseArgs};
use crate::fault::Fault;
use crate::output::Format;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Apply what is missing; safe to run from several places at once
    Up(DatabaseArgs),
    /// List the migrations and which of them are applied
    Status(DatabaseArgs),
    /// Print the SQL, for a database administrator to run
    Sql {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The version the database is at
        #[arg(long, default_value_t = 0)]
        from: i32,
    },
}

/// A migration and its state, of either store.
struct Line {
    version: i32,
    name: String,
    state: String,
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    match args.action {
        Action::Up(database) => up(&database.open(true).await?, format).await,
        Action::Status(database) => status(&database.open(false).await?, format).await,
        Action::Sql { database, from } => {
            let text = match database.open(true).await? {
                Database::Sqlite(store) => sqlite::migrate::sql(&store, from),
                Database::Postgres(store) => postgres::migrate::sql(&store, from),
            };
            println!("{text}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn up(database: &Database, format: Format) -> Result<ExitCode, Fault> {
    let applied: Vec<(i32, String)> = match database {
        Database::Sqlite(store) => {
            sqlite::migrate::up(store).await.map(|all| all.into_iter().map(|m| (m.version, m.name.into())).collect())
        }
        Database::Postgres(store) => {
            postgres::migrate::up(store).await.map(|all| all.into_iter().map(|m| (m.version, m.name.into())).collect())
        }
    }
    .map_err(|error| Fault::schema(&error))?;
    if format == Format::Json {
        let applied: Vec<_> = applied.iter().map(|(v, name)| json!({ "version": v, "name": name })).collect();
        println!("{}", json!({ "v": 1, "applied": applied }));
        return Ok(ExitCode::SUCCESS);
    }
    for (version, name) in &applied {
        println!("applied {version:04} {name}");
    }
    if applied.is_empty() {
        println!("nothing to do: the schema is up to date");
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(database: &Database, format: Format) -> Result<ExitCode, Fault> {
    macro_rules! lines {
        ($module:ident, $store:expr) => {
            $module::migrate::status($store).await.map(|all| {
                let line = |m: $module::migrate::MigrationStatus| Line {
                    version: m.version,
                    state: format!("{:?}", m.state).to_lowercase(),
                    name: m.name.into(),
                };
                all.into_iter().map(line).collect::<Vec<_>>()
            })
        };
    }
    let lines = match database {
        Database::Sqlite(store) => lines!(sqlite, store),
        Database::Postgres(store) => lines!(postgres, store),
    }
    .map_err(|error| Fault::schema(&error))?;
    let current = lines.iter().all(|line| line.state == "applied");
    if format == Format::Json {
        let all: Vec<_> = lines
            .iter()
            .map(|line| json!({ "version": line.version, "name": line.name, "state": line.state }))
            .collect();
        println!("{}", json!({ "v": 1, "current": current, "migrations": all }));
    } else {
        for line in &lines {
            println!("{:04}  {:<8} {}", line.version, line.state, line.name);
        }
        if !current {
            eprintln!("hint: `oncebox migrate up` applies what is pending");
        }
    }
    Ok(if current { ExitCode::SUCCESS } else { ExitCode::from(6) })
}
