use super::*;
use crate::store::LetterGroup;

fn group(task_type: &str, hourly: [i64; 24]) -> LetterGroup {
    LetterGroup {
        key: Some(task_type.into()),
        count: hourly.iter().sum(),
        first_died_at: 0,
        last_died_at: 0,
        hourly,
        types: std::collections::BTreeMap::new(),
        classes: std::collections::BTreeMap::new(),
        codes: std::collections::BTreeMap::new(),
        reasons: std::collections::BTreeMap::new(),
        fingerprints: std::collections::BTreeSet::new(),
        samples: Vec::new(),
        next_replay_at: None,
    }
}

fn kinds(alerts: &[Alert]) -> Vec<AlertKind> {
    alerts.iter().map(|alert| alert.kind).collect()
}

#[test]
fn a_surge_is_measured_by_the_types_own_pace_and_a_few_letters_are_none() {
    let steady = group("steady", [100; 24]);
    let mut jumped = [3; 24];
    jumped[23] = 40;
    let mut few = [0; 24];
    few[23] = 19;
    let mut first = [0; 24];
    (first[22], first[23]) = (10, 10);
    let types = vec![steady, group("jumped", jumped), group("few", few), group("first", first)];
    let alerts = judge(&Findings { types, ..Findings::default() }, 0);
    let subjects: Vec<&str> = alerts.iter().map(|alert| alert.subject.as_str()).collect();
    assert_eq!(subjects, ["jumped", "first"]);
    assert_eq!(alerts[0].summary, "43 tasks of jumped died within two hours; the day before it was 6 in two hours");
}

#[test]
fn undelivered_alerts_are_no_surge_of_their_own() {
    let alerts = judge(&Findings { types: vec![group(ALERT_TYPE, [100; 24])], ..Findings::default() }, 0);
    assert_eq!(alerts, []);
}

#[test]
fn a_late_scheduler_different_rules_and_stuck_copies_are_told() {
    assert_eq!(judge(&Findings { lag_ms: 60_000, ..Findings::default() }, 0), []);
    let found = Findings {
        lag_ms: 61_000,
        digests: [("a".repeat(64), 2), ("b".repeat(64), 1)].into(),
        stuck_copies: vec!["shipping".into()],
        ..Findings::default()
    };
    let alerts = judge(&found, 0);
    assert_eq!(kinds(&alerts), [AlertKind::SchedulerLate, AlertKind::RulesDiffer, AlertKind::CopiesFailing]);
    assert!(alerts[1].summary.contains("2 × aaaaaaaaaaaa, 1 × bbbbbbbbbbbb"), "{}", alerts[1].summary);
}

#[test]
fn whoever_sees_the_same_thing_in_a_window_names_the_same_task_and_other_things_have_others() {
    let alert = |subject: &str, at| Alert {
        kind: AlertKind::BreakerOpened,
        subject: subject.into(),
        summary: String::new(),
        look: String::new(),
        at,
    };
    let id = alert("breaker/shop/label.shop=a", 1_000).task_id("ops");
    assert_eq!(id, alert("breaker/shop/label.shop=a", 299_999).task_id("ops"));
    assert_ne!(id, alert("breaker/shop/label.shop=a", 300_000).task_id("ops"));
    assert_ne!(id, alert("breaker/shop/label.shop=b", 1_000).task_id("ops"));
    assert_ne!(id, alert("breaker/shop/label.shop=a", 1_000).task_id("chat"));
    assert!(id.starts_with("alert-breaker_opened-") && id.len() < 60, "{id}");
}

#[test]
fn every_kind_and_format_has_a_word_that_is_read_back() {
    assert!(AlertKind::ALL.iter().all(|kind| AlertKind::parse(kind.as_str()) == Some(*kind)));
    assert!(Format::ALL.iter().all(|format| Format::parse(format.as_str()) == Some(*format)));
    assert_eq!((AlertKind::parse("nonsense"), Format::parse("")), (None, None));
}

fn sample() -> Alert {
    Alert {
        kind: AlertKind::PermanentError,
        subject: "f".into(),
        summary: "a <b> & \"c\"".into(),
        look: "redeliver dlq groups".into(),
        at: 1_614_265_330_000,
    }
}

#[test]
fn each_format_is_what_its_receiver_reads() {
    let standard: serde_json::Value = serde_json::from_str(&body(Format::Standard, &sample()).text).unwrap();
    assert_eq!(standard["type"], "redeliver.permanent_error");
    assert_eq!(standard["timestamp"], "2021-02-25T15:02:10Z");
    assert_eq!(standard["data"]["summary"], "a <b> & \"c\"");
    let text = |format, pointer: &str| {
        let value: serde_json::Value = serde_json::from_str(&body(format, &sample()).text).unwrap();
        value.pointer(pointer).unwrap().as_str().unwrap().to_owned()
    };
    assert_eq!(text(Format::Slack, "/text"), "redeliver: a &lt;b&gt; &amp; \"c\"\nredeliver dlq groups");
    assert_eq!(text(Format::Feishu, "/content/text"), "redeliver: a <b> & \"c\"\nredeliver dlq groups");
    assert_eq!(text(Format::DingTalk, "/text/content"), "redeliver: a <b> & \"c\"\nredeliver dlq groups");
}

#[test]
fn signatures_are_those_of_the_specification_and_there_is_one_for_each_secret() {
    // Computed with Python's hmac module over "msg_1.1614265330.{}" with the key of 24 bytes "k".
    let secret = format!("whsec_{}", "a2tra2tra2tra2tra2tra2tra2tra2tr");
    let signer = Signer::new(&secret).unwrap();
    let signed = signer.sign("msg_1", 1_614_265_330_999, "{}");
    assert_eq!(signed, "v1,KrbhoJST6Q+/bu1g6/FBBu+pIEtkrImj8aKkA5+3RXI=");
    let both = Signer::new(&format!("{secret} {secret}")).unwrap().sign("msg_1", 1_614_265_330_999, "{}");
    assert_eq!(both, format!("{signed} {signed}"));
}

#[test]
fn secrets_that_are_none_are_refused_without_being_shown() {
    for bad in ["", "secret", "whsec_", "whsec_!!!!", "whsec_c2hvcnQ="] {
        let refused = Signer::new(bad).unwrap_err();
        assert!(bad.is_empty() || !refused.contains(bad.trim_start_matches("whsec_")) || bad == "whsec_", "{refused}");
    }
    assert_eq!(format!("{:?}", Signer::new("whsec_a2tra2tra2tra2tra2tra2tra2tra2tr").unwrap()), "Signer(1 keys)");
}
