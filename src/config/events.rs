//! `[events]`: what other services are told of tasks.

use super::raw::RawEvents;
use super::source::Layers;
use super::value::Topics;
use crate::policy::TopicPattern;
use crate::task::{Announced, Happening};

/// `[events]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventsConfig {
    /// What is published.
    pub publish: Announced,
    /// Whether an event carries the task's payload.
    pub payload: bool,
    /// Whether the event of a success carries its result.
    pub result: bool,
}

pub(super) fn events(raw: RawEvents, layers: &mut Layers<'_, '_, '_>) -> EventsConfig {
    let topics = layers.scalar("events.publish", raw.publish, Topics(Vec::new()), |topics| read(topics).map(drop));
    let payload = layers.scalar("events.payload", raw.payload, false, |_| Ok(()));
    let result = layers.scalar("events.result", raw.result, false, |_| Ok(()));
    EventsConfig { publish: read(&topics).unwrap_or_default(), payload, result }
}

/// The happenings that the patterns match; a pattern that matches none is a mistake.
fn read(topics: &Topics) -> Result<Announced, String> {
    let mut chosen = Vec::new();
    for text in &topics.0 {
        let pattern = TopicPattern::new(text).map_err(|error| format!("{text:?} {error}"))?;
        let matching = Happening::ALL.into_iter().filter(|happening| pattern.matches(happening.topic()));
        let before = chosen.len();
        chosen.extend(matching);
        if chosen.len() == before {
            let known = Happening::ALL.map(Happening::topic).join(", ");
            return Err(format!("expected some of {known}, or patterns of them such as \"task.#\", found {text:?}"));
        }
    }
    Ok(chosen.into_iter().collect())
}
