//! What only one database can show. Behaviour every store shares is tested by
//! the conformance suite.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
