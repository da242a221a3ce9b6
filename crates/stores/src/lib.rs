//! Databases oncebox keeps its promise in, one module each with the same files.
//!
//! A module implements the roles of `oncebox_core::store` for one driver; the
//! statements it sends are in its `sql` folder, the tables in `migrations`.

#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod migration;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use migration::{Applied, MigrationState, MigrationStatus};
