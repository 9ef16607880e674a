//! Policies and what the history says of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::input::{self, Body, Filtered, Params};
use super::{Api, Principal, Problem, Route};
use crate::api::FieldError;
use crate::config::ConfigError;
use crate::desk::filter::{FilterText, label, zoned_moment};
use crate::desk::rules::{Applied, ApplyError, Explained, History, Rules, apply, explain, history};
use crate::desk::stats::{Report, Stats, by, report, stats};
use crate::policy::check_topic;
use crate::store::access::Role;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            ("/v1/policies", "listPolicies", "The policies in force, first match first"),
            Role::Viewer,
            in_force,
        )
        .answers::<InForce>(200, "By this server; workers say what they run under /v1/workers"),
        Route::get(
            ("/v1/policies/explain", "explainPolicy", "What would happen to a task, and why"),
            Role::Viewer,
            explained,
        )
        .query::<ExplainQuery>()
        .answers::<Explained>(200, "Which rule, why not the earlier ones, which schedule"),
        Route::get(("/v1/policies/report", "reportPolicies", "Variants of policies, compared"), Role::Viewer, reported)
            .query::<ReportQuery>()
            .query::<FilterText>()
            .answers::<Report>(200, "With 95 % intervals"),
        Route::get(
            ("/v1/policies/history", "listPolicyVersions", "Versions in the store, and what each node runs"),
            Role::Viewer,
            versions,
        )
        .answers::<History>(200, "Newest first"),
        Route::post(("/v1/policies/check", "checkPolicies", "Check rules"), Role::Operator, check)
            .looks()
            .body::<RulesBody>()
            .answers::<Checked>(200, "They can be meant"),
        Route::post(("/v1/policies/apply", "applyPolicies", "Put rules in force on all nodes"), Role::Editor, applied)
            .body::<ApplyBody>()
            .answers::<Applied>(200, "In force within two seconds"),
        Route::get(
            ("/v1/stats", "getStats", "How tasks ended: success, attempts, failures, by group"),
            Role::Viewer,
            statistics,
        )
        .query::<StatsQuery>()
        .query::<FilterText>()
        .answers::<Stats>(200, "The last day, unless `since` says otherwise"),
    ]
}

/// The rules in force.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct InForce {
    /// The digest of policies, limits and breakers.
    hash: String,
    /// First match first; the built-in one is the last.
    items: Vec<PolicyDocument>,
    /// Always null.
    next: Option<String>,
}

/// A policy.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Policy")]
struct PolicyDocument {
    /// Its name.
    name: String,
    /// Task types it is for.
    #[serde(rename = "type")]
    task_type: String,
    /// Labels that a task must have.
    labels: BTreeMap<String, String>,
    /// The hours it is for.
    hours: Option<String>,
    /// Retries after the first attempt.
    max_retries: i64,
    /// Its variants.
    variants: Vec<String>,
    /// Whether a task never ends by cache or default.
    critical: bool,
}

async fn in_force(State(app): Api) -> Json<InForce> {
    let config = app.config();
    let document = |policy: &Arc<crate::policy::Policy>| PolicyDocument {
        name: policy.name.clone(),
        task_type: policy.task_type.to_string(),
        labels: policy.labels.clone(),
        hours: policy.hours.as_ref().map(ToString::to_string),
        max_retries: policy.max_retries,
        variants: policy.variants.iter().map(|variant| variant.name.clone()).collect(),
        critical: policy.critical,
    };
    let items = config.policies.rules().iter().map(document).collect();
    Json(InForce { hash: config.rules_digest(), items, next: None })
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
    /// The task's type.
    #[serde(rename = "type")]
    task_type: String,
    /// `NAME=VALUE`
    #[serde(default)]
    label: Vec<String>,
    /// When: RFC 3339, a local time with its zone, or from now on as in `2h`; default now.
    at: Option<String>,
}

async fn explained(State(app): Api, Params(query): Params<ExplainQuery>) -> Result<Json<Explained>, Problem> {
    check_topic(&query.task_type).map_err(|error| Problem::bad_request("type", error.to_string()))?;
    let mut labels = BTreeMap::new();
    for text in &query.label {
        let (name, value) = label(text).map_err(|message| Problem::bad_request("label", message))?;
        if labels.insert(name.clone(), value.clone()).is_some_and(|before| before != value) {
            return Err(Problem::bad_request("label", format!("{name} is given twice with different values")));
        }
    }
    let now = app.store.now();
    let at = match &query.at {
        None => now,
        Some(text) => zoned_moment(text).map_err(|message| Problem::bad_request("at", message))?.resolve_ahead(now),
    };
    // The server's configuration follows the store.
    Ok(Json(explain(&app.config(), "in force at this server", &query.task_type, &labels, at)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReportQuery {
    /// Only this policy.
    policy: Option<String>,
}

async fn reported(State(app): Api, Filtered { filter, query }: Filtered<ReportQuery>) -> Result<Json<Report>, Problem> {
    let filter = filter.to_filter(app.store.now()).map_err(input::bad_query)?;
    let store = Arc::clone(&app.store);
    let sum = async move { report(&*store, query.policy.as_deref(), &filter).await };
    Ok(Json(app.sum(sum).await?))
}

async fn versions(State(app): Api) -> Result<Json<History>, Problem> {
    Ok(Json(history(&*app.store).await?))
}

/// Rules as text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RulesBody {
    /// `[[policy]]`, `[[limit]]` and `[[breaker]]` in TOML; other sections are passed over.
    #[schemars(length(min = 1))]
    text: String,
}

/// Rules that can be meant.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Checked {
    /// Always true: what cannot be meant is a problem that names line and field.
    ok: bool,
}

async fn check(Body(body): Body<RulesBody>) -> Result<Json<Checked>, Problem> {
    if body.text.is_empty() {
        return Err(Problem::invalid("text", "expected rules"));
    }
    read(body.text).await?;
    Ok(Json(Checked { ok: true }))
}

/// Reads rules on a thread of its own: of a body full of them it takes long enough to keep others waiting.
async fn read(text: String) -> Result<Rules, Problem> {
    let read = tokio::task::spawn_blocking(move || Rules::read("text", &text)).await.map_err(|error| {
        tracing::error!(%error, "reading rules broke");
        Problem::internal()
    })?;
    read.map_err(refused)
}

/// Rules to put in force.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ApplyBody {
    /// `[[policy]]`, `[[limit]]` and `[[breaker]]` in TOML; null: every node follows its own file again.
    text: Option<String>,
    /// Must be true where there is no text, so that a forgotten one does not take rules away.
    #[serde(default)]
    own_files: bool,
    /// Why, for those who come after.
    reason: Option<String>,
    /// Say what would be done and change nothing.
    #[serde(default)]
    dry_run: bool,
}

async fn applied(State(app): Api, principal: Principal, Body(body): Body<ApplyBody>) -> Result<Json<Applied>, Problem> {
    let reason = input::reason(body.reason)?;
    let rules = match (body.text, body.own_files) {
        (Some(text), false) => read(text).await?,
        (None, true) => Rules::own_files(),
        _ => return Err(Problem::invalid("text", "expected either text or own_files = true")),
    };
    let applied = apply(&*app.store, rules, &principal.who, reason.clone(), body.dry_run).await?;
    if applied.changed && !body.dry_run {
        let version = applied.version.map_or_else(String::new, |version| version.to_string());
        let mut entry = principal.entry("policy.apply", format!("version {version}"));
        entry.reason = reason;
        app.told(entry).await?;
    }
    Ok(Json(applied))
}

/// Each problem with its line, as the command line says it.
fn refused(error: ApplyError) -> Problem {
    match error {
        ApplyError::Rules(ConfigError::Invalid(problems)) => {
            let field =
                |problem: &crate::config::Problem| FieldError { field: "text".into(), message: problem.to_string() };
            let errors: Vec<FieldError> = problems.iter().map(field).collect();
            let first = errors.first().map(|error| error.message.clone()).unwrap_or_default();
            Problem::invalid("text", first).with(errors)
        }
        ApplyError::Store(error) => error.into(),
        other => Problem::invalid("text", other.to_string()),
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StatsQuery {
    /// type, label.NAME, attempt, policy, variant or queue; default type.
    by: Option<String>,
    /// The largest groups and the most frequent failures only; default 20.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
}

async fn statistics(State(app): Api, Filtered { filter, query }: Filtered<StatsQuery>) -> Result<Json<Stats>, Problem> {
    let what = by(query.by.as_deref().unwrap_or("type")).map_err(|message| Problem::bad_request("by", message))?;
    let limit = query.limit.unwrap_or(20);
    if !(1..=1000).contains(&limit) {
        return Err(Problem::bad_request("limit", "expected a number from 1 to 1000"));
    }
    let filter = filter.to_filter(app.store.now()).map_err(input::bad_query)?;
    let store = Arc::clone(&app.store);
    let sum = async move { stats(&*store, &what, &filter, usize::try_from(limit).unwrap_or(20)).await };
    Ok(Json(app.sum(sum).await?))
}
