//! What a message experiences from put to effect.
//!
//! The in-process transport can be told to misbehave, so what is proved here is
//! that the stations cope; how a store or a transport keeps its own promises is
//! proved in their suites. What needs no such misbehaviour is proved over every
//! transport that somebody pairs with a store.

#![allow(missing_docs, reason = "the name of a case is its documentation")]

pub mod ailing;
pub mod carrier;
pub mod delivery;
pub mod dying;
pub mod failure;
pub mod forging;
pub mod identity;
pub mod parking;
pub mod routing;
pub mod scene;

/// Tests the whole path on a store, over the in-process transport: one test for each promise.
#[macro_export]
macro_rules! path_suite {
    ($fixture:ty) => {
        mod ailing {
            $crate::cases!(on_store, $fixture, path::ailing, [
                a_pass_that_hangs_is_given_up_and_the_relay_goes_on
                a_rollback_that_hangs_is_given_up_and_the_message_comes_again
                a_sweep_that_hangs_does_not_hold_up_a_stop
                a_janitor_does_not_believe_a_clock_that_jumped
                a_delay_counts_by_the_databases_clock
                a_run_that_could_not_be_signed_off_is_not_a_death
            ]);
        }
        mod delivery {
            $crate::cases!(on_path, $fixture, path::delivery, [
                a_committed_message_takes_effect_and_a_rolled_back_one_does_not
                duplicates_take_effect_once
                lost_confirms_double_nothing
                an_outage_costs_time_and_no_message
                reordered_deliveries_keep_the_order_of_keys
                several_relays_keep_the_order_of_keys
                every_handler_takes_effect_on_its_own
                what_a_handler_puts_goes_on
                what_a_failing_handler_puts_does_not_leave
                a_scheduled_message_takes_effect_after_its_time
                the_janitor_forgets_and_the_gate_remembers
                a_storm_of_faults_loses_and_doubles_nothing
            ]);
        }
        mod dying {
            $crate::cases!(on_path, $fixture, path::dying, [
                a_relay_that_dies_anywhere_loses_and_doubles_nothing
                a_consumer_that_dies_anywhere_loses_and_doubles_nothing
                a_producer_that_dies_anywhere_leaves_all_or_nothing
            ]);
        }
        mod failure {
            $crate::cases!(on_path, $fixture, path::failure, [
                a_failing_message_is_tried_as_often_as_allowed_and_buried
                a_message_that_fails_at_first_takes_effect_once
                a_permanent_failure_is_buried_at_once
                a_panic_is_a_failure_of_its_message_only
                a_handler_that_takes_too_long_leaves_nothing
                an_undecodable_message_is_buried
                an_unknown_type_is_buried_or_ignored
                the_databases_troubles_spend_no_attempt
                an_undecodable_message_on_the_wire_holds_up_no_other
            ]);
        }
        mod forging {
            $crate::cases!(on_path, $fixture, path::forging, [
                what_is_signed_on_its_way_out_takes_effect
                a_forged_id_does_not_suppress_the_real_message
                an_altered_message_is_quarantined
                an_unsigned_message_is_refused_where_signatures_are_required
                a_type_nobody_takes_is_ignored_before_it_is_verified
                a_replay_is_too_old_once_its_marker_is_gone
                a_key_that_a_signature_does_not_cover_is_a_mistake
                what_is_forged_on_the_wire_is_quarantined
            ]);
        }
        mod identity {
            $crate::cases!(on_path, $fixture, path::identity, [
                another_body_under_a_handled_id_is_refused
                a_message_without_id_is_treated_as_chosen
                a_selector_tells_messages_apart
                a_business_key_tells_messages_apart
                tenants_and_sources_have_ids_of_their_own
                a_duplicate_gets_the_stored_reply
                copies_at_the_same_moment_run_once
                tenants_and_sources_stay_apart_on_the_wire
                another_body_on_the_wire_takes_no_effect
            ]);
        }
        mod parking {
            $crate::cases!(on_path, $fixture, path::parking, [
                a_refused_message_holds_back_its_key_and_no_other
                a_message_refused_for_good_is_dead_and_blocks_its_key
                a_discarded_dead_letter_lets_its_key_go_on
                a_requeued_dead_letter_takes_effect_before_its_followers
                a_key_may_go_on_past_its_dead
                attempts_of_a_refused_message_are_counted_exactly
                a_key_goes_on_although_a_relay_still_takes_it_for_blocked
                a_destination_that_is_down_holds_up_no_other
                a_long_backlog_of_a_destination_that_is_down_holds_up_no_other
                an_outage_of_every_destination_puts_nothing_aside
                a_kind_of_message_nobody_takes_holds_up_no_other
                a_key_blocked_by_its_dead_goes_on_once_dead_ones_are_skipped
            ]);
        }
        mod routing {
            $crate::cases!(on_store, $fixture, path::routing, [
                sinks_take_what_is_theirs_each_at_its_own_pace
                the_destination_that_is_down_is_told_by_where_messages_really_go
                an_outbox_routes_by_name_unless_told_otherwise
                a_routes_size_limit_is_checked_at_put
            ]);
        }
    };
}

/// Tests the path on a store over a transport: what goes over the wire and holds
/// although a broker confirms before anybody has handled the message.
#[macro_export]
macro_rules! pair_suite {
    ($store:ty, $transport:ty) => {
        mod delivery {
            $crate::cases!(on_pair, $store => $transport, path::delivery, [
                a_committed_message_takes_effect_and_a_rolled_back_one_does_not
                lost_confirms_double_nothing
                an_outage_costs_time_and_no_message
                several_relays_keep_the_order_of_keys
                every_handler_takes_effect_on_its_own
                what_a_handler_puts_goes_on
                a_scheduled_message_takes_effect_after_its_time
                the_janitor_forgets_and_the_gate_remembers
            ]);
        }
        mod dying {
            $crate::cases!(on_pair, $store => $transport, path::dying, [
                a_relay_that_dies_anywhere_loses_and_doubles_nothing
                a_consumer_that_dies_anywhere_loses_and_doubles_nothing
            ]);
        }
        mod failure {
            $crate::cases!(on_pair, $store => $transport, path::failure, [
                a_failing_message_is_tried_as_often_as_allowed_and_buried
                a_message_that_fails_at_first_takes_effect_once
                a_permanent_failure_is_buried_at_once
                a_panic_is_a_failure_of_its_message_only
                the_databases_troubles_spend_no_attempt
                an_undecodable_message_on_the_wire_holds_up_no_other
            ]);
        }
        mod forging {
            $crate::cases!(on_pair, $store => $transport, path::forging, [
                what_is_signed_on_its_way_out_takes_effect
                what_is_forged_on_the_wire_is_quarantined
            ]);
        }
        mod identity {
            $crate::cases!(on_pair, $store => $transport, path::identity, [
                tenants_and_sources_stay_apart_on_the_wire
                another_body_on_the_wire_takes_no_effect
            ]);
        }
        mod parking {
            $crate::cases!(on_pair, $store => $transport, path::parking, [
                a_refused_message_holds_back_its_key_and_no_other
                a_message_refused_for_good_is_dead_and_blocks_its_key
                a_discarded_dead_letter_lets_its_key_go_on
                a_requeued_dead_letter_takes_effect_before_its_followers
                a_key_may_go_on_past_its_dead
                attempts_of_a_refused_message_are_counted_exactly
                a_key_goes_on_although_a_relay_still_takes_it_for_blocked
                a_destination_that_is_down_holds_up_no_other
                a_long_backlog_of_a_destination_that_is_down_holds_up_no_other
                a_key_blocked_by_its_dead_goes_on_once_dead_ones_are_skipped
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
            include_str!("path/ailing.rs"),
            include_str!("path/delivery.rs"),
            include_str!("path/dying.rs"),
            include_str!("path/failure.rs"),
            include_str!("path/forging.rs"),
            include_str!("path/identity.rs"),
            include_str!("path/parking.rs"),
            include_str!("path/routing.rs"),
        ];
        crate::suite::assert_listed(include_str!("path.rs"), &topics);
    }
}
