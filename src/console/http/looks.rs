//! `GET` of the pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{Html, Redirect};
use axum::routing::get;

use super::visit::Visit;
use crate::api::{App, Principal, Problem};
use crate::config::Config;
use crate::console::i18n::Lang;
use crate::console::page::Badges;
use crate::console::pages::audit::AuditView;
use crate::console::pages::gates::{BreakerPhase, GatesView, breaker_rows, limit_rows};
use crate::console::pages::overview::{Ladder, Lane, OpenBreaker, Overview, Waits};
use crate::console::pages::policies::{Answer, PoliciesView, Question};
use crate::console::pages::stats::StatsView;
use crate::console::pages::task::TaskView;
use crate::console::pages::tasks::TasksView;
use crate::console::pages::workers::WorkersView;
use crate::console::pages::{audit, gates, overview, policies, problem, stats, task, tasks, workers};
use crate::console::query::Query;
use crate::gate::{Subject, queue_pause};
use crate::policy::{Backoff, Policies, check_topic};
use crate::store::access::{AuditFilter, Role};
use crate::store::look::{RetryWait, WAIT_PARTS, WaitScale, Waiting};
use crate::store::{Filter, GroupBy, LetterGroupBy, ReplayState, Store, StoreError};
use crate::task::{Lane as LaneOf, Millis, Status, Task};

pub(super) type Page = Result<Html<String>, Problem>;

/// Tasks on one page of a list.
pub(super) const PAGE: usize = 50;
/// Retries that are looked at for the ladder.
const LADDER: usize = 20_000;
/// The length on which delays without a rung are drawn, where no policy says more.
const OTHER_MS: Millis = 60_000;
/// Groups and failures in the statistics.
const MOST_GROUPS: usize = 50;
/// Tasks that are summed up while somebody waits.
const MOST_SUMMED: usize = 3_000;
/// Replay jobs of a task that its page names.
const MOST_REPLAYS: usize = 5;
/// The window of the statistics when none is asked for.
const DAY_MS: Millis = 24 * 3_600_000;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(overview))
        .route("/tasks", get(tasks))
        .route("/tasks/{id}", get(task))
        .route("/task", get(task_by_query))
        .route("/gates", get(gates))
        .route("/policies", get(policies))
        .route("/stats", get(stats))
        .route("/workers", get(workers))
        .route("/audit", get(audit))
}

pub(super) fn html(markup: maud::Markup) -> Page {
    Ok(Html(markup.into_string()))
}

/// The numbers beside the navigation.
pub(super) async fn badges(app: &App) -> Result<Badges, StoreError> {
    let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
    let dead = app.store.count(&dead).await?.get(&Status::Dead).copied().unwrap_or(0);
    let config = app.config();
    let states = app.store.gates().await?;
    let shut = breaker_rows(&config.gates, &states, &BTreeMap::new(), app.store.now());
    let open_breakers = shut.iter().filter(|row| row.phase != BreakerPhase::Closed && row.when_open.is_some()).count();
    let open = [ReplayState::Selecting, ReplayState::Running, ReplayState::Paused];
    let jobs = app.store.replays(&open, None, PAGE).await?;
    let small = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    Ok(Badges { dead, open_breakers: small(open_breakers), running_jobs: small(jobs.len()) })
}

pub(super) async fn sign_in(
    visit: Visit,
    principal: Option<axum::Extension<Principal>>,
) -> Result<axum::response::Response, Problem> {
    use axum::response::IntoResponse as _;
    let next = visit.query.get("next").filter(|next| crate::console::link::is_local(next)).unwrap_or("/");
    if principal.is_some() {
        return Ok(Redirect::to(next).into_response());
    }
    let l = visit.ui.lang;
    let failed =
        visit.query.get("failed").map(|how| if how == "link" { l.sign_in_link_failed() } else { l.sign_in_failed() });
    Ok(Html(problem::sign_in(failed, next, &visit.ui).into_string()).into_response())
}

async fn overview(State(app): State<Arc<App>>, visit: Visit) -> Page {
    let (store, config, now) = (&*app.store, app.config(), visit.ui.now);
    let statuses = vec![Status::Pending, Status::Running, Status::RetryWaiting, Status::Dead];
    let counts = store.count(&Filter { statuses, ..Filter::default() }).await?;
    let count = |status: Status| counts.get(&status).copied().unwrap_or(0);
    let (waiting, rungs) = waiting(store, &config).await?;
    let held = store.held_counts().await?;
    let states = store.gates().await?;
    let breakers = breaker_rows(&config.gates, &states, &held, now);
    let l = visit.ui.lang;
    let open_breakers = breakers
        .iter()
        .filter(|row| row.phase != BreakerPhase::Closed && row.when_open.is_some())
        .map(|row| OpenBreaker {
            key: row.key.clone(),
            half_open: row.phase == BreakerPhase::HalfOpen,
            why: row.why(l),
            waiting: row.waiting,
            next_probe: row.next_probe,
        })
        .collect();
    let nodes = store.nodes().await?;
    let oldest = oldest_due(store, &config, &waiting, now).await?;
    let view = Overview {
        minutes: visit.console.pulse.minutes(now),
        failures: visit.console.pulse.failures(),
        pending: count(Status::Pending),
        running: count(Status::Running),
        retry_waiting: count(Status::RetryWaiting),
        held: held.values().sum(),
        dead: count(Status::Dead),
        oldest_due: oldest,
        ladders: ladders(&config, &waiting, &rungs),
        lanes: lanes(&app, &visit, &config, &waiting).await?.0,
        open_breakers,
        rules_differ: nodes.iter().any(|node| node.hash != nodes[0].hash),
        nodes,
        strangers: store.dlqs().await?.into_iter().map(|(queue, ledger)| (queue, ledger.strangers)).collect(),
        groups: visit.console.groups(&app).await?,
    };
    html(overview::render(&view, &visit.ui))
}

/// What waits, and the rungs on which it does.
async fn waiting(store: &dyn Store, config: &Config) -> Result<(Waiting, Vec<Millis>), StoreError> {
    let rungs: Vec<Millis> = config.policies.rungs().into_iter().collect();
    let scale = WaitScale { delays_ms: rungs.clone(), other_ms: other_ms(&config.policies), most: LADDER };
    Ok((store.waiting(&scale).await?, rungs))
}

/// The longest delay that is no rung.
fn other_ms(policies: &Policies) -> Millis {
    let backoffs = policies.rules().iter().flat_map(|rule| {
        let variants = rule.variants.iter().map(|variant| &variant.backoff);
        let overrides = rule.overrides.iter().filter_map(|over| over.backoff.as_ref());
        std::iter::once(&rule.backoff).chain(variants).chain(overrides)
    });
    let longest = backoffs.filter_map(|backoff| match backoff {
        Backoff::Exponential { max_ms, .. } => Some(*max_ms),
        Backoff::Steps(_) | Backoff::Fixed(_) => None,
    });
    longest.max().unwrap_or(OTHER_MS).max(1)
}

fn ladders(config: &Config, waiting: &Waiting, rungs: &[Millis]) -> Vec<Ladder> {
    let other = other_ms(&config.policies);
    let draw = |wait: Option<&RetryWait>, delay_ms: Option<Millis>| Waits {
        delay_ms,
        span_ms: delay_ms.unwrap_or(other),
        waiting: wait.map_or(0, |wait| wait.waiting),
        next_due: wait.map(|wait| wait.first_due_at),
        due: wait.map_or(0, |wait| wait.due),
        parts: wait.map_or_else(|| vec![0; WAIT_PARTS], |wait| wait.parts.to_vec()),
    };
    let ladder = |queue: &str| {
        let of =
            |delay: Option<Millis>| waiting.retries.iter().find(|wait| wait.queue == queue && wait.delay_ms == delay);
        let mut drawn: Vec<Waits> = rungs.iter().map(|delay| draw(of(Some(*delay)), Some(*delay))).collect();
        drawn.extend(of(None).map(|wait| draw(Some(wait), None)));
        Ladder { queue: queue.to_owned(), rungs: drawn, is_part: waiting.is_part }
    };
    // With many queues, only those in which something waits are worth the room.
    let several = config.queues.len() > 3;
    let waits = |queue: &str| waiting.retries.iter().any(|wait| wait.queue == queue);
    config.queues.iter().filter(|queue| !several || waits(&queue.name)).map(|queue| ladder(&queue.name)).collect()
}

/// Since when the task that is longest due waits, if one does and no gate holds it.
async fn oldest_due(
    store: &dyn Store,
    config: &Config,
    waiting: &Waiting,
    now: Millis,
) -> Result<Option<Millis>, StoreError> {
    let mut oldest = waiting.retries.iter().filter(|wait| wait.due > 0).map(|wait| wait.first_due_at).min();
    for queue in &config.queues {
        let first = store.feed(&queue.name, now, 1).await?;
        oldest = first.iter().map(|task| task.state.due_at).chain(oldest).min();
    }
    Ok(oldest.filter(|due| *due <= now))
}

/// The lanes of every queue, and why the broker's half is missing if it is.
async fn lanes(
    app: &Arc<App>,
    visit: &Visit,
    config: &Config,
    waiting: &Waiting,
) -> Result<(Vec<Lane>, Option<String>), StoreError> {
    let pauses = app.store.pauses().await?;
    let (depths, problem) = match visit.console.depths(app).await {
        Ok(depths) => (depths, None),
        Err(problem) => (Vec::new(), Some(problem)),
    };
    let topology = config.topology();
    let mut lanes = Vec::new();
    for queue in &config.queues {
        let name = &queue.name;
        let paused = pauses
            .iter()
            .find(|pause| pause.key == queue_pause(name))
            .map(|pause| pause.reason.clone().unwrap_or_default());
        let oldest = app.store.feed(name, visit.ui.now, 1).await?.first().map(|task| task.spec.created_at);
        for lane in [LaneOf::Tasks, LaneOf::Retries] {
            let role = crate::broker::QueueRole::Lane(lane);
            let full =
                topology.queues.iter().find(|spec| spec.queue == *name && spec.role == role).map(|spec| &spec.name);
            let depth = full.and_then(|full| depths.iter().find(|depth| depth.name == *full));
            let is_retries = lane == LaneOf::Retries;
            let sent = waiting.sent.get(name).copied().unwrap_or(0);
            let retrying: i64 =
                waiting.retries.iter().filter(|wait| wait.queue == *name).map(|wait| wait.waiting).sum();
            let fresh = waiting.unsent.get(name).copied().unwrap_or(0) + sent;
            lanes.push(Lane {
                queue: name.clone(),
                is_retries,
                ready: depth.and_then(|depth| depth.ready),
                consumers: depth.and_then(|depth| depth.consumers),
                in_store: if is_retries { retrying } else { fresh },
                oldest: oldest.filter(|_| !is_retries),
                paused: paused.clone(),
            });
        }
    }
    Ok((lanes, problem))
}

async fn tasks(State(app): State<Arc<App>>, visit: Visit) -> Page {
    html(tasks::render(&list(&app, &visit, false).await?, &visit.ui))
}

/// A page of tasks, or of dead letters, by the query.
pub(super) async fn list(app: &App, visit: &Visit, is_dead: bool) -> Result<TasksView, Problem> {
    let query = visit.query.filters();
    let mut view = TasksView { is_dead, query: query.clone(), ..TasksView::default() };
    let mut filter = match query.to_filter(visit.ui.now) {
        Ok(filter) => filter,
        Err(problems) => return Ok(TasksView { problems, ..view }),
    };
    if is_dead {
        filter.statuses = vec![Status::Dead];
        view.total = query.is_empty().then_some(visit.ui.badges.dead);
    }
    let cursor = query.get("cursor");
    if cursor.is_some_and(|cursor| cursor.parse::<i64>().is_err()) {
        view.problems.push(("cursor".into(), "this is no cursor of a list of tasks".into()));
        return Ok(view);
    }
    let page = app.store.list(&filter, cursor, PAGE).await?;
    Ok(TasksView { items: page.items, next: page.next, ..view })
}

/// The task, or what to say when there is none.
pub(super) async fn find(app: &App, id: &str, l: Lang) -> Result<Task, Problem> {
    let found = app.store.get(&[id.to_owned()]).await?.pop().flatten();
    found.ok_or_else(|| Problem::not_found(l.task_not_found()))
}

async fn task(State(app): State<Arc<App>>, Path(id): Path<String>, principal: Principal, visit: Visit) -> Page {
    show_task(&app, &id, &principal, &visit).await
}

/// For ids that cannot stand in a path.
async fn task_by_query(State(app): State<Arc<App>>, principal: Principal, visit: Visit) -> Page {
    show_task(&app, visit.query.get("id").unwrap_or_default(), &principal, &visit).await
}

async fn show_task(app: &App, id: &str, principal: &Principal, visit: &Visit) -> Page {
    let task = find(app, id, visit.ui.lang).await?;
    let (payload, is_masked) = payload(app, &task, principal);
    let hides_raw = app.mask(principal).hides_bytes(&task);
    let by = LetterGroupBy::Fingerprint;
    let key =
        task.state.failure.as_ref().filter(|_| task.state.status == Status::Dead).map(|failure| &failure.fingerprint);
    let note = match key {
        Some(key) => app.store.group_notes(&by).await?.into_iter().find(|note| note.key == *key),
        None => None,
    };
    let view = TaskView {
        note,
        replays: app.store.replays_of(id, MOST_REPLAYS).await?,
        edits: app.store.edits_of(id).await?,
        attempts: app.store.attempt_heads(id).await?,
        result: app.store.result(id).await?,
        payload,
        is_masked,
        hides_raw,
        task,
    };
    html(task::render(&view, &visit.ui))
}

/// The payload as this one may see it, and whether something of it is hidden.
pub(super) fn payload(app: &App, task: &Task, principal: &Principal) -> (String, bool) {
    let mask = app.mask(principal);
    if !mask.concerns(&task.spec.task_type) {
        return (task.spec.payload.clone(), false);
    }
    // Never the text itself: of a field that is there twice, it has the one that reading it does not find.
    let (payload, masked) = mask.read(&task.spec.task_type, &task.spec.payload);
    (payload.to_string(), !masked.is_empty())
}

async fn gates(State(app): State<Arc<App>>, visit: Visit) -> Page {
    let (config, now) = (app.config(), visit.ui.now);
    let states = app.store.gates().await?;
    let held = app.store.held_counts().await?;
    let view = GatesView {
        breakers: breaker_rows(&config.gates, &states, &held, now),
        limits: limit_rows(&config.gates, &states, &held, now, visit.ui.lang),
        pauses: app.store.pauses().await?,
        queues: config.queues.iter().map(|queue| queue.name.clone()).collect(),
        wanted: visit.query.get("key").map(str::to_owned),
    };
    html(gates::render(&view, &visit.ui))
}

async fn policies(State(app): State<Arc<App>>, visit: Visit) -> Page {
    let config = app.config();
    let versions = app.store.policies(20).await?;
    let said = |name: &str| visit.query.get(name).unwrap_or_default().to_owned();
    let question = Question { task_type: said("type"), labels: said("labels"), at: said("at") };
    let mut since = Filter { since: Some(visit.ui.now.saturating_sub(30 * DAY_MS)), ..Filter::default() };
    let mut shortened = None;
    if visit.query.get("all").is_none() {
        shortened = shorten(&*app.store, &mut since).await?;
    }
    let has_variants = config.policies.rules().iter().any(|rule| !rule.variants.is_empty());
    let mut variants = if has_variants { app.store.tallies(&GroupBy::Variant, &since).await? } else { Vec::new() };
    variants.sort_by(|a, b| (&a.group, &a.variant).cmp(&(&b.group, &b.variant)));
    let view = PoliciesView {
        rules: config.policies.rules().to_vec(),
        version: versions.first().filter(|version| version.rules.text.is_some()).map(|version| version.version),
        digest: config.rules_digest(),
        versions,
        answer: (!question.task_type.trim().is_empty()).then(|| explain(&config, &question, visit.ui.now)),
        question,
        variants,
        shortened,
    };
    html(policies::render(&view, &visit.ui))
}

fn explain(config: &Config, question: &Question, now: Millis) -> Result<Answer, String> {
    let task_type = question.task_type.trim();
    check_topic(task_type).map_err(|error| format!("type: {error}"))?;
    let mut labels = BTreeMap::new();
    for pair in question.labels.split_whitespace() {
        let (name, value) =
            pair.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("labels: expected NAME=VALUE")?;
        labels.insert(name.to_owned(), value.to_owned());
    }
    let at = match question.at.trim() {
        "" => now,
        text => text
            .parse::<jiff::Timestamp>()
            .or_else(|_| text.parse::<jiff::ZonedDateTime>().map(|zoned| zoned.timestamp()))
            .map_err(|_| "at: expected RFC 3339 with a zone, or a local time such as 2026-07-01T03:00[Asia/Shanghai]")?
            .as_millisecond(),
    };
    let queue = config.queue_of(task_type).to_owned();
    let way = config.gates.way(Subject { task_type, queue: &queue, labels: &labels }, true);
    let gates = way.gates.iter().map(|gate| gate.key.clone()).collect();
    Ok(Answer { at, explained: config.policies.explain(task_type, &labels, at), queue, gates, labels })
}

/// Makes a window so short that it can be summed up while somebody waits; says since when it is, if it is shorter now.
async fn shorten(store: &dyn Store, filter: &mut Filter) -> Result<Option<Millis>, StoreError> {
    let (since, until) = (filter.since.unwrap_or(Millis::MIN), filter.until.unwrap_or(Millis::MAX));
    let from = store.newest_ended(since, until, MOST_SUMMED).await?.map(|from| from.saturating_add(1));
    filter.since = from.or(filter.since);
    Ok(from)
}

async fn stats(State(app): State<Arc<App>>, visit: Visit) -> Page {
    let query = visit.query.filters();
    let by = visit.query.get("by").unwrap_or("type").trim().to_owned();
    let since = query.get("since").unwrap_or("24h").to_owned();
    let mut view = StatsView { by: by.clone(), since, query: query.clone(), ..StatsView::default() };
    let group = match by.as_str() {
        "type" => Some(GroupBy::Type),
        "policy" => Some(GroupBy::Policy),
        "variant" => Some(GroupBy::Variant),
        "queue" => Some(GroupBy::Queue),
        other => {
            other.strip_prefix("label.").filter(|name| !name.is_empty()).map(|name| GroupBy::Label(name.to_owned()))
        }
    };
    let Some(group) = group else {
        view.problems.push(("by".into(), "expected type, label.NAME, policy, variant or queue".into()));
        return html(stats::render(&view, &visit.ui));
    };
    let mut filter = match query.to_filter(visit.ui.now) {
        Ok(filter) => filter,
        Err(problems) => return html(stats::render(&StatsView { problems, ..view }, &visit.ui)),
    };
    filter.since = filter.since.or(Some(visit.ui.now.saturating_sub(DAY_MS)));
    if visit.query.get("all").is_none() {
        view.shortened = shorten(&*app.store, &mut filter).await?;
    }
    view.groups = app.store.tallies(&group, &filter).await?;
    view.total = crate::desk::stats::total(&view.groups);
    view.more_groups = view.groups.len().saturating_sub(MOST_GROUPS);
    view.groups.truncate(MOST_GROUPS);
    view.attempts = app.store.attempt_tallies(&filter).await?;
    view.failures = app.store.failure_tallies(&filter, MOST_GROUPS).await?;
    html(stats::render(&view, &visit.ui))
}

async fn workers(State(app): State<Arc<App>>, visit: Visit) -> Page {
    let config = app.config();
    let (waiting, _) = waiting(&*app.store, &config).await?;
    let (lanes, broker_problem) = lanes(&app, &visit, &config, &waiting).await?;
    let ledgers: BTreeMap<String, i64> =
        app.store.dlqs().await?.into_iter().map(|(queue, ledger)| (queue, ledger.strangers)).collect();
    let mut dlqs = Vec::new();
    for queue in &config.queues {
        let (present, wanted) = app.store.dead_copies(&queue.name).await?;
        dlqs.push((queue.name.clone(), present, wanted, ledgers.get(&queue.name).copied().unwrap_or(0)));
    }
    let view = WorkersView {
        nodes: app.store.nodes().await?,
        digest: config.rules_digest(),
        running: waiting.running,
        lanes,
        dlqs,
        broker_problem,
    };
    html(workers::render(&view, &visit.ui))
}

async fn audit(State(app): State<Arc<App>>, principal: Principal, visit: Visit) -> Page {
    principal.need(Role::Admin)?;
    let said = |name: &str| visit.query.get(name).map(str::to_owned);
    let filter = AuditFilter { who: said("who"), action: said("action"), target: said("target") };
    let cursor = visit.query.get("cursor");
    if cursor.is_some_and(|cursor| cursor.parse::<i64>().is_err()) {
        return Err(Problem::bad_request("cursor", "this is no cursor of the audit"));
    }
    let page = app.store.audit(&filter, cursor, PAGE).await?;
    let query = Query::new(
        visit
            .query
            .pairs()
            .into_iter()
            .filter(|(name, _)| ["who", "action", "target", "cursor"].contains(&name.as_str())),
    );
    html(audit::render(&AuditView { query, records: page.items, next: page.next }, &visit.ui))
}
