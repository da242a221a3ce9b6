//! What a store promises as the durable inbox, one module per topic.
//!
//! Every case is told the time, so no case waits for it.

#![allow(missing_docs, reason = "the name of a case is its documentation")]

pub mod backfill;
pub mod conclude;
pub mod deposit;
pub mod effects;
pub mod fencing;
pub mod finish;
pub mod lanes;
pub mod letters;
pub mod orphans;
pub mod purge;
pub mod renew;
pub mod start;
pub mod status;
pub mod steps;
pub mod suspects;
pub mod take;

use oncebox_core::{Depot, Letters};

use crate::fixture::StoreFixture;

/// A fixture of a store that has the durable inbox.
pub trait DepotFixture: StoreFixture<Store: Depot + Letters> {}

impl<F: StoreFixture<Store: Depot + Letters>> DepotFixture for F {}

/// Tests the durable inbox of a store: one test for each promise, on a fixture of its own.
#[macro_export]
macro_rules! depot_suite {
    ($fixture:ty) => {
        $crate::depot_suite_work!($fixture);
        $crate::depot_suite_lanes!($fixture);
        $crate::depot_suite_people!($fixture);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! depot_suite_work {
    ($fixture:ty) => {
        mod deposit {
            $crate::cases!(on_store, $fixture, depot::deposit, [
                a_deposit_is_seen_only_after_commit
                a_rolled_back_deposit_leaves_nothing_and_its_id_free
                a_message_that_is_there_is_a_duplicate_and_another_body_a_conflict
                equal_deposits_of_a_batch_are_one_and_a_duplicate
                a_large_batch_keeps_its_order_for_every_handler
                everything_about_a_message_survives_the_deposit
                scopes_tenants_sources_and_handlers_are_deposited_apart
                a_handler_gets_a_message_once_whatever_channels_bring_it
                a_message_without_an_id_is_told_by_its_body
                ids_longer_than_any_column_are_kept_apart
                what_a_marker_proves_is_not_delivered_again
                a_message_older_than_its_window_is_born_dead
                a_refused_message_is_born_dead_with_its_reason
            ]);
        }
        mod take {
            $crate::cases!(on_store, $fixture, depot::take, [
                the_longest_due_come_first
                a_take_stops_at_the_limits_of_the_request_and_of_each_handler
                only_wanted_handlers_of_the_own_scope_are_taken
                a_leased_delivery_is_nobody_elses_until_its_lease_is_over
                one_whose_lease_is_over_is_taken_in_the_place_it_had
                what_has_no_seat_is_held_and_not_counted
                workers_taking_at_once_never_get_the_same_delivery
            ]);
        }
        mod start {
            $crate::cases!(on_store, $fixture, depot::start, [
                a_held_delivery_is_counted_when_it_starts_and_only_once
                a_finish_starts_the_next_in_the_same_commit
                a_conclusion_starts_the_next_in_the_same_commit
                a_next_that_was_lost_does_not_spoil_a_finish
            ]);
        }
        mod renew {
            $crate::cases!(on_store, $fixture, depot::renew, [
                a_renewed_lease_is_not_taken_over
                a_renewal_tells_which_tickets_are_good
                a_lease_that_ran_out_can_be_renewed_while_nobody_took_it
            ]);
        }
        mod finish {
            $crate::cases!(on_store, $fixture, depot::finish, [
                a_finished_delivery_is_done_and_its_marker_written
                a_finish_shares_the_fate_of_the_handlers_writes
                a_marker_that_is_there_is_told_and_the_delivery_concluded
                a_finish_without_a_mark_writes_no_marker
                several_finishes_of_one_transaction_tell_what_each_has_found
                of_two_finishes_with_one_marker_one_is_the_first
                one_lost_lease_refuses_all_finishes_of_a_transaction
                what_is_undone_leaves_what_was_written_before_and_after
                a_lease_that_ran_out_finishes_while_nobody_took_it
                standing_tells_whose_it_is
                standing_waits_for_whoever_is_about_to_decide
            ]);
        }
        mod conclude {
            $crate::cases!(on_store, $fixture, depot::conclude, [
                a_failed_attempt_is_tried_again_after_its_delay
                an_attempt_that_is_not_spent_is_taken_back
                the_latest_failures_are_remembered
                a_dead_delivery_is_nobodys
                what_is_given_back_is_free_at_once_and_not_counted
                a_conclusion_leaves_other_deliveries_alone
            ]);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! depot_suite_lanes {
    ($fixture:ty) => {
        mod lanes {
            $crate::cases!(on_store, $fixture, depot::lanes, [
                deliveries_of_a_lane_go_one_after_the_other
                other_lanes_tenants_handlers_and_scopes_do_not_wait
                a_head_that_failed_keeps_its_lane
                a_finish_that_is_rolled_back_frees_nobody
                a_dead_head_blocks_its_lane_until_it_is_requeued_or_discarded
                a_dead_head_that_frees_its_lane_has_left_it
                a_duplicate_frees_its_lane
                what_is_born_dead_waits_in_its_lane_and_blocks_it
                what_is_born_dead_may_leave_its_lane
                a_replayed_delivery_does_not_run_beside_its_lane
                one_that_dies_keeps_back_only_those_after_it
                a_finished_head_does_not_let_others_past_a_dead_one
                a_discarded_letter_frees_nobody_while_one_of_its_lane_runs
                deposits_racing_finishes_leave_nobody_stuck_and_no_two_heads
                deposits_of_one_lane_at_once_make_one_head
            ]);
        }
        mod suspects {
            $crate::cases!(on_store, $fixture, depot::suspects, [
                a_run_that_ends_with_its_lease_makes_a_suspect
                a_lease_that_ends_before_the_run_is_no_death
                deaths_are_counted_until_a_run_is_concluded
                a_suspect_that_is_given_back_stays_one
                a_conclusion_that_costs_nothing_clears_a_suspect_too
            ]);
        }
        mod orphans {
            $crate::cases!(on_store, $fixture, depot::orphans, [
                what_nobody_can_run_is_parked_until_somebody_can
                what_is_parked_is_not_replayed
                an_announced_handler_keeps_what_waits_for_it
                only_what_has_been_ready_for_long_is_parked
                a_parked_head_keeps_its_lane_in_order
                what_was_parked_comes_back_behind_an_earlier_one_of_its_lane
                a_parked_one_keeps_back_only_those_after_it
                scopes_are_parked_and_announced_apart
            ]);
        }
        mod effects {
            $crate::cases!(on_store, $fixture, depot::effects, [
                a_result_is_remembered_for_the_next_run
                without_a_lease_nothing_is_intended_or_recorded
                a_replay_causes_its_effects_again
            ]);
        }
        mod fencing {
            $crate::cases!(on_store, $fixture, depot::fencing, [
                a_ticket_that_was_taken_over_changes_nothing
                what_is_over_is_never_overwritten
                a_refused_conclusion_starts_nobody
                a_finish_racing_a_takeover_has_one_winner
                workers_that_rob_each_other_commit_each_effect_once
            ]);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! depot_suite_people {
    ($fixture:ty) => {
        mod letters {
            $crate::cases!(on_store, $fixture, depot::letters, [
                letters_of_both_kinds_are_listed_oldest_first
                a_letter_tells_its_whole_story
                a_letter_that_came_another_way_is_told_too
                a_requeued_letter_has_fresh_attempts
                a_letter_older_than_the_markers_is_not_requeued
                a_letter_that_came_another_way_becomes_a_delivery
                a_discarded_letter_is_gone_for_good
                only_dead_letters_are_requeued_discarded_or_amended
                an_amended_letter_runs_in_the_place_of_the_old_one
                a_replayed_delivery_runs_once_more
            ]);
        }
        mod purge {
            $crate::cases!(on_store, $fixture, depot::purge, [
                deliveries_are_purged_by_handler_and_age
                what_is_not_over_is_kept_however_old
                a_message_is_kept_while_a_delivery_needs_it
                a_marker_outlives_what_it_proves
                a_purge_racing_a_duplicate_lets_nothing_run_twice
                one_sweeps_at_a_time
            ]);
        }
        mod backfill {
            $crate::cases!(on_store, $fixture, depot::backfill, [
                stored_messages_are_paged_by_number
                a_stored_message_is_given_to_one_more_handler_once
                what_was_handled_another_way_is_not_given_again
                a_given_message_takes_its_place_in_its_lane
            ]);
        }
        mod status {
            $crate::cases!(on_store, $fixture, depot::status, [
                every_delivery_that_is_not_over_is_counted
                handlers_are_listed_by_scope_and_key_while_something_is_open
            ]);
        }
    };
}

#[cfg(test)]
mod tests {
    /// A case that is written but not listed would never run.
    #[test]
    fn every_case_is_listed() {
        let topics = [
            include_str!("depot/backfill.rs"),
            include_str!("depot/conclude.rs"),
            include_str!("depot/deposit.rs"),
            include_str!("depot/effects.rs"),
            include_str!("depot/fencing.rs"),
            include_str!("depot/finish.rs"),
            include_str!("depot/lanes.rs"),
            include_str!("depot/letters.rs"),
            include_str!("depot/orphans.rs"),
            include_str!("depot/purge.rs"),
            include_str!("depot/renew.rs"),
            include_str!("depot/start.rs"),
            include_str!("depot/status.rs"),
            include_str!("depot/suspects.rs"),
            include_str!("depot/take.rs"),
        ];
        crate::suite::assert_listed(include_str!("depot.rs"), &topics);
    }
}
