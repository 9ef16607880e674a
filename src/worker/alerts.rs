//! Turns what is wrong into tasks that tell somebody.
//!
//! Alerts come from this worker's events and from a look at the store now and then. Each becomes one task for each webhook that wants to
//! hear of it, inserted here and run like every other; its id makes sure that all workers together tell it once. An alert that cannot
//! be inserted because the store is away is lost: nobody could be told anything else either, and the log has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::store::{Alarm, Clock, Filter, LetterGroupBy, StoreError, Urgency};
use crate::task::{Answer, Command, Millis, Origin, ReadSubmission, read_submission};
use crate::telemetry::alert::{ALERT_TYPE, Alert, COPY_PATIENCE_MS, Findings, Sent, judge, of_event};
use crate::telemetry::{Event, Observer};

use super::Shared;
use super::outbox::Letter;

/// Between two looks at the store.
const LOOK: Duration = Duration::from_secs(30);
/// Types whose letters one look sees, those with most letters first.
const TYPES: usize = 500;
/// Copies whose letters one look sees.
const COPIES: usize = 50;
/// Alerts that wait to be inserted. More at once say nothing more.
const WAITING: usize = 256;

/// Passes on what events are worth.
pub(super) struct AlertObserver(mpsc::Sender<Alert>);

impl AlertObserver {
    /// An observer and its feed.
    pub fn new() -> (AlertObserver, mpsc::Receiver<Alert>) {
        let (sender, feed) = mpsc::channel(WAITING);
        (AlertObserver(sender), feed)
    }
}

impl Observer for AlertObserver {
    fn observe(&self, event: &Event<'_>) {
        // Events carry no time; this is only for the window in which an alert is told once.
        if let Some(alert) = of_event(event, Clock::System.now())
            && self.0.try_send(alert).is_err()
        {
            tracing::debug!("an alert too many at once");
        }
    }
}

/// Runs until the worker ends.
pub(super) async fn run(shared: Arc<Shared>, mut feed: mpsc::Receiver<Alert>) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = shared.stop_all.cancelled() => return,
            Some(alert) = feed.recv() => tell(&shared, vec![alert]).await,
            _ = looks.tick() => {
                if shared.rules().webhooks.is_empty() {
                    continue;
                }
                match look(&shared).await {
                    Ok(found) => tell(&shared, judge(&found, shared.store.now())).await,
                    Err(error) => shared.store_is_down(&error),
                }
            }
        }
    }
}

async fn look(shared: &Shared) -> Result<Findings, StoreError> {
    let (store, now) = (&shared.store, shared.store.now());
    let types = store.letter_groups(&LetterGroupBy::Type, &Filter::default(), TYPES).await?;
    let lag_ms = store.next_alarm().await?.map_or(0, |alarm| now - alarm);
    let mut digests = BTreeMap::new();
    for node in store.nodes().await? {
        *digests.entry(node.hash).or_insert(0) += 1;
    }
    // A refused copy is sent again and again, so it is among the next ones at some look; its letter's age gives it away.
    let wanted = store.alarms(Alarm::Copy, Millis::MAX, COPIES).await?;
    let old = wanted.iter().filter(|task| task.state.ended_at.is_some_and(|ended| ended < now - COPY_PATIENCE_MS));
    let stuck_copies: BTreeSet<String> = old.map(|task| task.queue().to_owned()).collect();
    Ok(Findings { types, lag_ms, digests, stuck_copies: stuck_copies.into_iter().collect() })
}

/// Inserts the tasks that bring alerts to webhooks.
async fn tell(shared: &Shared, alerts: Vec<Alert>) {
    let rules = shared.rules();
    let now = shared.store.now();
    let mut commands = Vec::new();
    for alert in alerts {
        tracing::debug!(kind = alert.kind.as_str(), summary = alert.summary, "worth an alert");
        for webhook in rules.webhooks.iter().filter(|webhook| webhook.kinds.contains(&alert.kind)) {
            let id = alert.task_id(&webhook.name);
            let sent = Sent { webhook: webhook.name.clone(), alert: alert.clone() };
            // Without a type, which comes from the routing key: a submission that names this one itself is refused.
            let body = serde_json::json!({ "id": id, "payload": sent }).to_string();
            let origin = Origin { routing_key: ALERT_TYPE.into(), ..Origin::default() };
            let queue_of = |task_type: &str| shared.queue_of(task_type).to_owned();
            match read_submission(body.as_bytes(), &origin, body.len(), now, queue_of, || id.clone()) {
                ReadSubmission::New(mut new) => {
                    new.publish = true;
                    // Whoever sees the same a moment later words it with other numbers; it is the same alert and no conflict.
                    new.spec_mut().payload_hash.clone_from(&id);
                    commands.push(Command::Submit(Box::new(new)));
                }
                ReadSubmission::Refused(refusal) => {
                    tracing::error!(reason = refusal.failure.message, "an alert that is no submission");
                }
            }
        }
    }
    if commands.is_empty() {
        return;
    }
    match shared.store.apply(Urgency::Normal, commands).await {
        Ok(answers) => {
            for answer in answers {
                // The others were told before, by this worker or another.
                if let Answer::Publish(wake_up) = answer {
                    shared.outbox.send(Letter::WakeUp(wake_up));
                }
            }
        }
        Err(error) => shared.store_is_down(&error),
    }
}
