//! What a transport promises, as far as its capabilities go.

#![allow(missing_docs, reason = "the name of a case is its documentation")]

pub mod answer;
pub mod exchange;
pub mod group;
pub mod order;

/// Tests a transport: one test for each promise, on a fixture of its own.
#[macro_export]
macro_rules! transport_suite {
    ($fixture:ty) => {
        mod answer {
            $crate::cases!(on_transport, $fixture, transport::answer, [
                a_confirmed_message_is_delivered_whole
                an_acknowledged_message_does_not_come_again
                a_dropped_answer_means_redelivery
                a_refused_delivery_comes_again_after_its_delay
                only_spent_attempts_are_counted
                a_feed_that_is_dropped_loses_no_delivery
                a_dropped_wait_loses_no_delivery
            ]);
        }
        mod order {
            $crate::cases!(on_transport, $fixture, transport::order, [
                messages_of_a_key_come_one_at_a_time_and_in_order
                a_refused_head_holds_back_its_key
                messages_without_a_key_pass_a_refused_one
                tenants_with_equal_keys_do_not_wait_for_each_other
            ]);
        }
        mod group {
            $crate::cases!(on_transport, $fixture, transport::group, [
                every_group_gets_a_copy
                members_of_a_group_share
                destinations_are_apart
                what_is_published_between_two_feeds_waits
                a_full_queue_speaks_of_the_destination
                a_destination_nobody_knows_confirms_nothing
                a_closed_transport_ends_its_feeds_and_confirms_nothing
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
            include_str!("transport/answer.rs"),
            include_str!("transport/group.rs"),
            include_str!("transport/order.rs"),
        ];
        crate::suite::assert_listed(include_str!("transport.rs"), &topics);
    }
}
