//! What a store promises, one module per topic.
//!
//! Every case is told the time, so no case waits for it.

#![allow(missing_docs, reason = "the name of a case is its documentation")]

pub mod bury;
pub mod claim;
pub mod inspect;
pub mod mark;
pub mod park;
pub mod purge;
pub mod put;
pub mod race;
pub mod read;
pub mod schedule;
pub mod settle;

/// Tests a store: one test for each promise, on a fixture of its own.
#[macro_export]
macro_rules! store_suite {
    ($fixture:ty) => {
        $crate::store_suite_log!($fixture);
        $crate::store_suite_relay!($fixture);
        $crate::store_suite_inbox!($fixture);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_suite_log {
    ($fixture:ty) => {
        mod put {
            $crate::cases!(on_store, $fixture, store::put, [
                a_message_is_visible_only_after_commit
                a_commit_that_goes_on_commits_what_was_before_and_nothing_after
                a_rolled_back_put_leaves_nothing_and_its_id_free
                a_dropped_transaction_leaves_nothing
                an_id_that_is_there_is_a_duplicate_and_the_transaction_stays_usable
                a_batch_keeps_its_order_and_the_first_of_equal_ids
                an_empty_batch_puts_nothing
                ids_differ_by_tenant_source_case_and_space
                every_field_survives_the_round_trip
                payloads_of_all_sizes_survive_the_round_trip
                names_of_255_bytes_are_kept_and_longer_ones_refused
                a_put_and_a_business_write_share_their_fate
                holds_tells_what_is_committed
                holds_waits_for_whoever_is_about_to_decide
            ]);
        }
        mod schedule {
            $crate::cases!(on_store, $fixture, store::schedule, [
                a_scheduled_message_is_not_in_the_log_before_it_is_due
                a_message_enters_the_log_at_the_time_of_its_promotion
                promotion_goes_by_due_time_and_stops_at_its_limit
                a_message_is_scheduled_once_and_promoted_once
                an_id_that_waits_in_the_schedule_is_taken
                a_rolled_back_schedule_leaves_nothing
                every_field_survives_the_schedule
                concurrent_promotions_move_each_message_once
            ]);
        }
        mod read {
            $crate::cases!(on_store, $fixture, store::read, [
                rows_come_in_the_order_they_were_committed
                the_shards_together_hold_every_row_once
                messages_of_one_key_share_a_shard
                a_read_stops_at_its_limit_and_says_so
                pages_hold_every_row_once
                a_reader_of_some_shards_passes_the_rows_of_others
                a_listed_hole_is_read_again_if_its_row_is_there
                an_empty_log_reads_as_empty
                a_late_commit_below_what_was_read_is_not_lost
                a_hole_closes_when_its_transaction_rolls_back
                readers_of_parts_lose_nothing_to_interleaved_transactions
                a_reader_of_everything_loses_nothing_to_interleaved_transactions
            ]);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_suite_relay {
    ($fixture:ty) => {
        mod claim {
            $crate::cases!(on_store, $fixture, store::claim, [
                a_relay_alone_gets_every_shard
                any_number_of_relays_share_fairly
                renewing_keeps_the_fence_and_a_change_of_owner_raises_it
                a_lease_that_ran_out_is_taken_over
                a_renewed_lease_is_not_taken_over
                a_late_relay_keeps_what_nobody_took
                released_shards_are_free_at_once
                a_relay_gives_back_its_surplus_when_another_joins
                a_relay_that_died_stops_counting_when_its_lease_is_over
                a_new_owner_starts_where_the_old_one_settled
                sinks_are_claimed_apart
                concurrent_claims_never_give_a_shard_to_two
            ]);
        }
        mod settle {
            $crate::cases!(on_store, $fixture, store::settle, [
                position_and_holes_are_kept
                a_settlement_after_a_takeover_changes_nothing
                one_lost_shard_refuses_the_whole_settlement
                a_settlement_after_a_release_is_refused
                a_lease_that_ran_out_settles_while_nobody_took_it
                shards_move_apart
                a_settlement_without_progress_moves_nothing
                many_holes_are_kept
            ]);
        }
        mod park {
            $crate::cases!(on_store, $fixture, store::park, [
                a_refused_head_waits_for_its_time_and_blocks_only_its_key
                followers_come_after_their_head_and_in_order
                a_head_that_is_not_due_keeps_its_followers
                an_unkeyed_row_waits_alone
                a_sent_head_frees_the_next_of_its_key
                a_dead_head_blocks_its_key
                a_dead_head_is_passed_if_dead_ones_are_skipped
                what_is_due_stops_at_its_limit_with_the_beginning_of_each_key
                only_asked_for_shards_are_due
                parking_again_changes_the_row_and_keeps_its_date
                a_parked_row_comes_back_whole
                sinks_park_apart
                tenants_with_equal_keys_are_different_lanes
                a_requeued_dead_letter_has_its_attempts_back
                a_discarded_dead_letter_frees_its_key
                only_dead_letters_are_requeued_or_discarded
                a_row_in_front_that_is_not_due_holds_back_a_later_one_that_is
                a_requeued_dead_letter_goes_before_a_later_one_that_waits
            ]);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_suite_inbox {
    ($fixture:ty) => {
        mod mark {
            $crate::cases!(on_store, $fixture, store::mark, [
                the_first_mark_is_first_and_the_next_a_duplicate
                a_rolled_back_mark_leaves_no_marker
                another_body_under_a_marked_key_is_a_conflict
                handlers_tenants_sources_and_ids_are_marked_apart
                a_message_older_than_the_window_is_too_old
                a_marker_proves_more_than_an_age
                a_message_without_a_time_passes_the_gate
                a_reply_is_kept_and_returned
                a_reply_shares_the_fate_of_its_transaction
                a_transaction_stays_usable_after_a_duplicate
                keys_of_255_bytes_and_any_character_are_marked
                runs_that_never_left_are_counted
                a_run_that_is_rolled_back_has_not_left
            ]);
        }
        mod race {
            $crate::cases!(on_store, $fixture, store::race, [
                a_concurrent_duplicate_waits_and_sees_the_commit
                a_concurrent_duplicate_waits_and_takes_over_after_a_rollback
                a_duplicate_that_waits_too_long_is_told_so
                of_many_copies_at_once_one_takes_effect
                a_crowd_behind_failing_transactions_still_takes_effect_once
            ]);
        }
        mod bury {
            $crate::cases!(on_store, $fixture, store::bury, [
                burying_the_same_letter_twice_keeps_one
                another_body_handler_channel_or_tenant_is_another_letter
                a_letter_with_characters_no_column_takes_is_still_buried
            ]);
        }
        mod purge {
            $crate::cases!(on_store, $fixture, store::purge, [
                without_a_cursor_nothing_is_purged
                only_rows_every_sink_has_settled_are_purged
                holes_and_parked_rows_are_kept
                young_rows_are_kept
                a_purge_stops_at_its_limit
                a_shard_that_lags_keeps_its_rows
                a_purged_id_may_be_put_again
                a_position_is_never_given_out_twice
                markers_are_purged_by_handler_and_age
                relays_not_seen_for_long_are_forgotten
            ]);
        }
        mod inspect {
            $crate::cases!(on_store, $fixture, store::inspect, [
                a_fresh_store_counts_nothing
                counts_equal_what_was_done
                a_settled_sink_has_nothing_pending
                parked_rows_are_listed_with_what_is_known
                relays_and_free_shards_are_counted
                an_outage_is_shown_until_it_is_over
                the_reason_of_an_outage_is_kept_short_and_on_one_line
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
            include_str!("store/bury.rs"),
            include_str!("store/claim.rs"),
            include_str!("store/inspect.rs"),
            include_str!("store/mark.rs"),
            include_str!("store/park.rs"),
            include_str!("store/purge.rs"),
            include_str!("store/put.rs"),
            include_str!("store/race.rs"),
            include_str!("store/read.rs"),
            include_str!("store/schedule.rs"),
            include_str!("store/settle.rs"),
        ];
        crate::suite::assert_listed(include_str!("store.rs"), &topics);
    }
}
