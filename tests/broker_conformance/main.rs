//! One suite for every broker, and what only a broker over a network must do besides.

#[path = "../support/mod.rs"]
mod support;

mod ground;
mod rabbitmq;
mod suite;

/// Declares every test of the suite once for each broker.
macro_rules! for_every_broker {
    ($($test:ident)*) => {
        mod on_the_embedded_broker {
            $(#[tokio::test] async fn $test() { crate::ground::embedded(crate::suite::$test).await; })*
        }
        mod on_rabbitmq {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() { crate::ground::rabbitmq(crate::suite::$test).await; }
            )*
        }
    };
}

for_every_broker! {
    a_message_arrives_with_everything_it_carries
    a_submission_goes_to_the_queue_that_names_its_type_and_any_other_to_default
    a_message_for_a_queue_that_does_not_exist_is_returned
    each_result_stands_at_the_index_of_its_message
    an_acked_message_does_not_come_again
    a_nacked_message_comes_again_and_says_so
    what_was_not_answered_comes_again_after_a_lost_session
    no_more_than_prefetch_messages_of_a_lane_are_out
    a_message_that_keeps_coming_back_ends_on_rejected_with_its_first_routing_key
    missing_spots_are_told_before_they_are_declared
    a_second_start_finds_nothing_missing
    stopping_ends_the_receiver_and_what_is_out_can_still_be_answered
    two_clients_share_a_lane
    declaring_twice_changes_nothing
    another_argument_is_a_conflict_that_names_queue_argument_and_both_values
    a_plan_names_what_is_missing_and_changes_nothing
    deleting_refuses_while_messages_are_held_unless_forced
    depths_are_in_the_order_of_the_topology
    a_dead_pass_sees_every_copy_once_and_removes_only_what_it_is_told
    a_dropped_dead_pass_returns_everything
    a_dead_pass_keeps_what_is_in_the_copies_when_it_is_asked_to
    a_closed_client_sends_nothing
}
