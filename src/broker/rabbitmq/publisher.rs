//! Publishes: pipelined, mandatory, persistent, confirmed.
//!
//! Every batch has a channel to itself for as long as it takes. So two batches never mix on a channel, and once every confirm
//! of a batch is in, so is every return of it: the broker sends a return before the confirm of the same message, and lapin
//! attaches each return to some confirm of the same channel, though not always to the right one. Who was returned is read from
//! the returned message, never from the confirm that carried it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation, Connection};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};

use super::keeper::Keeper;
use super::nodes::Nodes;
use super::session::Life;
use super::topology::is_not_found;
use super::wire::{self, Outgoing};
use crate::broker::{Message, Published, Target};

/// Messages of one batch that are out without a confirm. More gain nothing and cost the broker memory.
const WINDOW: usize = 1024;
/// Batches under way at once.
const CHANNELS: usize = 32;
/// So many batches in a row without one answer in their whole time: the broker works elsewhere, if at all.
const SILENT_BATCHES: u32 = 2;
/// How long an abandoned channel may take to close.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// The publishing half of a session.
pub(super) struct Publisher {
    connection: Arc<Connection>,
    namespace: String,
    life: Arc<Life>,
    confirm_timeout: Duration,
    /// Told when a message comes back.
    keeper: Option<Arc<Keeper>>,
    slots: Semaphore,
    idle: Mutex<Vec<Channel>>,
    nodes: Arc<Nodes>,
    /// Batches without any answer since the last answer.
    silent: AtomicU32,
}

/// What became of one message, before returns are looked at.
enum Answer {
    Confirmed(Option<BasicReturnMessage>),
    Nacked(Option<BasicReturnMessage>),
    Failed(lapin::Error),
}

impl Publisher {
    pub(super) fn new(
        connection: Arc<Connection>,
        namespace: String,
        life: Arc<Life>,
        confirm_timeout: Duration,
        keeper: Option<Arc<Keeper>>,
        nodes: Arc<Nodes>,
    ) -> Publisher {
        Publisher {
            connection,
            namespace,
            life,
            confirm_timeout,
            keeper,
            slots: Semaphore::new(CHANNELS),
            idle: Mutex::new(Vec::new()),
            nodes,
            silent: AtomicU32::new(0),
        }
    }

    /// Whether the broker stopped reading from us, because it is low on memory or disk.
    pub(super) fn blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Publishes all; by input index; done by `deadline`.
    pub(super) async fn publish(&self, messages: &[Message], deadline: Instant) -> Vec<Published> {
        let not_sent = |reason: &str| -> Vec<Published> {
            messages.iter().map(|_| Published::NotSent { reason: reason.to_owned() }).collect()
        };
        if self.blocked() {
            // What is handed to lapin now would go out when the alarm ends, long after we said it did not.
            return not_sent("the broker has blocked publishers: it is low on memory or disk");
        }
        let Ok(slot) = timeout_at(deadline, self.slots.acquire()).await else {
            return not_sent("every publishing channel is waiting for confirms");
        };
        let Ok(_slot) = slot else { return not_sent("the session ended") };
        let channel = match timeout_at(deadline, self.channel()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => {
                self.life.end(format!("a publishing channel could not be opened: {error}"));
                return not_sent(&error.to_string());
            }
            Err(_) => return not_sent("no publishing channel could be opened in time"),
        };
        let (results, settled) = self.publish_on(&channel, messages, deadline).await;
        self.listen(&results);
        if results.contains(&Published::Nacked) {
            // A quorum queue at its length limit tells each channel once that it is full, and the channel refuses from then on by itself. When the
            // limit is taken away, nobody tells it so (rabbitmq-server issue 12206): only a channel that was not told finds out.
            for channel in self.idle().drain(..).chain([channel]) {
                tokio::spawn(abandon(channel));
            }
        } else if settled {
            self.idle().push(channel);
        } else {
            // A late confirm or return on it would be taken for one of the next batch.
            tokio::spawn(abandon(channel));
        }
        results
    }

    /// A node that has lost its cluster's majority takes messages and never confirms one. Where there are other nodes the session
    /// moves on; not for one queue that is down, while others answer, and not when all nodes were found like that.
    fn listen(&self, results: &[Published]) {
        let answered =
            |result: &Published| matches!(result, Published::Confirmed | Published::Returned | Published::Nacked);
        if results.iter().any(answered) {
            self.silent.store(0, Ordering::Relaxed);
            self.nodes.useful();
        } else if results.iter().any(|result| matches!(result, Published::Unconfirmed { .. }))
            && self.silent.fetch_add(1, Ordering::Relaxed) + 1 >= SILENT_BATCHES
            && !self.blocked()
            && self.nodes.has_others()
        {
            self.life.end_elsewhere("it confirms nothing; it may have lost its cluster's majority".into());
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel in confirm mode on which nothing is under way.
    async fn channel(&self) -> lapin::Result<Channel> {
        let idle = self.idle().pop();
        if let Some(channel) = idle.filter(|channel| channel.status().connected()) {
            return Ok(channel);
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// The results, and whether nothing is left under way on `channel`.
    async fn publish_on(&self, channel: &Channel, messages: &[Message], deadline: Instant) -> (Vec<Published>, bool) {
        let mut results: Vec<Option<Published>> = messages.iter().map(|_| None).collect();
        let mut returns = Vec::new();
        let outgoing: Vec<Result<Outgoing, String>> =
            messages.iter().map(|message| wire::outgoing(&self.namespace, message)).collect();

        let mut waiting = outgoing.iter().zip(messages).enumerate();
        let mut sending = FuturesUnordered::new();
        let mut settled = true;
        loop {
            while sending.len() < WINDOW
                && let Some((index, (outgoing, message))) = waiting.next()
            {
                if let Ok(outgoing) = outgoing {
                    sending.push(send(index, channel, outgoing, message));
                }
            }
            match timeout_at(deadline, sending.next()).await {
                Ok(Some((index, answer))) => {
                    let (published, returned) = self.judge(answer, &outgoing[index], &messages[index]);
                    settled &= !matches!(published, Published::Unconfirmed { .. });
                    results[index] = Some(published);
                    returns.extend(returned);
                }
                Ok(None) => break,
                Err(_) => {
                    settled = false;
                    break;
                }
            }
        }
        // What is still in here was handed to lapin and has no answer; what was never pushed was not sent.
        let unsent = waiting.next().map_or(messages.len(), |(index, _)| index);
        drop(sending);
        let mut results: Vec<Published> = results
            .into_iter()
            .zip(&outgoing)
            .enumerate()
            .map(|(index, (result, outgoing))| match (result, outgoing) {
                (Some(result), _) => result,
                (None, Err(reason)) => Published::NotSent { reason: reason.clone() },
                (None, Ok(_)) if index >= unsent => Published::NotSent { reason: self.late() },
                (None, Ok(_)) => Published::Unconfirmed { reason: self.late() },
            })
            .collect();
        apply_returns(&mut results, &returns, &outgoing, messages, settled);
        let lost_of_ours =
            |(result, message): (&Published, &Message)| *result == Published::Returned && message.target.is_ours();
        if !returns.is_empty()
            && let Some(keeper) = &self.keeper
            && results.iter().zip(messages).any(lost_of_ours)
        {
            keeper.returned.notify_one();
        }
        (results, settled && channel.status().connected())
    }

    fn late(&self) -> String {
        format!("no confirm within {} s", self.confirm_timeout.as_secs_f32())
    }

    fn judge(
        &self,
        answer: Answer,
        outgoing: &Result<Outgoing, String>,
        message: &Message,
    ) -> (Published, Option<BasicReturnMessage>) {
        match answer {
            Answer::Confirmed(returned) => (Published::Confirmed, returned),
            Answer::Nacked(returned) => (Published::Nacked, returned),
            Answer::Failed(error) => {
                self.life.end(format!("publishing failed: {error}"));
                // A missing exchange closes the channel instead of returning the message; the others of the batch share the
                // channel's end but not the reason.
                let exchange = outgoing.as_ref().map_or("", |outgoing| outgoing.exchange.as_str());
                let is_missing = is_not_found(&error)
                    && !exchange.is_empty()
                    && error.to_string().contains(&format!("'{exchange}'"));
                // A returned event has been told to nobody who listens; one for which there was no exchange has not been told.
                if is_missing && !matches!(message.target, Target::Event { .. }) {
                    (Published::Returned, None)
                } else {
                    (Published::Unconfirmed { reason: error.to_string() }, None)
                }
            }
        }
    }
}

async fn send(index: usize, channel: &Channel, outgoing: &Outgoing, message: &Message) -> (usize, Answer) {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let sent = channel
        .basic_publish(
            outgoing.exchange.clone(),
            outgoing.routing_key.clone(),
            options,
            &message.body,
            outgoing.properties.clone(),
        )
        .await;
    let confirmed = match sent {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    let answer = match confirmed {
        Ok(Confirmation::Ack(returned)) => Answer::Confirmed(returned),
        Ok(Confirmation::Nack(returned)) => Answer::Nacked(returned),
        // Cannot be on a channel in confirm mode; if it were, nobody would have confirmed anything.
        Ok(Confirmation::NotRequested) => Answer::Nacked(None),
        Err(error) => Answer::Failed(error),
    };
    (index, answer)
}

/// Marks the messages that came back.
fn apply_returns(
    results: &mut [Published],
    returns: &[BasicReturnMessage],
    outgoing: &[Result<Outgoing, String>],
    messages: &[Message],
    settled: bool,
) {
    if returns.is_empty() {
        return;
    }
    let mut by_id: HashMap<&str, Vec<usize>> = HashMap::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        by_id.entry(&message.message_id).or_default().push(index);
    }
    let mut unclear = !settled;
    for returned in returns {
        let delivery = &returned.delivery;
        let id = delivery.properties.message_id().as_ref().map_or("", |id| id.as_str());
        let mut named = false;
        for &index in by_id.get(id).into_iter().flatten() {
            let Ok(outgoing) = &outgoing[index] else { continue };
            if outgoing.exchange == delivery.exchange && outgoing.routing_key == delivery.routing_key {
                debug!(message_id = id, routing_key = %delivery.routing_key, "message returned: {}", returned.reply_text);
                results[index] = Published::Returned;
                named = true;
            }
        }
        if !named {
            warn!(message_id = id, routing_key = %delivery.routing_key, "a returned message belongs to no publish of its batch");
            unclear = true;
        }
    }
    if unclear {
        for result in results.iter_mut().filter(|result| **result == Published::Confirmed) {
            *result =
                Published::Unconfirmed { reason: "messages of its batch came back and not all were told apart".into() };
        }
    }
}

async fn abandon(channel: Channel) {
    // Nobody waits for it, and a channel that cannot close goes down with its connection.
    if timeout(CLOSE_LIMIT, channel.close(200, "abandoned".into())).await.is_err() {
        debug!("an abandoned channel did not close in time");
    }
}
