//! Publishing tasks from Rust.
//!
//! A producer gives a submission to whoever keeps it from then on: the broker (a confirm means it is on disk there, in a quorum
//! queue), or, beside an embedded broker, the store itself. It never retries by itself: a submission that is not known to be
//! accepted may be published again with the same id, and stays one task.

use std::sync::Arc;

use thiserror::Error;

use crate::broker::{Broker, Published, submission, trace_headers, wake_up};
use crate::store::{Store, StoreError, Urgency};
use crate::task::{
    Answer, Command, DeadReason, Envelope, Origin, ReadSubmission, Status, SubmissionError, read_submission,
};

/// Publishes submissions.
#[derive(Clone)]
pub struct Producer {
    broker: Arc<dyn Broker>,
    rows: Option<Rows>,
}

/// For the embedded broker: rows are inserted here.
#[derive(Clone)]
struct Rows {
    store: Arc<dyn Store>,
    queue_of: Arc<dyn Fn(&str) -> String + Send + Sync>,
}

/// A submission that is safe now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The task's id.
    pub id: String,
    /// Whether this task was there already (only known when the store was asked).
    pub already: Option<Status>,
}

/// Why a submission is not known to be safe.
#[derive(Debug, Error)]
pub enum ProduceError {
    /// It would be refused as malformed.
    #[error(transparent)]
    Invalid(#[from] SubmissionError),
    /// No queue takes this type: the topology is not declared, or its default queue is gone.
    #[error("task {id:?} is unroutable: no queue takes type {task_type:?}; declare the topology first")]
    Unroutable {
        /// The task.
        id: String,
        /// Its type.
        task_type: String,
    },
    /// The broker did not confirm it. It may be there; publish it again with the same id.
    #[error("task {id:?} was not confirmed: {reason}; publishing it again with the same id is safe")]
    Unconfirmed {
        /// The task.
        id: String,
        /// What happened.
        reason: String,
    },
    /// Its id or key belongs to another payload.
    #[error("task {id:?} conflicts with task {with:?}: same id or idempotency key, another payload")]
    Conflict {
        /// The refused one.
        id: String,
        /// The one that was first.
        with: String,
    },
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Producer {
    /// Publishes to a broker; an id is given to what has none.
    pub fn new(broker: Arc<dyn Broker>) -> Producer {
        Producer { broker, rows: None }
    }

    /// Inserts rows into `store` and wakes the embedded `broker`.
    pub fn embedded(
        broker: Arc<dyn Broker>,
        store: Arc<dyn Store>,
        queue_of: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Producer {
        Producer { broker, rows: Some(Rows { store, queue_of: Arc::new(queue_of) }) }
    }

    /// Publishes one.
    ///
    /// # Errors
    /// When it is not known to be safe; see [`ProduceError`].
    pub async fn publish(&self, envelope: Envelope) -> Result<Accepted, ProduceError> {
        let mut results = self.publish_all(vec![envelope]).await;
        results
            .pop()
            .unwrap_or_else(|| Err(ProduceError::Unconfirmed { id: String::new(), reason: "no answer".to_owned() }))
    }

    /// Publishes many, pipelined; results by input index.
    pub async fn publish_all(&self, envelopes: Vec<Envelope>) -> Vec<Result<Accepted, ProduceError>> {
        let mut results: Vec<Option<Result<Accepted, ProduceError>>> = Vec::with_capacity(envelopes.len());
        let mut ready = Vec::new();
        for mut envelope in envelopes {
            envelope.id.get_or_insert_with(|| uuid::Uuid::now_v7().to_string());
            match envelope.to_bytes() {
                Ok(body) => {
                    ready.push((results.len(), envelope, body));
                    results.push(None);
                }
                Err(error) => results.push(Some(Err(error.into()))),
            }
        }
        let outcomes = match &self.rows {
            Some(rows) => self.insert(rows, &ready).await,
            None => self.send(&ready).await,
        };
        for ((index, ..), outcome) in ready.iter().zip(outcomes) {
            results[*index] = Some(outcome);
        }
        results.into_iter().flatten().collect()
    }

    async fn send(&self, ready: &[(usize, Envelope, Vec<u8>)]) -> Vec<Result<Accepted, ProduceError>> {
        let messages = ready
            .iter()
            .map(|(_, envelope, body)| {
                let mut message = submission(type_of(envelope), id_of(envelope), body.clone().into());
                message.headers.extend(envelope.trace.as_ref().into_iter().flat_map(trace_headers));
                message
            })
            .collect();
        let fates = self.broker.publish(messages).await;
        ready
            .iter()
            .zip(fates)
            .map(|((_, envelope, _), fate)| {
                let id = id_of(envelope).to_owned();
                match fate {
                    Published::Confirmed => Ok(Accepted { id, already: None }),
                    Published::Returned => {
                        Err(ProduceError::Unroutable { id, task_type: type_of(envelope).to_owned() })
                    }
                    Published::Nacked => {
                        Err(ProduceError::Unconfirmed { id, reason: "the broker refused it".to_owned() })
                    }
                    Published::Unconfirmed { reason } | Published::NotSent { reason } => {
                        Err(ProduceError::Unconfirmed { id, reason })
                    }
                }
            })
            .collect()
    }

    async fn insert(&self, rows: &Rows, ready: &[(usize, Envelope, Vec<u8>)]) -> Vec<Result<Accepted, ProduceError>> {
        let now = rows.store.now();
        let mut commands = Vec::with_capacity(ready.len());
        for (_, envelope, body) in ready {
            let origin = Origin {
                routing_key: type_of(envelope).to_owned(),
                trace: envelope.trace.clone(),
                ..Origin::default()
            };
            let queue_of = |task_type: &str| (rows.queue_of)(task_type);
            commands.push(
                match read_submission(body, &origin, body.len(), now, queue_of, || id_of(envelope).to_owned()) {
                    ReadSubmission::New(mut new) => {
                        new.publish = true;
                        Command::Submit(Box::new(new))
                    }
                    ReadSubmission::Refused(refusal) => Command::Refuse(refusal),
                },
            );
        }
        let answers = match rows.store.apply(Urgency::Normal, commands).await {
            Ok(answers) => answers,
            Err(error) => return ready.iter().map(|_| Err(error.clone().into())).collect(),
        };
        let mut wake_ups = Vec::new();
        let results = ready
            .iter()
            .zip(answers)
            .map(|((_, envelope, _), answer)| {
                let id = id_of(envelope).to_owned();
                match answer {
                    Answer::Publish(wake) => {
                        wake_ups.push(wake);
                        Ok(Accepted { id, already: None })
                    }
                    Answer::Duplicate { id, status } => Ok(Accepted { id, already: Some(status) }),
                    Answer::Refused(row) if row.state.dead_reason == Some(DeadReason::DuplicateConflict) => {
                        let with = row.spec.conflicts_with.clone().unwrap_or_default();
                        Err(ProduceError::Conflict { id, with })
                    }
                    Answer::Unprocessable { message } => Err(ProduceError::Unconfirmed { id, reason: message }),
                    _ => Ok(Accepted { id, already: None }),
                }
            })
            .collect();
        // Accepted is committed; a wake-up that nobody here takes (the worker is another process) leaves the row to be fed.
        let fates = self.broker.publish(wake_ups.iter().map(wake_up).collect()).await;
        let refused = wake_ups.into_iter().zip(fates).filter(|(_, fate)| *fate != Published::Confirmed);
        let commands: Vec<Command> = refused
            .map(|(wake, _)| Command::PublishFailed { id: wake.id, stamp: wake.stamp, sent_at: wake.route.sent_at })
            .collect();
        if !commands.is_empty()
            && let Err(error) = rows.store.apply(Urgency::Normal, commands).await
        {
            tracing::debug!(%error, "the rows are found late instead of at once");
        }
        results
    }
}

fn id_of(envelope: &Envelope) -> &str {
    envelope.id.as_deref().unwrap_or_default()
}

fn type_of(envelope: &Envelope) -> &str {
    envelope.task_type.as_deref().unwrap_or_default()
}
