//! `redeliver publish --batch`: many envelopes, each line with its own fate.

use std::io::{BufRead, BufReader, IsTerminal};

use anyhow::Context as _;
use redeliver::task::Envelope;
use serde_json::{Value, json};

use super::context::Context;
use super::exit::{self, Exit};
use super::output::{Entry, Listing};
use super::publish::{Door, complete};

/// Envelopes that are published together.
const BATCH: usize = 500;

/// One line of a batch.
enum Line {
    Good(Box<Envelope>),
    Bad(String),
}

/// Publishes the envelopes in `file`, or in stdin for `-`.
///
/// # Errors
/// When the file cannot be read, or broker or store do not answer.
pub async fn run(context: &Context, file: &str, dry_run: bool) -> anyhow::Result<Exit> {
    let reader: Box<dyn BufRead> = if file == "-" {
        if std::io::stdin().is_terminal() {
            return Err(exit::error(Exit::Usage, "--batch - reads envelopes from stdin, which is a terminal"));
        }
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        let opened = std::fs::File::open(file);
        let opened =
            opened.map_err(|error| exit::error(Exit::Usage, format!("--batch: cannot read {file}: {error}")))?;
        Box::new(BufReader::new(opened))
    };
    let door = if dry_run { None } else { Some(Door::open(context, None).await?) };
    let mut report = BatchReport::new();
    let mut lines: Vec<(usize, Line)> = Vec::new();
    for (index, line) in reader.split(b'\n').enumerate() {
        let line = line.with_context(|| format!("cannot read {file}"))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        lines.push((index + 1, read_line(&line, context)));
        if lines.len() == BATCH {
            publish_lines(context, door.as_ref(), std::mem::take(&mut lines), &mut report).await?;
        }
    }
    publish_lines(context, door.as_ref(), lines, &mut report).await?;
    if let Some(door) = door {
        door.close().await;
    }
    context.printer.list(&report.listing)?;
    Ok(report.exit())
}

fn read_line(line: &[u8], context: &Context) -> Line {
    let mut envelope = match Envelope::read(line) {
        Ok(envelope) => envelope,
        Err(error) => return Line::Bad(error.to_string()),
    };
    if envelope.task_type.is_none() {
        return Line::Bad("`type` is missing; a batch has no other routing key".into());
    }
    complete(&mut envelope);
    match envelope.to_bytes() {
        Ok(body) if body.len() <= context.config().worker.max_body => Line::Good(Box::new(envelope)),
        Ok(body) => Line::Bad(format!("{} bytes are more than worker.max_body", body.len())),
        Err(error) => Line::Bad(error.to_string()),
    }
}

/// Publishes the good lines together and notes every line in order.
async fn publish_lines(
    context: &Context,
    door: Option<&Door>,
    lines: Vec<(usize, Line)>,
    report: &mut BatchReport,
) -> anyhow::Result<()> {
    let mut envelopes = Vec::new();
    let mut notes: Vec<(usize, String, Option<String>)> = Vec::new();
    for (number, line) in lines {
        match line {
            Line::Good(envelope) => {
                notes.push((number, envelope.id.clone().unwrap_or_default(), None));
                envelopes.push(door.map_or_else(|| (*envelope).clone(), |door| door.prepared((*envelope).clone())));
            }
            Line::Bad(why) => notes.push((number, String::new(), Some(why))),
        }
    }
    let mut results = match door {
        Some(door) if !envelopes.is_empty() => {
            context.bound("the broker", door.producer.publish_all(envelopes)).await?.into_iter()
        }
        _ => Vec::new().into_iter(),
    };
    for (number, id, why_bad) in notes {
        let error = match why_bad {
            Some(why) => Some(why),
            None if door.is_none() => None,
            None => match results.next() {
                Some(Ok(_)) => None,
                Some(Err(error)) => Some(error.to_string()),
                None => Some("it was not sent".into()),
            },
        };
        report.push(number, &id, error);
    }
    Ok(())
}

struct BatchReport {
    listing: Listing,
    accepted: usize,
    refused: usize,
}

impl BatchReport {
    fn new() -> BatchReport {
        BatchReport { listing: Listing::new(&["line", "id", "accepted", "error"]), accepted: 0, refused: 0 }
    }

    fn push(&mut self, line: usize, id: &str, error: Option<String>) {
        let accepted = error.is_none();
        if accepted {
            self.accepted += 1
        } else {
            self.refused += 1
        }
        let cells = vec![
            line.to_string(),
            id.to_owned(),
            if accepted { "yes" } else { "no" }.into(),
            error.clone().unwrap_or_default(),
        ];
        let id_json = if id.is_empty() { Value::Null } else { id.into() };
        let json = json!({ "line": line, "id": id_json, "accepted": accepted, "error": error });
        self.listing.push(Entry { name: id.to_owned(), cells, json });
    }

    fn exit(&self) -> Exit {
        match (self.accepted, self.refused) {
            (_, 0) => Exit::Done,
            (0, _) => Exit::Failed,
            _ => Exit::Partly,
        }
    }
}
