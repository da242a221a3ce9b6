//! Every store and transport passes the same suites.

mod postgres;
mod sqlite;

mod memory {
    mod store {
        oncebox_conformance::store_suite!(oncebox_conformance::MemoryFixture);
    }
}
