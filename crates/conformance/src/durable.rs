//! What a message experiences in the durable inbox: stored, run by a worker,
//! tried again, buried, each handler by itself.
//!
//! How a store keeps the promises of its tables is proved in [`depot`](crate::depot).

#![allow(missing_docs, reason = "the name of a case is its documentation")]

pub mod batch;
pub mod crowd;
pub mod dying;
pub mod effects;
pub mod letters;
pub mod modes;
pub mod names;
pub mod order;
pub mod pace;
pub mod retry;
pub mod scene;
pub mod stopping;

/// Tests the durable inbox on a store: one test for each promise.
#[macro_export]
macro_rules! durable_suite {
    ($fixture:ty) => {
        mod batch {
            $crate::cases!(on_store, $fixture, durable::batch, [
                a_batch_commits_what_runs_well_and_undoes_what_fails
                a_batch_that_dies_takes_effect_once
                a_stopped_batch_gives_back_the_rest
                a_handler_with_one_attempt_is_not_run_in_batches
            ]);
        }
        mod crowd {
            $crate::cases!(on_store, $fixture, durable::crowd, [
                of_a_crowd_with_copies_each_takes_effect_once
                a_crowd_in_order_is_stored_in_order
            ]);
        }
        mod dying {
            $crate::cases!(on_store, $fixture, durable::dying, [
                a_worker_that_dies_anywhere_loses_and_doubles_nothing
                a_deposit_that_is_not_acknowledged_is_stored_once
                a_worker_whose_lease_was_taken_cannot_commit
                a_message_that_kills_its_worker_is_buried_and_takes_nobody_along
                a_suspect_that_finds_no_room_holds_up_nobody
            ]);
        }
        mod effects {
            $crate::cases!(on_store, $fixture, durable::effects, [
                an_effect_outside_is_caused_with_the_same_key_in_every_run
                an_effect_that_was_recorded_is_not_caused_again
                effects_of_a_replayed_delivery_are_caused_again_with_another_key
            ]);
        }
        mod letters {
            $crate::cases!(on_store, $fixture, durable::letters, [
                a_dead_letter_tells_its_story_and_runs_again_when_requeued
                a_discarded_letter_is_gone_for_good
                an_edited_letter_runs_as_a_new_message_that_names_the_old_one
                a_letter_of_receiver_mode_can_be_requeued_to_a_worker
                a_replayed_delivery_takes_effect_once_more_and_no_oftener
            ]);
        }
        mod modes {
            $crate::cases!(on_store, $fixture, durable::modes, [
                a_message_is_stored_before_it_is_answered_and_handled_later
                copies_of_a_message_are_stored_once
                another_body_under_the_same_id_is_buried_and_the_first_one_runs
                one_channel_serves_both_modes
                what_was_handled_in_receiver_mode_is_not_stored_for_a_worker
                what_a_durable_handler_puts_leaves_with_its_writes
                a_local_route_stores_in_the_producers_transaction
                an_undecodable_message_is_a_dead_letter_of_its_handler
                a_handler_added_later_gets_old_messages_by_a_backfill
            ]);
        }
        mod names {
            $crate::cases!(on_store, $fixture, durable::names, [
                a_renamed_handler_takes_up_what_was_stored_for_its_former_key
                a_renamed_handler_does_not_repeat_what_its_former_key_has_done
                a_worker_does_not_repeat_what_a_former_key_has_done
                an_unknown_handlers_deliveries_wait_and_are_parked_not_buried
                two_services_in_one_database_do_not_meet
            ]);
        }
        mod order {
            $crate::cases!(on_store, $fixture, durable::order, [
                messages_of_a_key_are_handled_in_order_by_many_seats
                a_dead_head_blocks_its_key_and_no_other
                a_dead_head_is_passed_by_if_that_was_chosen
                a_failing_head_holds_its_key_until_it_succeeds
            ]);
        }
        mod pace {
            $crate::cases!(on_store, $fixture, durable::pace, [
                a_handler_runs_no_more_often_at_once_than_it_allows
                a_handler_runs_no_faster_than_its_rate
                an_open_circuit_spends_no_attempts
            ]);
        }
        mod retry {
            $crate::cases!(on_store, $fixture, durable::retry, [
                one_handlers_failure_does_not_touch_another
                a_failing_delivery_is_tried_as_often_as_allowed_and_buried
                one_attempt_means_no_retry
                a_handler_may_say_when_it_wants_to_be_called_again
                a_permanent_failure_is_buried_at_once
                a_panic_and_a_timeout_are_failures
                a_panic_before_the_first_await_costs_no_seat
                every_handler_has_a_policy_of_its_own
            ]);
        }
        mod stopping {
            $crate::cases!(on_store, $fixture, durable::stopping, [
                a_stop_gives_back_what_has_not_begun_and_spends_nothing
                a_worker_that_is_dropped_lets_its_leases_run_out
                a_stop_lets_running_handlers_finish
                a_handler_that_does_not_end_is_given_back_after_the_drain
                many_workers_share_the_work
            ]);
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_in_the_suite() {
        crate::suite::assert_listed(
            include_str!("durable.rs"),
            &[
                include_str!("durable/batch.rs"),
                include_str!("durable/crowd.rs"),
                include_str!("durable/dying.rs"),
                include_str!("durable/effects.rs"),
                include_str!("durable/letters.rs"),
                include_str!("durable/modes.rs"),
                include_str!("durable/names.rs"),
                include_str!("durable/order.rs"),
                include_str!("durable/pace.rs"),
                include_str!("durable/retry.rs"),
                include_str!("durable/stopping.rs"),
            ],
        );
    }
}
