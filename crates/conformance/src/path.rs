//! What a message experiences from put to effect, over the in-process transport.
//!
//! The transport can be told to misbehave, so what is proved here is that the
//! stations cope; how a store or a transport keeps its own promises is proved
//! in their suites.

#![allow(missing_docs, reason = "the name of a case is its documentation")]

pub mod delivery;
pub mod dying;
pub mod failure;
pub mod identity;
pub mod parking;
pub mod scene;

/// Tests the whole path on a store: one test for each promise.
#[macro_export]
macro_rules! path_suite {
    ($fixture:ty) => {
        mod delivery {
            $crate::cases!(on_store, $fixture, path::delivery, [
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
            $crate::cases!(on_store, $fixture, path::dying, [
                a_relay_that_dies_anywhere_loses_and_doubles_nothing
                a_consumer_that_dies_anywhere_loses_and_doubles_nothing
                a_producer_that_dies_anywhere_leaves_all_or_nothing
            ]);
        }
        mod failure {
            $crate::cases!(on_store, $fixture, path::failure, [
                a_failing_message_is_tried_as_often_as_allowed_and_buried
                a_message_that_fails_at_first_takes_effect_once
                a_permanent_failure_is_buried_at_once
                a_panic_is_a_failure_of_its_message_only
                a_handler_that_takes_too_long_leaves_nothing
                an_undecodable_message_is_buried
                an_unknown_type_is_buried_or_ignored
                the_databases_troubles_spend_no_attempt
            ]);
        }
        mod identity {
            $crate::cases!(on_store, $fixture, path::identity, [
                another_body_under_a_handled_id_is_refused
                a_message_without_id_is_treated_as_chosen
                a_selector_tells_messages_apart
                a_business_key_tells_messages_apart
                tenants_and_sources_have_ids_of_their_own
                a_duplicate_gets_the_stored_reply
                copies_at_the_same_moment_run_once
            ]);
        }
        mod parking {
            $crate::cases!(on_store, $fixture, path::parking, [
                a_refused_message_holds_back_its_key_and_no_other
                a_message_refused_for_good_is_dead_and_blocks_its_key
                a_discarded_dead_letter_lets_its_key_go_on
                a_requeued_dead_letter_takes_effect_before_its_followers
                a_key_may_go_on_past_its_dead
                attempts_of_a_refused_message_are_counted_exactly
                a_key_goes_on_although_a_relay_still_takes_it_for_blocked
                a_destination_that_is_down_holds_up_no_other
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
            include_str!("path/delivery.rs"),
            include_str!("path/dying.rs"),
            include_str!("path/failure.rs"),
            include_str!("path/identity.rs"),
            include_str!("path/parking.rs"),
        ];
        crate::suite::assert_listed(include_str!("path.rs"), &topics);
    }
}
