//! The corpora of the fuzz targets, replayed: what the fuzzer found once is looked at in every run of the tests.

#[path = "../fuzz/properties.rs"]
mod properties;

use std::path::Path;

/// Calls `property` with every file of its corpus.
fn replay(target: &str, property: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut seen = 0;
    for entry in std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display())) {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a readable file");
        let outcome = std::panic::catch_unwind(|| property(&bytes));
        assert!(outcome.is_ok(), "{target} breaks its promise for {}", path.display());
        seen += 1;
    }
    assert!(seen >= 5, "{target} has {seen} files, which is no corpus");
}

#[test]
fn a_submission_is_a_task_or_a_refusal_that_keeps_its_bytes() {
    replay("envelope", properties::envelope);
}

#[test]
fn a_configuration_is_refused_with_a_reason_or_means_the_same_each_time() {
    replay("config", properties::config);
}

#[test]
fn a_retry_after_is_never_negative() {
    replay("retry_after", properties::retry_after);
}

#[test]
fn a_failure_has_one_name_whatever_its_numbers() {
    replay("fingerprint", properties::fingerprint);
}

#[test]
fn what_a_pointer_has_filled_in_is_found_where_it_leads() {
    replay("json_pointer", properties::json_pointer);
}

#[test]
fn a_wake_up_says_one_thing_or_cannot_be_read() {
    replay("wake_up", properties::wake_up);
}

#[test]
fn frames_pass_in_full_length_however_they_are_cut() {
    replay("amqp_frames", properties::amqp_frames);
}
