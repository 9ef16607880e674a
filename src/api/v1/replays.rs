//! Groups of dead letters, and replay jobs. Workers carry the jobs out.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{self, Body, Filtered, Id, MaybeBody, Paged};
use super::{Api, App, Principal, Problem, ReasonBody, Route};
use crate::desk::filter::FilterText;
use crate::desk::letters::{GroupDocument, MOST_GROUPS, group_by, groups};
use crate::desk::replays::{ItemDocument, Order, Preview, ReplayDocument, pace, rate, steered};
use crate::desk::{List, to_json};
use crate::store::access::Role;
use crate::store::{GroupNote, ItemOutcome, ReplayJob, ReplayState, Steer, Steered};

/// Groups when nobody says how many.
const GROUPS: u32 = 50;
/// Ids beyond which a job's description names only how many there were.
const MOST_IDS: usize = 20;
/// The longest key, owner or note of a group.
const LONGEST_NOTE: usize = 1_000;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            ("/v1/groups", "listGroups", "Dead letters by what they have in common, largest first"),
            Role::Viewer,
            of_groups,
        )
        .query::<GroupsQuery>()
        .query::<FilterText>()
        .answers::<List<GroupDocument>>(200, "The largest of them"),
        Route::post(("/v1/groups/note", "noteGroup", "Write an owner and a note at a group"), Role::Operator, note)
            .body::<NoteBody>()
            .answers::<Noted>(200, "What stands there now"),
        Route::get(("/v1/replays", "listReplays", "Replay jobs, newest first"), Role::Viewer, list)
            .query::<ReplaysQuery>()
            .paged()
            .answers::<List<ReplayDocument>>(200, "A page"),
        Route::post(("/v1/replays", "createReplay", "Replay dead letters, by filter"), Role::Operator, create)
            .body::<ReplayBody>()
            .answers::<ReplayDocument>(201, "A job; its letters are chosen, and workers put them to run")
            .answers::<Preview>(200, "What `dry_run` would do"),
        Route::get(("/v1/replays/{job}", "getReplay", "How far a job is"), Role::Viewer, show)
            .answers::<ReplayDocument>(200, "The job"),
        Route::get(
            ("/v1/replays/{job}/items", "listReplayItems", "The letters of a job and what became of each"),
            Role::Viewer,
            items,
        )
        .query::<ItemsQuery>()
        .paged()
        .answers::<List<ItemDocument>>(200, "A page, in the job's order"),
        Route::post(("/v1/replays/{job}/pause", "pauseReplay", "Halt a job; what runs runs on"), Role::Operator, pause)
            .maybe_body::<ReasonBody>()
            .answers::<ReplayDocument>(200, "The job")
            .problems(&[409]),
        Route::post(("/v1/replays/{job}/resume", "resumeReplay", "Go on with a halted job"), Role::Operator, resume)
            .maybe_body::<ReasonBody>()
            .answers::<ReplayDocument>(200, "The job")
            .problems(&[409]),
        Route::post(
            ("/v1/replays/{job}/cancel", "cancelReplay", "End a job; what waits in it stays dead"),
            Role::Operator,
            cancel,
        )
        .maybe_body::<ReasonBody>()
        .answers::<ReplayDocument>(200, "The job")
        .problems(&[409]),
    ]
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct GroupsQuery {
    /// fingerprint (default), class, type, reason or label.NAME.
    by: Option<String>,
    /// At most so many groups, largest first; default 50.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
}

async fn of_groups(
    State(app): Api,
    Filtered { filter, query }: Filtered<GroupsQuery>,
) -> Result<Json<List<GroupDocument>>, Problem> {
    let by = group_by(query.by.as_deref().unwrap_or("fingerprint"));
    let by = by.map_err(|message| Problem::bad_request("by", message))?;
    let limit = query.limit.unwrap_or(GROUPS);
    let limit = usize::try_from(limit).ok().filter(|limit| (1..=MOST_GROUPS).contains(limit));
    let limit =
        limit.ok_or_else(|| Problem::bad_request("limit", format!("expected a number from 1 to {MOST_GROUPS}")))?;
    let filter = filter.to_dead_filter(app.store.now()).map_err(input::bad_query)?;
    Ok(Json(List::whole(groups(&*app.store, &by, &filter, limit).await?)))
}

/// What to write at a group.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoteBody {
    /// fingerprint (default), class, type, reason or label.NAME.
    by: Option<String>,
    /// The group's key.
    #[schemars(length(min = 1, max = 1000))]
    key: String,
    /// Who looks after it; null leaves what is there, empty takes it away.
    #[schemars(length(max = 1000))]
    owner: Option<String>,
    /// What is known about it; null leaves what is there, empty takes it away.
    #[schemars(length(max = 1000))]
    note: Option<String>,
    /// Take away what is written there.
    #[serde(default)]
    clear: bool,
    /// Why, for those who come after.
    reason: Option<String>,
}

/// What stands at a group.
#[derive(Debug, serde::Serialize, Deserialize, JsonSchema)]
struct Noted {
    /// Who looks after it.
    owner: Option<String>,
    /// What is known about it.
    note: Option<String>,
}

async fn note(State(app): Api, principal: Principal, Body(body): Body<NoteBody>) -> Result<Json<Noted>, Problem> {
    let by = group_by(body.by.as_deref().unwrap_or("fingerprint"));
    let by = by.map_err(|message| Problem::invalid("by", message))?;
    let reason = input::reason(body.reason)?;
    for (field, text) in [("key", Some(&body.key)), ("owner", body.owner.as_ref()), ("note", body.note.as_ref())] {
        if text.is_some_and(|text| text.chars().count() > LONGEST_NOTE) {
            return Err(Problem::invalid(field, format!("expected at most {LONGEST_NOTE} characters")));
        }
    }
    if body.key.is_empty() {
        return Err(Problem::invalid("key", "expected the key of a group"));
    }
    if !body.clear && body.owner.is_none() && body.note.is_none() {
        return Err(Problem::invalid("note", "expected an owner, a note, or clear = true"));
    }
    // What is not given stays.
    let known = app.store.group_notes(&by).await?.into_iter().find(|known| known.key == body.key && !body.clear);
    let (known_owner, known_note) = known.map_or((None, None), |known| (known.owner, known.note));
    let filled = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let (owner, note) = match body.clear {
        true => (None, None),
        false => (filled(body.owner.or(known_owner)), filled(body.note.or(known_note))),
    };
    let noted_by = Some(principal.who.clone());
    let written = GroupNote { key: body.key.clone(), owner: owner.clone(), note: note.clone(), noted_by, noted_at: 0 };
    app.store.note_group(&by, written).await?;
    let mut entry = principal.entry("group.note", format!("{by} {}", body.key));
    entry.reason = reason;
    app.told(entry).await?;
    Ok(Json(Noted { owner, note }))
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ReplaysQuery {
    /// selecting, running, paused, stopped, cancelled or done.
    #[schemars(with = "Vec<ReplayState>")]
    state: Vec<String>,
}

async fn list(
    State(app): Api,
    principal: Principal,
    Paged { query, limit, cursor }: Paged<ReplaysQuery>,
) -> Result<Json<List<ReplayDocument>>, Problem> {
    let expected = || format!("expected one of {}", ReplayState::ALL.map(ReplayState::as_str).join(", "));
    let state = |text: &String| ReplayState::parse(text).ok_or_else(|| Problem::bad_request("state", expected()));
    let states = query.state.iter().map(state).collect::<Result<Vec<_>, Problem>>()?;
    let before = place(cursor.as_deref());
    let mut jobs = app.store.replays(&states, before, limit + 1).await?;
    let more = jobs.len() > limit;
    jobs.truncate(limit);
    let next = jobs.last().filter(|_| more).map(|job| job.id.to_string());
    Ok(Json(List { items: jobs.iter().map(|job| app.replay(job, &principal)).collect(), next }))
}

impl App {
    /// A job as whoever asks may see it: a patch may hold what is masked in payloads.
    fn replay(&self, job: &ReplayJob, principal: &Principal) -> ReplayDocument {
        let mut document = ReplayDocument::of(job);
        if !principal.may(Role::Editor) && !self.console.masked.is_empty() {
            document.edit_payload = None;
        }
        document
    }
}

/// A cursor that was checked when it was read.
fn place(cursor: Option<&str>) -> Option<i64> {
    cursor.and_then(|text| text.parse().ok())
}

/// What is ordered.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReplayBody {
    /// Which.
    #[serde(default)]
    filter: FilterText,
    /// Must be true where the filter restricts nothing: a forgotten filter must not mean everything.
    #[serde(default)]
    all: bool,
    /// At most so many, newest first.
    #[schemars(range(min = 1))]
    limit: Option<u32>,
    /// At most so many a second, minute or hour: `50/s`, `300/min`.
    rate: Option<String>,
    /// A few first: 1 %, 5 %, 25 % and then all, each step only when all of the one before have ended well.
    #[serde(default)]
    ramp: bool,
    /// Stop when more than this part of those that have ended failed again; with a ramp 0.1 unless given.
    #[schemars(range(min = 0.0, max = 1.0))]
    max_failure_ratio: Option<f64>,
    /// A JSON Patch (RFC 6902) for each payload; needs the role editor. Makes new tasks; the letters are kept, discarded.
    edit_payload: Option<Vec<Value>>,
    /// Why, for those who come after.
    reason: Option<String>,
    /// Say what would be done and change nothing.
    #[serde(default)]
    dry_run: bool,
}

impl ReplayBody {
    fn order(&self, app: &App, principal: &Principal) -> Result<Order, Problem> {
        if self.filter.is_empty() && !self.all {
            return Err(Problem::invalid("filter", "expected a filter, or all = true"));
        }
        if self.limit == Some(0) {
            return Err(Problem::invalid("limit", "expected at least 1"));
        }
        if self.edit_payload.is_some() {
            principal.need(Role::Editor)?;
        }
        let filter = self.filter.to_dead_filter(app.store.now()).map_err(input::bad_filter)?;
        let rate = self.rate.as_deref().map(rate).transpose().map_err(|message| Problem::invalid("rate", message))?;
        let pace = pace(rate, self.ramp, self.max_failure_ratio)
            .map_err(|message| Problem::invalid("max_failure_ratio", message))?;
        let mut text = FilterText::of(&filter);
        let mut about = json!({});
        if text.ids.len() > MOST_IDS {
            about["ids"] = text.ids.len().into();
            text.ids.clear();
        }
        about["filter"] = to_json(&text);
        if let Some(limit) = self.limit {
            about["limit"] = limit.into();
        }
        let order = Order {
            filter,
            about,
            limit: self.limit.and_then(|limit| usize::try_from(limit).ok()),
            pace,
            edit: self.edit_payload.as_ref().map(|patch| to_json(patch).to_string()),
            by: Some(principal.who.clone()),
            reason: input::reason(self.reason.clone())?,
        };
        order.edit().map_err(|error| Problem::invalid("edit_payload", error.to_string()))?;
        Ok(order)
    }
}

/// A job that was made, or what it would do.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Ordered {
    Job(Box<ReplayDocument>),
    Preview(Preview),
}

async fn create(
    State(app): Api,
    principal: Principal,
    Body(body): Body<ReplayBody>,
) -> Result<(StatusCode, Json<Ordered>), Problem> {
    let order = body.order(&app, &principal)?;
    if body.dry_run {
        let preview = order.preview(&*app.store, app.mask(&principal)).await?;
        return Ok((StatusCode::OK, Json(Ordered::Preview(preview))));
    }
    let job = order.place(&*app.store, None).await?;
    let mut entry = principal.entry("replay.create", format!("job {}: {}", job.id, order.about));
    (entry.reason, entry.count) = (order.reason, Some(job.counts.waiting));
    app.told(entry).await?;
    Ok((StatusCode::CREATED, Json(Ordered::Job(Box::new(app.replay(&job, &principal))))))
}

/// A job's number in the path.
fn number(id: &str) -> Result<i64, Problem> {
    let number = id.parse::<i64>().ok().filter(|number| *number > 0);
    number.ok_or_else(|| Problem::bad_request("id", "expected the number of a replay job"))
}

fn unknown(id: i64) -> Problem {
    Problem::not_found(format!("there is no replay job {id}"))
}

async fn show(State(app): Api, principal: Principal, Id(id): Id) -> Result<Json<ReplayDocument>, Problem> {
    let id = number(&id)?;
    let job = app.store.replay(id).await?.ok_or_else(|| unknown(id))?;
    Ok(Json(app.replay(&job, &principal)))
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ItemsQuery {
    /// waiting, replayed, skipped, failed_again, succeeded or cancelled.
    #[schemars(with = "Vec<ItemOutcome>")]
    outcome: Vec<String>,
}

async fn items(
    State(app): Api,
    Id(id): Id,
    Paged { query, limit, cursor }: Paged<ItemsQuery>,
) -> Result<Json<List<ItemDocument>>, Problem> {
    let id = number(&id)?;
    let expected = || format!("expected one of {}", ItemOutcome::ALL.map(ItemOutcome::as_str).join(", "));
    let outcome = |text: &String| ItemOutcome::parse(text).ok_or_else(|| Problem::bad_request("outcome", expected()));
    let outcomes = query.outcome.iter().map(outcome).collect::<Result<Vec<_>, Problem>>()?;
    let after = place(cursor.as_deref()).unwrap_or(0);
    app.store.replay(id).await?.ok_or_else(|| unknown(id))?;
    let mut found = app.store.replay_items(id, &outcomes, after, limit + 1).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|item| item.position.to_string());
    Ok(Json(List { items: found.iter().map(ItemDocument::of).collect(), next }))
}

async fn pause(
    State(app): Api,
    who: Principal,
    Id(id): Id,
    body: MaybeBody<ReasonBody>,
) -> Result<Json<ReplayDocument>, Problem> {
    steer(&app, &who, &id, body.0, Steer::Pause).await
}

async fn resume(
    State(app): Api,
    who: Principal,
    Id(id): Id,
    body: MaybeBody<ReasonBody>,
) -> Result<Json<ReplayDocument>, Problem> {
    steer(&app, &who, &id, body.0, Steer::Resume).await
}

async fn cancel(
    State(app): Api,
    who: Principal,
    Id(id): Id,
    body: MaybeBody<ReasonBody>,
) -> Result<Json<ReplayDocument>, Problem> {
    steer(&app, &who, &id, body.0, Steer::Cancel).await
}

async fn steer(
    app: &App,
    principal: &Principal,
    id: &str,
    body: ReasonBody,
    word: Steer,
) -> Result<Json<ReplayDocument>, Problem> {
    let id = number(id)?;
    let reason = input::reason(body.reason)?;
    if body.dry_run {
        let job = app.store.replay(id).await?.ok_or_else(|| unknown(id))?;
        return Ok(Json(app.replay(&job, principal)));
    }
    let conflict = |job: &ReplayJob| {
        let text = format!("replay job {id} is {}; it cannot be {}", job.state.as_str(), steered(word));
        Problem::conflict(text, job.state.as_str())
    };
    match app.store.steer_replay(id, word, Some(&principal.who), reason.as_deref()).await? {
        Steered::Done(job) => {
            let action = match word {
                Steer::Pause => "replay.pause",
                Steer::Resume => "replay.resume",
                Steer::Cancel => "replay.cancel",
            };
            let mut entry = principal.entry(action, format!("job {id}"));
            (entry.reason, entry.count) = (reason, Some(job.counts.waiting));
            app.told(entry).await?;
            Ok(Json(app.replay(&job, principal)))
        }
        Steered::Conflict(job) => Err(conflict(&job)),
        Steered::Unknown => Err(unknown(id)),
    }
}
