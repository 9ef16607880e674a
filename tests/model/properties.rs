//! DESIGN §3 as properties, and what must have been seen for them to mean anything.

use stateright::Property;

use crate::model::Redeliver;
use crate::parts::Sight;
use crate::store::row_is_sound;
use crate::world::{Broken, World};

/// What holds in every state.
pub fn always() -> Vec<Property<Redeliver>> {
    vec![
        Property::always(
            "3: an unfinished row has an alarm, a dead one its copy or work open for it",
            |_, world: &World| world.rows.iter().flatten().all(row_is_sound),
        ),
        Property::always("4: an old fence changes nothing and fences only grow", |_, world: &World| {
            world.broken != Some(Broken::OldFence)
        }),
        Property::always("4: a refused command changes nothing", |_, world: &World| {
            world.broken != Some(Broken::RefusedButChanged)
        }),
        Property::always("5: retry_count only grows within a generation", |_, world: &World| {
            world.broken != Some(Broken::Stamp)
        }),
        Property::always("5: a message starts nothing but the stamp it carries", |_, world: &World| {
            world.broken != Some(Broken::WrongStamp)
        }),
        Property::always("5: at most max_retries + 1 attempts in a generation", |model: &Redeliver, world: &World| {
            world.history.iter().all(|history| history.attempts <= model.policy.max_retries + 1)
        }),
        Property::always("5: releases are bounded", |_, world: &World| {
            world.rows.iter().flatten().all(|row| row.releases <= crate::model::MAX_RELEASES)
        }),
        Property::always("6: a generation succeeds once", |_, world: &World| {
            world.history.iter().all(|history| history.successes <= 1)
        }),
        Property::always("6: no attempt starts after a success", |_, world: &World| {
            world.broken != Some(Broken::RanAfterSuccess)
        }),
        Property::always("6: what has succeeded or was stopped stays so", |_, world: &World| {
            world.broken != Some(Broken::Final)
        }),
        Property::always("2: an acked delivery leaves an alarm", |_, world: &World| {
            world.broken != Some(Broken::AckWithoutAlarm)
        }),
        Property::always("an alarm that rang lies ahead again", |_, world: &World| world.broken != Some(Broken::Storm)),
        Property::always("every task ends and the DLQ settles", |model: &Redeliver, world: &World| {
            world.broken.is_some() || model.fair_run_ends(world)
        }),
    ]
}

macro_rules! sometimes {
    ($wanted:expr, $($sight:ident),* $(,)?) => {
        [$((Sight::$sight, Property::sometimes(stringify!($sight), |model: &Redeliver, _: &World| model.saw(Sight::$sight)))),*]
            .into_iter()
            .filter(|(sight, _)| $wanted.contains(sight))
            .map(|(_, property)| property)
    };
}

/// What must have happened on the way; the condition looks at what steps have noted, not at the state.
fn sometimes(wanted: &[Sight]) -> impl Iterator<Item = Property<Redeliver>> {
    sometimes![
        wanted,
        SuccessAfterRetry,
        ReplayedSuccess,
        Exhausted,
        Permanent,
        StaleDropped,
        NotWaitingDropped,
        LeaseLost,
        SettleRefused,
        Late,
        Probe,
        LostByMark,
        LostByMissing,
        Early,
        Released,
        ReleasedTooOften,
        Returned,
        CopyMissing,
        CopyRemoved,
        CopyFound,
        Conflict,
        Duplicate,
        Deadline,
    ]
}

/// Everything that this part has to show.
pub fn all(model: &Redeliver) -> Vec<Property<Redeliver>> {
    always().into_iter().chain(sometimes(model.wants)).collect()
}
