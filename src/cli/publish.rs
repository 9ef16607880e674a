//! `redeliver publish`

use std::io::Read;
use std::sync::Arc;

use anyhow::Context as _;
use redeliver::desk::submit::Submission;
pub use redeliver::desk::submit::complete;
use redeliver::desk::task::ResultDocument;
use redeliver::desk::to_json;
use redeliver::producer::{Accepted, ProduceError, Producer};
use redeliver::store::Store;
use redeliver::task::{Envelope, Status, Task, TraceContext, canonical_payload_hash};
use reqwest::Method;
use serde_json::{Value, json};

use super::batch;
use super::confirm::Consent;
use super::context::{Context, Door as CliDoor, open_broker};
use super::exit::{self, Exit};
use super::filter::{Moment, label, moment};
use super::output::Document;
use super::remote::Remote;
use super::wait;

/// Publish a task, or a file of them
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redeliver publish order.ship --payload '{\"order\": 4711}' --label shop=s-17
  redeliver publish report.render --payload @report.json --not-before 10m --priority 5
  redeliver publish order.ship --id order-4711 --payload - --wait --timeout 2m < order.json
  redeliver publish --batch tasks.jsonl      # one envelope a line: {\"type\": …, \"payload\": …}

Prints the id and whether it was accepted. Exits 1 if the broker has no queue for it or did not confirm it; publishing the
same id again is safe. With --wait: exits 0 if it succeeded (perhaps degraded: by a fallback, which it says), 1 if it ended otherwise or --timeout was over; a task that had
ended before answers with its stored result, marked already_done.")]
pub struct Args {
    /// The task type: words separated by dots
    #[arg(value_name = "TYPE", required_unless_present = "batch")]
    task_type: Option<String>,
    /// JSON, @FILE, or - for stdin [default: null]
    #[arg(long, value_name = "JSON|@FILE|-")]
    payload: Option<String>,
    /// Labels, which policies, filters and reports go by
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Unique; publishing it again is the same task [default: a fresh UUIDv7]
    #[arg(long)]
    id: Option<String>,
    /// The same on every attempt; publishing it again is the same task [default: the id]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Not to run before: in `10m`, or RFC 3339
    #[arg(long, value_name = "T", value_parser = moment)]
    not_before: Option<Moment>,
    /// No attempt starts after: in `2h`, or RFC 3339
    #[arg(long, value_name = "T", value_parser = moment)]
    deadline: Option<Moment>,
    /// 0 to 9, higher first within a worker's buffer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..=9))]
    priority: Option<i64>,
    /// Names the last good result that a fallback may use
    #[arg(long, value_name = "KEY")]
    cache_key: Option<String>,
    /// The AMQP queue to which the result is sent
    #[arg(long, value_name = "QUEUE")]
    reply_to: Option<String>,
    /// A file of envelopes, one JSON object a line; - for stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["task_type", "payload", "labels", "id", "idempotency_key", "not_before",
        "deadline", "priority", "cache_key", "reply_to", "wait"])]
    batch: Option<String>,
    /// Wait for the end and print the result
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    consent: Consent,
}

/// Publishes.
///
/// # Errors
/// With an exit code in the chain where one fits.
pub async fn run(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    match &args.batch {
        Some(file) => {
            context.needs_store()?;
            batch::run(context, file, args.consent.dry_run).await
        }
        None => single(args, context).await,
    }
}

async fn single(args: &Args, context: &Context) -> anyhow::Result<Exit> {
    let mut envelope = envelope_of(args)?;
    complete(&mut envelope);
    let body = envelope.to_bytes().map_err(|error| exit::error(Exit::Usage, format!("envelope: {error}")))?;
    check_size(&body, context)?;
    if args.consent.dry_run {
        let text = String::from_utf8_lossy(&body).into_owned();
        let json = serde_json::from_slice(&body)?;
        context.printer.one(&Document {
            name: envelope.id.unwrap_or_default(),
            lines: vec![("would publish", text)],
            tables: Vec::new(),
            json,
        })?;
        return Ok(Exit::Done);
    }
    if let Some(remote) = context.remote() {
        return through(context, remote, body, args.wait).await;
    }
    let store = if args.wait { Some(context.store_or_new().await?) } else { None };
    let id = envelope.id.clone().unwrap_or_default();
    // Looked up before it is published: only then is it known whether this task had ended already.
    let before = match &store {
        Some(store) => {
            context.bound("the store", store.get(std::slice::from_ref(&id))).await??.into_iter().next().flatten()
        }
        None => None,
    };
    let door = Door::open(context, store.clone()).await?;
    let expected_hash = payload_hash(&envelope);
    let accepted = context.bound("the broker", door.producer.publish(door.prepared(envelope))).await?;
    door.close().await;
    let accepted = match accepted {
        Ok(accepted) => accepted,
        Err(error) => return refused(context, &id, &error),
    };
    match store {
        None => {
            context.printer.one(&acceptance(&accepted))?;
            Ok(Exit::Done)
        }
        Some(store) => {
            let already_done = before.is_some_and(|task| task.state.status.is_ended())
                || accepted.already.is_some_and(Status::is_ended);
            outcome(context, store, &accepted.id, already_done, &expected_hash).await
        }
    }
}

/// Waits for the end, and prints it.
async fn outcome(
    context: &Context,
    store: Arc<dyn Store>,
    id: &str,
    already_done: bool,
    expected_hash: &str,
) -> anyhow::Result<Exit> {
    let door = CliDoor::Store(Arc::clone(&store));
    let waited = wait::until_ended(context, &door, std::slice::from_ref(&id.to_owned())).await?;
    let task = context.bound_last("the store", store.get(&[id.to_owned()])).await??.pop().flatten();
    if let Some(task) = &task
        && hash_of(task) != *expected_hash
    {
        let text = format!(
            "task {id:?} has another payload: yours was refused; see `redeliver dlq list --reason-is duplicate_conflict`"
        );
        return Err(exit::error(Exit::Conflict, text));
    }
    let result = match &task {
        Some(task) if task.state.status.is_ended() => {
            context.bound_last("the store", store.result(task.id())).await??
        }
        _ => None,
    };
    let state = task.as_ref().map(|task| &task.state);
    let submission = Submission {
        id: id.to_owned(),
        accepted: true,
        already_done,
        status: state.map(|state| state.status),
        dead_reason: state.and_then(|state| state.dead_reason),
        degraded: state.and_then(|state| state.degraded.clone()),
        result: result.as_ref().map(ResultDocument::of),
    };
    let failure = state.and_then(|state| state.failure.as_ref());
    let error = failure.map(|failure| format!("{}: {}", failure.class, failure.message));
    print_outcome(context, &submission, error, waited.all_ended)
}

fn print_outcome(
    context: &Context,
    submission: &Submission,
    error: Option<String>,
    has_ended: bool,
) -> anyhow::Result<Exit> {
    let mut lines = vec![
        ("id", submission.id.clone()),
        ("accepted", "yes".into()),
        ("already_done", if submission.already_done { "yes" } else { "no" }.into()),
        ("status", submission.status.map_or_else(|| "unknown".into(), |status| status.to_string())),
    ];
    if let Some(reason) = submission.dead_reason {
        lines.push(("dead_reason", reason.to_string()));
    }
    if let Some(by) = submission.degraded.clone() {
        lines.push(("degraded", by));
    }
    if let Some(error) = error {
        lines.push(("error", error));
    }
    if let Some(result) = &submission.result {
        let body = match (&result.body, &result.body_base64) {
            (Some(Value::String(text)), _) => text.clone(),
            (Some(json), _) => json.to_string(),
            (None, base64) => base64.clone().unwrap_or_default(),
        };
        lines.push(("result", body));
    }
    let json = to_json(submission);
    context.printer.one(&Document { name: submission.id.clone(), lines, tables: Vec::new(), json })?;
    if !has_ended {
        return Err(exit::error(Exit::Failed, "--timeout is over and the task has not ended"));
    }
    Ok(if submission.status == Some(Status::Succeeded) { Exit::Done } else { Exit::Failed })
}

/// The same through a server, which commits the task itself.
async fn through(context: &Context, remote: &Remote, body: Vec<u8>, waits: bool) -> anyhow::Result<Exit> {
    let bytes = context.bound("the server", remote.bytes(Method::POST, &["tasks"], None, Some(body))).await??;
    let mut submission: Submission = serde_json::from_slice(&bytes).context("the server answered something else")?;
    if !waits {
        let already = submission.status.filter(|_| submission.already_done);
        context.printer.one(&acceptance(&Accepted { id: submission.id, already }))?;
        return Ok(Exit::Done);
    }
    let id = submission.id.clone();
    let door = CliDoor::Api(remote);
    let waited = wait::until_ended(context, &door, std::slice::from_ref(&id)).await?;
    let detail = wait::detail(context, &door, &id).await?;
    submission.status = Some(detail.task.status);
    submission.dead_reason = detail.task.dead_reason;
    submission.degraded = detail.task.degraded;
    submission.result = detail.result;
    let error = detail.task.failure.map(|failure| format!("{}: {}", failure.class, failure.message));
    print_outcome(context, &submission, error, waited.all_ended)
}

fn acceptance(accepted: &Accepted) -> Document {
    let mut json = json!({ "id": accepted.id, "accepted": true });
    let mut lines = vec![("id", accepted.id.clone()), ("accepted", "yes".into())];
    if let Some(status) = accepted.already {
        json["already"] = status.as_str().into();
        lines.push(("already", status.to_string()));
    }
    Document { name: accepted.id.clone(), lines, tables: Vec::new(), json }
}

fn refused(context: &Context, id: &str, error: &ProduceError) -> anyhow::Result<Exit> {
    let text = error.to_string();
    let lines = vec![("id", id.to_owned()), ("accepted", "no".into()), ("error", text.clone())];
    let json = json!({ "id": id, "accepted": false, "error": text });
    context.printer.one(&Document { name: id.to_owned(), lines, tables: Vec::new(), json })?;
    Err(exit::error(exit_of(error), text))
}

fn exit_of(error: &ProduceError) -> Exit {
    match error {
        ProduceError::Invalid(_) => Exit::Usage,
        ProduceError::Conflict { .. } => Exit::Conflict,
        ProduceError::Store(error) => exit::of_store(error),
        ProduceError::Unroutable { .. } | ProduceError::Unconfirmed { .. } => Exit::Failed,
    }
}

/// Where submissions go: to the broker, or beside the embedded one into the store.
pub struct Door {
    /// Publishes.
    pub producer: Producer,
    broker: Arc<dyn redeliver::broker::Broker>,
    embedded: bool,
}

impl Door {
    /// Opens it; reaches the broker, so that an unreachable one is an error here.
    ///
    /// # Errors
    /// When broker or store do not answer.
    pub async fn open(context: &Context, store: Option<Arc<dyn Store>>) -> anyhow::Result<Door> {
        let embedded = context.config().broker.is_embedded();
        let broker = open_broker(context.config())?;
        let producer = if embedded {
            let store = match store {
                Some(store) => store,
                None => context.store_or_new().await?,
            };
            let config = context.config().clone();
            Producer::embedded(broker.clone(), store, move |task_type| config.queue_of(task_type).to_owned())
        } else {
            context.bound("the broker", broker.connect()).await??;
            Producer::new(broker.clone())
        };
        Ok(Door { producer, broker, embedded })
    }

    /// The embedded broker lives in the worker's process, so this one cannot wake it. A row that is due a moment ahead has its due time as
    /// its alarm and nothing outstanding: the worker's scheduler takes it at its next look.
    pub fn prepared(&self, envelope: Envelope) -> Envelope {
        const AHEAD_MS: i64 = 50;
        if !self.embedded || envelope.not_before.is_some() {
            return envelope;
        }
        envelope.not_before(now() + AHEAD_MS)
    }

    /// Closes the broker's session.
    pub async fn close(&self) {
        self.broker.close().await;
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

fn envelope_of(args: &Args) -> anyhow::Result<Envelope> {
    let mut envelope = Envelope::new(args.task_type.clone().unwrap_or_default());
    if let Some(payload) = &args.payload {
        let text = payload_text(payload)?;
        envelope = envelope
            .payload_text(text.trim())
            .map_err(|error| exit::error(Exit::Usage, format!("--payload is not JSON: {error}")))?;
    }
    for (name, value) in &args.labels {
        envelope = envelope.label(name, value);
    }
    envelope.id.clone_from(&args.id);
    envelope.idempotency_key.clone_from(&args.idempotency_key);
    envelope.priority = args.priority;
    envelope.cache_key.clone_from(&args.cache_key);
    envelope.reply_to.clone_from(&args.reply_to);
    // A command that a traced program starts, such as a handler's, is part of its trace.
    envelope.trace = std::env::var("TRACEPARENT")
        .ok()
        .and_then(|parent| TraceContext::read(&parent, std::env::var("TRACESTATE").ok().as_deref()));
    if let Some(moment) = args.not_before {
        envelope = envelope.not_before(moment.resolve_ahead(now()));
    }
    if let Some(moment) = args.deadline {
        envelope = envelope.deadline(moment.resolve_ahead(now()));
    }
    Ok(envelope)
}

fn payload_text(payload: &str) -> anyhow::Result<String> {
    if payload == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).context("cannot read the payload from stdin")?;
        return Ok(text);
    }
    match payload.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| exit::error(Exit::Usage, format!("--payload: cannot read {path}: {error}"))),
        None => Ok(payload.to_owned()),
    }
}

fn check_size(body: &[u8], context: &Context) -> anyhow::Result<()> {
    let most = context.config().worker.max_body;
    if body.len() <= most {
        return Ok(());
    }
    let text = format!("the envelope has {} bytes; workers refuse more than worker.max_body, {most}", body.len());
    Err(exit::error(Exit::Usage, text))
}

fn payload_hash(envelope: &Envelope) -> String {
    let payload = envelope.payload.as_ref().map_or("null", |payload| payload.get());
    canonical_payload_hash(envelope.task_type.as_deref().unwrap_or_default(), payload)
}

/// Rows that others inserted have no hash until somebody compares them.
fn hash_of(task: &Task) -> String {
    if task.spec.payload_hash.is_empty() {
        return canonical_payload_hash(&task.spec.task_type, &task.spec.payload);
    }
    task.spec.payload_hash.clone()
}
