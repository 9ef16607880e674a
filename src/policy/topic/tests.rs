use proptest::prelude::*;

use super::*;

/// AMQP's rule, word for word, without any cleverness.
fn matches_by_the_book(pattern: &[&str], words: &[&str]) -> bool {
    match (pattern.split_first(), words.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some((&"#", rest)), _) => (0..=words.len()).any(|n| matches_by_the_book(rest, &words[n..])),
        (Some(_), None) => false,
        (Some((&"*", rest)), Some((_, words))) => matches_by_the_book(rest, words),
        (Some((part, rest)), Some((word, words))) => part == word && matches_by_the_book(rest, words),
    }
}

/// All topics of up to five words over this alphabet. `z` stands for every word that no pattern names.
fn topics() -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut last = vec![String::new()];
    for _ in 0..5 {
        last = last
            .iter()
            .flat_map(|topic| ["a", "b", "z"].map(|word| format!("{topic}.{word}").trim_start_matches('.').to_owned()))
            .collect();
        all.extend(last.iter().cloned());
    }
    all
}

fn pattern(text: &str) -> TopicPattern {
    TopicPattern::new(text).unwrap()
}

fn words(text: &str) -> Vec<&str> {
    text.split('.').collect()
}

fn any_pattern() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("*"), Just("#")], 1..=3).prop_map(|w| w.join("."))
}

#[test]
fn patterns_match_as_in_rabbitmq() {
    let table = [
        ("order.ship", "order.ship", true),
        ("order.ship", "order.shipped", false),
        ("order.ship", "order", false),
        ("order.*", "order.ship", true),
        ("order.*", "order", false),
        ("order.*", "order.ship.now", false),
        ("order.#", "order", true),
        ("order.#", "order.ship.now", true),
        ("order.#", "orders", false),
        ("#", "a", true),
        ("#.ship", "ship", true),
        ("#.ship", "order.ship", true),
        ("#.ship", "order.ship.now", false),
        ("*.#.*", "a", false),
        ("*.#.*", "a.b", true),
        ("a.#.#.b", "a.b", true),
        ("ORDER", "order", false),
    ];
    for (text, topic, expected) in table {
        assert_eq!(pattern(text).matches(topic), expected, "{text} {topic}");
    }
}

#[test]
fn overlaps_are_found() {
    let table = [
        ("order.#", "order.ship", true),
        ("order.*", "*.ship", true),
        ("order.*", "order.*.now", false),
        ("a.#", "#.b", true),
        ("a.#.b", "a.b.#", true),
        ("a.*", "b.*", false),
        ("#", "a", true),
        ("a.#", "b.#", false),
        ("*", "*.*", false),
        ("#.a", "#.b", false),
        ("*.a", "#.b.a", true),
    ];
    for (a, b, expected) in table {
        assert_eq!(
            (pattern(a).overlaps(&pattern(b)), pattern(b).overlaps(&pattern(a))),
            (expected, expected),
            "{a} {b}"
        );
    }
}

#[test]
fn what_is_no_topic_is_refused_with_its_reason() {
    let long = "a".repeat(256);
    let table = [
        ("", TopicError::Empty),
        (".", TopicError::EmptyWord),
        ("a..b", TopicError::EmptyWord),
        ("a.", TopicError::EmptyWord),
        ("a b", TopicError::BadCharacter(' ')),
        ("a\u{0}", TopicError::BadCharacter('\0')),
        ("a\u{3000}b", TopicError::BadCharacter('\u{3000}')),
        (long.as_str(), TopicError::TooLong(256)),
    ];
    for (text, error) in table {
        assert_eq!(check_topic(text), Err(error.clone()), "{text:?}");
        assert_eq!(TopicPattern::new(text), Err(error), "{text:?}");
    }
    assert_eq!(check_topic("a.*"), Err(TopicError::Wildcard('*', "*".into())));
    assert_eq!(check_topic("a#"), Err(TopicError::Wildcard('#', "a#".into())));
    assert_eq!(TopicPattern::new("a.b*"), Err(TopicError::Wildcard('*', "b*".into())));
    assert_eq!(TopicPattern::new("##"), Err(TopicError::Wildcard('#', "##".into())));
    assert_eq!(check_topic(&"订".repeat(85)), Ok(()));
}

#[test]
fn a_hostile_pattern_costs_little() {
    let many = pattern(&vec!["#"; 120].join("."));
    let topic = vec!["a"; 120].join(".");
    assert!(many.matches(&topic) && many.overlaps(&many));
    assert!(!pattern(&format!("{}.b", vec!["#.a"; 60].join("."))).matches(&topic));
}

proptest! {
    #[test]
    fn matching_is_by_the_book(text in any_pattern()) {
        for topic in topics() {
            prop_assert_eq!(pattern(&text).matches(&topic), matches_by_the_book(&words(&text), &words(&topic)), "{}", topic);
        }
    }

    /// Two patterns of three parts that share a topic share one of at most five words.
    #[test]
    fn patterns_overlap_exactly_when_a_topic_matches_both(a in any_pattern(), b in any_pattern()) {
        let shared = topics().into_iter().find(|topic| {
            matches_by_the_book(&words(&a), &words(topic)) && matches_by_the_book(&words(&b), &words(topic))
        });
        prop_assert_eq!(pattern(&a).overlaps(&pattern(&b)), shared.is_some(), "{:?}", shared);
    }

    #[test]
    fn no_text_panics(a in any::<String>(), b in any::<String>()) {
        if let (Ok(a), Ok(b_pattern)) = (TopicPattern::new(&a), TopicPattern::new(&b)) {
            a.overlaps(&b_pattern);
            a.matches(&b);
        }
    }
}
