//! Reads RabbitMQ's 406 about an object that exists with another argument.
//!
//! The text is the only place where the broker says which argument and what it has. It is cut at 255 bytes, so whatever
//! part is missing is shown as `?` rather than hiding the rest.

use crate::broker::BrokerErrorConflict;

/// The conflict that `text` tells of, or `None` when it is about something else.
///
/// Two forms exist: `inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received the value '2000' of type
/// 'signedint' but current is the value '1000' of type 'long'` (either side may be `none`), and the same with plain
/// `received 'true' but current is 'false'`.
pub(super) fn parse(text: &str) -> Option<BrokerErrorConflict> {
    let (_, rest) = text.split_once("inequivalent arg ")?;
    let (argument, rest) = quoted(rest)?;
    let named = rest.split_once(" for ").and_then(|(_, rest)| rest.split_once(' ')).map_or("", |(_, name)| name);
    let queue = quoted(named).map_or_else(|| "?".to_owned(), |(name, _)| name.to_owned());
    let received = rest.split_once("received ").map_or("", |(_, rest)| rest);
    let current = received.split_once("but current is ").map_or("", |(_, rest)| rest);
    Some(BrokerErrorConflict { queue, argument: argument.to_owned(), found: value(current), wanted: value(received) })
}

/// The text between the first two quotes, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once('\'')?;
    rest.split_once('\'')
}

/// A value as the broker writes it at the start of `text`.
fn value(text: &str) -> String {
    if text.starts_with("none") {
        return "none".into();
    }
    let text = text.strip_prefix("the value ").unwrap_or(text);
    match text.strip_prefix('\'') {
        Some(rest) => rest.split('\'').next().unwrap_or(rest).to_owned(),
        None => "?".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> [String; 4] {
        let conflict = parse(text).expect(text);
        [conflict.queue, conflict.argument, conflict.found, conflict.wanted]
    }

    #[test]
    fn both_forms_of_the_text_are_read() {
        assert_eq!(
            told(
                "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'a.b' in vhost '/': received the value \
                 '2000' of type 'signedint' but current is the value '1000' of type 'long'"
            ),
            ["a.b", "x-message-ttl", "1000", "2000"]
        );
        assert_eq!(
            told("inequivalent arg 'durable' for queue 'q' in vhost 'v': received 'true' but current is 'false'"),
            ["q", "durable", "false", "true"]
        );
        assert_eq!(
            told(
                "inequivalent arg 'x-queue-type' for queue 'q' in vhost 'v': received the value 'quorum' of type 'longstr' \
                 but current is none"
            ),
            ["q", "x-queue-type", "none", "quorum"]
        );
        assert_eq!(
            told("inequivalent arg 'type' for exchange 's' in vhost 'v': received 'topic' but current is 'fanout'"),
            ["s", "type", "fanout", "topic"]
        );
    }

    #[test]
    fn a_text_cut_anywhere_still_names_what_it_can() {
        let whole = "inequivalent arg 'x-message-ttl' for queue 'a.b' in vhost '/': received the value '2000' of type 'long' \
                     but current is the value '1000' of type 'long'";
        for end in 0..whole.len() {
            if let Some(conflict) = parse(&whole[..end]) {
                assert_eq!(conflict.argument, "x-message-ttl");
            }
        }
        assert_eq!(parse("PRECONDITION_FAILED - unknown delivery tag 7"), None);
    }
}
