//! Every store and transport passes the same suites.

mod pairs;
pub(crate) mod postgres;
pub(crate) mod sqlite;

use oncebox::Order;
use oncebox_conformance::{
    MemoryFixture, MemoryTransportFixture, StoreFixture, TransportFixture, capabilities,
};
use oncebox_transports::nats::Nats;
use oncebox_transports::rabbitmq::RabbitMq;

mod memory {
    mod store {
        oncebox_conformance::store_suite!(oncebox_conformance::MemoryFixture);
    }

    mod receipts {
        oncebox_conformance::receipts_suite!(oncebox_conformance::MemoryFixture);
    }

    mod depot {
        oncebox_conformance::depot_suite!(oncebox_conformance::MemoryFixture);
    }

    mod path {
        oncebox_conformance::path_suite!(oncebox_conformance::MemoryFixture);
    }

    mod durable {
        oncebox_conformance::durable_suite!(oncebox_conformance::MemoryFixture);
    }

    mod transport {
        oncebox_conformance::transport_suite!(oncebox_conformance::MemoryTransportFixture);
    }
}

/// The reference page says what the code says.
#[test]
fn the_capabilities_page_equals_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/capabilities.md");
    let stores =
        [MemoryFixture::GUARANTEES, sqlite::SqliteFixture::GUARANTEES, postgres::PostgresFixture::GUARANTEES];
    let transports = [
        MemoryTransportFixture::CAPABILITIES,
        RabbitMq::CAPABILITIES,
        RabbitMq::SINGLE_ACTIVE,
        Nats::capabilities(Order::None),
        Nats::capabilities(Order::SingleActive),
    ];
    let page = capabilities::page(&stores, &transports);
    if std::env::var_os("ONCEBOX_BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    }

    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), page, "ONCEBOX_BLESS=1 rewrites {path}");
}
