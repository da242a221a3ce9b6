//! `oncebox migrate`: the tables, and what is missing of them.

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use oncebox_stores::{MigrationState, postgres, sqlite};
use serde_json::json;

use crate::database::{Database, DatabaseArgs};
use crate::fault::Fault;
use crate::output::{Format, plain};

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

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    match args.action {
        Action::Up(database) => up(&database.open(true).await?, format).await,
        Action::Status(database) => status(&database.open(false).await?, format).await,
        Action::Sql { database, from } => {
            let text = match database.unopened()? {
                Database::Sqlite(store) => sqlite::migrate::sql(&store, from),
                Database::Postgres(store) => postgres::migrate::sql(&store, from),
            };
            println!("{text}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn up(database: &Database, format: Format) -> Result<ExitCode, Fault> {
    let applied = match database {
        Database::Sqlite(store) => sqlite::migrate::up(store).await,
        Database::Postgres(store) => postgres::migrate::up(store).await,
    }
    .map_err(|error| Fault::schema(&error))?;
    if format == Format::Json {
        let applied: Vec<_> =
            applied.iter().map(|m| json!({ "version": m.version, "name": m.name })).collect();
        println!("{}", json!({ "v": 1, "applied": applied }));
        return Ok(ExitCode::SUCCESS);
    }
    for migration in &applied {
        println!("applied {:04} {}", migration.version, migration.name);
    }
    if applied.is_empty() {
        println!("nothing to do: the schema is up to date");
    }
    Ok(ExitCode::SUCCESS)
}

async fn status(database: &Database, format: Format) -> Result<ExitCode, Fault> {
    let migrations = match database {
        Database::Sqlite(store) => sqlite::migrate::status(store).await,
        Database::Postgres(store) => postgres::migrate::status(store).await,
    }
    .map_err(|error| Fault::schema(&error))?;
    let current = migrations.iter().all(|m| m.state == MigrationState::Applied);
    if format == Format::Json {
        let all: Vec<_> = migrations
            .iter()
            .map(|m| {
                json!({ "version": m.version, "name": m.name, "state": state(m.state),
                        "applied_at": m.applied_at.map(|at| at.to_string()) })
            })
            .collect();
        println!("{}", json!({ "v": 1, "current": current, "migrations": all }));
    } else {
        for m in &migrations {
            println!("{:04}  {:<8} {}", m.version, state(m.state), plain(&m.name));
        }
        if !current {
            eprintln!("hint: `oncebox migrate up` applies what is pending");
        }
    }
    Ok(if current { ExitCode::SUCCESS } else { ExitCode::from(6) })
}

const fn state(state: MigrationState) -> &'static str {
    match state {
        MigrationState::Applied => "applied",
        MigrationState::Pending => "pending",
        MigrationState::Unknown => "unknown",
    }
}
