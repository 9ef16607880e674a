//! Dead letters: groups, lists, and what a person does with them.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;

use super::acts::{Act, Form, done, one, record};
use super::looks::{Page, find, html, list, payload};
use super::visit::Visit;
use crate::api::access::CSRF_FIELD;
use crate::api::{App, Principal, Problem};
use crate::console::link;
use crate::console::pages::dead::{DeadView, GroupView, filter_of};
use crate::console::pages::replays::AskView;
use crate::console::pages::task::EditView;
use crate::console::pages::{dead, replays, task, tasks};
use crate::console::query::{FILTERS, Query};
use crate::console::show::absolute;
use crate::dead_letter::groups;
use crate::desk::{Act as TaskAct, discard_chosen};
use crate::store::access::Role;
use crate::store::{Filter, GroupNote, ItemCounts, LetterGroupBy, NewReplay, Pace, Selection, Store, StoreError};
use crate::task::{Millis, PayloadEdit, Status};

/// Groups on one page.
const MOST_GROUPS: usize = 200;
/// Letters that are shown of a group or a selection.
const SAMPLES: usize = 12;
/// Letters that are looked at to find labels worth grouping by, and so many of these.
const LOOK_AT: usize = 40;
const MOST_LABELS: usize = 5;
/// What the forms of a replay and a discard say beside what they choose.
const FIELDS: [&str; 5] = [CSRF_FIELD, "rate", "ramp", "max_failure_ratio", "reason"];

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/dead", get(all_groups))
        .route("/dead/group", get(one_group))
        .route("/dead/list", get(letters))
        .route("/dead/replay", get(ask_replay).post(replay))
        .route("/dead/discard", get(ask_discard).post(discard))
        .route("/dead/note", axum::routing::post(note))
        .route("/tasks/{id}/discard", axum::routing::post(discard_one))
        .route("/tasks/{id}/edit", get(ask_edit).post(edit))
}

/// By what the query groups; fingerprints unless it says otherwise.
fn group_by(query: &Query) -> Result<LetterGroupBy, Problem> {
    let Some(by) = query.get("by") else { return Ok(LetterGroupBy::Fingerprint) };
    LetterGroupBy::parse(by.trim())
        .ok_or_else(|| Problem::bad_request("by", "expected fingerprint, class, type, reason or label.NAME"))
}

/// The filter of a query, for dead letters.
fn dead_filter(query: &Query, now: Millis) -> Result<Filter, Problem> {
    let filter = query.to_filter(now).map_err(|problems| {
        let (field, why) = problems.into_iter().next().unwrap_or_default();
        Problem::bad_request(&field, why)
    })?;
    Ok(Filter { statuses: vec![Status::Dead], ..filter })
}

async fn all_groups(State(app): State<Arc<App>>, visit: Visit) -> Page {
    let by = group_by(&visit.query)?;
    let query = visit.query.filters().without("cursor");
    let filter = dead_filter(&query, visit.ui.now)?;
    let groups = groups(&*app.store, &by, &filter, MOST_GROUPS).await?;
    let view = DeadView { by, query, groups, label_names: label_names(&*app.store).await? };
    html(dead::render(&view, &visit.ui))
}

/// Names of labels that the newest letters have.
async fn label_names(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let newest = Filter { statuses: vec![Status::Dead], ..Filter::default() };
    let letters = store.list(&newest, None, LOOK_AT).await?.items;
    let names: BTreeSet<String> = letters.iter().flat_map(|task| task.spec.labels.keys().cloned()).collect();
    Ok(names.into_iter().take(MOST_LABELS).collect())
}

async fn one_group(State(app): State<Arc<App>>, visit: Visit) -> Page {
    let by = group_by(&visit.query)?;
    let key = visit.query.get("key");
    let pair = filter_of(&by, key);
    let filter = dead_filter(&Query::new(pair.clone()), visit.ui.now)?;
    let found = groups(&*app.store, &by, &filter, MOST_GROUPS).await?;
    let group = found.into_iter().find(|group| group.letters.key.as_deref() == key);
    let group = group.ok_or_else(|| Problem::not_found(visit.ui.lang.group_gone()))?;
    // Those that lack what the others share cannot be filtered for: its samples stand for them.
    let samples = match pair {
        Some(_) => app.store.list(&filter, None, SAMPLES).await?.items,
        None => {
            let ids: Vec<String> = group.letters.samples.iter().map(|sample| sample.id.clone()).collect();
            app.store.get(&ids).await?.into_iter().flatten().collect()
        }
    };
    html(dead::render_group(&GroupView { by, group, samples }, &visit.ui))
}

async fn letters(State(app): State<Arc<App>>, visit: Visit) -> Page {
    html(tasks::render(&list(&app, &visit, true).await?, &visit.ui))
}

async fn ask_replay(State(app): State<Arc<App>>, visit: Visit) -> Page {
    ask(&app, &visit, false).await
}

async fn ask_discard(State(app): State<Arc<App>>, visit: Visit) -> Page {
    ask(&app, &visit, true).await
}

/// Shows what a replay or a discard would do, before anybody says yes to it.
async fn ask(app: &App, visit: &Visit, discards: bool) -> Page {
    let (now, l) = (visit.ui.now, visit.ui.lang);
    let mut query = visit.query.filters().without("cursor").without("status");
    // A list's button without a tick means nothing, not everything.
    if visit.query.get("chosen").is_some() && query.get("id").is_none() {
        let problems = vec![(l.select().to_owned(), l.nothing_selected().to_owned())];
        let view = AskView { discards, query, problems, found: ItemCounts::default(), samples: Vec::new() };
        return html(replays::render_ask(&view, &visit.ui));
    }
    let filter = match query.to_filter(now) {
        Ok(filter) => Filter { statuses: vec![Status::Dead], ..filter },
        Err(problems) => {
            let view = AskView { discards, query, problems, found: ItemCounts::default(), samples: Vec::new() };
            return html(replays::render_ask(&view, &visit.ui));
        }
    };
    let mut found = app.store.preview_replay(&Selection { filter: filter.clone(), limit: None }).await?;
    if discards {
        // What cannot run again can be thrown away all the same.
        found.waiting += found.skipped.remove("not_replayable").unwrap_or(0);
    }
    let samples = app.store.list(&filter, None, SAMPLES).await?.items;
    // What dies after this look is not meant: the form says until when.
    if filter.ids.is_empty() && filter.until.is_none() {
        query = query.with("until", &absolute(now.saturating_add(1_000)));
    }
    html(replays::render_ask(&AskView { discards, query, problems: Vec::new(), found, samples }, &visit.ui))
}

/// What a form chooses. Ours always says at least until when. One that chooses nothing, or has a field that nobody
/// knows (a filter by a mistyped name), was written by hand and must not mean everything.
fn chosen(form: &Form) -> Result<Query, Problem> {
    // Only dead ones are chosen from: a status would be passed over, and choose nothing.
    let known = |name: &str| FIELDS.contains(&name) || (FILTERS.contains(&name) && name != "status");
    if let Some((name, _)) = form.query().pairs().into_iter().find(|(name, _)| !known(name)) {
        return Err(Problem::bad_request(&name, "there is no such field"));
    }
    let query = form.query().filters();
    if query.is_empty() {
        return Err(Problem::invalid("filter", "expected a filter; until with the time of now is everything"));
    }
    Ok(query)
}

async fn replay(State(app): State<Arc<App>>, principal: Principal, visit: Visit, body: Bytes) -> Act {
    let form = Form::read(&body)?;
    let query = chosen(&form)?;
    let filter = dead_filter(&query, visit.ui.now)?;
    let pace = pace(&form)?;
    let reason = form.reason();
    let about = about(&query);
    let new = NewReplay {
        selection: Selection { filter, limit: None },
        about,
        created_by: Some(principal.who.clone()),
        reason: reason.clone(),
        pace,
        edit: None,
        driver: None,
    };
    let asked = new.about.to_string();
    let job = app.store.create_replay(new).await?;
    let target = format!("job {}: {asked}", job.id);
    record(&app, &principal, "replay.create", &target, reason, job.counts.waiting).await?;
    visit.console.changes.tell();
    Ok(done(&format!("/replays/{}", job.id), "replay", job.counts.waiting))
}

/// What was asked for, for people.
fn about(query: &Query) -> serde_json::Value {
    let mut about = serde_json::Map::new();
    for (name, value) in query.pairs() {
        match about.get_mut(&name) {
            Some(serde_json::Value::String(before)) => {
                before.push(' ');
                before.push_str(&value);
            }
            _ => {
                about.insert(name, value.into());
            }
        }
    }
    about.into()
}

fn pace(form: &Form) -> Result<Pace, Problem> {
    let rate_per_s = form.get("rate").map(rate).transpose()?;
    let max_failure_ratio = form.get("max_failure_ratio").map(share).transpose()?;
    crate::desk::replays::pace(rate_per_s, form.get("ramp") == Some("true"), max_failure_ratio)
        .map_err(|why| Problem::invalid("max_failure_ratio", why))
}

/// `20/s`, `300/min`, `20`: letters a second.
fn rate(text: &str) -> Result<f64, Problem> {
    let bad = || Problem::invalid("rate", "expected letters a second, minute or hour such as 20/s, 300/min");
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let number: f64 = number.trim().parse().map_err(|_| bad())?;
    let per_s = match unit.trim() {
        "s" => number,
        "min" => number / 60.0,
        "h" => number / 3_600.0,
        _ => return Err(bad()),
    };
    if per_s.is_normal() && per_s > 0.0 && per_s <= 1_000_000.0 { Ok(per_s) } else { Err(bad()) }
}

/// `0.2`, `20 %`: 0 to 1.
fn share(text: &str) -> Result<f64, Problem> {
    let bad = || Problem::invalid("max_failure_ratio", "expected a share from 0 to 1 such as 0.2, or 20 %");
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    share.ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(bad)
}

async fn discard(State(app): State<Arc<App>>, principal: Principal, visit: Visit, body: Bytes) -> Act {
    let form = Form::read(&body)?;
    let reason = form.needed_reason()?;
    let query = chosen(&form)?;
    let filter = dead_filter(&query, visit.ui.now)?;
    let tally = discard_chosen(&*app.store, &filter, None, &reason, false).await?;
    let discarded = i64::try_from(tally.discarded).unwrap_or(i64::MAX);
    record(&app, &principal, "dlq.discard", &about(&query).to_string(), Some(reason), discarded).await?;
    visit.console.changes.tell();
    Ok(done("/dead", if discarded > 0 { "discarded" } else { "skipped" }, discarded))
}

async fn discard_one(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    principal: Principal,
    visit: Visit,
    body: Bytes,
) -> Act {
    let reason = Form::read(&body)?.needed_reason()?;
    one(&app, &principal, &visit, (TaskAct::Discard, "dlq.discard", "discarded"), &id, Some(reason)).await
}

async fn note(State(app): State<Arc<App>>, principal: Principal, visit: Visit, body: Bytes) -> Act {
    let form = Form::read(&body)?;
    let by = group_by(form.query())?;
    let key = form.query().get("key").ok_or_else(|| Problem::invalid("key", "which group?"))?.to_owned();
    let text = |name: &str| form.get(name).map(|text| text.chars().take(1_000).collect::<String>());
    let note = GroupNote {
        key: key.clone(),
        owner: text("owner"),
        note: text("note"),
        noted_by: Some(principal.who.clone()),
        noted_at: 0,
    };
    app.store.note_group(&by, note).await?;
    record(&app, &principal, "group.note", &format!("{by}={key}"), None, 1).await?;
    visit.console.changes.tell();
    Ok(done(&link::to("/dead/group", [("by", by.to_string()), ("key", key)]), "noted", 1))
}

async fn ask_edit(State(app): State<Arc<App>>, Path(id): Path<String>, principal: Principal, visit: Visit) -> Page {
    principal.need(Role::Editor)?;
    let task = find(&app, &id, visit.ui.lang).await?;
    let (payload, _) = payload(&app, &task, &principal);
    html(task::render_edit(&EditView { task, payload, patch: String::new(), outcome: None }, &visit.ui))
}

/// Shows what a patch would change, or makes a job of the one letter with it: other jobs and this one are driven the same way.
async fn edit(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    principal: Principal,
    visit: Visit,
    body: Bytes,
) -> Result<Response, Problem> {
    principal.need(Role::Editor)?;
    let form = Form::read(&body)?;
    let task = find(&app, &id, visit.ui.lang).await?;
    let patch = form.get("patch").unwrap_or_default().to_owned();
    let edit = PayloadEdit::parse(&patch, Some(principal.who.clone()));
    let preview = edit
        .as_ref()
        .map_err(ToString::to_string)
        .and_then(|edit| edit.preview(&task, visit.ui.now).map_err(|error| error.to_string()));
    let edit = match (edit, &preview) {
        (Ok(edit), Ok(_)) if form.get("look").is_none() => edit,
        _ => {
            let (payload, _) = payload(&app, &task, &principal);
            let view = EditView { task, payload, patch, outcome: Some(preview) };
            return Ok(Html(task::render_edit(&view, &visit.ui).into_string()).into_response());
        }
    };
    let reason = form.reason();
    let new = NewReplay {
        selection: Selection {
            filter: Filter { ids: vec![id.clone()], statuses: vec![Status::Dead], ..Filter::default() },
            limit: None,
        },
        about: serde_json::json!({ "id": id }),
        created_by: Some(principal.who.clone()),
        reason: reason.clone(),
        pace: Pace::default(),
        edit: Some(edit.to_json()),
        driver: None,
    };
    let job = app.store.create_replay(new).await?;
    record(&app, &principal, "dlq.edit", &id, reason, job.counts.waiting).await?;
    visit.console.changes.tell();
    let to: Redirect = done(&format!("/replays/{}", job.id), "edited", 1);
    Ok(to.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::replay::DEFAULT_MAX_FAILURE_RATIO;

    #[test]
    fn rates_and_shares_are_read_or_refused() {
        assert_eq!(rate("20/s").ok(), Some(20.0));
        assert_eq!(rate("300/min").ok(), Some(5.0));
        assert_eq!(rate("7").ok(), Some(7.0));
        assert_eq!((share("0.2").ok(), share("20 %").ok()), (Some(0.2), Some(0.2)));
        for bad in ["", "0/s", "-1", "x/s", "1/day", "inf", "NaN/s", "1e400/s", "5e-324/h"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        for bad in ["", "1.1", "-0.1", "x", "120%", "NaN"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    fn form(text: &'static str) -> Form {
        Form::read(&Bytes::from_static(text.as_bytes())).unwrap()
    }

    #[test]
    fn a_ramp_whose_bound_was_emptied_has_the_bound_that_every_ramp_has() {
        let bound = |text| pace(&form(text)).unwrap().max_failure_ratio;
        assert_eq!(bound("ramp=true&max_failure_ratio="), Some(DEFAULT_MAX_FAILURE_RATIO));
        assert_eq!(bound("ramp=true&max_failure_ratio=0.2"), Some(0.2));
        assert_eq!(bound("max_failure_ratio="), None);
    }

    #[test]
    fn a_form_that_chooses_nothing_or_by_a_mistyped_name_does_not_mean_everything() {
        for refused in [
            "reason=x",
            "csrf=t&reason=x&rate=20/s&ramp=true&max_failure_ratio=0.2",
            "reason=x&class=",
            "reason=x&all=1",
            "reason=x&reason_is=poison",
            "reason=x&type=order.ship&reason_is=poison",
            "reason=x&status=dead",
            "reason=x&cursor=7",
        ] {
            assert!(chosen(&form(refused)).is_err(), "{refused}");
        }
        let query = chosen(&form("csrf=t&reason=x&rate=&reason-is=poison&until=2026-01-31")).unwrap();
        assert_eq!(query.pairs().len(), 2, "{query:?}");
    }

    #[test]
    fn a_group_lists_the_letters_it_counts() {
        let by = LetterGroupBy::Label("shop".into());
        assert_eq!(filter_of(&by, Some("s-1")), Some(("label".into(), "shop=s-1".into())));
        assert_eq!(filter_of(&LetterGroupBy::Reason, Some("poison")), Some(("reason-is".into(), "poison".into())));
        assert_eq!(filter_of(&by, None), None);
    }
}
