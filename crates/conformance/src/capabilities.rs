//! What each store and transport can do, as the reference shows it.
//!
//! Rendered from the values that choose the cases, so the table cannot promise
//! what no suite has tried.

use std::fmt::Write as _;

use oncebox_core::{Capabilities, Order};

/// What a store promises beyond its traits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// The name in tables and reports.
    pub name: &'static str,
    /// A committed message survives the death of this process.
    pub survives_process: bool,
    /// A committed message survives a power cut.
    pub survives_power_loss: bool,
    /// Two transactions may write at once.
    pub concurrent_writers: bool,
    /// Several processes may use it at once, over a network.
    pub shared_by_processes: bool,
}

/// A row of a table: what is promised, and by whom.
type Promise<T> = (&'static str, fn(&T) -> bool);

/// The whole page.
#[must_use]
pub fn page(stores: &[Guarantees], transports: &[Capabilities]) -> String {
    let mut page = String::from(
        "# Capabilities\n\n\
         Rendered from the code by `oncebox_conformance::capabilities` and compared with it by a test; \
         `ONCEBOX_BLESS=1` rewrites it.\n\n\
         ## Stores\n\n\
         Every store keeps these promises, each of them a case of the store suite: a message leaves if and only if\n\
         its transaction commits; no committed row is ever skipped; a relay that lost its lease cannot settle; a marker\n\
         commits with the handler's writes; nothing unsettled is purged.\n\n",
    );
    let rows: [Promise<Guarantees>; 4] = [
        ("A committed message survives the process", |store| store.survives_process),
        ("A committed message survives a power cut", |store| store.survives_power_loss),
        ("Transactions write at the same time", |store| store.concurrent_writers),
        ("Several machines share it", |store| store.shared_by_processes),
    ];
    table(&mut page, &stores.iter().map(|store| store.name).collect::<Vec<_>>(), &rows, stores);
    page.push_str(
        "\n## Transports\n\nA transport confirms only what is stored at its destination, and redelivers what was not acknowledged.\n\n",
    );
    let rows: [Promise<Capabilities>; 5] = [
        ("A confirmed message survives the process", |transport| transport.survives_process),
        ("One key, one delivery at a time, in order", |transport| transport.order != Order::None),
        ("Keys are shared among the members of a group", |transport| transport.order == Order::ByKey),
        ("A delayed redelivery is kept", |transport| transport.delayed_nack),
        ("The attempt number is exact", |transport| transport.exact_attempts),
    ];
    table(
        &mut page,
        &transports.iter().map(|transport| transport.name).collect::<Vec<_>>(),
        &rows,
        transports,
    );
    page
}

fn table<T>(page: &mut String, names: &[&str], rows: &[Promise<T>], columns: &[T]) {
    let line = |page: &mut String, head: &str, cells: Vec<String>| {
        writeln!(page, "| {head} | {} |", cells.join(" | ")).expect("a string takes everything");
    };
    line(page, "", names.iter().map(|name| (*name).to_owned()).collect());
    line(page, "---", names.iter().map(|_| "---".to_owned()).collect());
    for (text, has) in rows {
        line(
            page,
            text,
            columns.iter().map(|column| if has(column) { "yes" } else { "no" }.to_owned()).collect(),
        );
    }
}
