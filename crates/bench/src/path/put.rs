//! A business transaction with a put, against the same with one INSERT.

use oncebox_flow::Outbox;

use super::Run;
use crate::lab::Lab;
use crate::order::Order;
use crate::report::{Measure, Target};
use crate::rounds::{interleave, rate};

pub(super) async fn measure<L: Lab>(run: &mut Run, lab: &L) {
    // SQLite has one writer at a time, so more clients would measure its lock.
    let clients: &[u64] = if L::NAME == "sqlite" { &[1] } else { &[1, 8] };
    for &clients in clients {
        let name = format!("{}.put_business_tx.{clients}_clients", L::NAME);
        if run.wants(&name) {
            let outbox = Outbox::new(lab.store().clone()).source("bench");
            let puts = run.sizes.puts;
            let rounds = interleave(
                run.sizes.rounds,
                async || rate(by_all(clients, puts, (lab, &outbox), Side::Ours)).await,
                async || rate(by_all(clients, puts, (lab, &outbox), Side::Hand)).await,
            )
            .await;
            run.report(&Measure::new(name, rounds, Target::AtLeast(0.85)));
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Ours,
    Hand,
}

async fn by_all<L: Lab>(clients: u64, puts: u64, (lab, outbox): (&L, &Outbox<L::Store>), side: Side) -> u64 {
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..clients {
        let (lab, outbox) = (lab.clone(), outbox.clone());
        tasks.spawn(async move {
            for n in 0..puts {
                let order = Order::nth(client * puts + n);
                match side {
                    Side::Ours => lab.put(&outbox, &order).await,
                    Side::Hand => lab.put_by_hand(&order).await,
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("a client ends well");
    }
    clients * puts
}
