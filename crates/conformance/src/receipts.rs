//! What a store promises as the gate's memory. Every case is told the time, so
//! no case waits for it.

#![allow(missing_docs, reason = "the name of a case is its documentation")]

pub mod admit;
pub mod end;
pub mod inside;
pub mod steps;

use oncebox_core::gate::Receipts;

use crate::fixture::StoreFixture;

/// A fixture of a store that keeps receipts.
pub trait ReceiptsFixture: StoreFixture<Store: Receipts> {}

impl<F: StoreFixture<Store: Receipts>> ReceiptsFixture for F {}

/// Tests the gate's memory: one test for each promise, on a fixture of its own.
#[macro_export]
macro_rules! receipts_suite {
    ($fixture:ty) => {
        mod admit {
            $crate::cases!(on_store, $fixture, receipts::admit, [
                the_first_request_is_admitted_and_a_copy_waits_for_it
                another_request_under_the_key_is_refused_wherever_the_first_one_stands
                who_asks_again_because_the_answer_was_lost_is_let_in
                an_admission_that_does_not_wait_for_the_disk_is_one_like_any_other
                scopes_and_keys_are_apart
                a_lease_that_is_over_lets_the_same_request_in_again
                whoever_lost_the_lease_can_neither_seal_nor_withdraw_nor_doubt
                a_receipt_is_forgotten_when_its_time_is_over
                a_run_that_outlives_its_receipt_is_not_run_again_beside_itself
                replays_do_not_keep_a_receipt_unless_that_is_wanted
                of_many_at_once_one_is_admitted
                of_many_at_once_one_inherits_a_dead_request
                many_requests_at_once_do_not_get_mixed_up
                a_replay_does_not_wait_for_a_transaction
                a_look_writes_nothing
                each_scope_has_its_own_count
            ]);
        }
        mod end {
            $crate::cases!(on_store, $fixture, receipts::end, [
                a_sealed_reply_comes_back_as_it_was
                a_reply_that_was_too_large_is_told_without_its_body
                sealing_twice_changes_nothing
                a_withdrawn_request_is_a_first_one_again
                a_doubt_is_retried_or_blocks
                where_doubts_block_so_does_a_dead_request
                a_doubt_cannot_be_sealed_afterwards
                the_last_may_win_but_not_while_the_first_one_runs
                a_renewed_lease_is_nobody_elses
                a_renewal_tells_which_passes_are_good
                a_seal_after_the_lease_counts_while_nobody_was_admitted
                what_is_old_is_deleted_and_what_runs_stays
                a_token_of_the_past_means_nothing_to_a_later_receipt
            ]);
        }
        mod inside {
            $crate::cases!(on_store, $fixture, receipts::inside, [
                a_request_sealed_in_a_transaction_shares_the_fate_of_its_writes
                a_rolled_back_request_is_a_first_one_again
                while_a_transaction_has_the_key_nobody_else_is_admitted
                a_replay_is_told_inside_a_transaction
                a_request_admitted_outside_can_be_sealed_inside
                a_request_admitted_outside_stays_in_flight_when_its_transaction_rolls_back
                a_claim_is_sealed_with_its_writes_or_was_never_there
                a_claim_that_was_told_has_let_go_of_the_key
                a_claim_keeps_every_byte_of_a_reply
                a_claim_is_told_where_its_request_stands
                while_a_claim_is_open_nobody_else_is_admitted
                another_request_is_told_so_while_a_claim_is_open
                a_claim_inherits_what_is_over_and_fences_it_off
                a_claim_that_is_a_copy_keeps_a_receipt_where_that_is_wanted
                of_many_claims_at_once_one_is_admitted
            ]);
        }
    };
}
