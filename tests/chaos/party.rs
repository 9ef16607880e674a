//! The third party: what it answers hangs on the weather, and it writes down every call and its answer. Its log is what
//! the store's word is held against.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::plan::{Plan, Random, Weather};
use crate::third_party::{Arrival, Reply, ThirdParty};

/// One call and what it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Milliseconds since the epoch.
    pub at: i64,
    pub task: String,
    pub retry_count: i64,
    pub key: String,
    pub answer: Answer,
}

/// What a call was answered; whether anybody was there to hear it is not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Done: the effect is there.
    Done,
    Status(u16),
    /// None, while anybody waits.
    Silence,
}

/// See the module.
pub struct Party {
    server: ThirdParty,
    inner: Arc<Inner>,
}

struct Inner {
    seed: u64,
    weather: Mutex<Weather>,
    log: Mutex<Vec<Call>>,
    /// How often each task has come.
    visits: Mutex<HashMap<String, u64>>,
}

impl Party {
    /// One that is fair.
    pub async fn start(plan: &Plan) -> Party {
        let inner = Arc::new(Inner {
            seed: plan.seed,
            weather: Mutex::new(Weather::Fair),
            log: Mutex::default(),
            visits: Mutex::default(),
        });
        let answering = Arc::clone(&inner);
        Party { server: ThirdParty::start(move |arrival| answering.answer(arrival)).await, inner }
    }

    /// Where it is called.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// From now on it is like this.
    pub fn turns(&self, weather: Weather) {
        *lock(&self.inner.weather) = weather;
    }

    /// Every call there was, in order.
    pub fn log(&self) -> Vec<Call> {
        lock(&self.inner.log).clone()
    }
}

impl Inner {
    fn answer(&self, arrival: &Arrival) -> Reply {
        let weather = *lock(&self.weather);
        let visit = {
            let mut visits = lock(&self.visits);
            let count = visits.entry(arrival.task.clone()).or_default();
            *count += 1;
            *count
        };
        // What becomes of a task's n-th visit in some weather is the seed's choice; which weather it meets is not.
        let words = arrival.task.bytes().fold(visit, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut random = Random::of(self.seed, 1_000 + words);
        let draw = random.below(100);
        let takes = Duration::from_millis(random.between(30, 400));
        let (answer, reply) = match (weather, draw) {
            (Weather::Fair, 0..5) | (Weather::Failing, 0..90) => (Answer::Status(503), Reply::refusal()),
            (Weather::Limiting, 0..70) => (Answer::Status(429), Reply::slow_down(if draw < 35 { "1" } else { "2" })),
            (Weather::Silent, 0..50) => (Answer::Silence, Reply::silence()),
            (Weather::Fair, 5..7) | (Weather::Refusing, 0..40) => (Answer::Status(400), Reply::unwelcome()),
            _ => (Answer::Done, Reply::good()),
        };
        lock(&self.log).push(Call {
            at: arrival.at,
            task: arrival.task.clone(),
            retry_count: arrival.retry_count,
            key: arrival.key.clone(),
            answer,
        });
        if answer == Answer::Silence { reply } else { reply.after(takes) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
