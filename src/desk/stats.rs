//! What the history says about types, shops, attempts and policies (A2), and variants compared (X4).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time;
use crate::policy::{Arm, difference, least_attempts, sentence};
use crate::store::{AttemptTally, FailureTally, Filter, GroupBy, Store, StoreError, Tally};
use crate::task::Millis;

/// What a line is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    /// Tasks of a group.
    Group(GroupBy),
    /// The n-th attempts.
    Attempt,
}

/// Reads `type`, `label.NAME`, `attempt`, `policy`, `variant` or `queue`.
///
/// # Errors
/// What was expected.
pub fn by(text: &str) -> Result<By, String> {
    let group = match text {
        "attempt" => return Ok(By::Attempt),
        "type" => GroupBy::Type,
        "policy" => GroupBy::Policy,
        "variant" => GroupBy::Variant,
        "queue" => GroupBy::Queue,
        _ => match text.strip_prefix("label.").filter(|name| !name.is_empty()) {
            Some(name) => GroupBy::Label(name.to_owned()),
            None => return Err("expected type, label.NAME, attempt, policy, variant or queue".into()),
        },
    };
    Ok(By::Group(group))
}

impl std::fmt::Display for By {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            By::Attempt => f.write_str("attempt"),
            By::Group(GroupBy::Type) => f.write_str("type"),
            By::Group(GroupBy::Policy) => f.write_str("policy"),
            By::Group(GroupBy::Variant) => f.write_str("variant"),
            By::Group(GroupBy::Queue) => f.write_str("queue"),
            By::Group(GroupBy::Label(name)) => write!(f, "label.{name}"),
        }
    }
}

/// The window when none is asked for.
pub const DAY_MS: Millis = 24 * 3_600_000;

/// How tasks of a window ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// What the items are about.
    pub by: String,
    /// The window's beginning.
    pub since: Option<String>,
    /// The window's end; null: now.
    pub until: Option<String>,
    /// Groups, largest first; or attempts by number.
    pub items: Vec<StatsItem>,
    /// Always null: every group is here, up to the limit.
    pub next: Option<String>,
    /// How many groups there are, shown or not.
    pub groups: usize,
    /// All of them together.
    pub total: TallyDocument,
    /// The most frequent failures.
    pub failures: Vec<FailureTallyDocument>,
}

/// A group, or the attempts of one number.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum StatsItem {
    /// A group.
    Group(Box<TallyDocument>),
    /// The attempts of one number.
    Attempts(AttemptTallyDocument),
}

/// How the tasks of a group ended. Rates are shares of 1; null where there is nothing to divide by.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Tally")]
pub struct TallyDocument {
    /// The type, label value, policy or queue.
    pub group: Option<String>,
    /// The variant.
    pub variant: Option<String>,
    /// Tasks that ended.
    pub tasks: i64,
    /// Of those, attempted at all.
    pub attempted: i64,
    /// Of those, succeeded; an end by cache or default is none.
    pub succeeded: i64,
    /// Succeeded on attempt 1, 2, 3, or a later one.
    pub succeeded_on_attempt: BTreeMap<String, i64>,
    /// Share of tasks that succeeded.
    pub success_rate: Option<f64>,
    /// Share of attempted tasks that succeeded on the first attempt.
    pub first_try_rate: Option<f64>,
    /// Tasks that died.
    pub dead: i64,
    /// Of those, by a permanent error.
    pub permanent: i64,
    /// Tasks that were ended by something that is not wholly the real thing.
    pub degraded: i64,
    /// Their share.
    pub degraded_rate: Option<f64>,
    /// Of those, by cache or default.
    pub fell_back: i64,
    /// All attempts.
    pub attempts: i64,
    /// Share of attempts that succeeded.
    pub attempt_success_rate: Option<f64>,
    /// Attempts per success.
    pub attempts_per_success: Option<f64>,
    /// Requests beyond one per attempted task, as a share.
    pub extra_request_rate: Option<f64>,
    /// Attempts per attempted task.
    pub attempts_per_task: Option<f64>,
    /// The least attempts per task that independent failures cost at the same first-try rate.
    pub least_attempts_per_task: Option<f64>,
    /// What the attempts cost.
    pub cost: f64,
    /// How long handlers ran.
    pub handler_ms: i64,
}

/// The n-th attempts.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AttemptTally")]
pub struct AttemptTallyDocument {
    /// n
    pub attempt: i64,
    /// How many there were.
    pub attempts: i64,
    /// How many succeeded.
    pub succeeded: i64,
    /// Their share.
    pub success_rate: Option<f64>,
    /// How long handlers ran.
    pub handler_ms: i64,
    /// What they cost.
    pub cost: f64,
}

/// How often attempts failed in one way.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "FailureTally")]
pub struct FailureTallyDocument {
    /// The class.
    pub class: String,
    /// The platform's code.
    pub code: Option<String>,
    /// The HTTP status.
    pub http_status: Option<u16>,
    /// Attempts that failed so.
    pub attempts: i64,
    /// Tasks they belong to.
    pub tasks: i64,
}

/// Adds up what ended in the filter's window; the last day, if it has no beginning.
///
/// # Errors
/// When the store does not answer.
pub async fn stats(store: &dyn Store, by: &By, filter: &Filter, limit: usize) -> Result<Stats, StoreError> {
    let mut filter = filter.clone();
    filter.since = filter.since.or(Some(store.now().saturating_sub(DAY_MS)));
    let group_by = match by {
        By::Group(group_by) => group_by.clone(),
        By::Attempt => GroupBy::Type,
    };
    let tallies = store.tallies(&group_by, &filter).await?;
    let items: Vec<StatsItem> = match by {
        By::Group(_) => {
            let shown = tallies.iter().take(limit);
            shown.map(|tally| StatsItem::Group(Box::new(TallyDocument::of(tally)))).collect()
        }
        By::Attempt => {
            let attempts = store.attempt_tallies(&filter).await?;
            attempts.iter().map(|tally| StatsItem::Attempts(AttemptTallyDocument::of(tally))).collect()
        }
    };
    let failures = store.failure_tallies(&filter, limit).await?;
    Ok(Stats {
        by: by.to_string(),
        since: filter.since.map(time),
        until: filter.until.map(time),
        groups: if *by == By::Attempt { items.len() } else { tallies.len() },
        items,
        next: None,
        total: TallyDocument::of(&total(&tallies)),
        failures: failures.iter().map(FailureTallyDocument::of).collect(),
    })
}

/// `a / b`; `None` when there is nothing of `b`.
#[expect(clippy::cast_precision_loss, reason = "counts of tasks stay far below 2^53")]
pub fn ratio(a: i64, b: i64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

/// Groups together.
pub(crate) fn total(tallies: &[Tally]) -> Tally {
    let mut total = Tally::default();
    for tally in tallies {
        total.tasks += tally.tasks;
        total.attempted += tally.attempted;
        for (all, some) in total.succeeded_on.iter_mut().zip(tally.succeeded_on) {
            *all += some;
        }
        total.succeeded += tally.succeeded;
        total.fell_back += tally.fell_back;
        total.degraded += tally.degraded;
        total.dead += tally.dead;
        total.permanent += tally.permanent;
        total.attempts += tally.attempts;
        total.most_attempts = total.most_attempts.max(tally.most_attempts);
        total.cost += tally.cost;
        total.handler_ms += tally.handler_ms;
    }
    total
}

impl TallyDocument {
    /// The document of a tally.
    pub fn of(tally: &Tally) -> TallyDocument {
        let first_try = ratio(tally.succeeded_on[0], tally.attempted);
        let permanent = ratio(tally.permanent, tally.attempted).unwrap_or(0.0);
        let per_task = ratio(tally.attempts, tally.attempted);
        let places = ["1", "2", "3", "4+"].map(str::to_owned).into_iter().zip(tally.succeeded_on).collect();
        TallyDocument {
            group: tally.group.clone(),
            variant: tally.variant.clone(),
            tasks: tally.tasks,
            attempted: tally.attempted,
            succeeded: tally.succeeded,
            succeeded_on_attempt: places,
            success_rate: ratio(tally.succeeded, tally.tasks),
            first_try_rate: first_try,
            dead: tally.dead,
            permanent: tally.permanent,
            degraded: tally.degraded,
            degraded_rate: ratio(tally.degraded, tally.tasks),
            fell_back: tally.fell_back,
            attempts: tally.attempts,
            attempt_success_rate: ratio(tally.succeeded, tally.attempts),
            attempts_per_success: ratio(tally.attempts, tally.succeeded),
            extra_request_rate: per_task.map(|attempts| attempts - 1.0),
            attempts_per_task: per_task,
            least_attempts_per_task: first_try
                .map(|first_try| least_attempts(first_try, permanent, tally.most_attempts - 1)),
            cost: tally.cost,
            handler_ms: tally.handler_ms,
        }
    }
}

impl AttemptTallyDocument {
    fn of(tally: &AttemptTally) -> AttemptTallyDocument {
        AttemptTallyDocument {
            attempt: tally.number,
            attempts: tally.attempts,
            succeeded: tally.succeeded,
            success_rate: ratio(tally.succeeded, tally.attempts),
            handler_ms: tally.handler_ms,
            cost: tally.cost,
        }
    }
}

impl FailureTallyDocument {
    fn of(failure: &FailureTally) -> FailureTallyDocument {
        FailureTallyDocument {
            class: failure.class.clone(),
            code: failure.code.clone(),
            http_status: failure.http_status,
            attempts: failure.attempts,
            tasks: failure.tasks,
        }
    }
}

/// Fewer tasks than this in a variant say too little, whatever the interval.
const FEW: i64 = 30;

/// Variants of policies, compared.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The window's beginning; null: everything there is.
    pub since: Option<String>,
    /// The window's end.
    pub until: Option<String>,
    /// Each variant of each policy.
    pub items: Vec<VariantDocument>,
    /// Always null.
    pub next: Option<String>,
    /// What the numbers of each policy say.
    pub verdicts: Vec<Verdict>,
}

/// How the tasks of one variant ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Variant")]
pub struct VariantDocument {
    /// The policy.
    pub policy: Option<String>,
    /// Its variant.
    pub variant: Option<String>,
    /// Tasks that ended.
    pub n: i64,
    /// Of those, succeeded.
    pub succeeded: i64,
    /// Their share.
    pub success_rate: f64,
    /// The lower end of its 95 % interval (Wilson).
    pub success_low: f64,
    /// The upper end.
    pub success_high: f64,
    /// Tasks that died.
    pub dead: i64,
    /// Tasks that ended by cache or default.
    pub fell_back: i64,
    /// Attempts per task.
    pub attempts_per_task: Option<f64>,
    /// Handler time per task.
    pub handler_ms_per_task: Option<f64>,
    /// Handler time.
    pub handler_ms: i64,
    /// Cost per task.
    pub cost_per_task: Option<f64>,
    /// Cost.
    pub cost: f64,
    /// Median time from creation to success.
    pub time_to_success_p50_ms: Option<i64>,
    /// Within which 95 % succeeded.
    pub time_to_success_p95_ms: Option<i64>,
}

/// What the numbers of one policy say.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The policy.
    pub policy: Option<String>,
    /// In a sentence.
    pub sentence: String,
    /// Whether a variant has too few tasks to tell.
    pub too_few: bool,
    /// The best variant against each other.
    pub differences: Vec<DifferenceDocument>,
}

/// One variant against another.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Difference")]
pub struct DifferenceDocument {
    /// The one with more success.
    pub better: String,
    /// The other.
    pub than: String,
    /// By how many points.
    pub points: f64,
    /// The lower end of the 95 % interval (Newcombe).
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// Of the two-proportion z-test.
    pub p_value: f64,
}

/// Compares the variants of every policy, or of the one that is named.
///
/// # Errors
/// When the store does not answer.
pub async fn report(store: &dyn Store, policy: Option<&str>, filter: &Filter) -> Result<Report, StoreError> {
    let mut tallies = store.tallies(&GroupBy::Variant, filter).await?;
    if policy.is_some() {
        tallies.retain(|tally| tally.group.as_deref() == policy);
    }
    tallies.sort_by(|a, b| (&a.group, &a.variant).cmp(&(&b.group, &b.variant)));
    Ok(Report {
        since: filter.since.map(time),
        until: filter.until.map(time),
        items: tallies.iter().map(VariantDocument::of).collect(),
        next: None,
        verdicts: tallies.chunk_by(|a, b| a.group == b.group).map(Verdict::of).collect(),
    })
}

impl Verdict {
    fn of(variants: &[Tally]) -> Verdict {
        let arms: Vec<Arm> = variants.iter().map(arm).collect();
        let mut said = sentence(&arms);
        let few = variants.iter().find(|tally| tally.tasks < FEW).filter(|_| arms.len() > 1);
        if let Some(few) = few {
            let name = few.variant.as_deref().unwrap_or_default();
            said.push_str(&format!("; {} tasks of {name} are too few to tell", few.tasks));
        }
        let best = arms.iter().max_by(|a, b| a.rate().total_cmp(&b.rate()));
        let against = best
            .into_iter()
            .flat_map(|best| arms.iter().filter(move |arm| arm.name != best.name).map(move |other| (best, other)))
            .map(|(best, other)| {
                let difference = difference(best, other);
                DifferenceDocument {
                    better: best.name.clone(),
                    than: other.name.clone(),
                    points: difference.points,
                    low: difference.low,
                    high: difference.high,
                    p_value: difference.p_value,
                }
            })
            .collect();
        Verdict {
            policy: variants.first().and_then(|tally| tally.group.clone()),
            sentence: said,
            too_few: few.is_some(),
            differences: against,
        }
    }
}

fn arm(tally: &Tally) -> Arm {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Arm { name: tally.variant.clone().unwrap_or_default(), n: count(tally.tasks), succeeded: count(tally.succeeded) }
}

impl VariantDocument {
    fn of(tally: &Tally) -> VariantDocument {
        let arm = arm(tally);
        let (low, high) = arm.interval();
        VariantDocument {
            policy: tally.group.clone(),
            variant: tally.variant.clone(),
            n: tally.tasks,
            succeeded: tally.succeeded,
            success_rate: arm.rate(),
            success_low: low,
            success_high: high,
            dead: tally.dead,
            fell_back: tally.fell_back,
            attempts_per_task: ratio(tally.attempts, tally.tasks),
            handler_ms_per_task: ratio(tally.handler_ms, tally.tasks),
            handler_ms: tally.handler_ms,
            cost_per_task: ratio(1, tally.tasks).map(|share| share * tally.cost),
            cost: tally.cost,
            time_to_success_p50_ms: tally.p50_ms,
            time_to_success_p95_ms: tally.p95_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_as_the_command_line_names_them() {
        assert_eq!(by("label.shop"), Ok(By::Group(GroupBy::Label("shop".into()))));
        assert_eq!(by("attempt"), Ok(By::Attempt));
        for word in ["type", "policy", "variant", "queue", "attempt", "label.shop"] {
            assert_eq!(by(word).unwrap().to_string(), word);
        }
        for bad in ["", "label.", "shop", "types"] {
            assert!(by(bad).is_err(), "{bad}");
        }
    }
}
