//! One database of its own for each test: a SQLite file, or a schema on a
//! PostgreSQL server.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::program::{Ran, has, oncebox, other};

enum Place {
    Sqlite,
    Postgres(String),
}

pub(crate) struct Database {
    place: Place,
    /// The schema or prefix.
    pub(crate) name: String,
    folder: PathBuf,
}

pub(crate) fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    format!("cli{}_{nanos}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn fresh_folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("oncebox-{}", fresh_name()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

impl Database {
    /// A file that does not exist yet, under the default prefix.
    pub(crate) fn sqlite(case: &str) -> Option<Self> {
        has("sqlite3", case).then(|| Self {
            place: Place::Sqlite,
            name: "oncebox".into(),
            folder: fresh_folder(),
        })
    }

    /// A schema that does not exist yet.
    pub(crate) fn postgres(case: &str) -> Option<Self> {
        let variable = "ONCEBOX_TEST_POSTGRES_URL";
        let Some(url) = std::env::var(variable).ok().filter(|url| !url.is_empty()) else {
            assert!(std::env::var_os("ONCEBOX_NO_SKIP").is_none(), "{variable} is not set");
            println!("SKIP {case}: {variable} is not set");
            return None;
        };
        has("psql", case).then(|| Self {
            place: Place::Postgres(url),
            name: fresh_name(),
            folder: fresh_folder(),
        })
    }

    /// A schema that does not exist yet, on a server of the test's own.
    pub(crate) fn at(url: String) -> Self {
        Self { place: Place::Postgres(url), name: fresh_name(), folder: fresh_folder() }
    }

    /// Both, as far as they are there.
    pub(crate) fn both(case: &str) -> impl Iterator<Item = Self> {
        Self::sqlite(case).into_iter().chain(Self::postgres(case))
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        matches!(self.place, Place::Sqlite)
    }

    /// What `--db` takes.
    pub(crate) fn url(&self) -> String {
        match &self.place {
            Place::Sqlite => self.file().to_str().unwrap().to_owned(),
            Place::Postgres(url) => url.clone(),
        }
    }

    /// The SQLite file.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join("app.db")
    }

    /// A place for other files, gone with the database.
    pub(crate) fn folder(&self) -> &PathBuf {
        &self.folder
    }

    /// `verb` and its arguments, followed by where the database is.
    pub(crate) fn args(&self, verb: &[&str]) -> Vec<String> {
        let (url, name) = (self.url(), self.name.clone());
        verb.iter().map(ToString::to_string).chain(["--db".into(), url, "--schema".into(), name]).collect()
    }

    /// Runs a verb on this database.
    pub(crate) fn run(&self, verb: &[&str]) -> Ran {
        oncebox(self.args(verb))
    }

    /// The same database with its tables made.
    #[track_caller]
    pub(crate) fn migrated(self) -> Self {
        self.run(&["migrate", "up"]).exits(0);
        self
    }

    /// Runs SQL with the database's own program; `{t}` stands before table names.
    pub(crate) fn sql(&self, text: &str) -> String {
        match &self.place {
            Place::Sqlite => {
                let text = format!(".timeout 10000\n{}", text.replace("{t}", &format!("{}_", self.name)));
                other("sqlite3", &["-batch", "-bail", &self.url()], &text)
            }
            Place::Postgres(url) => {
                let text = text.replace("{t}", &format!("{}.", self.name));
                other("psql", &["-XqAt", "-v", "ON_ERROR_STOP=1", url], &text)
            }
        }
    }

    /// The documented way in for any language: three columns.
    pub(crate) fn insert_by_hand(&self, from: u32, to: u32) {
        self.insert_to("orders", from, to);
    }

    /// The same to another destination.
    pub(crate) fn insert_to(&self, destination: &str, from: u32, to: u32) {
        let rows: Vec<_> =
            (from..to).map(|n| format!("('order.placed.v1', '{destination}', '{{\"n\": {n}}}')")).collect();
        self.sql(&format!(
            "INSERT INTO {{t}}outbox (type, destination, payload) VALUES {};",
            rows.join(", ")
        ));
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.is_sqlite() {
            self.sql(&format!(
                "SET client_min_messages = error; DROP SCHEMA IF EXISTS {} CASCADE;",
                self.name
            ));
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
