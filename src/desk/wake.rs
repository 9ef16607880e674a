//! Publishing the wake-ups that the store's answers ask for, after the commit.
//!
//! Nothing depends on it: the row's alarm stands whatever becomes of the message. What fails is told to the store so that its alarm
//! need not wait for a judgement.

use std::sync::Arc;

use crate::broker::{Broker, Published, wake_up};
use crate::store::{Store, StoreError, Urgency};
use crate::task::{Answer, Command, WakeUp};

/// Sends wake-ups, or leaves them to the alarms where there is no broker to reach (`embedded` lives inside the worker).
pub struct Waker {
    store: Arc<dyn Store>,
    broker: Option<Arc<dyn Broker>>,
}

/// What became of a batch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Confirmed by the broker.
    pub confirmed: usize,
    /// Not confirmed: the store's alarms wake them.
    pub left_to_alarms: usize,
}

impl Waker {
    /// Wakes over `broker`; `None` leaves everything to the alarms.
    pub fn new(store: Arc<dyn Store>, broker: Option<Arc<dyn Broker>>) -> Waker {
        Waker { store, broker }
    }

    /// Publishes.
    ///
    /// # Errors
    /// When the store cannot be told what failed.
    pub async fn send(&self, wake_ups: &[WakeUp]) -> Result<Sent, StoreError> {
        let mut sent = Sent::default();
        if wake_ups.is_empty() {
            return Ok(sent);
        }
        let fates = match &self.broker {
            Some(broker) => broker.publish(wake_ups.iter().map(wake_up).collect()).await,
            None => vec![Published::NotSent { reason: "the broker is embedded in the worker".into() }; wake_ups.len()],
        };
        let mut commands = Vec::new();
        for (wake, fate) in wake_ups.iter().zip(fates) {
            match fate {
                Published::Confirmed => sent.confirmed += 1,
                // It may be there: the alarm judges.
                Published::Unconfirmed { .. } => sent.left_to_alarms += 1,
                Published::Returned | Published::Nacked | Published::NotSent { .. } => {
                    sent.left_to_alarms += 1;
                    commands.push(Command::PublishFailed {
                        id: wake.id.clone(),
                        stamp: wake.stamp,
                        sent_at: wake.route.sent_at,
                    });
                }
            }
        }
        if !commands.is_empty() {
            let answers = self.store.apply(Urgency::Normal, commands).await?;
            for answer in answers {
                // Anything but `Done` means that the row has moved on, which is as good.
                if let Answer::Unprocessable { message } = answer {
                    tracing::warn!(error = %message, "a row cannot be processed");
                }
            }
        }
        Ok(sent)
    }

    /// Whether unconfirmed wake-ups are worth a word: without a reachable broker they are the rule.
    pub fn has_broker(&self) -> bool {
        self.broker.is_some()
    }

    /// Closes the broker's session.
    pub async fn close(&self) {
        if let Some(broker) = &self.broker {
            broker.close().await;
        }
    }
}
