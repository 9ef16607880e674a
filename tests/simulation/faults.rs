//! What may go wrong in a run. Each run has some kinds of faults and not others, each more or less often: where everything goes wrong all
//! the time nothing comes far enough to go wrong in an interesting way.

use rand::RngExt;
use rand::rngs::SmallRng;

/// Likelihoods at each occasion; 0: never in this run.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    // A step is a moment before or after any call of a port.
    /// The process dies at a step.
    pub death: f64,
    /// The whole process stands still from a step on, often for longer than its lease.
    pub stall: f64,
    /// A call takes a while.
    pub slow: f64,
    /// A call of the store fails and nothing is committed.
    pub refused: f64,
    /// A call of the store is committed, or not, and nobody is told.
    pub untold: f64,
    /// A question to the store fails.
    pub unanswered: f64,
    /// A published message is lost after its confirm.
    pub lost: f64,
    /// A published message arrives twice.
    pub doubled: f64,
    /// A published message arrives late, and so out of order.
    pub late: f64,
    /// A publish comes back, is refused, or is not sent.
    pub unpublished: f64,
    /// Nobody is told whether a publish worked.
    pub unconfirmed: f64,
    /// A session is cut at an ack, which is lost, or at a delivery.
    pub cut: f64,
    /// A call about queues fails.
    pub unasked: f64,
    /// What happens to all at once, at each turn of the one who makes mischief.
    pub outages: bool,
    pub queue_losses: bool,
    pub clock_jumps: bool,
    pub restarts: bool,
    pub reloads: bool,
    /// Handlers that hang, panic, ignore being cancelled.
    pub wild_handlers: f64,
}

impl Faults {
    pub fn drawn(chance: &mut SmallRng) -> Faults {
        let mut some = |most: f64| {
            if chance.random::<f64>() < 0.45 { most * chance.random::<f64>().powi(2) } else { 0.0 }
        };
        let mut faults = Faults {
            death: some(0.004),
            stall: some(0.003),
            slow: some(0.2),
            refused: some(0.15),
            untold: some(0.1),
            unanswered: some(0.05),
            lost: some(0.4),
            doubled: some(0.5),
            late: some(0.5),
            unpublished: some(0.3),
            unconfirmed: some(0.2),
            cut: some(0.1),
            unasked: some(0.3),
            wild_handlers: some(0.5),
            ..Faults::default()
        };
        let mut sometimes = |likelihood: f64| chance.random::<f64>() < likelihood;
        faults.outages = sometimes(0.3);
        faults.queue_losses = sometimes(0.3);
        faults.clock_jumps = sometimes(0.2);
        faults.restarts = sometimes(0.4);
        faults.reloads = sometimes(0.3);
        faults
    }
}
