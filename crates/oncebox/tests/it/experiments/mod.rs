//! The named experiments, in a size that fits into CI; `./dev torture
//! experiments` runs them whole. Each has a sabotaged form that the same check
//! must notice.

mod bodies;
mod booking;
mod children;
mod crowd;
mod kills;
pub(crate) mod link;
mod sabotaged;
mod weather;
mod workshop;

mod d_kill;
mod f01_relay_kill;
mod f02_worker_kill;
mod f03_all_kill;
mod f06_commit_cut;
mod f06_gate_cut;
mod f07_confirm_cut;
mod f08_duplicate_storm;
mod f09_abort_storm;
mod f10_frozen_holder;
mod f11_zombie_lease;
mod f12_skewed_worker;
mod f13_late_commit;
mod f14_many_relays;
mod f15_retryable_sql;
mod f16_id_traps;
mod f17_unroutable;
mod f18_blocked_broker;
mod f20_slow_handler;
mod f22_poison_mix;
mod f24_disk_full;
mod f25_pool_starved;
mod f26_network_flap;
mod f27_drain;
mod f28_retention_edge;
mod f29_gate_torture;
