//! What is done when: a pure function of the seed and the length, so that a seed's plan can be printed, read, and run
//! again.
//!
//! It reads no clock and does nothing. That the same things are done at the same times is all it promises: what comes
//! of them hangs on the machine too.

use std::fmt;

use serde_json::{Value, json};

/// Milliseconds since the beginning of the run.
pub type Millis = u64;

/// How many workers run.
pub const WORKERS: usize = 3;
/// The lease of the workers: what lasts longer than this outlives one.
pub const LEASE_MS: Millis = 4_000;
/// Between two tasks that do not come together. With four in ten that do it makes 9 a second.
const LONGEST_GAP_MS: Millis = 370;
/// At the end of a plan nothing new is broken for so long.
const TAIL_MS: Millis = 1_000;

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub seed: u64,
    pub length: Millis,
    /// Faults of two hands that know nothing of each other, so that they overlap: broker and network, workers and
    /// store. Each hand does one after the other.
    pub hands: [Vec<Planned>; 2],
    /// How the third party is from when on.
    pub weather: Vec<(Millis, Weather)>,
    /// What producers send.
    pub work: Vec<Work>,
    /// What people and strangers do meanwhile.
    pub acts: Vec<(Millis, Act)>,
}

/// A fault and when it begins; later, when the one before it has not ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planned {
    pub at: Millis,
    pub fault: Fault,
}

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// SIGKILL, and a new worker in its place.
    Kill { worker: usize },
    /// SIGTERM, and a new worker when it has stopped.
    Restart { worker: usize },
    /// SIGSTOP for longer than its lease, then SIGCONT.
    Freeze { worker: usize, lasting: Millis },
    /// Another program holds the store's write lock.
    LockStore { lasting: Millis },
    /// The store's file system has no room left.
    FillDisk { lasting: Millis },
    /// The broker is stopped in an orderly way and started again.
    RestartBroker { away: Millis },
    /// All connections of a worker are closed.
    Cut { worker: usize },
    /// Nothing passes between a worker and the broker, and nothing is closed.
    BlackHole { worker: usize, lasting: Millis },
    /// Each piece between a worker and the broker takes its time.
    Slow { worker: usize, lasting: Millis, delay: Millis },
    /// The broker closes a worker's consuming channels.
    CloseChannels { worker: usize },
    /// Queues are deleted.
    DeleteQueues { which: Queues },
    /// Queues are purged.
    PurgeQueues { which: Queues },
    /// The virtual host is deleted and made again, empty.
    WipeVhost,
}

/// Which queues a fault is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    Lanes,
    Rungs,
    Dead,
    All,
}

impl Fault {
    /// Every kind there is.
    pub const KINDS: [&str; 13] = [
        "worker killed",
        "worker restarted",
        "worker stopped beyond its lease",
        "store locked",
        "disk full",
        "broker restarted",
        "connections cut",
        "connections black-holed",
        "connections slowed",
        "channels closed",
        "queues deleted",
        "queues purged",
        "virtual host wiped",
    ];

    /// Its kind, in words.
    pub fn kind(&self) -> &'static str {
        Fault::KINDS[match self {
            Fault::Kill { .. } => 0,
            Fault::Restart { .. } => 1,
            Fault::Freeze { .. } => 2,
            Fault::LockStore { .. } => 3,
            Fault::FillDisk { .. } => 4,
            Fault::RestartBroker { .. } => 5,
            Fault::Cut { .. } => 6,
            Fault::BlackHole { .. } => 7,
            Fault::Slow { .. } => 8,
            Fault::CloseChannels { .. } => 9,
            Fault::DeleteQueues { .. } => 10,
            Fault::PurgeQueues { .. } => 11,
            Fault::WipeVhost => 12,
        }]
    }

    /// Whether it may take submissions with it that have no row yet. Those are in the broker alone (DESIGN §1), and
    /// their producer has to send them again.
    pub fn loses_submissions(&self) -> bool {
        matches!(self, Fault::DeleteQueues { .. } | Fault::PurgeQueues { .. } | Fault::WipeVhost)
    }

    /// Whether RabbitMQ may leave queues behind that nobody stands behind (`Vhost::delete_shells`). What a wipe has done to one shows
    /// when the node starts the next time.
    pub fn leaves_shells(&self) -> bool {
        matches!(self, Fault::DeleteQueues { .. } | Fault::WipeVhost | Fault::RestartBroker { .. })
    }
}

/// How the third party is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Few calls fail.
    Fair,
    /// Nearly every call is answered 503.
    Failing,
    /// Most calls are answered 429 with a Retry-After.
    Limiting,
    /// Many calls are never answered.
    Silent,
    /// Many calls are answered 400.
    Refusing,
}

/// What is sent and when.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    pub at: Millis,
    /// The task's id, and what its message is called; of a conflict the latter alone.
    pub name: String,
    /// The task whose id a conflict claims.
    pub claims: Option<String>,
    pub door: Door,
    /// The type and routing key.
    pub topic: &'static str,
    /// A label that gates are about.
    pub shop: &'static str,
    /// How often the same is published; a producer that is unsure does that.
    pub times: usize,
}

/// By which way it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// A message in the envelope.
    Message,
    /// A message that is no task.
    Malformed,
    /// A message with the id of an earlier task, once that has a row, and another payload.
    Conflict,
    /// A row that another program inserts.
    Row,
}

impl Work {
    /// What is published or inserted.
    pub fn envelope(&self) -> Value {
        let id = self.claims.as_ref().unwrap_or(&self.name);
        // A payload of its own is what makes a claim of another's id a conflict.
        json!({"id": id, "type": self.topic, "labels": {"shop": self.shop}, "payload": {"order": self.name}})
    }
}

/// What else happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A person replays every dead letter that may be.
    Replay,
    /// A person discards a few.
    Discard,
    /// A person asks for a waiting task to run now.
    RunNow,
    /// Somebody publishes wake-ups of their own making.
    Forge,
}

/// Types of tasks, and out of a hundred how many are of each. What each is for stands beside its policy in `ground`.
const TOPICS: [(&str, u64); 8] = [
    ("chaos.steady", 26),
    ("chaos.jitter", 16),
    ("chaos.shop", 22),
    ("chaos.quote", 8),
    ("chaos.bulk.list", 14),
    ("chaos.again", 6),
    ("chaos.brief", 6),
    ("stray.unrouted", 2),
];
const SHOPS: [&str; 3] = ["amber", "basalt", "coral"];

impl Plan {
    /// The plan of this seed for a run of this length.
    pub fn of(seed: u64, length: Millis) -> Plan {
        let hands = [0, 1].map(|hand| faults(&mut Random::of(seed, 10 + hand), hand, length));
        Plan {
            seed,
            length,
            hands,
            weather: weather(&mut Random::of(seed, 2), length),
            work: work(&mut Random::of(seed, 3), seed, length),
            acts: acts(&mut Random::of(seed, 4), length),
        }
    }

    /// Every fault in it.
    pub fn faults(&self) -> impl Iterator<Item = &Planned> {
        self.hands.iter().flatten()
    }

    /// Whether it needs a broker of its own.
    pub fn stops_the_broker(&self) -> bool {
        self.faults().any(|planned| matches!(planned.fault, Fault::RestartBroker { .. }))
    }
}

fn faults(random: &mut Random, hand: u64, length: Millis) -> Vec<Planned> {
    let mut planned = Vec::new();
    // Every kind once before any comes again.
    let mut bag: Vec<u64> = Vec::new();
    let mut at = random.between(800, 2_500);
    while at + TAIL_MS < length {
        if bag.is_empty() {
            bag = if hand == 0 { (0..8).collect() } else { (0..5).collect() };
        }
        let kind = bag.swap_remove(random.index(bag.len()));
        let fault = if hand == 0 { at_the_broker(random, kind) } else { at_the_workers(random, kind) };
        planned.push(Planned { at, fault });
        at += lasts(&fault) + random.between(1_000, 4_000);
    }
    planned
}

fn at_the_broker(random: &mut Random, kind: u64) -> Fault {
    let worker = random.index(WORKERS);
    let which = [Queues::Lanes, Queues::Rungs, Queues::Dead, Queues::All][random.index(4)];
    match kind {
        0 => Fault::RestartBroker { away: random.between(500, 4_000) },
        1 => Fault::Cut { worker },
        2 => Fault::BlackHole { worker, lasting: random.between(2_000, 9_000) },
        3 => Fault::Slow { worker, lasting: random.between(2_000, 5_000), delay: random.between(50, 400) },
        4 => Fault::CloseChannels { worker },
        5 => Fault::DeleteQueues { which },
        6 => Fault::PurgeQueues { which },
        _ => Fault::WipeVhost,
    }
}

fn at_the_workers(random: &mut Random, kind: u64) -> Fault {
    let worker = random.index(WORKERS);
    match kind {
        0 => Fault::Kill { worker },
        1 => Fault::Restart { worker },
        2 => Fault::Freeze { worker, lasting: LEASE_MS + random.between(500, 3_000) },
        3 => Fault::LockStore { lasting: random.between(500, 2 * LEASE_MS) },
        _ => Fault::FillDisk { lasting: random.between(1_000, 5_000) },
    }
}

/// About how long it takes, for the plan's sake.
fn lasts(fault: &Fault) -> Millis {
    match fault {
        Fault::Freeze { lasting, .. }
        | Fault::LockStore { lasting }
        | Fault::FillDisk { lasting }
        | Fault::BlackHole { lasting, .. }
        | Fault::Slow { lasting, .. } => *lasting,
        Fault::RestartBroker { away } => away + 5_000,
        _ => 0,
    }
}

fn weather(random: &mut Random, length: Millis) -> Vec<(Millis, Weather)> {
    const BAD: [Weather; 4] = [Weather::Failing, Weather::Limiting, Weather::Silent, Weather::Refusing];
    let mut spells = vec![(0, Weather::Fair)];
    let mut at = random.between(1_000, 3_000);
    while at < length {
        spells.push((at, BAD[random.index(BAD.len())]));
        at += random.between(1_500, 5_000);
        spells.push((at, Weather::Fair));
        at += random.between(2_000, 7_000);
    }
    spells
}

fn work(random: &mut Random, seed: u64, length: Millis) -> Vec<Work> {
    let mut sent: Vec<Work> = Vec::new();
    let mut at = 0;
    while at < length {
        let number = sent.len();
        let mut piece = Work {
            at,
            name: format!("chaos-{seed}-{number}"),
            claims: None,
            door: Door::Message,
            topic: topic(random),
            shop: SHOPS[random.index(SHOPS.len())],
            times: 1,
        };
        match random.below(100) {
            0..6 => piece.times = 2,
            6..9 => piece.door = Door::Malformed,
            9..12 => {
                let earlier = sent.iter().rev().find(|work| work.door == Door::Message && work.at + 1_000 < at);
                if let Some(earlier) = earlier {
                    (piece.door, piece.topic, piece.shop) = (Door::Conflict, earlier.topic, earlier.shop);
                    piece.claims = Some(earlier.name.clone());
                }
            }
            12..22 => piece.door = Door::Row,
            _ => {}
        }
        sent.push(piece);
        // Now and then many at once: four in ten come together with the one before.
        at += if random.below(10) < 4 { 0 } else { random.between(1, LONGEST_GAP_MS) };
    }
    sent
}

fn topic(random: &mut Random) -> &'static str {
    let mut draw = random.below(TOPICS.iter().map(|(_, share)| share).sum());
    for (topic, share) in TOPICS {
        if draw < share {
            return topic;
        }
        draw -= share;
    }
    unreachable!("the draw is below the sum of the shares")
}

fn acts(random: &mut Random, length: Millis) -> Vec<(Millis, Act)> {
    let mut acts = Vec::new();
    let mut at = random.between(2_000, 4_000);
    while at < length {
        acts.push((at, [Act::Replay, Act::Forge, Act::Discard, Act::Replay, Act::RunNow][random.index(5)]));
        at += random.between(1_500, 5_000);
    }
    acts
}

/// A stream of numbers that is the same for a seed on every machine and with every version of every crate: `SplitMix64`
/// (Steele, Lea, Flood, Fast splittable pseudorandom number generators, OOPSLA 2014).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed and a purpose: what is added to one purpose moves nothing in another.
    pub fn of(seed: u64, purpose: u64) -> Random {
        Random(mix(mix(seed) ^ purpose))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `n`, which is at least 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// From `least` to below `end`.
    pub fn between(&mut self, least: u64, end: u64) -> u64 {
        least + self.below(end - least)
    }

    /// An index into so many.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("below a usize")
    }
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {} s, {} pieces of work", self.seed, self.length / 1_000, self.work.len())?;
        let mut lines: Vec<(Millis, String)> = Vec::new();
        lines.extend(self.faults().map(|planned| (planned.at, format!("fault    {:?}", planned.fault))));
        lines.extend(self.weather.iter().map(|(at, weather)| (*at, format!("weather  {weather:?}"))));
        lines.extend(self.acts.iter().map(|(at, act)| (*at, format!("act      {act:?}"))));
        lines.sort_by_key(|(at, _)| *at);
        for (at, line) in lines {
            writeln!(f, "{:>9.3} s  {line}", at as f64 / 1_000.0)?;
        }
        Ok(())
    }
}
