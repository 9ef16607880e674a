//! The rules in force: policies, gates and routes, replaced as one while the worker runs (X2).
//!
//! Whoever claims or decides takes the rules once and uses them to the end of that step, so no step sees half of a change. A running
//! attempt keeps its handler. What needs other connections or other places (broker, store, queues, concurrency) is not here: it
//! holds until the next start.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::broker::{Broker, Topology};
use crate::config::{Config, QueueConfig};
use crate::gate::Gates;
use crate::handler::{Caps, Handler, Route, Webhook};
use crate::policy::{Policies, Policy};
use crate::store::Urgency;
use crate::task::{Answer, Claimant, Command, Millis, Spec, Spot};
use crate::telemetry::Event;

use super::plan::{RouteError, make_routes};
use super::{Plan, Shared};

/// How long a declaration that failed waits for its next try.
const DECLARE_AGAIN: Duration = Duration::from_secs(1);

/// What can be replaced while a worker runs.
#[derive(Debug, Clone)]
pub struct RuleSet {
    /// Retry rules.
    pub policies: Policies,
    /// What can stop a due task.
    pub gates: Arc<Gates>,
    /// Who runs which type; first match wins.
    pub routes: Vec<Route>,
    /// Who is told when something is wrong.
    pub webhooks: Arc<Vec<Webhook>>,
}

impl RuleSet {
    /// The rules of a configuration.
    ///
    /// # Errors
    /// When a route's handler cannot be made.
    pub fn new(config: &Config) -> Result<RuleSet, RouteError> {
        let caps = Caps { body: config.worker.max_body, ..Caps::default() };
        Ok(RuleSet::with_routes(config, make_routes(config, caps)?))
    }

    /// The rules of a configuration with these routes instead of the configuration's: a library user's own handlers.
    pub fn with_routes(config: &Config, routes: Vec<Route>) -> RuleSet {
        // A task's route is found among the routes that run; caps are the configuration's.
        let types = routes.iter().map(|route| route.task_type.clone()).collect();
        let gates = Arc::new(Gates { routes: types, ..config.gates.clone() });
        RuleSet { policies: config.policies.clone(), gates, routes, webhooks: Arc::new(config.webhooks.clone()) }
    }
}

/// The rules in force.
pub(crate) struct Rules {
    policies: Arc<Policies>,
    routes: Vec<Route>,
    /// Who is told when something is wrong.
    pub webhooks: Arc<Vec<Webhook>>,
    /// The delays that the broker holds for certain: those of the policies that are declared. Empty when it holds none.
    pub rungs: BTreeSet<Millis>,
    /// Every broker object of the installation as these rules need it.
    pub topology: Arc<Topology>,
    /// This worker, with what it can run and what may stop it.
    pub claimant: Claimant,
    /// See [`crate::config::Config::rules_digest`].
    pub digest: String,
}

impl Rules {
    pub fn policy_of(&self, spec: &Spec, now: Millis) -> Arc<Policy> {
        Arc::clone(self.policies.pick(&spec.task_type, &spec.labels, now))
    }

    /// Whether some policy lets letters replay themselves.
    pub fn replay_letters(&self) -> bool {
        self.policies.rules().iter().any(|policy| !policy.replay_after_ms.is_empty())
    }

    pub fn handler_of(&self, task_type: &str) -> Option<Arc<dyn Handler>> {
        self.routes.iter().find(|route| route.task_type.matches(task_type)).map(|route| Arc::clone(&route.handler))
    }
}

/// What the rules of a worker are made from, besides the rules themselves.
pub(crate) struct Ground {
    worker: String,
    namespace: String,
    queues: Vec<QueueConfig>,
    /// Whether the broker can hold waits at all.
    holds_waits: bool,
    /// Whether events are published.
    tells: bool,
    /// The rungs that this process has seen declared.
    declared: Mutex<BTreeSet<Millis>>,
}

impl Ground {
    /// The ground of a worker, and its first rules, whose rungs the first session declares.
    pub fn new(plan: &Plan, worker: &str, broker: &dyn Broker) -> (Ground, Rules) {
        let ground = Ground {
            worker: worker.to_owned(),
            namespace: plan.topology.namespace.clone(),
            queues: plan.queues.clone(),
            holds_waits: broker.holds_waits(),
            tells: plan.topology.has_events(),
            declared: Mutex::new(plan.policies.rungs()),
        };
        let set = RuleSet {
            policies: plan.policies.clone(),
            gates: Arc::clone(&plan.gates),
            routes: plan.routes.clone(),
            webhooks: Arc::clone(&plan.webhooks),
        };
        let rules = Rules { topology: Arc::new(plan.topology.clone()), ..ground.rules(set) };
        (ground, rules)
    }

    fn rules(&self, set: RuleSet) -> Rules {
        let RuleSet { policies, gates, routes, webhooks } = set;
        let policies = Arc::new(policies);
        let wanted = policies.rungs();
        let queues: Vec<_> = self.queues.iter().map(|queue| (queue.name.clone(), queue.types.clone())).collect();
        let topology = Topology::new(&self.namespace, &queues, &wanted);
        Rules {
            rungs: if self.holds_waits {
                self.declared().intersection(&wanted).copied().collect()
            } else {
                BTreeSet::new()
            },
            topology: Arc::new(if self.tells { topology.with_events() } else { topology }),
            claimant: Claimant {
                worker: self.worker.clone(),
                serves: Some(routes.iter().map(|route| route.task_type.clone()).collect()),
                gates: Arc::clone(&gates),
                policies: Some(Arc::clone(&policies)),
            },
            digest: crate::config::digest(&policies, &gates.limits, &gates.breakers),
            routes,
            policies,
            webhooks,
        }
    }

    fn declared(&self) -> std::sync::MutexGuard<'_, BTreeSet<Millis>> {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// The rules in force. Taken once for each step.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// Puts other rules in force, at once: the next claim and the next decision go by them. New rungs are used once the broker has
    /// declared them; until then the store holds their waits.
    ///
    /// Returns the digest of what is in force now, and whether anything but handlers has changed.
    pub fn put_in_force(self: &Arc<Self>, set: RuleSet) -> (String, bool) {
        let rules = self.ground.rules(set);
        let digest = rules.digest.clone();
        let before = self.rules.swap(Arc::new(rules));
        // What a gate held that is no more, or is wider now, may start.
        self.gate_moved.notify_one();
        self.nudge.notify_one();
        if self.ground.holds_waits {
            let shared = Arc::clone(self);
            self.tracker.spawn(async move { shared.declare_rungs().await });
        }
        let changed = before.digest != digest;
        (digest, changed)
    }

    /// Declares what the rules in force need and the broker may not have, again and again until it has it or other rules are in force.
    async fn declare_rungs(self: Arc<Self>) {
        let rules = self.rules();
        let wanted = rules.claimant.policies.as_ref().map(|policies| policies.rungs()).unwrap_or_default();
        // The session declares them from now on, also after the broker has lost them.
        self.broker.keep(Arc::clone(&rules.topology));
        while Arc::ptr_eq(&rules, &self.rules()) && rules.rungs != wanted {
            match self.declare(&rules, &wanted).await {
                Ok(()) => {
                    self.ground.declared().extend(&wanted);
                    let whole = Rules {
                        policies: Arc::clone(&rules.policies),
                        webhooks: Arc::clone(&rules.webhooks),
                        routes: rules.routes.clone(),
                        rungs: wanted.clone(),
                        topology: Arc::clone(&rules.topology),
                        claimant: rules.claimant.clone(),
                        digest: rules.digest.clone(),
                    };
                    // Only if nobody has put others in force meanwhile: theirs know which rungs they may use.
                    self.rules.compare_and_swap(&rules, Arc::new(whole));
                    return;
                }
                Err(reason) => {
                    tracing::warn!(
                        reason,
                        "cannot declare new delay queues; the store holds their waits until it works"
                    );
                }
            }
            tokio::select! {
                biased;
                () = self.stop_all.cancelled() => return,
                () = tokio::time::sleep(DECLARE_AGAIN) => {}
            }
        }
    }

    /// As wherever something is declared: what is missing is written to the store first, because a new queue looks like one that has
    /// delivered everything, and an older configuration may have had wake-ups in it.
    async fn declare(&self, rules: &Rules, wanted: &BTreeSet<Millis>) -> Result<(), String> {
        let new = |spot: &Spot| matches!(spot, Spot::Rung { delay_ms, .. } if wanted.contains(delay_ms) && !rules.rungs.contains(delay_ms));
        let spots: Vec<Spot> = rules.topology.spots().into_iter().filter(new).collect();
        let missing = self.broker.missing(&rules.topology, &spots).await.map_err(|error| error.to_string())?;
        if !missing.is_empty() {
            let count = missing.len();
            let commands = missing.into_iter().map(|spot| Command::Missing { spot }).collect();
            let _: Vec<Answer> =
                self.store.apply(Urgency::Normal, commands).await.map_err(|error| error.to_string())?;
            self.observers.emit(&Event::SpotsMissing { count });
        }
        self.broker.declare(&rules.topology).await.map_err(|error| error.to_string())
    }
}
