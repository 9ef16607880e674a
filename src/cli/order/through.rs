//! The same through a server: it makes the job, and its workers carry it out.

use redeliver::desk::filter::FilterText;
use redeliver::desk::replays::{Preview, ReplayDocument};
use redeliver::store::ReplayState;
use serde_json::{Value, json};

use super::super::filter::now;
use super::{Args, LOOK, print_preview};
use crate::cli::context::Context;
use crate::cli::exit::{self, Exit};
use crate::cli::letters::Tally;
use crate::cli::remote::Remote;

/// Orders a job and watches it until its last letter is put to run.
pub(super) async fn run(args: &Args, context: &Context, remote: &Remote) -> anyhow::Result<Exit> {
    let filter = args.choice.to_filter(now())?;
    let by_id = !filter.ids.is_empty();
    let edit = match args.edit()? {
        None => Value::Null,
        Some(text) => serde_json::from_str(&text)
            .map_err(|error| exit::error(Exit::Usage, format!("--edit-payload: no JSON: {error}")))?,
    };
    let mut body = json!({
        "filter": FilterText::of(&filter),
        "all": true,
        "limit": args.choice.limit(),
        "rate": args.rate.map(|per_s| format!("{per_s}/s")),
        "ramp": args.ramp,
        "max_failure_ratio": args.max_failure_ratio,
        "edit_payload": edit,
        "reason": args.consent.reason,
        "dry_run": true,
    });
    let preview: Preview = context.bound("the server", remote.post(&["replays"], &body)).await??;
    if args.consent.dry_run || preview.replayed == 0 {
        return print_preview(context, preview, by_id, args.consent.dry_run);
    }
    args.consent.ask(&format!("Replay {} dead letters?", preview.replayed))?;
    body["dry_run"] = false.into();
    let mut job: ReplayDocument = context.bound("the server", remote.post(&["replays"], &body)).await??;
    context.say(format!("replay job {}", job.id));
    let id = job.id.to_string();
    let runs = |job: &ReplayDocument| {
        matches!(job.state, ReplayState::Selecting | ReplayState::Running) && job.counts.waiting > 0
    };
    while !args.detach && runs(&job) {
        if context.deadline().is_some_and(|deadline| std::time::Instant::now() >= deadline) {
            let why = json!({ "reason": "the command's --timeout was over" });
            job = context.bound_last("the server", remote.post(&["replays", &id, "cancel"], &why)).await??;
            break;
        }
        tokio::time::sleep(LOOK).await;
        job = context.bound_last("the server", remote.get(&["replays", &id], &())).await??;
    }
    let more =
        if args.detach { vec![("job", json!(job.id)), ("waiting", json!(job.counts.waiting))] } else { Vec::new() };
    let tally = Tally {
        verb: "replayed",
        done: job.counts.replayed,
        left: job.counts.waiting,
        skipped: job.counts.skipped.clone(),
        by_id,
        more,
        ..Tally::default()
    };
    let exit = tally.print(context)?;
    if args.detach {
        return Ok(Exit::Done);
    }
    match job.state {
        ReplayState::Stopped | ReplayState::Cancelled | ReplayState::Paused if job.counts.waiting > 0 => {
            let why = job.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            let text = format!("replay job {} is {}{why}; the rest was not replayed", job.id, job.state.as_str());
            Err(exit::error(Exit::Partly, text))
        }
        _ => Ok(exit),
    }
}
