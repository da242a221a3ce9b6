//! Every store and transport passes the same suites.

mod postgres;
mod sqlite;

mod memory {
    mod store {
        oncebox_conformance::store_suite!(oncebox_conformance::MemoryFixture);
    }

    mod path {
        oncebox_conformance::path_suite!(oncebox_conformance::MemoryFixture);
    }

    mod transport {
        oncebox_conformance::transport_suite!(oncebox_conformance::MemoryTransportFixture);
    }
}
