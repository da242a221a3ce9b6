//! Every place at which a process can die, and every loss beside it: one case
//! per row of the crash-point table, each on SQLite and on PostgreSQL.
//!
//! A case names the points that lie in our code; it fails if one of them was
//! not reached. After each death a fresh relay and a fresh inbox on the same
//! store recover, and the ledger must show one effect for all that was
//! committed and none for what was not.

mod consumer;
mod gate;
pub(crate) mod ground;
mod handling;
mod process;
mod producer;
mod relay;
mod stage;

use std::sync::Arc;

use oncebox::CrashPoint;
use oncebox_conformance::run::on_store;

use ground::Ground;
use stage::Stage;

/// Runs a case, and insists on the deaths it promises.
fn run<F, C, Fut>(points: &'static [CrashPoint], case: C)
where
    F: Ground,
    C: FnOnce(Arc<Stage<F>>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    on_store::<F, _, _>(|fixture| async move {
        let stage = Arc::new(Stage::new(&fixture));
        case(Arc::clone(&stage)).await;
        for point in points {
            assert!(stage.deaths.has(*point), "nobody died at {point:?}");
        }
    });
}

macro_rules! points {
    ($($topic:ident::$case:ident [$($point:ident)*])*) => {
        /// Each case and where somebody dies in it.
        const CASES: &[(&str, &[CrashPoint])] = &[$((stringify!($case), &[$(CrashPoint::$point),*])),*];

        mod sqlite {
            $(#[test]
            fn $case() {
                super::run(&[$(super::CrashPoint::$point),*], super::$topic::$case::<super::ground::SqliteFixture>);
            })*
        }

        mod postgres {
            $(#[test]
            fn $case() {
                super::run(&[$(super::CrashPoint::$point),*], super::$topic::$case::<super::ground::PostgresFixture>);
            })*
        }
    };
}

points! {
    producer::p1_a_producer_that_dies_before_it_begins_leaves_nothing [P1]
    producer::p2_a_business_write_without_its_message_vanishes [P2]
    producer::p3_a_put_that_is_not_committed_is_no_message [P3]
    producer::p4_a_commit_whose_reply_is_lost_is_found_and_not_put_twice [P4]
    producer::p5_a_message_nobody_was_told_of_leaves_within_a_poll [P5]
    producer::p6_a_caller_that_hangs_up_leaves_all_or_nothing []
    relay::r1_a_row_that_commits_late_is_not_skipped []
    relay::r2_rows_claimed_by_a_dead_relay_are_published_after_its_lease [R2]
    relay::r3_a_batch_written_in_part_is_published_again []
    relay::r4_a_message_stored_without_a_confirm_is_published_again_and_applied_once [R4]
    relay::r5_a_confirm_lost_before_the_settle_is_published_again_and_applied_once [R5]
    relay::r6_a_settle_whose_reply_is_lost_publishes_nothing_again [R6]
    relay::r7_a_batch_confirmed_in_part_is_resent_in_the_order_of_its_keys [R7]
    relay::r7_only_what_was_not_confirmed_is_resent [R6]
    relay::r8_what_the_broker_did_not_take_stays_pending_with_its_reason []
    relay::r9_a_relay_that_wakes_after_its_lease_cannot_settle []
    relay::r12_an_undeliverable_message_stops_its_key_and_no_other []
    consumer::c1_a_delivery_lost_before_the_transaction_comes_again [C1]
    consumer::c2_a_marker_without_its_effect_is_rolled_back [C2]
    consumer::c3_an_effect_without_its_commit_is_rolled_back [C3]
    consumer::c4_what_a_handler_does_elsewhere_may_happen_twice_under_one_id [C3]
    consumer::c5_a_commit_whose_reply_is_lost_is_neither_repeated_nor_buried [C5]
    consumer::c6_a_message_committed_before_its_ack_is_skipped [C6]
    consumer::c7_a_lost_ack_costs_a_delivery_and_no_effect []
    handling::c8_a_copy_that_arrives_during_a_slow_handler_does_not_enter_it []
    handling::c9_of_the_copies_that_wait_for_a_failing_one_a_single_one_runs []
    handling::c10_a_serialization_failure_runs_the_whole_unit_again []
    process::c11_a_message_that_kills_its_process_is_buried_after_the_allowed_starts []
    process::c11_deaths_are_counted_where_the_transport_does_not_count []
    handling::c11_a_copy_in_flight_is_no_death []
    handling::c12_a_failure_nobody_recorded_is_counted_by_the_delivery []
    handling::c13_a_swallowed_database_error_does_not_count_as_handled []
    gate::h1_a_key_whose_process_died_is_taken_until_its_lease_is_over [H1]
    gate::h1_a_claim_dies_with_its_process [H1]
    gate::h2_a_reply_that_was_sealed_and_lost_is_replayed_byte_for_byte [H2]
    gate::h2_a_reply_that_was_committed_and_lost_is_replayed_byte_for_byte [H2]
    gate::h3_of_copies_at_two_processes_one_runs []
    gate::h4_another_request_under_the_key_never_sees_the_first_reply []
    gate::h5_the_key_of_another_caller_is_another_key []
    gate::h6_an_effect_without_its_reply_is_rolled_back [H6]
    gate::h6_a_reply_kept_apart_from_its_effect_may_be_lost_and_that_can_block [H6]
    gate::h7_a_reply_that_is_cut_off_is_an_unknown_outcome []
    gate::h8_a_request_that_is_cut_off_uses_up_no_key []
}

#[test]
fn every_crash_point_has_a_case_that_dies_there() {
    for point in CrashPoint::ALL.into_iter().chain(CrashPoint::GATE) {
        let cases = CASES.iter().filter(|(_, points)| points.contains(&point));
        assert!(cases.count() > 0, "no case dies at {point:?}");
    }
}

/// The rows of the table this module answers for, by their names.
#[test]
fn every_row_of_the_table_has_a_case() {
    let rows = (1..=6).map(|n| format!("p{n}_"));
    let rows = rows.chain([1, 2, 3, 4, 5, 6, 7, 8, 9, 12].map(|n| format!("r{n}_")));
    let rows = rows.chain((1..=13).map(|n| format!("c{n}_")));
    for row in rows.chain((1..=8).map(|n| format!("h{n}_"))) {
        assert!(CASES.iter().any(|(name, _)| name.starts_with(&row)), "no case for row {row}");
    }
}
