use super::*;
use crate::policy::{Policies, find_zone};
use crate::task::class;

const NOON: Millis = 12 * 3_600_000;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn named(name: &str, task_type: &str) -> Policy {
    Policy { name: name.into(), task_type: TopicPattern::new(task_type).unwrap(), ..Policy::built_in() }
}

fn at_night(policy: Policy) -> Policy {
    Policy { hours: Hours::new(22 * 60, 6 * 60, find_zone("UTC").unwrap()), ..policy }
}

#[test]
fn the_first_rule_whose_type_labels_and_hours_all_match_wins() {
    let vip = Policy { labels: labels(&[("shop_tier", "vip")]), ..named("vip", "order.#") };
    let policies = Policies::new(vec![vip, at_night(named("night", "#")), named("orders", "order.*")]);
    let pick = |task_type: &str, pairs: &[(&str, &str)], hour: Millis| {
        policies.pick(task_type, &labels(pairs), hour * 3_600_000).name.clone()
    };
    assert_eq!(pick("order.ship", &[("shop_tier", "vip"), ("shop", "7")], 12), "vip");
    assert_eq!(pick("order.ship", &[("shop_tier", "new")], 12), "orders");
    assert_eq!(pick("order.ship", &[], 23), "night");
    assert_eq!(pick("report", &[("shop_tier", "vip")], 5), "night");
    assert_eq!(pick("report", &[], 6), "default");
}

#[test]
fn why_a_rule_does_not_match_is_said() {
    let vip = at_night(Policy { labels: labels(&[("shop_tier", "vip")]), ..named("vip", "order.#") });
    let why = |task_type: &str, pairs: &[(&str, &str)], now: Millis| {
        vip.mismatch(task_type, &labels(pairs), now).map(|mismatch| mismatch.to_string())
    };
    assert_eq!(why("report", &[], NOON).unwrap(), "is for type order.#");
    assert_eq!(why("order", &[], NOON).unwrap(), "is for label shop_tier = \"vip\", which this has not");
    assert_eq!(why("order", &[("shop_tier", "x")], NOON).unwrap(), "is for label shop_tier = \"vip\", this is \"x\"");
    assert_eq!(why("order", &[("shop_tier", "vip")], NOON).unwrap(), "holds 22:00–06:00 UTC, where it is 12:00");
    assert_eq!(why("order", &[("shop_tier", "vip")], 0), None);
}

#[test]
fn an_override_wins_over_the_variant_and_the_variant_over_the_policy() {
    let over = |class: Option<&str>, code: Option<&str>, backoff: Option<Backoff>, max_retries| Override {
        class: class.map(Into::into),
        code: code.map(Into::into),
        http_status: None,
        backoff,
        max_retries,
    };
    let variant = Variant { name: "fast".into(), weight: 1, backoff: Backoff::Fixed(1), max_retries: 7 };
    let policy = Policy {
        overrides: vec![
            over(None, None, Some(Backoff::Fixed(9)), None),
            over(Some(class::RATE_LIMITED), Some("4001"), None, Some(0)),
            over(Some(class::RATE_LIMITED), None, Some(Backoff::Fixed(60)), None),
            over(Some(class::RATE_LIMITED), None, Some(Backoff::Fixed(61)), Some(1)),
        ],
        variants: vec![variant],
        ..named("p", "#")
    };
    let of = |variant: Option<&Variant>, failure: Option<&Failure>| {
        let found = policy.schedule(variant, failure);
        (found.backoff.clone(), found.max_retries, found.source)
    };
    let limited = Failure::new(class::RATE_LIMITED, "m");
    let coded = Failure { code: Some("4001".into()), ..limited.clone() };
    let variant = policy.variants.first();
    assert_eq!(of(None, None), (policy.backoff.clone(), 3, "policy \"p\"".into()));
    assert_eq!(of(variant, None), (Backoff::Fixed(1), 7, "policy \"p\", variant \"fast\"".into()));
    let source = "policy \"p\", variant \"fast\", on class rate_limited".to_owned();
    assert_eq!(of(variant, Some(&limited)), (Backoff::Fixed(60), 7, source.clone()), "the first match wins");
    assert_eq!(of(variant, Some(&coded)), (Backoff::Fixed(1), 0, source + ", code 4001"));
    assert_eq!(of(variant, Some(&Failure::new(class::NETWORK, "m"))).0, Backoff::Fixed(1));
}

#[test]
fn rungs_are_those_of_every_backoff_that_some_task_can_reach() {
    let with = |name: &str, backoff: Backoff| Policy { backoff, ..named(name, "order.#") };
    let mut split = with("split", Backoff::Fixed(1));
    let variant = |name: &str, backoff| Variant { name: name.into(), weight: 1, backoff, max_retries: 3 };
    split.variants = vec![
        variant("a", Backoff::Fixed(2)),
        variant("b", Backoff::Exponential { base_ms: 3, max_ms: 4, multiplier: 2.0, jitter: 0.0 }),
    ];
    split.overrides = vec![Override {
        class: Some("x".into()),
        code: None,
        http_status: None,
        backoff: Some(Backoff::Steps(vec![5, 6])),
        max_retries: None,
    }];
    let night = at_night(Policy { backoff: Backoff::Fixed(7), ..named("night", "#") });
    let all = Policy { backoff: Backoff::Fixed(8), ..named("all", "#") };
    let rungs = |rules: Vec<Policy>| Policies::new(rules).rungs().into_iter().collect::<Vec<_>>();
    assert_eq!(
        rungs(vec![split.clone(), night.clone(), all.clone(), with("hidden", Backoff::Fixed(9))]),
        [2, 5, 6, 7, 8]
    );
    assert_eq!(rungs(vec![split, night]), [2, 5, 6, 7, 900_000, 1_800_000, 2_700_000]);
}

#[test]
fn a_critical_policy_never_ends_by_cache_or_default() {
    let fallback = vec![Fallback::Cache, Fallback::Queue, Fallback::Default];
    let policy = |critical| Policy { critical, fallback: fallback.clone(), ..Policy::built_in() };
    assert_eq!(policy(false).fallbacks().collect::<Vec<_>>(), fallback);
    assert_eq!(policy(true).fallbacks().collect::<Vec<_>>(), [Fallback::Queue]);
}
